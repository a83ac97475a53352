--TEST--
ephpm_kv_incr(): a counter starts at 0 and counts
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_incr("hits"));
var_dump(ephpm_kv_incr("hits"));
var_dump(ephpm_kv_incr("hits", 40));
var_dump(ephpm_kv_incr("hits", -50));
var_dump(ephpm_kv_incr("hits", 0));
var_dump(ephpm_kv_incr("other", 0));
var_dump(ephpm_kv_get("hits"), ephpm_kv_get("other"));
var_dump(ephpm_kv_incr(by: 7, key: "named"));
var_dump(ephpm_kv_ttl("hits"));
?>
--EXPECT--
int(1)
int(2)
int(42)
int(-8)
int(-8)
int(0)
string(2) "-8"
string(1) "0"
int(7)
int(-1)
