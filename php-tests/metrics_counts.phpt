--TEST--
ephpm_kv_metrics(): every operation counts under its name, refusals for want of memory too
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.memory=4M
--FILE--
<?php
function metric(string $name): string
{
    return preg_match("/^" . preg_quote("ephpm_kv_$name") . " (.*)$/m", ephpm_kv_metrics(), $found) ? $found[1] : "none";
}

ephpm_kv_incr("a"); ephpm_kv_decr("a"); ephpm_kv_incr_by("a", 1); ephpm_kv_incr_ttl("b", 1, 60);
ephpm_kv_incr_multi(["a" => 1, "c" => 1]);
ephpm_kv_get("a"); ephpm_kv_exists("a"); ephpm_kv_ttl("a"); ephpm_kv_pttl("a");
ephpm_kv_set("s", "v"); ephpm_kv_set("s", "w");
ephpm_kv_expire("s", 60);
ephpm_kv_del("s");
foreach (["incr" => 6, "get" => 4, "set" => 2, "expire" => 1, "del" => 1] as $op => $count) {
    echo $op, " ", metric("ops_total{op=\"$op\",path=\"local\"}"), metric("ops_total{op=\"$op\",path=\"remote\"}"), "\n";
}
ephpm_kv_flush_all();
echo "del ", metric('ops_total{op="del",path="local"}'), ", entries ", metric("entries"), "\n";
for ($n = 0; @ephpm_kv_incr("n$n") !== false; $n++);
var_dump(metric("memory_full_total") > 0, metric("entries") == $n, metric("memory_bytes") <= 4 << 20);
var_dump(metric("evictions_total"), metric("degraded_total"), metric('lost_total{reason="memory_full"}'));
?>
--EXPECT--
incr 60
get 40
set 20
expire 10
del 10
del 2, entries 0
bool(true)
bool(true)
bool(true)
string(1) "0"
string(1) "0"
string(1) "0"
