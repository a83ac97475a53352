--TEST--
A node of another cluster id is not let in, says why, and disturbs nobody
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

[$here, $there] = [free_port(), free_port()];
$both = "127.0.0.1:$here,127.0.0.1:$there";
$log = tempnam(sys_get_temp_dir(), "ephpm_kv");
$code = <<<'CODE'
    var_dump(ready(), ephpm_kv_incr("k"));
    echo "up\n";
    fgets(STDIN);
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded(), count(ephpm_kv_info()["members"]));
    CODE;
$code = 'require "' . __DIR__ . '/cluster.inc"; ' . $code;
$process = proc_open([...php(host($here)), "-r", $code], [["pipe", "r"], ["pipe", "w"]], $pipes);
while (($line = fgets($pipes[1])) !== false && $line !== "up\n") {
    echo $line;
}
echo "the stranger:\n", run(host($there, ["join" => $both, "cluster_id" => "other", "log" => $log]), <<<'CODE'
    for ($end = microtime(true) + 2; microtime(true) < $end; usleep(20000)) {
        ephpm_kv_get("warm");
        if (ephpm_kv_info()["state"] === "ready") {
            echo "it was let in\n";
        }
    }
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded(), ephpm_kv_info()["state"], ephpm_kv_owner("k"));
    CODE);
var_dump(str_contains(file_get_contents($log), "belongs to another cluster (ephpm_kv.cluster_id)"));
unlink($log);
echo "the cluster:\n";
fwrite($pipes[0], "go on\n");
echo stream_get_contents($pipes[1]);
var_dump(proc_close($process));
?>
--EXPECT--
bool(true)
int(1)
the stranger:
int(1)
bool(true)
string(7) "joining"
string(0) ""
bool(true)
the cluster:
int(2)
bool(false)
int(1)
int(0)
