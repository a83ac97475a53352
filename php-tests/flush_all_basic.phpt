--TEST--
ephpm_kv_flush_all(): every key of the namespace is gone
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
foreach (range(1, 100) as $n) {
    ephpm_kv_incr_ttl("n$n", $n, 60);
    ephpm_kv_set("v$n", "abc");
}
var_dump(ephpm_kv_flush_all());
var_dump(ephpm_kv_get("n1"), ephpm_kv_get("v100"), ephpm_kv_exists("n50"), ephpm_kv_ttl("n7"));
var_dump(ephpm_kv_del("n3"), ephpm_kv_incr("n2"), ephpm_kv_incr("v2"));
var_dump(ephpm_kv_flush_all(), ephpm_kv_flush_all(), ephpm_kv_exists("n2"));
?>
--EXPECT--
bool(true)
NULL
NULL
bool(false)
int(-2)
int(0)
int(1)
int(1)
bool(true)
bool(true)
bool(false)
