--TEST--
ephpm_kv.log as a file: appended to, one line per event, by ephpm_kv.log_level
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$log = tempnam(sys_get_temp_dir(), "ephpm_kv");
foreach (["error", "warn", "info"] as $level) {
    file_put_contents($log, "before\n");
    $join = ["join" => "no-such-host.invalid:7400"];
    // One that joins nobody and gets ready, and one that never does, into the same file.
    echo run(host(free_port(), ["log" => $log, "log_level" => $level]), 'echo ready(), ephpm_kv_incr("k");');
    echo run(host(free_port(), $join + ["log" => $log, "log_level" => $level]), <<<'CODE'
        ephpm_kv_incr("k");
        $quiet = ini_get("ephpm_kv.log_level") === "error" ? microtime(true) + 1 : 0;
        echo until(fn() => $quiet ? microtime(true) > $quiet : str_contains(file_get_contents(ini_get("ephpm_kv.log")), "no-such-host"));
        CODE);
    $lines = file($log, FILE_IGNORE_NEW_LINES);
    $levels = [];
    foreach (array_slice($lines, 1) as $line) {
        preg_match('/^ephpm_kv: \d{4}-\d\d-\d\dT\S+Z +([A-Z]+) \S/', $line, $found) || print("not a line: $line\n");
        $levels[$found[1] ?? "?"] = true;
    }
    ksort($levels);
    echo "$level: $lines[0], ", implode(" ", array_keys($levels)), "\n";
}
unlink($log);
?>
--EXPECT--
11
1
error: before, 
11
1
warn: before, WARN
11
1
info: before, INFO WARN
