--TEST--
ephpm_kv_setnx(): the first one wins, until the key ends
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_setnx("lock", "a", 60), ephpm_kv_setnx("lock", "b", 90));
var_dump(ephpm_kv_get("lock"), ephpm_kv_ttl("lock"));
ephpm_kv_del("lock");
var_dump(ephpm_kv_setnx("lock", "b"), ephpm_kv_ttl("lock"));
var_dump(ephpm_kv_setnx("n", "41"), ephpm_kv_incr("n"), ephpm_kv_setnx("n", "0"));
ephpm_kv_incr_ttl("short", 1, 0.05);
var_dump(ephpm_kv_setnx("short", "x"));
for ($end = hrtime(true) + 5e9; !ephpm_kv_setnx("short", "x") && hrtime(true) < $end; usleep(1000));
var_dump(ephpm_kv_get("short"), ephpm_kv_degraded());
?>
--EXPECT--
bool(true)
bool(false)
string(1) "a"
int(60)
bool(true)
int(-1)
bool(true)
int(42)
bool(false)
bool(false)
string(1) "x"
bool(false)
