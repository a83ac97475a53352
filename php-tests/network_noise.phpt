--TEST--
Random bytes on both ports disturb nobody
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

echo run(host(free_port()), <<<'CODE'
    var_dump(ready(), ephpm_kv_incr("k"));
    $address = ini_get("ephpm_kv.bind");
    $udp = stream_socket_client("udp://$address");
    for ($n = 0; $n < 500; $n++) {
        @fwrite($udp, random_bytes(1 + $n * 2));
        @fwrite($udp, pack("V", $n) . random_bytes(40));
    }
    for ($n = 0; $n < 50; $n++) {
        $tcp = stream_socket_client("tcp://$address");
        $bytes = random_bytes(1 + $n * 20);
        @fwrite($tcp, $n % 2 ? $bytes : pack("V", strlen($bytes)) . $bytes);
        fclose($tcp);
    }
    for ($n = 2; $n < 500; $n++) {
        if (ephpm_kv_incr("k") !== $n || ephpm_kv_degraded()) {
            echo "call $n went wrong\n";
        }
        usleep(500);
    }
    $info = ephpm_kv_info();
    var_dump($info["state"], count($info["members"]), ephpm_kv_get("k"));
    CODE);
?>
--EXPECT--
bool(true)
int(1)
string(5) "ready"
int(1)
string(3) "499"
