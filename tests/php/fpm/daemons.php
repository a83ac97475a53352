<?php
// Leaves two processes running, and prints their numbers.
echo exec('sleep 60 >/dev/null 2>&1 </dev/null & echo $!'), "\n";
$process = proc_open(['sh', '-c', 'sleep 60 >/dev/null 2>&1 </dev/null & echo $!'], [1 => ['pipe', 'w']], $pipes);
echo stream_get_contents($pipes[1]);
proc_close($process);
