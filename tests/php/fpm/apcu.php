<?php
// The work of incr.php and churn.php on APCu: counters, some of which come and go, and values that fill its memory.
mt_srand((int)$_GET['seed']);
for ($n = (int)$_GET['n']; $n > 0; $n--) {
    $key = 'churn:' . mt_rand(0, 1199);
    match (mt_rand(0, 7)) {
        0 => apcu_delete($key),
        1 => apcu_store($key, str_repeat('v', mt_rand(0, 6000)), mt_rand(1, 20)),
        2 => apcu_fetch($key),
        default => apcu_inc("counter:$key"),
    };
}
echo 'done';
