--TEST--
ephpm_kv_append(): adds at the end and keeps the deadline
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_append("log", "a"), ephpm_kv_ttl("log"));
ephpm_kv_expire("log", 60);
var_dump(ephpm_kv_append("log", "bc"), ephpm_kv_get("log"), ephpm_kv_ttl("log"));
var_dump(ephpm_kv_append("log", ""), ephpm_kv_append("log", "\0"), ephpm_kv_get("log") === "abc\0");
ephpm_kv_set("n", "4");
var_dump(ephpm_kv_append("n", "1"), ephpm_kv_incr("n"), ephpm_kv_append("n", "x"), ephpm_kv_get("n"));
var_dump(@ephpm_kv_incr("n"));
var_dump(ephpm_kv_append("big", str_repeat("v", 100000)), ephpm_kv_append("big", "w"), substr(ephpm_kv_get("big"), -2));
?>
--EXPECT--
int(1)
int(-1)
int(3)
string(3) "abc"
int(60)
int(3)
int(4)
bool(true)
int(2)
int(42)
int(3)
string(3) "42x"
bool(false)
int(100000)
int(100001)
string(2) "vw"
