<?php
// Forks in the middle of a request; both processes count, 50 times each. Prints whether the sum is exact.
declare(strict_types=1);
$key = $_GET['key'];
$before = (int)ephpm_kv_get($key);
$count = function () use ($key): int {
    $degraded = 0;
    for ($i = 0; $i < 50; $i++) {
        ephpm_kv_incr($key);
        $degraded += (int)ephpm_kv_degraded();
    }
    return $degraded;
};
$child = pcntl_fork();
if ($child === 0) {
    // Nothing of this process may end up in the answer; and no end of a server in a child of a worker's.
    exec('kill -' . ($count() === 0 ? SIGKILL : SIGABRT) . ' ' . getmypid());
}
$degraded = $count();
pcntl_waitpid($child, $status);
$after = (int)ephpm_kv_get($key);
$exact = $degraded === 0 && pcntl_wtermsig($status) === SIGKILL && $after === $before + 100;
echo $exact ? 'exact' : "$before, $after, degraded $degraded, signal " . pcntl_wtermsig($status);
