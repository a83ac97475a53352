--TEST--
TTLs in weak mode
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
function attempt(callable $call): void
{
    try {
        var_dump($call());
    } catch (Throwable $e) {
        echo get_class($e), ": ", $e->getMessage(), "\n";
    }
}

attempt(fn() => ephpm_kv_incr_ttl("a", 1, "60"));
attempt(fn() => ephpm_kv_incr_ttl("b", 1, "1e2"));
attempt(fn() => ephpm_kv_incr_ttl("c", 1, true));
attempt(fn() => [ephpm_kv_ttl("a"), ephpm_kv_ttl("b"), ephpm_kv_ttl("c")] == [60, 100, 1]);
attempt(fn() => ephpm_kv_expire("a", "0.5"));
attempt(fn() => ephpm_kv_expire("a", null));
attempt(fn() => ephpm_kv_ttl("a"));
attempt(fn() => ephpm_kv_set("a", "v", "-1"));
attempt(fn() => ephpm_kv_incr_ttl("d", 1, null));
attempt(fn() => ephpm_kv_incr_multi(["e" => 1], "60"));
?>
--EXPECTF--
int(1)
int(1)
int(1)
bool(true)
bool(true)

Deprecated: ephpm_kv_expire(): Passing null to parameter #2 ($ttl) of type int|float is deprecated in %s on line %d
bool(true)
int(-1)
ValueError: ephpm_kv_set(): Argument #3 ($ttl) must be greater than or equal to 0

Deprecated: ephpm_kv_incr_ttl(): Passing null to parameter #3 ($ttl) of type int|float is deprecated in %s on line %d
ValueError: ephpm_kv_incr_ttl(): Argument #3 ($ttl) must be greater than 0
array(1) {
  ["e"]=>
  int(1)
}
