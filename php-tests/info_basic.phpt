--TEST--
ephpm_kv_info(): keys and types
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
function attempt(callable $call): void
{
    try {
        var_dump($call());
    } catch (Throwable $e) {
        echo get_class($e), ": ", $e->getMessage(), "\n";
    }
}

foreach (ephpm_kv_info() as $key => $value) {
    echo $key, ": ", get_debug_type($value), "\n";
}
attempt(fn() => ephpm_kv_info(1));
attempt(fn() => ephpm_kv_degraded(1));
attempt(fn() => ephpm_kv_metrics(1));
attempt(fn() => ephpm_kv_flush_all(1));
?>
--EXPECT--
version: string
state: string
reason: string
node_id: string
node_pid: int
clustered: bool
epoch: int
members: array
entries: int
memory_used: int
memory_total: int
layout: int
protocol: int
origin: string
ArgumentCountError: ephpm_kv_info() expects exactly 0 arguments, 1 given
ArgumentCountError: ephpm_kv_degraded() expects exactly 0 arguments, 1 given
ArgumentCountError: ephpm_kv_metrics() expects exactly 0 arguments, 1 given
ArgumentCountError: ephpm_kv_flush_all() expects exactly 0 arguments, 1 given
