--TEST--
A refusal by any counting function leaves value and deadline as they were, and creates nothing
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$calls = [
    "incr" => fn($key, $by) => ephpm_kv_incr($key, $by),
    "incr_by" => fn($key, $by) => ephpm_kv_incr_by($key, $by),
    "incr_ttl" => fn($key, $by) => ephpm_kv_incr_ttl($key, $by, 5),
    "decr" => fn($key, $by) => ephpm_kv_decr($key, $by === PHP_INT_MIN ? PHP_INT_MAX : -$by),
    "incr_multi" => fn($key, $by) => ephpm_kv_incr_multi([$key => $by])[$key],
];
$refused = [
    ["abc", 1], ["1.5", 1], ["", 1], [" 5", 1], ["5 ", 1], ["5\0", 1],
    [(string) PHP_INT_MAX, 1], [(string) PHP_INT_MIN, -1], ["-2", PHP_INT_MIN + 1],
    [(string) PHP_INT_MAX, PHP_INT_MAX], [(string) PHP_INT_MIN, PHP_INT_MIN],
];
$warnings = [];
set_error_handler(function (int $level, string $message) use (&$warnings) {
    $warnings[] = "$level $message";
    return true;
});
foreach ($calls as $name => $call) {
    foreach ($refused as $number => [$value, $by]) {
        ephpm_kv_set("k", $value, 60);
        $result = $call("k", $by);
        if ($result !== false || ephpm_kv_get("k") !== $value || ephpm_kv_ttl("k") !== 60 || ephpm_kv_degraded()) {
            echo "$name, case $number: ", var_export($result, true), " ", var_export(ephpm_kv_get("k"), true), "\n";
        }
    }
}
echo count($warnings), " warnings:\n", implode("\n", array_unique($warnings)), "\n";
// Right at the limits nothing is refused.
ephpm_kv_set("k", (string) (PHP_INT_MAX - 1), 60);
var_dump(ephpm_kv_incr("k") === PHP_INT_MAX, ephpm_kv_incr("k", 0) === PHP_INT_MAX, ephpm_kv_incr("k", PHP_INT_MIN));
var_dump(ephpm_kv_incr_ttl("low", PHP_INT_MIN, 60) === PHP_INT_MIN, ephpm_kv_ttl("low"));
?>
--EXPECT--
55 warnings:
2 ephpm_kv_incr(): key "k": the value is not an integer
2 ephpm_kv_incr(): key "k": the result would overflow a 64-bit integer
2 ephpm_kv_incr_by(): key "k": the value is not an integer
2 ephpm_kv_incr_by(): key "k": the result would overflow a 64-bit integer
2 ephpm_kv_incr_ttl(): key "k": the value is not an integer
2 ephpm_kv_incr_ttl(): key "k": the result would overflow a 64-bit integer
2 ephpm_kv_decr(): key "k": the value is not an integer
2 ephpm_kv_decr(): key "k": the result would overflow a 64-bit integer
2 ephpm_kv_incr_multi(): key "k": the value is not an integer
2 ephpm_kv_incr_multi(): key "k": the result would overflow a 64-bit integer
bool(true)
bool(true)
int(-1)
bool(true)
int(60)
