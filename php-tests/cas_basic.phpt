--TEST--
ephpm_kv_cas(): replaces, creates and deletes what is as expected
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_cas("k", "a", "b"), ephpm_kv_cas("k", null, "a", 60));
var_dump(ephpm_kv_cas("k", null, "x"), ephpm_kv_cas("k", "A", "x"), ephpm_kv_get("k"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_cas("k", "a", "b", 90), ephpm_kv_get("k"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_cas("k", "b", "c"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_cas("k", "b", null), ephpm_kv_cas("k", "c", null), ephpm_kv_exists("k"));
var_dump(ephpm_kv_cas("k", null, null), ephpm_kv_exists("k"), ephpm_kv_cas("k", "", null));
ephpm_kv_incr("n", 41);
var_dump(ephpm_kv_cas("n", "041", "1"), ephpm_kv_cas("n", "41", "43"), ephpm_kv_incr("n"));
var_dump(ephpm_kv_set("e", ""), ephpm_kv_cas("e", null, "x"), ephpm_kv_cas("e", "", "x"));
?>
--EXPECT--
bool(false)
bool(true)
bool(false)
bool(false)
string(1) "a"
int(60)
bool(true)
string(1) "b"
int(90)
bool(true)
int(-1)
bool(false)
bool(true)
bool(false)
bool(true)
bool(false)
bool(false)
bool(false)
bool(true)
int(44)
bool(true)
bool(false)
bool(true)
