--TEST--
ephpm_kv_ttl() and ephpm_kv_pttl(): what is left
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_ttl("k"), ephpm_kv_pttl("k"));
ephpm_kv_incr("k");
var_dump(ephpm_kv_ttl("k"), ephpm_kv_pttl("k"));
ephpm_kv_expire("k", 10);
$left = ephpm_kv_pttl("k");
var_dump(ephpm_kv_ttl("k"), $left > 9000 && $left <= 10010);
ephpm_kv_expire("k", 0.5);
$left = ephpm_kv_pttl("k");
var_dump(ephpm_kv_ttl("k"), $left > 100 && $left <= 510);
ephpm_kv_expire("k", 315576000);
var_dump(ephpm_kv_ttl("k") > 315575000);
?>
--EXPECT--
int(-2)
int(-2)
int(-1)
int(-1)
int(10)
bool(true)
int(1)
bool(true)
bool(true)
