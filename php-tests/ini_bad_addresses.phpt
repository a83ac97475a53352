--TEST--
An address in php.ini that is not allowed: a warning at start-up, and the default
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
function start(array $settings): string
{
    $command = [PHP_BINARY, "-n", "-d", "display_errors=1", "-d", "html_errors=0"];
    $settings = ["extension_dir" => ini_get("extension_dir"), "extension" => "ephpm_kv"] + $settings;
    foreach ($settings as $name => $value) {
        array_push($command, "-d", "$name=\"$value\"");
    }
    $code = 'echo ephpm_kv_incr("k"), " ", json_encode(ini_get($argv[1])), "\n";';
    array_push($command, "-r", $code, "--", array_key_last($settings));
    $process = proc_open($command, [1 => ["pipe", "w"]], $pipes);
    $output = stream_get_contents($pipes[1]);
    proc_close($process);
    return trim(preg_replace('/ in Unknown on line 0\n+/', "\n", $output)) . "\n";
}
foreach ([
    "bind" => "7946",
    "advertise" => "0.0.0.0:7946",
    "join" => "a:1,b",
] as $name => $value) {
    echo start(["ephpm_kv.$name" => $value]);
}
echo start(["ephpm_kv.bind" => "::1:7946"]);
echo start(["ephpm_kv.bind" => "localhost:65536"]);
?>
--EXPECT--
Warning: PHP Startup: ephpm_kv.bind: "7946" is not allowed (host:port or empty); the default is used: none
1 ""
Warning: PHP Startup: ephpm_kv.advertise: "0.0.0.0:7946" is not allowed (host:port without wildcard, or empty); the default is used: none
1 ""
Warning: PHP Startup: ephpm_kv.join: "a:1,b" is not allowed (host:port,host:port... or empty); the default is used: none
1 ""
Warning: PHP Startup: ephpm_kv.bind: "::1:7946" is not allowed (host:port or empty); the default is used: none
1 ""
Warning: PHP Startup: ephpm_kv.bind: "localhost:65536" is not allowed (host:port or empty); the default is used: none
1 ""
