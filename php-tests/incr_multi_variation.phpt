--TEST--
ephpm_kv_incr_multi(): a refused counter is false, the others count
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
ephpm_kv_set("text", "abc");
ephpm_kv_set("top", (string) PHP_INT_MAX);
echo json_encode(@ephpm_kv_incr_multi(["a" => 1, "text" => 1, "top" => 1, "b" => 2])), "\n";
$five = 5;
$deltas = ["a" => &$five, "b" => 1, 3 => 1];
unset($deltas["b"]);
echo json_encode(ephpm_kv_incr_multi($deltas)), "\n";
set_error_handler(function (int $level, string $message) use (&$five) {
    $five = "changed";
    throw new RuntimeException($message);
});
try {
    ephpm_kv_incr_multi(["c" => 1, "text" => 1, "d" => 1]);
} catch (RuntimeException $e) {
    echo $e->getMessage(), "\n";
}
var_dump(ephpm_kv_get("c"), ephpm_kv_get("d"), ephpm_kv_get("text"));
?>
--EXPECT--
{"a":1,"text":false,"top":false,"b":2}
{"a":6,"3":1}
ephpm_kv_incr_multi(): key "text": the value is not an integer
string(1) "1"
NULL
string(3) "abc"
