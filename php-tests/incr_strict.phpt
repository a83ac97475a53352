--TEST--
Arguments under strict_types
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
declare(strict_types=1);

function attempt(callable $call): void
{
    try {
        var_dump($call());
    } catch (Throwable $e) {
        echo get_class($e), ": ", $e->getMessage(), "\n";
    }
}

attempt(fn() => ephpm_kv_incr(12));
attempt(fn() => ephpm_kv_incr("k", "5"));
attempt(fn() => ephpm_kv_incr("k", 5.0));
attempt(fn() => ephpm_kv_incr(null));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, "60"));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, true));
attempt(fn() => ephpm_kv_set("k", 5));
attempt(fn() => ephpm_kv_expire("k", null));
attempt(fn() => ephpm_kv_incr_multi([], "60"));
attempt(fn() => ephpm_kv_incr_ttl("k", 1, 60.5));
?>
--EXPECTF--
TypeError: ephpm_kv_incr(): Argument #1 ($key) must be of type string, int given
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, string given
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, float given
TypeError: ephpm_kv_incr(): Argument #1 ($key) must be of type string, null given
TypeError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be of type int|float, string given
TypeError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be of type int|float, %r(bool|true)%r given
TypeError: ephpm_kv_set(): Argument #2 ($value) must be of type string, int given
TypeError: ephpm_kv_expire(): Argument #2 ($ttl) must be of type int|float, null given
TypeError: ephpm_kv_incr_multi(): Argument #2 ($ttl) must be of type int|float|null, string given
int(1)
