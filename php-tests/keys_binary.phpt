--TEST--
Keys with NUL and invalid UTF-8, and of 1,024 bytes, work in every function
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$keys = ["\0", "a\0", "a\0b", "\xff\xfe", "\xc3\x28", "{\0}x", "{}x", "{", str_repeat("\xf0", 1024), "\n\r\t", "é"];
foreach ($keys as $number => $key) {
    $results = [
        ephpm_kv_get($key), ephpm_kv_incr($key, 5), ephpm_kv_decr($key), ephpm_kv_incr_by($key, 2),
        ephpm_kv_incr_ttl($key, 1, 60), ephpm_kv_ttl($key), ephpm_kv_expire($key, 60), ephpm_kv_ttl($key),
        ephpm_kv_incr_multi([$key => 3])[$key], ephpm_kv_exists($key), ephpm_kv_owner($key) !== "",
        ephpm_kv_set($key, $key), ephpm_kv_get($key) === $key, ephpm_kv_pttl($key),
    ];
    $expected = [null, 5, 4, 6, 7, -1, true, 60, 10, true, true, true, true, -1];
    if ($results !== $expected) {
        echo "key $number: ", json_encode($results), "\n";
    }
}
var_dump(ephpm_kv_info()["entries"] === count($keys), ephpm_kv_exists("a"));
foreach ($keys as $key) {
    ephpm_kv_del($key);
}
var_dump(ephpm_kv_info()["entries"]);
?>
--EXPECT--
bool(true)
bool(false)
int(0)
