--TEST--
A host name in ephpm_kv.join that does not resolve: the host counts alone, flagged, and the log names it
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$log = tempnam(sys_get_temp_dir(), "ephpm_kv");
echo run(host(free_port(), ["join" => "no-such-host.invalid:7400", "log" => $log]), <<<'CODE'
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded());
    $named = fn() => str_contains(file_get_contents(ini_get("ephpm_kv.log")), "no-such-host.invalid");
    var_dump(until($named));
    $start = hrtime(true);
    var_dump(ephpm_kv_incr("k"), ephpm_kv_degraded(), hrtime(true) - $start < 1_000_000_000);
    var_dump(ephpm_kv_info()["state"], ephpm_kv_info()["reason"] !== "");
    CODE);
unlink($log);
?>
--EXPECT--
int(1)
bool(true)
bool(true)
int(2)
bool(true)
bool(true)
string(7) "joining"
bool(true)
