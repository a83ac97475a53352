--TEST--
A set-up that fails: a warning at start-up, and PHP runs with the extension disabled
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

// No room for the segment among the addresses that this process may use.
$code = <<<'CODE'
    echo "\n", json_encode([ephpm_kv_incr("k"), ephpm_kv_get("k"), ephpm_kv_degraded(), ephpm_kv_owner("k")]), "\n";
    $info = ephpm_kv_info();
    var_dump($info["state"], str_contains($info["reason"], "mmap"), error_get_last());
    CODE;
$command = implode(" ", array_map("escapeshellarg", [...php(["ephpm_kv.memory" => "64G"]), "-r", $code]));
echo shell_exec("ulimit -v 8000000; $command 2>&1");
echo run(["ephpm_kv.bind" => "no-such-host.invalid:7946"], <<<'CODE'
    echo "\n", json_encode([ephpm_kv_incr("k"), ephpm_kv_degraded()]), ephpm_kv_info()["state"];
    CODE);
// An address that is no interface's: nobody can be joined, so the host counts alone and says which setting is why.
echo run(host(7946, ["bind" => "203.0.113.1:7946", "insecure" => "1"]), <<<'CODE'
    echo json_encode([ephpm_kv_incr("k"), ephpm_kv_degraded()]);
    var_dump(until(fn() => str_contains(ephpm_kv_info()["reason"], "ephpm_kv.bind=203.0.113.1:7946")));
    CODE);
?>
--EXPECTF--

Warning: PHP Startup: the extension is disabled: host segment%smmap%SCannot allocate memory%S

[false,null,false,""]
string(8) "disabled"
bool(true)
NULL
Warning: PHP Startup: no cluster is started, this host counts alone: ephpm_kv.bind%sno-such-host.invalid%S

[1,true]alone
[1,true]bool(true)
