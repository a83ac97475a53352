--TEST--
ephpm_kv_metrics(): every metric, once, with its type, help and labels
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$text = ephpm_kv_metrics();
$types = [];
foreach (explode("\n", trim($text)) as $line) {
    if (preg_match('/^# TYPE (\S+) (\S+)$/', $line, $found)) {
        isset($types[$found[1]]) && print("$found[1] twice\n");
        $types[$found[1]] = $found[2];
        str_contains($text, "# HELP $found[1] ") || print("$found[1] has no help\n");
    } elseif ($line[0] !== "#" && preg_match('/^([a-z_]+?)(_bucket|_sum|_count)?(\{.*\})? [0-9.]+$/', $line, $found)) {
        isset($types[$found[1]]) || isset($types[$found[1] . ($found[2] ?? "")]) || print("$line has no type\n");
    }
}
foreach ($types as $name => $type) {
    echo "$name $type\n";
}
preg_match_all('/\{([a-z]+)="([a-z_]+)"(?:,([a-z]+)="([a-z]+)")?\}/', $text, $labels);
echo implode(" ", array_unique($labels[2])), " | ", implode(" ", array_filter(array_unique($labels[4]))), "\n";
?>
--EXPECT--
ephpm_kv_ops_total counter
ephpm_kv_remote_seconds histogram
ephpm_kv_lost_total counter
ephpm_kv_degraded_total counter
ephpm_kv_shares_pending gauge
ephpm_kv_unresolved gauge
ephpm_kv_shares_merged_total counter
ephpm_kv_entries gauge
ephpm_kv_memory_bytes gauge
ephpm_kv_memory_full_total counter
ephpm_kv_evictions_total counter
ephpm_kv_members gauge
ephpm_kv_replication_lag_seconds gauge
ephpm_kv_repairs_total counter
ephpm_kv_lock_recoveries_total counter
ephpm_kv_values_lost_total counter
ephpm_kv_complete gauge
incr get set del expire setnx append cas window_ended unresolved memory_full | local remote degraded
