--TEST--
A key whose __toString() throws or counts by itself
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

class Failing
{
    public function __toString(): string
    {
        throw new LogicException("no name");
    }
}
class Counting
{
    public function __toString(): string
    {
        return "k" . ephpm_kv_incr("names");
    }
}
attempt(fn() => ephpm_kv_incr(new Failing()));
attempt(fn() => ephpm_kv_get(new Failing()));
attempt(fn() => ephpm_kv_incr(new Counting(), 5));
attempt(fn() => ephpm_kv_set("a", new Counting()));
var_dump(ephpm_kv_get("k1"), ephpm_kv_get("a"), ephpm_kv_get("names"));
?>
--EXPECT--
LogicException: no name
LogicException: no name
int(5)
bool(true)
string(1) "5"
string(2) "k2"
string(1) "2"
