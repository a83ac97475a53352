<?php
// Forks after the first use (the node is this process's), one child each that counts; argv: key, calls.
// Prints "RESULT total degraded statuses".
pcntl_alarm(60);
[, $key, $calls] = $argv;
$until = hrtime(true) + 10_000_000_000;
do {
    ephpm_kv_get('warm');
} while (ephpm_kv_info()['state'] !== 'ready' && hrtime(true) < $until && usleep(10_000) === null);
ephpm_kv_incr($key);
$children = [];
for ($number = 0; $number < 3; $number++) {
    $pid = pcntl_fork();
    if ($pid === 0) {
        for ($i = 0; $i < (int)$calls; $i++) {
            ephpm_kv_incr($key);
        }
        exit(ephpm_kv_degraded() ? 3 : 0);
    }
    $children[] = $pid;
}
for ($i = 0; $i < (int)$calls; $i++) {
    ephpm_kv_incr($key);
}
$statuses = [];
foreach ($children as $pid) {
    pcntl_waitpid($pid, $status);
    $statuses[] = pcntl_wifexited($status) ? pcntl_wexitstatus($status) : 'signal' . pcntl_wtermsig($status);
}
echo 'RESULT ', ephpm_kv_get($key), ' ', (int)ephpm_kv_degraded(), ' ', implode(',', $statuses), "\n";
