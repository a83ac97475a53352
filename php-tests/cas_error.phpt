--TEST--
ephpm_kv_cas() and ephpm_kv_setnx(): wrong arguments throw and change nothing
--EXTENSIONS--
ephpm_kv
--INI--
ephpm_kv.value_max=2K
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

$long = str_repeat("v", 2049);
attempt(fn() => ephpm_kv_cas("", "a", "b"));
attempt(fn() => ephpm_kv_cas("k", $long, null));
attempt(fn() => ephpm_kv_cas("k", null, $long));
attempt(fn() => ephpm_kv_cas("k", null, "v", -1));
attempt(fn() => ephpm_kv_cas("k", [], "v"));
attempt(fn() => ephpm_kv_cas("k", null));
attempt(fn() => ephpm_kv_cas(5, null, 7, "60"));
attempt(fn() => ephpm_kv_ttl("5"));
attempt(fn() => ephpm_kv_setnx("", "v"));
attempt(fn() => ephpm_kv_setnx("k", $long));
attempt(fn() => ephpm_kv_setnx("k", "v", NAN));
attempt(fn() => ephpm_kv_setnx("k"));
var_dump(ephpm_kv_exists("k"));
?>
--EXPECT--
ValueError: ephpm_kv_cas(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_cas(): Argument #2 ($expected) must be at most 2048 bytes long
ValueError: ephpm_kv_cas(): Argument #3 ($new) must be at most 2048 bytes long
ValueError: ephpm_kv_cas(): Argument #4 ($ttl) must be greater than or equal to 0
TypeError: ephpm_kv_cas(): Argument #2 ($expected) must be of type ?string, array given
ArgumentCountError: ephpm_kv_cas() expects at least 3 arguments, 2 given
bool(true)
int(60)
ValueError: ephpm_kv_setnx(): Argument #1 ($key) must not be empty
ValueError: ephpm_kv_setnx(): Argument #2 ($value) must be at most 2048 bytes long
ValueError: ephpm_kv_setnx(): Argument #3 ($ttl) must be finite
ArgumentCountError: ephpm_kv_setnx() expects at least 2 arguments, 1 given
bool(false)
