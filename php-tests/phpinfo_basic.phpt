--TEST--
phpinfo(): state and settings, but no secret
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.memory=8M
ephpm_kv.secret=hush
--FILE--
<?php
ephpm_kv_incr("k");
ob_start();
phpinfo(INFO_MODULES);
$text = ob_get_clean();
$section = strstr($text, "\nephpm_kv\n");
foreach (["State", "Node", "Entries", "Segment layout", "Protocol", "ephpm_kv.memory", "ephpm_kv.secret"] as $row) {
    echo preg_match("/^" . preg_quote($row) . " => .*$/m", $section, $line) ? $line[0] : "no $row", "\n";
}
var_dump(str_contains($text, "hush"), preg_match('/^Memory => [0-9]+ of [0-9]+ bytes$/m', $section));
?>
--EXPECTF--
State => alone
Node => %s
Entries => 1
Segment layout => %d
Protocol => %d
ephpm_kv.memory => 8M => 8M
ephpm_kv.secret => (hidden) => (hidden)
bool(false)
int(1)
