<?php
// 500 increments, half of them of a key that everybody shares. What an own key returns is known in advance, also
// when PHP has been started again in its process: the counters are kept.

require dirname(__DIR__, 2) . '/php-tests/cluster.inc';

$hosts = (int) getenv('ZTS_HOSTS');
if ($request === 0 && $hosts > 0) {
    // Nobody counts before everybody can.
    $all = $hosts * $threads * ($cycle + 1);
    $ready = ready($hosts) && ephpm_kv_incr('ready') && until(fn() => (int) ephpm_kv_get('ready') >= $all);
    if (!$ready) {
        echo 'not ready: ', json_encode(ephpm_kv_info()), "\n";
        exit(1);
    }
}
$counted = ($cycle * $requests + $request) * 250;
for ($n = 1; $n <= 250; $n++) {
    $shared = ephpm_kv_incr('shared');
    $degraded = ephpm_kv_degraded();
    $own = ephpm_kv_incr('own:' . getmypid() . ":$thread");
    if (!is_int($shared) || $own !== $counted + $n || $degraded || ephpm_kv_degraded()) {
        printf("thread %d, request %d: own %s, not %d; %s\n", $thread, $request, var_export($own, true),
            $counted + $n, $degraded ? 'degraded' : 'not degraded');
        exit(1);
    }
}
