--TEST--
A script that runs out of memory inside a call leaves nothing behind
--EXTENSIONS--
ephpm_kv
--INI--
memory_limit=6M
--FILE--
<?php
ephpm_kv_set("big", str_repeat("v", 1000000));
register_shutdown_function(function () {
    $GLOBALS["held"] = null;
    var_dump(ephpm_kv_incr("k"), strlen(ephpm_kv_get("big")), ephpm_kv_set("big", "small"), ephpm_kv_get("big"));
});
$held = [];
for ($n = 0; $n < 10; $n++) {
    $held[] = ephpm_kv_get("big");
}
?>
--EXPECTF--
Fatal error: Allowed memory size of %d bytes exhausted%s(tried to allocate %d bytes) in %s on line %d
int(1)
int(1000000)
bool(true)
string(5) "small"
