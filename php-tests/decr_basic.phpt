--TEST--
ephpm_kv_decr(): subtracts
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_decr("n"));
var_dump(ephpm_kv_decr("n", 9));
var_dump(ephpm_kv_decr("n", -30));
var_dump(ephpm_kv_decr("n", 0));
var_dump(ephpm_kv_incr("n"));
var_dump(ephpm_kv_decr("low", PHP_INT_MAX));
var_dump(ephpm_kv_decr("low"));
?>
--EXPECT--
int(-1)
int(-10)
int(20)
int(20)
int(21)
int(-9223372036854775807)
int(-9223372036854775808)
