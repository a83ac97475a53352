--TEST--
Forked processes: every increment returns a value of its own
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
$sockets = [];
for ($c = 0; $c < 3; $c++) {
    $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (pcntl_fork() === 0) {
        $seen = [];
        for ($n = 0; $n < 2000; $n++) {
            $seen[] = ephpm_kv_incr("k");
        }
        fwrite($pair[1], implode(",", $seen) . "\n");
        exit(0);
    }
    fclose($pair[1]);
    $sockets[] = $pair[0];
}
$seen = [];
foreach ($sockets as $socket) {
    array_push($seen, ...explode(",", trim(stream_get_contents($socket))));
}
while (pcntl_wait($status) > 0);
sort($seen, SORT_NUMERIC);
var_dump(count($seen), $seen == range(1, 6000), ephpm_kv_get("k"));
?>
--EXPECT--
int(6000)
bool(true)
string(4) "6000"
