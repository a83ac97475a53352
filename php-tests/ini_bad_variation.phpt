--TEST--
Values in php.ini that look right at first sight
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$bad = [
    "memory" => ["", "64 M", "64MB", "0x4000000", "1e9", "-64M", "65G", "4194303", "99999999999999999999", "18446744073709551615G"],
    "timeout_ms" => ["", "-1", "60001", "1.5", "50ms", "+50", " 50", "99999999999999999999"],
    "value_max" => ["0", "17M", "1T"],
    "bind" => [":7946", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:-1", "1.2.3:80", "256.0.0.1:80", "[::1:80", "a b:80", "http://a:80"],
    "advertise" => ["[::]:80", "127.0.0.1"],
    "join" => ["a:1;b:2", "a:1,b:99999", "0.0.0.0:80", "-a:1"],
    "cluster_id" => ["", str_repeat("c", 65), "caf\u{e9}"],
    "node_id" => [str_repeat("n", 65), "a\tb"],
    "enabled" => ["2", "-1"],
    "role" => ["Member", "owner,client"],
    "log" => ["", "relative/file"],
    "log_level" => ["WARN", "warning"],
    "socket" => ["@abstract", "/" . str_repeat("s", 107)],
];
$wrong = 0;
$tried = 0;
foreach ($bad as $name => $values) {
    foreach ($values as $value) {
        $output = run(["ephpm_kv.$name" => $value], 'echo ephpm_kv_incr("k"), ephpm_kv_info()["state"];');
        $tried++;
        if (!preg_match("/^Warning: PHP Startup: ephpm_kv\.$name: .*is not allowed.*\n+1alone\n$/s", $output)) {
            $wrong++;
            echo "$name=", json_encode($value), ": $output";
        }
    }
}
echo "$tried tried, $wrong wrong\n";
?>
--EXPECT--
51 tried, 0 wrong
