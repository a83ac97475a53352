--TEST--
ephpm_kv_incr_by(): the delta is required
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

attempt(fn() => ephpm_kv_incr_by("n", 5));
attempt(fn() => ephpm_kv_incr_by("n", -7));
attempt(fn() => ephpm_kv_incr_by("n", "2"));
attempt(fn() => ephpm_kv_incr_by("n"));
attempt(fn() => ephpm_kv_incr_by("", 1));
attempt(fn() => ephpm_kv_incr_by("n", PHP_INT_MIN) === PHP_INT_MIN);
attempt(fn() => ephpm_kv_incr_by("n", -1));
?>
--EXPECTF--
int(5)
int(-2)
int(0)
ArgumentCountError: ephpm_kv_incr_by() expects exactly 2 arguments, 1 given
ValueError: ephpm_kv_incr_by(): Argument #1 ($key) must not be empty
bool(true)

Warning: ephpm_kv_incr_by(): key "n": the result would overflow a 64-bit integer in %s on line %d
bool(false)
