<?php
// One host of bench/limiter.php. argv: its number, the number of hosts, its fresh counters a second, hits for each,
// their TTL, and where the probes' logs go. Answers lines on stdin with a line of JSON.

declare(strict_types=1);

pcntl_alarm(7_200);

/** Time between two writes of a probe, and between two looks at it, in µs. */
const WRITE_EVERY = 50_000;
const LOOK_EVERY = 1_000;

[, $number, $count, $rate, $hits, $ttl, $directory] = $argv;
$started = hrtime(true);
do {
    ephpm_kv_get('warm');
    $info = ephpm_kv_info();
    if (hrtime(true) - $started > 60e9) {
        fwrite(STDERR, 'not ready: ' . json_encode($info) . "\n");
        exit(1);
    }
    usleep(20_000);
} while ($info['state'] !== 'ready' || count($info['members']) < (int)$count);
echo json_encode(['node' => $info['node_pid']]), "\n";
fgets(STDIN);

/** Runs something in a child. */
function child(callable $life): int
{
    $pid = pcntl_fork();
    if ($pid === 0) {
        pcntl_alarm(7_200);
        $life();
        exit(0);
    }
    return $pid;
}

/** Counts one probe up, and logs when each value was about to be written. */
function write_probe(string $key, string $directory): void
{
    $log = fopen("$directory/written-$key", 'w');
    while (!file_exists("$directory/end")) {
        $at = hrtime(true);
        $value = ephpm_kv_incr($key);
        fwrite($log, "$key $value $at\n");
        usleep(WRITE_EVERY);
    }
}

/** Logs when each value of the probes was first seen here. */
function look_at_probes(array $keys, string $directory, string $number): void
{
    $log = fopen("$directory/seen-$number", 'w');
    $last = [];
    while (!file_exists("$directory/end")) {
        foreach ($keys as $key) {
            $value = ephpm_kv_get($key);
            $at = hrtime(true);
            if ($value !== null && $value !== ($last[$key] ?? null)) {
                $last[$key] = $value;
                fwrite($log, "$key $value $at\n");
            }
        }
        usleep(LOOK_EVERY);
    }
}

// Two hosts write probes of several owners, two others look at them.
$probes = static fn(int $writer): array => array_map(static fn(int $each): string => "probe:$writer:$each", range(0, 3));
$children = match ((int)$number) {
    0, 1 => array_map(static fn(string $key): int => child(static fn() => write_probe($key, $directory)), $probes((int)$number)),
    2, 3 => [child(static fn() => look_at_probes([...$probes(0), ...$probes(1)], $directory, $number))],
    default => [],
};

mt_srand((int)$number);
$calls = $degraded = $refused = $made = 0;
$name = static fn(int $of): string => sprintf('limit:%d.%d.%d.%d', 10 + $number, $of >> 16 & 255, $of >> 8 & 255, $of & 255);
$call = static function (int $of) use (&$calls, &$degraded, &$refused, $name, $ttl): void {
    $result = ephpm_kv_incr_ttl($name($of), 1, (int)$ttl);
    $calls++;
    $degraded += (int)ephpm_kv_degraded();
    $refused += (int)($result === false);
};
$begun = hrtime(true);
while (true) {
    $due = $begun + (int)(($made + 1) / (float)$rate * 1e9);
    $wait = max(0, intdiv($due - hrtime(true), 1_000));
    $read = [STDIN];
    $none = null;
    if (stream_select($read, $none, $none, intdiv($wait, 1_000_000), $wait % 1_000_000) > 0) {
        $line = fgets(STDIN);
        if ($line === false || rtrim($line) === 'end') {
            break;
        }
        $info = ephpm_kv_info();
        preg_match('/^ephpm_kv_replication_lag_seconds (\S+)/m', ephpm_kv_metrics(), $lag);
        echo json_encode([
            'entries' => $info['entries'], 'memory' => $info['memory_used'], 'calls' => $calls,
            'lag_ms' => (float)($lag[1] ?? 0) * 1_000,
        ]), "\n";
        continue;
    }
    $call($made++);
    for ($hit = 0; $hit < (int)$hits; $hit++) {
        $call(mt_rand(max(0, $made - (int)($rate * $ttl * 0.9)), $made - 1));
    }
}
foreach ($children as $pid) {
    pcntl_waitpid($pid, $status);
}
echo json_encode(['calls' => $calls, 'degraded' => $degraded, 'refused' => $refused]), "\n";
fgets(STDIN);
