--TEST--
ephpm_kv_set(): wrong arguments throw and change nothing
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.value_max=2K
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

attempt(fn() => ephpm_kv_set("", "v"));
attempt(fn() => ephpm_kv_set(str_repeat("k", 1025), "v"));
attempt(fn() => ephpm_kv_set("k", str_repeat("v", 2049)));
attempt(fn() => ephpm_kv_set("k", "v", -1));
attempt(fn() => ephpm_kv_set("k", "v", NAN));
attempt(fn() => ephpm_kv_set("k", "v", 1e300));
attempt(fn() => ephpm_kv_set("k", []));
attempt(fn() => ephpm_kv_set("k"));
var_dump(ephpm_kv_exists("k"));
attempt(fn() => ephpm_kv_set("k", str_repeat("v", 2048)));
?>
--EXPECT--
ValueError: ephpm_kv_set(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_set(): Argument #1 ($key) must be at most 1024 bytes long
ValueError: ephpm_kv_set(): Argument #2 ($value) must be at most 2048 bytes long
ValueError: ephpm_kv_set(): Argument #3 ($ttl) must be greater than or equal to 0
ValueError: ephpm_kv_set(): Argument #3 ($ttl) must be finite
ValueError: ephpm_kv_set(): Argument #3 ($ttl) must be at most 315576000 seconds
TypeError: ephpm_kv_set(): Argument #2 ($value) must be of type string, array given
ArgumentCountError: ephpm_kv_set() expects at least 2 arguments, 1 given
bool(false)
bool(true)
