--TEST--
Every function of the extension is as the stub declares it
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$stub = preg_replace('/^<\?php/', 'namespace Stub;', file_get_contents(__DIR__ . "/../stubs/ephpm_kv.stub.php"));
eval($stub);
function describe(string $function, string $name): string
{
    $reflection = new ReflectionFunction($function);
    $parameters = [];
    foreach ($reflection->getParameters() as $parameter) {
        $default = $parameter->isOptional() ? " = " . var_export($parameter->getDefaultValue(), true) : "";
        $reference = $parameter->isPassedByReference() ? "&" : "";
        $parameters[] = $parameter->getType() . " " . $reference . "$" . $parameter->getName() . $default;
    }
    $required = $reflection->getNumberOfRequiredParameters();
    return "$name(" . implode(", ", $parameters) . "): " . $reflection->getReturnType() . " [$required]";
}
preg_match_all('/^function (\w+)/m', $stub, $declared);
$built = get_extension_funcs("ephpm_kv");
$built = array_values(array_filter($built, fn($name) => !str_starts_with($name, "ephpm_kv_test_")));
echo "not in the extension: ", implode(" ", array_diff($declared[1], $built)), "\n";
echo "not in the stub: ", implode(" ", array_diff($built, $declared[1])), "\n";
foreach ($built as $name) {
    if (describe($name, $name) !== describe("Stub\\$name", $name)) {
        echo describe($name, $name), "\n", describe("Stub\\$name", $name), "\n";
    }
    if ((new ReflectionFunction("Stub\\$name"))->getDocComment() === false) {
        echo "$name is not documented\n";
    }
}
echo count($built), " functions\n", describe("ephpm_kv_incr_multi", "multi"), "\n", describe("ephpm_kv_incr", "incr"), "\n";
?>
--EXPECT--
not in the extension: 
not in the stub: 
20 functions
multi(array $deltas, int|float|null $ttl = NULL): array [1]
incr(string $key, int $by = 1): int|false [1]
