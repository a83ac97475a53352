--TEST--
Beyond loopback without a secret no cluster starts: the host counts alone, flagged
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.bind=192.0.2.1:7946
--FILE--
<?php
var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded());
var_dump(ephpm_kv_incr("k", 5), ephpm_kv_get("k"), ephpm_kv_degraded());
$info = ephpm_kv_info();
var_dump($info["state"], str_contains($info["reason"], "ephpm_kv.secret"));
?>
--EXPECT--
Warning: PHP Startup: no cluster is started, this host counts alone: ephpm_kv.bind is 192.0.2.1:7946, beyond loopback, and there is no ephpm_kv.secret; set ephpm_kv.insecure=1 only where nobody else can reach this port in Unknown on line 0
int(1)
bool(true)
int(6)
string(1) "6"
bool(true)
string(5) "alone"
bool(true)
