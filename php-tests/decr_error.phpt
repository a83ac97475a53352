--TEST--
ephpm_kv_decr(): PHP_INT_MIN has no opposite
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

attempt(fn() => ephpm_kv_decr("n", PHP_INT_MIN));
attempt(fn() => ephpm_kv_exists("n"));
attempt(fn() => ephpm_kv_decr("", PHP_INT_MIN));
attempt(fn() => ephpm_kv_decr());
ephpm_kv_set("low", (string) PHP_INT_MIN);
attempt(fn() => ephpm_kv_decr("low"));
attempt(fn() => ephpm_kv_decr("low", -1) === PHP_INT_MIN + 1);
?>
--EXPECTF--
Warning: ephpm_kv_decr(): key "n": the result would overflow a 64-bit integer in %s on line %d
bool(false)
bool(false)
ValueError: ephpm_kv_decr(): Argument #1 ($key) must not be empty
ArgumentCountError: ephpm_kv_decr() expects at least 1 argument, 0 given

Warning: ephpm_kv_decr(): key "low": the result would overflow a 64-bit integer in %s on line %d
bool(false)
bool(true)
