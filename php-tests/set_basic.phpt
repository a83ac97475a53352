--TEST--
ephpm_kv_set(): stores bytes, replaces value and deadline
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_set("k", "v"));
var_dump(ephpm_kv_get("k"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_set("k", "w", 60));
var_dump(ephpm_kv_get("k"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_set("k", "x"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_set("k", "y", ttl: "1.5"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_set(5, 7, 0), ephpm_kv_incr("5"));
?>
--EXPECT--
bool(true)
string(1) "v"
int(-1)
bool(true)
string(1) "w"
int(60)
bool(true)
int(-1)
bool(true)
int(2)
bool(true)
int(8)
