--TEST--
TTLs that are none, in every function that takes one: nothing changes
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$calls = [
    "incr_ttl" => fn($ttl) => ephpm_kv_incr_ttl("k", 1, $ttl),
    "incr_multi" => fn($ttl) => ephpm_kv_incr_multi(["k" => 1], $ttl),
    "set" => fn($ttl) => ephpm_kv_set("k", "v", $ttl),
    "expire" => fn($ttl) => ephpm_kv_expire("there", $ttl),
];
ephpm_kv_incr_ttl("there", 5, 60);
foreach ($calls as $name => $call) {
    foreach ([-1, -0.001, NAN, INF, -INF, 1e300, -1e300, 315576001, PHP_INT_MAX, PHP_INT_MIN, "-1", "INF", " "] as $ttl) {
        try {
            $call($ttl);
            echo "$name: ", json_encode($ttl), " was allowed\n";
        } catch (ValueError | TypeError $e) {
            $messages[$name][] = $e->getMessage();
        }
    }
    echo $name, ": ", count($messages[$name]), " refused\n";
}
echo implode("\n", array_unique($messages["set"])), "\n";
var_dump(ephpm_kv_exists("k"), ephpm_kv_ttl("there"), ephpm_kv_get("there"));
foreach (["incr_ttl", "incr_multi"] as $name) {
    foreach ([0, 0.0, -0.0, "0"] as $ttl) {
        try {
            $calls[$name]($ttl);
            echo "$name: 0 was allowed\n";
        } catch (ValueError) {
        }
    }
}
var_dump(ephpm_kv_exists("k"));
?>
--EXPECT--
incr_ttl: 13 refused
incr_multi: 13 refused
set: 13 refused
expire: 13 refused
ephpm_kv_set(): Argument #3 ($ttl) must be greater than or equal to 0
ephpm_kv_set(): Argument #3 ($ttl) must be finite
ephpm_kv_set(): Argument #3 ($ttl) must be at most 315576000 seconds
ephpm_kv_set(): Argument #3 ($ttl) must be of type int|float, string given
bool(false)
int(60)
string(1) "5"
bool(false)
