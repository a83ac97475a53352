--TEST--
Expired counters make room
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.memory=4M
--FILE--
<?php
$full = false;
for ($n = 0; $n < 1000000 && !$full; $n++) {
    $full = @ephpm_kv_incr_ttl("short$n", 1, 3) === false;
}
var_dump($full);
for ($until = microtime(true) + 15; microtime(true) < $until && ephpm_kv_exists("short0"); usleep(10000));
var_dump(ephpm_kv_exists("short0"));
for ($until = microtime(true) + 15; microtime(true) < $until && @ephpm_kv_incr("late") === false; usleep(10000));
var_dump(ephpm_kv_get("late"));
?>
--EXPECT--
bool(true)
bool(false)
string(1) "1"
