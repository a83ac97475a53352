--TEST--
ephpm_kv.runtime: the node is a thread of the process, or a process of its own that ends with the last of the others
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

foreach (["auto", "thread", "process"] as $runtime) {
    $printed = run(host(free_port(), ["runtime" => $runtime]), <<<'CODE'
        echo ready() ? "ready" : "not ready", " ", ephpm_kv_incr("k"), " ", ephpm_kv_degraded() ? "degraded" : "exact";
        $threads = count(preg_grep('/^ephpm_kv$/m', array_map("file_get_contents", glob("/proc/self/task/*/comm"))));
        $node = ephpm_kv_info()["node_pid"];
        echo $node === getmypid() ? " here" : " elsewhere", ", threads: $threads";
        if ($node !== getmypid()) {
            echo ", ", rtrim(file_get_contents("/proc/$node/cmdline"), "\0"), " has pid $node";
        }
        CODE);
    echo $printed;
}
$node = (int) substr(strrchr($printed, " "), 1);
// One that has ended and that nobody has asked after yet has no arguments any more.
$lives = fn() => (string) @file_get_contents("/proc/$node/cmdline") !== "";
for ($end = microtime(true) + 10; $lives() && microtime(true) < $end; usleep(10000));
echo $node > 1 && !$lives() ? "it has ended\n" : "$node is still there\n";
// Without a cluster there is no node.
echo run(["ephpm_kv.runtime" => "process"], 'echo ephpm_kv_incr("k");');
?>
--EXPECTF--
ready 1 exact here, threads: 1
ready 1 exact here, threads: 1
ready 1 exact elsewhere, threads: 0, ephpm_kv: node host%d has pid %d
it has ended
1
