<?php
// Forks before the first use: a child's first call starts the node, the parent's comes later. argv: key.
// Prints "RESULT child's value, parent's value, same node".
pcntl_alarm(60);
[, $key] = $argv;
function ready(): void
{
    $until = hrtime(true) + 10_000_000_000;
    do {
        ephpm_kv_get('warm');
    } while (ephpm_kv_info()['state'] !== 'ready' && hrtime(true) < $until && usleep(10_000) === null);
}
[$here, $there] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
$pid = pcntl_fork();
if ($pid === 0) {
    ready();
    $value = ephpm_kv_incr($key, 5);
    fwrite($there, "$value " . ephpm_kv_info()['node_pid'] . ' ' . getmypid() . "\n");
    fgets($there);
    exit(0);
}
[$childs, $node, $child] = explode(' ', trim(fgets($here)));
ready();
$parents = ephpm_kv_incr($key, 7);
$same = (int)(ephpm_kv_info()['node_pid'] == $node);
fwrite($here, "end\n");
pcntl_waitpid($pid, $status);
echo "RESULT $childs $parents $same ", pcntl_wexitstatus($status), "\n";
