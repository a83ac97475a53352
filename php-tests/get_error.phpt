--TEST--
ephpm_kv_get(), exists, ttl, pttl, del, owner: keys that are none
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

foreach (["get", "exists", "ttl", "pttl", "del", "owner"] as $name) {
    attempt(fn() => "ephpm_kv_$name"(""));
    attempt(fn() => "ephpm_kv_$name"(str_repeat("k", 1025)));
    attempt(fn() => "ephpm_kv_$name"([]));
    attempt(fn() => "ephpm_kv_$name"("a", "b"));
}
?>
--EXPECT--
ValueError: ephpm_kv_get(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_get(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_get(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_get() expects exactly 1 argument, 2 given
ValueError: ephpm_kv_exists(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_exists(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_exists(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_exists() expects exactly 1 argument, 2 given
ValueError: ephpm_kv_ttl(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_ttl(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_ttl(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_ttl() expects exactly 1 argument, 2 given
ValueError: ephpm_kv_pttl(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_pttl(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_pttl(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_pttl() expects exactly 1 argument, 2 given
ValueError: ephpm_kv_del(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_del(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_del(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_del() expects exactly 1 argument, 2 given
ValueError: ephpm_kv_owner(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_owner(): Argument #1 ($key) must be at most 1024 bytes long
TypeError: ephpm_kv_owner(): Argument #1 ($key) must be of type string, array given
ArgumentCountError: ephpm_kv_owner() expects exactly 1 argument, 2 given
