<?php
// The parent runs the node and is killed; its child takes the node over. argv: key, result file.
// The child writes "value before, value after, degraded at the end, node pid is its own, all values in one line".
pcntl_alarm(60);
[, $key, $file] = $argv;
$until = hrtime(true) + 10_000_000_000;
do {
    ephpm_kv_get('warm');
} while (ephpm_kv_info()['state'] !== 'ready' && hrtime(true) < $until && usleep(10_000) === null);
ephpm_kv_incr($key, 10);
$parent = getmypid();
$pid = pcntl_fork();
if ($pid !== 0) {
    // Killed by the child, so without any chance to leave.
    while (true) {
        usleep(100_000);
    }
}
$before = ephpm_kv_incr($key);
exec("kill -9 $parent");
$calls = 0;
$expected = $before;
$line = 1;
$until = hrtime(true) + 15_000_000_000;
do {
    $value = ephpm_kv_incr($key);
    $line &= (int)($value === ++$expected);
    $calls++;
    $degraded = ephpm_kv_degraded();
    $info = ephpm_kv_info();
    usleep(10_000);
} while (($degraded || $info['node_pid'] !== getmypid() || $info['state'] !== 'ready') && hrtime(true) < $until);
$value = ephpm_kv_incr($key);
file_put_contents("$file.new", implode(' ', [
    $before, $value - $before === $calls + 1 ? 'exact' : "off: $before + $calls + 1 is not $value",
    (int)ephpm_kv_degraded(), (int)(ephpm_kv_info()['node_pid'] === getmypid()), $line,
]));
rename("$file.new", $file);
