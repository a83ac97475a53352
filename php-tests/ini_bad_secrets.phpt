--TEST--
A secret that is not allowed is not shown, and no cluster starts without it
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

$bind = ["ephpm_kv.bind" => "127.0.0.1:1"];
foreach (["secret" => "hush,,hush", "secret_file" => "relative/hush"] as $name => $value) {
    $output = start($bind + ["ephpm_kv.$name" => $value]);
    echo str_contains(strstr($output, "\n1 ", true), "hush") ? "shown\n" : "hidden\n";
    echo strstr($output, "(", true), strpos($output, "no cluster is started, this host counts alone") > 0 ? "refused\n" : "started\n";
}
?>
--EXPECT--
hidden
Warning: PHP Startup: ephpm_kv.secret: the value is not allowed refused
hidden
Warning: PHP Startup: ephpm_kv.secret_file: the value is not allowed refused
