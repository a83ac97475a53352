--TEST--
A value that no entry allows: each entry of php.ini warns by name and keeps its default
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$bad = str_repeat("n,,", 30);
$entries = ini_get_all("ephpm_kv");
foreach ($entries as $name => $entry) {
    $output = run([$name => $bad], 'echo json_encode([ephpm_kv_incr("k")]);');
    [$warning] = explode("\n", $output);
    if (!preg_match("/^Warning: PHP Startup: " . preg_quote($name) . ": .*is not allowed \(.+\)/", $warning)) {
        echo "$name: $output";
    }
    if (!str_contains($output, "[1]")) {
        echo "$name: the host does not count: $output";
    }
}
$settings = array_combine(array_keys($entries), array_fill(0, count($entries), $bad));
$output = run($settings, 'echo ephpm_kv_incr("k"), " ", ini_get("ephpm_kv.memory"), " ", ini_get("ephpm_kv.enabled");');
var_dump(count($entries), substr_count($output, "is not allowed"), substr($output, -8));
?>
--EXPECT--
int(25)
int(25)
string(8) "1 64M 1
"
