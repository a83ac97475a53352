<?php
// Takes the lock `n` times for a moment, and in it reads a number and writes the next one: unsafe without the lock.
declare(strict_types=1);
require $_GET['examples'] . '/lock.php';
$answer = match ($_GET['do']) {
    'count' => (function (): string {
        $done = 0;
        for ($n = (int)$_GET['n']; $n > 0; $n--) {
            $lock = KvLock::wait('lock:count', 10, 20.0);
            if ($lock === null) {
                continue;
            }
            $number = ephpm_kv_incr('locked', 0);
            usleep(500);
            ephpm_kv_set('locked', (string)($number + 1));
            $done += (int)$lock->release();
        }
        return (string)$done;
    })(),
    'take' => KvLock::take('lock:held', (float)$_GET['ttl']) === null ? 'no' : 'yes',
    'extend' => (function (): string {
        $lock = KvLock::take('lock:extend', 0.2);
        $first = $lock?->extend(30);
        $left = ephpm_kv_pttl('lock:extend');
        ephpm_kv_set('lock:extend', 'somebody else');
        return json_encode([$first, $left > 20_000, $lock?->extend(30), $lock?->release()]);
    })(),
    'locked' => ephpm_kv_get('locked') ?? '',
};
echo $answer;
