--TEST--
ephpm_kv_expire(): a negative TTL throws and keeps the deadline
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

ephpm_kv_incr_ttl("k", 5, 60);
attempt(fn() => ephpm_kv_expire("k", -1));
attempt(fn() => ephpm_kv_expire("k", -0.5));
attempt(fn() => ephpm_kv_expire("k", NAN));
attempt(fn() => ephpm_kv_expire("k", INF));
attempt(fn() => ephpm_kv_expire("k", 1e300));
attempt(fn() => ephpm_kv_expire("", 1));
attempt(fn() => ephpm_kv_expire("k"));
attempt(fn() => ephpm_kv_expire("k", "soon"));
var_dump(ephpm_kv_ttl("k"), ephpm_kv_get("k"));
attempt(fn() => ephpm_kv_expire("k", -0.0));
var_dump(ephpm_kv_ttl("k"));
?>
--EXPECT--
ValueError: ephpm_kv_expire(): Argument #2 ($ttl) must be greater than or equal to 0
ValueError: ephpm_kv_expire(): Argument #2 ($ttl) must be greater than or equal to 0
ValueError: ephpm_kv_expire(): Argument #2 ($ttl) must be finite
ValueError: ephpm_kv_expire(): Argument #2 ($ttl) must be finite
ValueError: ephpm_kv_expire(): Argument #2 ($ttl) must be at most 315576000 seconds
ValueError: ephpm_kv_expire(): Argument #1 ($key) must not be empty
ArgumentCountError: ephpm_kv_expire() expects exactly 2 arguments, 1 given
TypeError: ephpm_kv_expire(): Argument #2 ($ttl) must be of type int|float, string given
int(60)
string(1) "5"
bool(true)
int(-1)
