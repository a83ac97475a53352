--TEST--
ephpm_kv_expire(): sets and removes the deadline, never the value
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

var_dump(ephpm_kv_expire("k", 60));
ephpm_kv_incr("k", 5);
var_dump(ephpm_kv_expire("k", 60), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_expire("k", "30"), ephpm_kv_ttl("k"));
var_dump(ephpm_kv_expire("k", 0), ephpm_kv_ttl("k"), ephpm_kv_get("k"));
var_dump(ephpm_kv_expire("k", 0.02), gone("k"), ephpm_kv_incr("k"), ephpm_kv_ttl("k"));
?>
--EXPECT--
bool(false)
bool(true)
int(60)
bool(true)
int(30)
bool(true)
int(-1)
string(1) "5"
bool(true)
bool(true)
int(1)
int(-1)
