<?php
// What count.php has counted in all threads, and on the other host when there are two.

$own = ($cycle + 1) * $requests * 250;
$shared = max(1, (int) getenv('ZTS_HOSTS')) * $threads * $own;
for ($end = microtime(true) + 20; (int) ephpm_kv_get('shared') < $shared && microtime(true) < $end; usleep(5000));
$wrong = ephpm_kv_get('shared') === (string) $shared ? [] : ["shared is not $shared"];
for ($thread = 0; $thread < $threads; $thread++) {
    if (ephpm_kv_get('own:' . getmypid() . ":$thread") !== (string) $own) {
        $wrong[] = "own:$thread is not $own";
    }
}
// Starting PHP again in its process leaves nothing behind.
$descriptors = count(scandir('/proc/self/fd'));
if ($cycle === 0) {
    ephpm_kv_set('descriptors', (string) $descriptors);
} elseif (ephpm_kv_get('descriptors') !== (string) $descriptors) {
    $wrong[] = "$descriptors descriptors are open, no longer " . ephpm_kv_get('descriptors');
}
if ($wrong) {
    printf("cycle %d: %s\n%s\n", $cycle, implode(', ', $wrong), ephpm_kv_metrics());
    exit(1);
}
