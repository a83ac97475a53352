--TEST--
A refusal becomes an exception where a script wants it so, and changes nothing
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
set_error_handler(function (int $level, string $message) {
    throw new ErrorException($message, 0, $level);
});
ephpm_kv_set("text", "abc");
try {
    ephpm_kv_incr("text");
} catch (ErrorException $e) {
    var_dump($e->getSeverity() === E_WARNING);
    echo $e->getMessage(), "\n";
}
var_dump(ephpm_kv_get("text"), ephpm_kv_incr("n"));
?>
--EXPECT--
bool(true)
ephpm_kv_incr(): key "text": the value is not an integer
string(3) "abc"
int(1)
