--TEST--
No entry can be changed by a script
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$entries = ini_get_all("ephpm_kv");
var_dump(count($entries));
foreach ($entries as $name => $entry) {
    if ($entry["access"] !== INI_SYSTEM || ini_set($name, "1") !== false) {
        echo "$name can be changed\n";
    }
}
var_dump(ini_get("ephpm_kv.memory"), ini_get("ephpm_kv.timeout_ms"));
?>
--EXPECT--
int(25)
string(3) "64M"
string(2) "50"
