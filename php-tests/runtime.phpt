--TEST--
ephpm_kv.runtime: the node is a thread of its process; process is not built yet and says so
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

foreach (["auto", "thread", "process"] as $runtime) {
    echo run(host(free_port(), ["runtime" => $runtime]), <<<'CODE'
        echo ready() ? "ready" : "not ready", " ", ephpm_kv_incr("k"), " ", ephpm_kv_degraded() ? "degraded" : "exact";
        $threads = count(preg_grep('/^ephpm_kv$/m', array_map("file_get_contents", glob("/proc/self/task/*/comm"))));
        echo ephpm_kv_info()["node_pid"] === getmypid() ? " here" : " elsewhere", ", threads: $threads";
        CODE);
}
// Without a cluster there is no node, so there is nothing to say.
echo run(["ephpm_kv.runtime" => "process"], 'echo ephpm_kv_incr("k");');
?>
--EXPECT--
ready 1 exact here, threads: 1
ready 1 exact here, threads: 1
Warning: PHP Startup: ephpm_kv.runtime=process: this version has no separate node process yet; the node runs as a thread of the process that first needs it
ready 1 exact here, threads: 1
1
