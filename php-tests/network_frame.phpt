--TEST--
A frame of 4 GiB announced to the data plane: closed at once, nothing allocated, nobody disturbed
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$port = free_port();
$log = tempnam(sys_get_temp_dir(), "ephpm_kv");
echo run(host($port, ["log" => $log]), <<<'CODE'
    var_dump(ready(), ephpm_kv_incr("k"));
    $peer = stream_socket_client("tcp://" . ini_get("ephpm_kv.bind"));
    stream_set_timeout($peer, 10);
    fwrite($peer, "\xff\xff\xff\xff" . str_repeat("x", 100));
    $answer = @stream_get_contents($peer);
    var_dump(strlen($answer) < 1000, stream_get_meta_data($peer)["timed_out"]);
    preg_match('/VmHWM:\s+(\d+) kB/', file_get_contents("/proc/self/status"), $peak);
    var_dump($peak[1] < 200_000);
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded(), ephpm_kv_info()["state"]);
    CODE);
var_dump(str_contains(file_get_contents($log), "a frame of 4294967295 bytes was announced"));
unlink($log);
?>
--EXPECT--
bool(true)
int(1)
bool(true)
bool(false)
bool(true)
int(2)
bool(false)
string(5) "ready"
bool(true)
