--TEST--
ephpm_kv.namespace is invisible to scripts, and they cannot change it
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.namespace=shop:
--FILE--
<?php
var_dump(ephpm_kv_incr("k"), ephpm_kv_get("k"), ephpm_kv_exists("shop:k"));
var_dump(ephpm_kv_incr(str_repeat("k", 1024)));
var_dump(ini_get("ephpm_kv.namespace"), ini_set("ephpm_kv.namespace", "other"), ini_get("ephpm_kv.namespace"));
var_dump(ephpm_kv_incr("k"), ephpm_kv_flush_all(), ephpm_kv_get("k"));
?>
--EXPECT--
int(1)
string(1) "1"
bool(false)
int(1)
string(5) "shop:"
bool(false)
string(5) "shop:"
int(2)
bool(true)
NULL
