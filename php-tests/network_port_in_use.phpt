--TEST--
A port in use: the host counts alone, flagged, says so, and joins when the port is free
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

echo preg_replace('/127\.0\.0\.1:\d+/', "ADDRESS", run(host(free_port()), <<<'CODE'
    $taken = stream_socket_server("tcp://" . ini_get("ephpm_kv.bind"));
    var_dump(ephpm_kv_incr("k", 5), ephpm_kv_degraded());
    var_dump(until(fn() => str_contains(ephpm_kv_info()["reason"], ini_get("ephpm_kv.bind"))));
    $info = ephpm_kv_info();
    var_dump($info["state"], $info["reason"]);
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded());
    fclose($taken);
    var_dump(ready(), ephpm_kv_incr("k"), ephpm_kv_degraded(), ephpm_kv_info()["reason"]);
    CODE));
?>
--EXPECTF--
int(5)
bool(true)
bool(true)
string(5) "alone"
string(%d) "%sADDRESS%s"
int(6)
bool(true)
bool(true)
int(7)
bool(false)
string(0) ""
