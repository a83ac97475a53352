--TEST--
A number in php.ini that is not allowed: a warning at start-up, and the default
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
    "memory" => "1M",
    "timeout_ms" => "0",
    "gossip_interval_ms" => "19",
    "replicate_ms" => "1001",
    "replicas" => "17",
    "copy_all_max" => "0",
    "small_value_max" => "65537",
    "value_max" => "1000",
    "sweep_interval" => "1h",
    "leave_timeout_ms" => "-1",
] as $name => $value) {
    echo start(["ephpm_kv.$name" => $value]);
}
?>
--EXPECT--
Warning: PHP Startup: ephpm_kv.memory: "1M" is not allowed (4M to 64G); the default is used: "64M"
1 "64M"
Warning: PHP Startup: ephpm_kv.timeout_ms: "0" is not allowed (1 to 60000); the default is used: "50"
1 "50"
Warning: PHP Startup: ephpm_kv.gossip_interval_ms: "19" is not allowed (20 to 10000); the default is used: "100"
1 "100"
Warning: PHP Startup: ephpm_kv.replicate_ms: "1001" is not allowed (1 to 1000); the default is used: "10"
1 "10"
Warning: PHP Startup: ephpm_kv.replicas: "17" is not allowed (0 to 16); the default is used: "2"
1 "2"
Warning: PHP Startup: ephpm_kv.copy_all_max: "0" is not allowed (1 to 256); the default is used: "16"
1 "16"
Warning: PHP Startup: ephpm_kv.small_value_max: "65537" is not allowed (0 to 64K); the default is used: "512"
1 "512"
Warning: PHP Startup: ephpm_kv.value_max: "1000" is not allowed (1K to 16M); the default is used: "1M"
1 "1M"
Warning: PHP Startup: ephpm_kv.sweep_interval: "1h" is not allowed (1 to 3600); the default is used: "10"
1 "10"
Warning: PHP Startup: ephpm_kv.leave_timeout_ms: "-1" is not allowed (0 to 60000); the default is used: "2000"
1 "2000"
