--TEST--
Named, unpacked and indirect arguments
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

attempt(fn() => ephpm_kv_incr(...["k", 5]));
attempt(fn() => call_user_func_array("ephpm_kv_incr", ["by" => 5, "key" => "k"]));
attempt(fn() => call_user_func("ephpm_kv_decr", "k"));
attempt(fn() => array_map("ephpm_kv_incr", ["k", "k"], [1, 10]));
$by = 1;
$ref = &$by;
attempt(fn() => ephpm_kv_incr("k", $ref));
$incr = ephpm_kv_incr(...);
attempt(fn() => $incr("k"));
attempt(fn() => ephpm_kv_set(ttl: 60, value: "v", key: "s"));
attempt(fn() => ephpm_kv_set(ttl: 60, key: "s"));
?>
--EXPECT--
int(5)
int(10)
int(9)
array(2) {
  [0]=>
  int(10)
  [1]=>
  int(20)
}
int(21)
int(22)
bool(true)
ArgumentCountError: ephpm_kv_set(): Argument #2 ($value) not passed
