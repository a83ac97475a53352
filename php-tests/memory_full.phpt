--TEST--
Memory full of live counters: new ones are refused, old ones count on
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.memory=4M
--FILE--
<?php
$made = 0;
while ($made < 1000000 && ($value = @ephpm_kv_incr("counter$made")) !== false) {
    $made++;
}
var_dump($value, $made > 1000, error_get_last()["message"] === "ephpm_kv_incr(): key \"counter$made\": memory is full (ephpm_kv.memory)");
ephpm_kv_incr("counter$made");
$wrong = 0;
for ($n = 0; $n < $made; $n++) {
    $wrong += (int) (ephpm_kv_incr("counter$n") !== 2);
}
var_dump($wrong, ephpm_kv_exists("counter$made"));
var_dump(@ephpm_kv_set("text$made", str_repeat("v", 4096)), ephpm_kv_exists("text$made"));
var_dump(ephpm_kv_del("counter0"), ephpm_kv_incr("counter0"));
?>
--EXPECTF--
bool(false)
bool(true)
bool(true)

Warning: ephpm_kv_incr(): key "counter%d": memory is full (ephpm_kv.memory) in %s on line %d
int(0)
bool(false)
bool(false)
bool(false)
int(1)
int(1)
