--TEST--
ephpm_kv_incr_multi(): everything is checked before anything changes
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

$long = str_repeat("k", 1025);
attempt(fn() => ephpm_kv_incr_multi(["a" => 1, "b" => "2"]));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1, "b" => 2.0]));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1, 5 => null]));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1, "" => 1]));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1, $long => 1]));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1], 0));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1], -1));
attempt(fn() => ephpm_kv_incr_multi(["a" => 1], NAN));
attempt(fn() => ephpm_kv_incr_multi("a"));
attempt(fn() => ephpm_kv_incr_multi());
var_dump(ephpm_kv_exists("a"));
?>
--EXPECT--
TypeError: ephpm_kv_incr_multi(): Argument #1 ($deltas) must contain only values of type int, string given for key "b"
TypeError: ephpm_kv_incr_multi(): Argument #1 ($deltas) must contain only values of type int, float given for key "b"
TypeError: ephpm_kv_incr_multi(): Argument #1 ($deltas) must contain only values of type int, null given for key "5"
ValueError: ephpm_kv_incr_multi(): Argument #1 ($deltas) keys must not be empty
ValueError: ephpm_kv_incr_multi(): Argument #1 ($deltas) keys must be at most 1024 bytes long
ValueError: ephpm_kv_incr_multi(): Argument #2 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_multi(): Argument #2 ($ttl) must be greater than 0
ValueError: ephpm_kv_incr_multi(): Argument #2 ($ttl) must be finite
TypeError: ephpm_kv_incr_multi(): Argument #1 ($deltas) must be of type array, string given
ArgumentCountError: ephpm_kv_incr_multi() expects at least 1 argument, 0 given
bool(false)
