--TEST--
ephpm_kv_incr_ttl(): after the deadline a new window starts at the delta
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

var_dump(ephpm_kv_incr_ttl("k", 5, 0.05), ephpm_kv_incr_ttl("k", 5, 0.05));
var_dump(gone("k"));
var_dump(ephpm_kv_get("k"), ephpm_kv_pttl("k"), ephpm_kv_del("k"), ephpm_kv_expire("k", 60));
var_dump(ephpm_kv_incr_ttl("k", 5, 60));
var_dump(ephpm_kv_incr_ttl("tiny", 3, 1e-9), gone("tiny"));
?>
--EXPECT--
int(5)
int(10)
bool(true)
NULL
int(-2)
int(0)
bool(false)
int(5)
int(3)
bool(true)
