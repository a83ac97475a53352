<?php
// Adds to one counter `n` times and prints this process and the longest call in nanoseconds, then each value
// (F: refused) and whether it was degraded.
declare(strict_types=1);
$key = $_GET['key'];
$by = (int)($_GET['by'] ?? 1);
$ttl = isset($_GET['ttl']) ? (float)$_GET['ttl'] : null;
$slowest = 0;
$lines = [];
for ($n = (int)($_GET['n'] ?? 1); $n > 0; $n--) {
    $start = hrtime(true);
    $value = $ttl === null ? ephpm_kv_incr($key, $by) : ephpm_kv_incr_ttl($key, $by, $ttl);
    $slowest = max($slowest, hrtime(true) - $start);
    $lines[] = ($value === false ? 'F' : $value) . ' ' . (int)ephpm_kv_degraded();
}
echo getmypid(), ' ', $slowest, "\n", implode("\n", $lines);
