--TEST--
ephpm_kv_exists()
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
function gone(string $key): bool
{
    for ($until = microtime(true) + 5; microtime(true) < $until; usleep(1000)) {
        if (!ephpm_kv_exists($key)) {
            return true;
        }
    }
    return false;
}

var_dump(ephpm_kv_exists("k"));
ephpm_kv_incr("k", 0);
var_dump(ephpm_kv_exists("k"));
ephpm_kv_set("k", "");
var_dump(ephpm_kv_exists("k"));
ephpm_kv_del("k");
var_dump(ephpm_kv_exists("k"));
ephpm_kv_set("short", "v", 0.03);
var_dump(ephpm_kv_exists("short"), gone("short"));
?>
--EXPECT--
bool(false)
bool(true)
bool(true)
bool(false)
bool(true)
bool(true)
