--TEST--
ephpm_kv_del(): 1 deleted, 0 was not there
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_del("k"));
ephpm_kv_incr_ttl("k", 5, 60);
var_dump(ephpm_kv_del("k"));
var_dump(ephpm_kv_del("k"), ephpm_kv_get("k"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_incr("k"), ephpm_kv_ttl("k"));
ephpm_kv_set("v", "abc");
var_dump(ephpm_kv_del("v"), ephpm_kv_incr("v"));
?>
--EXPECT--
int(0)
int(1)
int(0)
NULL
int(-2)
int(1)
int(-1)
int(1)
int(1)
