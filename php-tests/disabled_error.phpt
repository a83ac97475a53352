--TEST--
ephpm_kv.enabled=0: wrong arguments still throw
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.enabled=off
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
attempt(fn() => ephpm_kv_incr_ttl("k", 1, -1));
attempt(fn() => ephpm_kv_set("k", "v", NAN));
attempt(fn() => ephpm_kv_incr_multi(["k" => "v"]));
attempt(fn() => ephpm_kv_decr("k", PHP_INT_MIN));
?>
--EXPECT--
ValueError: ephpm_kv_incr(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
ValueError: ephpm_kv_set(): Argument #3 ($ttl) must be finite
TypeError: ephpm_kv_incr_multi(): Argument #1 ($deltas) must contain only values of type int, string given for key "k"
bool(false)
