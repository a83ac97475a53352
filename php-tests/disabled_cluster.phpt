--TEST--
ephpm_kv.enabled=0 with a cluster configured: no port is opened, no thread started
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

echo run(host(free_port(), ["enabled" => 0]), <<<'CODE'
    var_dump(ephpm_kv_incr("k"), ephpm_kv_get("k"), ephpm_kv_degraded(), ephpm_kv_metrics(), ephpm_kv_owner("k"));
    usleep(200_000);
    $info = ephpm_kv_info();
    var_dump($info["state"], $info["clustered"], $info["node_pid"], count(glob("/proc/self/task/*")));
    var_dump(is_resource(stream_socket_server("tcp://" . ini_get("ephpm_kv.bind"))));
    CODE);
?>
--EXPECT--
bool(false)
NULL
bool(false)
string(0) ""
string(0) ""
string(8) "disabled"
bool(false)
int(0)
int(1)
bool(true)
