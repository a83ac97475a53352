--TEST--
ephpm_kv_incr(): empty and overlong keys throw, nothing is counted
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

attempt(fn() => ephpm_kv_incr(""));
attempt(fn() => ephpm_kv_incr("", PHP_INT_MAX));
attempt(fn() => ephpm_kv_incr(str_repeat("k", 1025)));
attempt(fn() => ephpm_kv_incr());
attempt(fn() => ephpm_kv_incr("k", 1, 2));
attempt(fn() => ephpm_kv_incr("k", by: "many"));
attempt(fn() => ephpm_kv_incr("k", step: 1));
var_dump(ephpm_kv_info()["entries"]);
?>
--EXPECT--
ValueError: ephpm_kv_incr(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_incr(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_incr(): Argument #1 ($key) must be at most 1024 bytes long
ArgumentCountError: ephpm_kv_incr() expects at least 1 argument, 0 given
ArgumentCountError: ephpm_kv_incr() expects at most 2 arguments, 3 given
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, string given
Error: Unknown named parameter $step
int(0)
