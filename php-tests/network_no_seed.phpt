--TEST--
No seed answers: the host counts alone, flagged, says so, and joins when one does
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

[$here, $there] = [free_port(), free_port()];
$join = ["join" => "127.0.0.1:$here,127.0.0.1:$there"];
$seed = [...php(host($there, $join)), "-r", 'require "' . __DIR__ . '/cluster.inc"; ready(2); fgets(STDIN);'];
$code = <<<'CODE'
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded(), ephpm_kv_incr("k"), ephpm_kv_degraded());
    $info = ephpm_kv_info();
    var_dump($info["state"], $info["reason"] !== "");
    $seed = proc_open(SEED, [["pipe", "r"]], $pipes);
    var_dump(ready(2));
    var_dump(until(fn() => ephpm_kv_incr("k", 0) === 2 && !ephpm_kv_degraded()));
    fclose($pipes[0]);
    proc_close($seed);
    CODE;
echo run(host($here, $join), "const SEED = " . var_export($seed, true) . "; $code");
?>
--EXPECT--
int(1)
bool(true)
int(2)
bool(true)
string(7) "joining"
bool(true)
bool(true)
bool(true)
