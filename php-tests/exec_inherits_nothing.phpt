--TEST--
What a script starts inherits no descriptor of the segment, the node or the log
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
require __DIR__ . "/cluster.inc";

// The test's own runner may hand some on.
exec("ls -l /proc/self/fd", $ours);
$ours = preg_replace("/^.* -> /", "", preg_grep('/memfd|socket|eventfd|eventpoll/', $ours));
$log = tempnam(sys_get_temp_dir(), "ephpm_kv");
echo run(host(free_port(), ["log" => $log]), "const OURS = " . var_export($ours, true) . ';' . <<<'CODE'
    function inherited(): string
    {
        $all = preg_grep('/memfd|socket|eventfd|eventpoll|ephpm/', explode("\n", shell_exec("ls -l /proc/self/fd")));
        return implode(" ", array_diff(preg_replace("/^.* -> /", "", $all), OURS));
    }
    var_dump(inherited(), ready(), ephpm_kv_incr("k"), inherited());
    if (pcntl_fork() === 0) {
        ephpm_kv_incr("k");
        var_dump(inherited());
        exit(0);
    }
    pcntl_wait($status);
    var_dump($status, ephpm_kv_get("k"));
    CODE);
unlink($log);
?>
--EXPECT--
string(0) ""
bool(true)
int(1)
string(0) ""
string(0) ""
int(0)
string(1) "2"
