--TEST--
ephpm_kv_incr_ttl(): the TTL is set on creation and only then
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
var_dump(ephpm_kv_incr_ttl("k", 5, 60));
var_dump(ephpm_kv_ttl("k"));
var_dump(ephpm_kv_incr_ttl("k", 5, 600));
var_dump(ephpm_kv_ttl("k") <= 60);
var_dump(ephpm_kv_incr("k"));
var_dump(ephpm_kv_ttl("k"));
ephpm_kv_incr("forever");
var_dump(ephpm_kv_incr_ttl("forever", 1, 60), ephpm_kv_ttl("forever"));
var_dump(ephpm_kv_incr_ttl("weak", "2", "60"), ephpm_kv_ttl("weak"));
?>
--EXPECT--
int(5)
int(60)
int(10)
bool(true)
int(11)
int(60)
int(2)
int(-1)
int(2)
int(60)
