--TEST--
strict_types: only strings are keys, only numbers are TTLs, in every function
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
declare(strict_types=1);

class Name
{
    public function __toString(): string
    {
        return "name";
    }
}

$calls = [
    "incr" => fn($key) => ephpm_kv_incr($key),
    "decr" => fn($key) => ephpm_kv_decr($key),
    "incr_by" => fn($key) => ephpm_kv_incr_by($key, 1),
    "incr_ttl" => fn($key) => ephpm_kv_incr_ttl($key, 1, 60),
    "get" => fn($key) => ephpm_kv_get($key),
    "set" => fn($key) => ephpm_kv_set($key, "v"),
    "del" => fn($key) => ephpm_kv_del($key),
    "expire" => fn($key) => ephpm_kv_expire($key, 60),
    "exists" => fn($key) => ephpm_kv_exists($key),
    "ttl" => fn($key) => ephpm_kv_ttl($key),
    "pttl" => fn($key) => ephpm_kv_pttl($key),
    "owner" => fn($key) => ephpm_kv_owner($key),
];
$kinds = [];
foreach ($calls as $name => $call) {
    foreach ([12, 1.5, true, null, [], new Name(), STDIN] as $key) {
        try {
            $call($key);
            echo "$name: ", get_debug_type($key), " was allowed\n";
        } catch (TypeError $e) {
            $kinds[str_replace("ephpm_kv_$name()", "f()", $e->getMessage())] = true;
        }
    }
}
echo implode("\n", array_keys($kinds)), "\n";
foreach (["60", true, null, [], new Name()] as $ttl) {
    foreach (["ephpm_kv_expire" => ["k"], "ephpm_kv_set" => ["k", "v"], "ephpm_kv_incr_ttl" => ["k", 1]] as $function => $arguments) {
        try {
            $function(...[...$arguments, $ttl]);
            echo "$function: ", get_debug_type($ttl), " was allowed\n";
        } catch (TypeError) {
        }
    }
}
var_dump(ephpm_kv_incr_multi(["12" => 1]), ephpm_kv_info()["entries"]);
?>
--EXPECTF--
f(): Argument #1 ($key) must be of type string, int given
f(): Argument #1 ($key) must be of type string, float given
f(): Argument #1 ($key) must be of type string, %r(bool|true)%r given
f(): Argument #1 ($key) must be of type string, null given
f(): Argument #1 ($key) must be of type string, array given
f(): Argument #1 ($key) must be of type string, Name given
f(): Argument #1 ($key) must be of type string, resource given
array(1) {
  [12]=>
  int(1)
}
int(1)
