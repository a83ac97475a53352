--TEST--
Signals are PHP's: the node's thread blocks them all, and handlers run while it works
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
require __DIR__ . "/cluster.inc";

echo run(host(free_port()), <<<'CODE'
    pcntl_async_signals(true);
    $handled = 0;
    pcntl_signal(SIGUSR1, function () use (&$handled) {
        $handled++;
        ephpm_kv_incr("handled");
    });
    var_dump(ready());
    foreach (glob("/proc/self/task/*/status") as $file) {
        if (preg_match('/^Name:\s+ephpm_kv$/m', file_get_contents($file))) {
            preg_match('/^SigBlk:\s+(\w+)$/m', file_get_contents($file), $mask);
            echo $mask[1], "\n";
        }
    }
    $sender = proc_open(["sh", "-c", 'for i in $(seq 200); do kill -USR1 ' . getmypid() . '; sleep 0.002; done'], [], $pipes);
    for ($n = 0; proc_get_status($sender)["running"];) {
        if (ephpm_kv_incr("k") !== ++$n) {
            echo "call $n went wrong\n";
        }
    }
    var_dump($n > 100, $handled > 100, (int) ephpm_kv_get("handled") === $handled, ephpm_kv_degraded());
    CODE);
?>
--EXPECT--
bool(true)
fffffffe7ffbfeff
bool(true)
bool(true)
bool(true)
bool(false)
