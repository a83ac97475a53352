--TEST--
ephpm_kv_get(): bytes, counters in decimal, null
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_get("k"));
ephpm_kv_set("k", "a\0b\xff");
var_dump(ephpm_kv_get("k") === "a\0b\xff");
ephpm_kv_set("k", "");
var_dump(ephpm_kv_get("k"));
ephpm_kv_incr("n", -12);
var_dump(ephpm_kv_get("n"));
$big = random_bytes(300000);
ephpm_kv_set("big", $big);
var_dump(ephpm_kv_get("big") === $big, ephpm_kv_get("n"));
?>
--EXPECT--
NULL
bool(true)
string(0) ""
string(3) "-12"
bool(true)
string(3) "-12"
