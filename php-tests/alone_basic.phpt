--TEST--
No cluster configured: degraded(), owner() and info()
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_degraded());
ephpm_kv_incr("k");
var_dump(ephpm_kv_degraded());
$info = ephpm_kv_info();
var_dump($info["state"], $info["clustered"], $info["reason"]);
var_dump($info["node_id"] !== "", ephpm_kv_owner("k") === $info["node_id"]);
var_dump(count($info["members"]) <= 1, $info["entries"], $info["memory_total"] <= 64 << 20);
?>
--EXPECT--
bool(false)
bool(false)
string(5) "alone"
bool(false)
string(24) "no cluster is configured"
bool(true)
bool(true)
bool(true)
int(1)
bool(true)
