--TEST--
Weak mode: int, Stringable and null keys in every function
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
class Name
{
    public function __toString(): string
    {
        return "12";
    }
}

$calls = [
    "incr" => fn($key) => ephpm_kv_incr($key, "1"),
    "decr" => fn($key) => ephpm_kv_decr($key, 1.0),
    "incr_by" => fn($key) => ephpm_kv_incr_by($key, true),
    "incr_ttl" => fn($key) => ephpm_kv_incr_ttl($key, "1", "60"),
    "get" => fn($key) => ephpm_kv_get($key),
    "set" => fn($key) => ephpm_kv_set($key, 40, "60"),
    "expire" => fn($key) => ephpm_kv_expire($key, "60.5"),
    "exists" => fn($key) => ephpm_kv_exists($key),
    "ttl" => fn($key) => ephpm_kv_ttl($key),
    "pttl" => fn($key) => ephpm_kv_pttl($key) > 60000,
    "owner" => fn($key) => ephpm_kv_owner($key) !== "",
    "del" => fn($key) => ephpm_kv_del($key),
];
foreach ($calls as $name => $call) {
    ephpm_kv_set("12", "40", 60.5);
    $results = [$call(12), $call("12"), $call(new Name())];
    echo "$name: ", json_encode($results), "\n";
}
foreach ($calls as $name => $call) {
    try {
        @$call(null);
        echo "$name: null was allowed\n";
    } catch (ValueError $e) {
        echo $name, ": ", str_contains(error_get_last()["message"], 'Passing null to parameter #1 ($key)') ? "deprecated" : "?", "\n";
    }
    error_clear_last();
}
?>
--EXPECT--
incr: [41,42,43]
decr: [39,38,37]
incr_by: [41,42,43]
incr_ttl: [41,42,43]
get: ["40","40","40"]
set: [true,true,true]
expire: [true,true,true]
exists: [true,true,true]
ttl: [61,61,61]
pttl: [true,true,true]
owner: [true,true,true]
del: [1,0,0]
incr: deprecated
decr: deprecated
incr_by: deprecated
incr_ttl: deprecated
get: deprecated
set: deprecated
expire: deprecated
exists: deprecated
ttl: deprecated
pttl: deprecated
owner: deprecated
del: deprecated
