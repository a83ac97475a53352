--TEST--
A secret is never ignored: no cluster starts while its traffic cannot be sealed
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.bind=127.0.0.1:7946
ephpm_kv.secret=hush
--FILE--
<?php
var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded());
$info = ephpm_kv_info();
var_dump($info["state"], str_contains($info["reason"], "seal"), str_contains(json_encode($info), "hush"));
?>
--EXPECTF--
Warning: PHP Startup: no cluster is started, this host counts alone: a secret is set, but this version cannot seal its traffic yet; %s in Unknown on line 0
int(1)
bool(true)
string(5) "alone"
bool(true)
bool(false)
