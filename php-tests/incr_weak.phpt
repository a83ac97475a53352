--TEST--
ephpm_kv_incr(): weak mode converts as PHP does
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

class Name
{
    public function __toString(): string
    {
        return "name";
    }
}
ephpm_kv_incr("12", 100);
attempt(fn() => ephpm_kv_incr(12, "5"));
attempt(fn() => ephpm_kv_incr(new Name(), 3.0));
attempt(fn() => ephpm_kv_get("name"));
attempt(fn() => ephpm_kv_incr(true, true));
attempt(fn() => ephpm_kv_incr("n", "5 apples"));
attempt(fn() => ephpm_kv_incr("n", 1e300));
attempt(fn() => ephpm_kv_incr([]));
attempt(fn() => ephpm_kv_incr("n", []));
attempt(fn() => ephpm_kv_incr(new stdClass()));
attempt(fn() => ephpm_kv_incr("n", 1.5));
attempt(fn() => ephpm_kv_incr(null));
attempt(fn() => ephpm_kv_incr("n", null));
?>
--EXPECTF--
int(105)
int(3)
string(1) "3"
int(1)
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, string given
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, float given
TypeError: ephpm_kv_incr(): Argument #1 ($key) must be of type string, array given
TypeError: ephpm_kv_incr(): Argument #2 ($by) must be of type int, array given
TypeError: ephpm_kv_incr(): Argument #1 ($key) must be of type string, stdClass given

Deprecated: Implicit conversion from float 1.5 to int loses precision in %s on line %d
int(1)

Deprecated: ephpm_kv_incr(): Passing null to parameter #1 ($key) of type string is deprecated in %s on line %d
ValueError: ephpm_kv_incr(): Argument #1 ($key) must not be empty

Deprecated: ephpm_kv_incr(): Passing null to parameter #2 ($by) of type int is deprecated in %s on line %d
int(1)
