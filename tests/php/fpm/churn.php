<?php
// Makes counters with short lives, deletes some, moves the deadline of others, stores and reads values: all that a
// store has to keep in order when its processes are killed. Prints the number of increments.
mt_srand((int)$_GET['seed']);
error_reporting(error_reporting() & ~E_WARNING); // memory is small: writes may be refused
$increments = 0;
for ($n = (int)$_GET['n']; $n > 0; $n--) {
    $key = 'churn:' . str_repeat('k', mt_rand(0, 60)) . mt_rand(0, 2000);
    match (mt_rand(0, 7)) {
        0 => ephpm_kv_del($key),
        1 => ephpm_kv_expire($key, mt_rand(1, 50) / 100),
        2 => ephpm_kv_set($key, str_repeat('v', mt_rand(0, 2000)), mt_rand(1, 100) / 100),
        3 => ephpm_kv_get($key),
        default => $increments += (int)(ephpm_kv_incr_ttl($key, 1, mt_rand(1, 100) / 100) !== false),
    };
}
echo $increments;
