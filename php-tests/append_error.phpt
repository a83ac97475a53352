--TEST--
ephpm_kv_append(): what is too long is refused and changes nothing
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

attempt(fn() => ephpm_kv_append("", "v"));
attempt(fn() => ephpm_kv_append("k", str_repeat("v", 2049)));
attempt(fn() => ephpm_kv_append("k"));
attempt(fn() => ephpm_kv_append("k", []));
attempt(fn() => ephpm_kv_append("k", str_repeat("v", 2047)));
attempt(fn() => ephpm_kv_append("k", "xx"));
attempt(fn() => strlen(ephpm_kv_get("k")));
attempt(fn() => ephpm_kv_append("k", "x"));
?>
--EXPECTF--
ValueError: ephpm_kv_append(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_append(): Argument #2 ($value) must be at most 2048 bytes long
ArgumentCountError: ephpm_kv_append() expects exactly 2 arguments, 1 given
TypeError: ephpm_kv_append(): Argument #2 ($value) must be of type string, array given
int(2047)

Warning: ephpm_kv_append(): key "k": the value is longer than ephpm_kv.value_max in %s on line %d
bool(false)
int(2047)
int(2048)
