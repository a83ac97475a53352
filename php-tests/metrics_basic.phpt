--TEST--
ephpm_kv_metrics(): Prometheus text that counts
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
foreach (range(1, 5) as $n) {
    ephpm_kv_incr("k$n");
}
ephpm_kv_get("k1");
$text = ephpm_kv_metrics();
$wrong = preg_grep('/^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[^}]*\})? [0-9.e+-]+)$/', explode("\n", trim($text)), PREG_GREP_INVERT);
var_dump($wrong, substr($text, -1) === "\n");
preg_match_all('/^ephpm_kv_(ops_total\{op="(?:incr|get)",path="local"\}|degraded_total|entries) .*$/m', $text, $lines);
echo implode("\n", $lines[0]), "\n";
var_dump(preg_match('/^ephpm_kv_memory_bytes [1-9]/m', $text));
?>
--EXPECT--
array(0) {
}
bool(true)
ephpm_kv_ops_total{op="incr",path="local"} 5
ephpm_kv_ops_total{op="get",path="local"} 1
ephpm_kv_degraded_total 0
ephpm_kv_entries 5
int(1)
