<?php
// On the command line: counts once with each key, and says of which host it was a part.
$counted = true;
foreach (array_slice($argv, 1) as $key) {
    $counted = is_int(ephpm_kv_incr($key)) && !ephpm_kv_degraded() && $counted;
}
$info = ephpm_kv_info();
echo "$info[node_id] $info[node_pid] $info[origin] ", $counted ? 'counted' : 'degraded';
