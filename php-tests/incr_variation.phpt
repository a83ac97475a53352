--TEST--
ephpm_kv_incr(): keys are any 1 to 1,024 bytes
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$keys = ["x", "a\0b", "a\0c", "\0", "\xff\xfe", "käse", str_repeat("k", 1024), str_repeat("k", 1023), " ", "{tag}x"];
foreach ($keys as $n => $key) {
    ephpm_kv_incr($key, $n + 1);
}
foreach ($keys as $key) {
    echo ephpm_kv_get($key), " ";
}
echo "\n";
var_dump(ephpm_kv_exists("a"), ephpm_kv_exists("a\0"));
?>
--EXPECT--
1 2 3 4 5 6 7 8 9 10 
bool(false)
bool(false)
