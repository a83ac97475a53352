--TEST--
ephpm_kv.enabled=0: the functions exist, do nothing and keep quiet
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.enabled=0
--FILE--
<?php
var_dump(ephpm_kv_incr("k"), ephpm_kv_decr("k"), ephpm_kv_incr_by("k", 2), ephpm_kv_incr_ttl("k", 1, 60));
var_dump(ephpm_kv_get("k"), ephpm_kv_set("k", "v"), ephpm_kv_del("k"), ephpm_kv_expire("k", 1));
var_dump(ephpm_kv_exists("k"), ephpm_kv_ttl("k"), ephpm_kv_pttl("k"), ephpm_kv_flush_all());
echo json_encode(ephpm_kv_incr_multi(["a" => 1])), "\n";
var_dump(ephpm_kv_owner("k"), is_string(ephpm_kv_metrics()));
var_dump(ephpm_kv_info()["state"], ephpm_kv_info()["reason"], error_get_last());
?>
--EXPECT--
bool(false)
bool(false)
bool(false)
bool(false)
NULL
bool(false)
int(0)
bool(false)
bool(false)
int(-2)
int(-2)
bool(false)
{"a":false}
string(0) ""
bool(true)
string(8) "disabled"
string(21) "ephpm_kv.enabled is 0"
NULL
