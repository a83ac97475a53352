<?php
// Makes counters with short lives, deletes some, moves the deadline of others, stores and reads values: all that a
// store has to keep in order when its processes are killed, with values that fill it so that some must go. Prints the
// number of increments.
mt_srand((int)$_GET['seed']);
error_reporting(error_reporting() & ~E_WARNING); // memory is small: writes may be refused
$increments = 0;
$host = ephpm_kv_info()['node_id'];
for ($n = (int)$_GET['n']; $n > 0; $n--) {
    $number = mt_rand(0, 1199);
    $key = 'churn:' . str_repeat('k', $number % 3 * 20) . $number;
    // Mostly keys of this host's: there the worker is at work in the store, not waiting for another host.
    if (mt_rand(0, 9) > 0 && ephpm_kv_owner($key) !== $host) {
        continue;
    }
    match (mt_rand(0, 7)) {
        0 => ephpm_kv_del($key),
        1 => ephpm_kv_expire($key, mt_rand(1, 50) / 100),
        2 => ephpm_kv_set($key, str_repeat('v', mt_rand(0, 6000)), mt_rand(1, 20)),
        3 => ephpm_kv_get($key),
        default => $increments += (int)(ephpm_kv_incr_ttl($key, 1, mt_rand(1, 100) / 100) !== false),
    };
}
echo $increments;
