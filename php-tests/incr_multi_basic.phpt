--TEST--
ephpm_kv_incr_multi(): many counters in one call
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
ephpm_kv_incr("a", 10);
var_dump(ephpm_kv_incr_multi(["b" => 2, "a" => 1, 7 => -3, "a\0b" => 0]));
var_dump(ephpm_kv_get("7"), ephpm_kv_ttl("b"));
var_dump(ephpm_kv_incr_multi([]));
var_dump(ephpm_kv_incr_multi(["a" => 1, "t" => 1], 60));
var_dump(ephpm_kv_ttl("a"), ephpm_kv_ttl("t"));
?>
--EXPECTF--
array(4) {
  ["b"]=>
  int(2)
  ["a"]=>
  int(11)
  [7]=>
  int(-3)
  ["a%0b"]=>
  int(0)
}
string(2) "-3"
int(-1)
array(0) {
}
array(2) {
  ["a"]=>
  int(12)
  ["t"]=>
  int(1)
}
int(-1)
int(60)
