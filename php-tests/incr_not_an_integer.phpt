--TEST--
ephpm_kv_incr(): a value that is not a canonical integer is refused and kept
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
foreach (["abc", "1.5", "", " 5", "05", "+5", "-0", "9223372036854775808"] as $value) {
    ephpm_kv_set("k", $value);
    var_dump(@ephpm_kv_incr("k"), ephpm_kv_get("k") === $value);
}
echo error_get_last()["message"], "\n";
var_dump(ephpm_kv_set("k", "-41"), ephpm_kv_incr("k", 42));
ephpm_kv_set("odd \"\0\xff" . str_repeat("n", 100), "abc");
ephpm_kv_incr("odd \"\0\xff" . str_repeat("n", 100));
?>
--EXPECTF--
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(true)
ephpm_kv_incr(): key "k": the value is not an integer
bool(true)
int(1)

Warning: ephpm_kv_incr(): key "odd \"\x00\xFF%s...": the value is not an integer in %s on line %d
