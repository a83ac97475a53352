--TEST--
A CLI script of no set role logs nothing below an error, is a client and carries its pid in its node id
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$settings = ["role" => "auto", "log" => "stderr", "log_level" => "debug", "node_id" => "script"];
echo run(host(free_port(), $settings), <<<'CODE'
    var_dump(ephpm_kv_incr("k"));
    var_dump(until(fn() => count(ephpm_kv_info()["members"]) === 1));
    $info = ephpm_kv_info();
    var_dump($info["node_id"] === "script#" . getmypid(), $info["members"][0]["client"]);
    CODE);
?>
--EXPECT--
int(1)
bool(true)
bool(true)
bool(true)
