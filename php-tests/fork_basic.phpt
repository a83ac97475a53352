--TEST--
Forked processes and their parent count as one
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
ephpm_kv_incr("k", 100);
$children = [];
for ($c = 0; $c < 4; $c++) {
    if (($pid = pcntl_fork()) === 0) {
        for ($n = 0; $n < 1000; $n++) {
            ephpm_kv_incr("k");
            ephpm_kv_incr_ttl("t", 2, 60);
        }
        ephpm_kv_set("child$c", "done", 60);
        exit(0);
    }
    $children[] = $pid;
}
for ($n = 0; $n < 1000; $n++) {
    ephpm_kv_incr("k");
}
foreach ($children as $pid) {
    pcntl_waitpid($pid, $status);
    var_dump($status);
}
var_dump(ephpm_kv_get("k"), ephpm_kv_get("t"), ephpm_kv_get("child3"), ephpm_kv_degraded());
?>
--EXPECT--
int(0)
int(0)
int(0)
int(0)
string(4) "5100"
string(4) "8000"
string(4) "done"
bool(false)
