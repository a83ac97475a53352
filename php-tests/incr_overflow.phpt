--TEST--
ephpm_kv_incr(): overflow and underflow are refused and change nothing
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_incr("top", PHP_INT_MAX));
var_dump(ephpm_kv_incr("top"));
var_dump(ephpm_kv_get("top") === (string) PHP_INT_MAX);
var_dump(ephpm_kv_incr("bottom", PHP_INT_MIN));
var_dump(ephpm_kv_incr("bottom", -1));
var_dump(ephpm_kv_incr("bottom", PHP_INT_MIN));
var_dump(ephpm_kv_get("bottom") === (string) PHP_INT_MIN);
var_dump(ephpm_kv_incr("top", PHP_INT_MIN));
?>
--EXPECTF--
int(9223372036854775807)

Warning: ephpm_kv_incr(): key "top": the result would overflow a 64-bit integer in %s on line %d
bool(false)
bool(true)
int(-9223372036854775808)

Warning: ephpm_kv_incr(): key "bottom": the result would overflow a 64-bit integer in %s on line %d
bool(false)

Warning: ephpm_kv_incr(): key "bottom": the result would overflow a 64-bit integer in %s on line %d
bool(false)
bool(true)
int(-1)
