--TEST--
A word in php.ini that is not allowed: a warning at start-up, and the default
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
    "enabled" => "maybe",
    "insecure" => "2",
    "role" => "owner",
    "runtime" => "fiber",
    "socket" => "kv.sock",
    "log" => "kv.log",
    "log_level" => "loud",
    "cluster_id" => "two words",
    "node_id" => "h\u{fc}te",
] as $name => $value) {
    echo start(["ephpm_kv.$name" => $value]);
}
echo preg_replace("/n{65}/", "n...", start(["ephpm_kv.namespace" => str_repeat("n", 65)]));
?>
--EXPECT--
Warning: PHP Startup: ephpm_kv.enabled: "maybe" is not allowed (1 or 0); the default is used: "1"
1 "1"
Warning: PHP Startup: ephpm_kv.insecure: "2" is not allowed (1 or 0); the default is used: "0"
1 "0"
Warning: PHP Startup: ephpm_kv.role: "owner" is not allowed (auto, member or client); the default is used: "auto"
1 "auto"
Warning: PHP Startup: ephpm_kv.runtime: "fiber" is not allowed (auto, thread or process); the default is used: "auto"
1 "auto"
Warning: PHP Startup: ephpm_kv.socket: "kv.sock" is not allowed (auto, off or an absolute path of at most 107 bytes); the default is used: "auto"
1 "auto"
Warning: PHP Startup: ephpm_kv.log: "kv.log" is not allowed (stderr, syslog or an absolute path); the default is used: "stderr"
1 "stderr"
Warning: PHP Startup: ephpm_kv.log_level: "loud" is not allowed (error, warn, info, debug or trace); the default is used: "warn"
1 "warn"
Warning: PHP Startup: ephpm_kv.cluster_id: "two words" is not allowed (1 to 64 printable ASCII characters without spaces); the default is used: "ephpm"
1 "ephpm"
Warning: PHP Startup: ephpm_kv.node_id: "h\u{fc}te" is not allowed (1 to 64 printable ASCII characters without spaces, or empty); the default is used: none
1 ""
Warning: PHP Startup: ephpm_kv.namespace: "n..." is not allowed (at most 64 bytes); the default is used: none
1 ""
