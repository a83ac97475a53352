--TEST--
ephpm_kv_incr_ttl(): TTLs that are none
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
function attempt(callable $call): void
{
    try {
        var_dump($call());
    } catch (Throwable $e) {
        echo get_class($e), ": ", $e->getMessage(), "\n";
    }
}

foreach ([0, 0.0, -0.0, -1, -0.001, NAN, INF, -INF, 1e300, -1e300, 315576001, PHP_INT_MAX, PHP_INT_MIN] as $ttl) {
    attempt(fn() => ephpm_kv_incr_ttl("k", 1, $ttl));
}
attempt(fn() => ephpm_kv_incr_ttl("", 1, 0));
attempt(fn() => ephpm_kv_incr_ttl("k", 1));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, "soon"));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, []));
var_dump(ephpm_kv_exists("k"));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, 315576000));
?>
--EXPECT--
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be finite
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be finite
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be finite
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be at most 315576000 seconds
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be at most 315576000 seconds
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be at most 315576000 seconds
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_ttl(): Argument #1 ($key) must not be empty
ArgumentCountError: ephpm_kv_incr_ttl() expects exactly 3 arguments, 2 given
TypeError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be of type int|float, string given
TypeError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be of type int|float, array given
bool(false)
int(1)
