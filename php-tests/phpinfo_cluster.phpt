--TEST--
phpinfo() of a host in a cluster: node, members, owned slots
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

echo preg_replace('/127\.0\.0\.1:\d+/', "ADDRESS", run(host(free_port()), <<<'CODE'
    ready();
    ephpm_kv_incr("k");
    ob_start();
    phpinfo(INFO_MODULES);
    $section = strstr(ob_get_clean(), "\nephpm_kv\n");
    foreach (["State", "Reason", "Node", "Node process", "Member", "Entries"] as $row) {
        preg_match("/^$row => .*$/m", $section, $line);
        echo str_replace(getmypid(), "THIS", $line[0] ?? "no $row"), "\n";
    }
    var_dump(array_sum(array_column(ephpm_kv_info()["members"], "owner_slots")), ephpm_kv_info()["clustered"]);
    CODE));
?>
--EXPECTF--
State => ready
Reason => %S
Node => host%d
Node process => THIS
Member => host%d at ADDRESS: live, member, owns 16384 slots
Entries => 1
int(16384)
bool(true)
