<?php
// What a cluster costs under a rate limiter's load: counters with a TTL, fresh ones all the time, from every host.
// Usage: php -n bench/limiter.php MODULE. As root it runs in a network namespace of its own, so that the traffic it
// shows is the cluster's alone.
//
//   EPHPM_KV_BENCH_HOSTS    10       hosts, each with a node process of its own
//   EPHPM_KV_BENCH_FRESH    1700     fresh counters a second, on all hosts together
//   EPHPM_KV_BENCH_HITS     0        increments of live counters for each fresh one
//   EPHPM_KV_BENCH_TTL      60       seconds
//   EPHPM_KV_BENCH_SECONDS  30       measured, after the counters have come to their full number

declare(strict_types=1);

require __DIR__ . '/support.php';

const NAMESPACE_MARK = 'EPHPM_KV_BENCH_NAMESPACE';

$module = $argv[1] ?? '';
if (!is_file($module)) {
    fwrite(STDERR, "usage: php -n bench/limiter.php MODULE (make bench-cluster builds it)\n");
    exit(2);
}
if (posix_root() && getenv(NAMESPACE_MARK) === false) {
    putenv(NAMESPACE_MARK . '=1');
    $again = implode(' ', array_map('escapeshellarg', [PHP_BINARY, '-n', __FILE__, $module]));
    pcntl_exec('/usr/bin/env', ['unshare', '--net', 'sh', '-c', "ip link set lo up && exec $again"]);
}

/** PHP's posix extension is a module of its own, and none is loaded here. */
function posix_root(): bool
{
    return (bool)preg_match('/^Uid:\s+\d+\s+0\s/m', (string)file_get_contents('/proc/self/status'));
}

function setting(string $name, int $default): int
{
    return (int)(getenv("EPHPM_KV_BENCH_$name") ?: $default);
}

/** One host: the process that makes calls, and through it what its node says of itself. */
final class Host
{
    private $process;
    private ?array $pipes = null;
    public int $node = 0;

    public function __construct(public readonly int $number, array $command)
    {
        $this->process = proc_open($command, [['pipe', 'r'], ['pipe', 'w'], STDERR], $this->pipes);
    }

    /** Sends a line, if there is one to send, and gives the numbers of the answer. */
    public function ask(string $line = ''): array
    {
        if ($line !== '') {
            fwrite($this->pipes[0], "$line\n");
        }
        $answer = fgets($this->pipes[1]);
        if ($answer === false) {
            throw new RuntimeException("host $this->number is gone");
        }
        return json_decode($answer, true, flags: JSON_THROW_ON_ERROR);
    }

    public function tell(string $line): void
    {
        fwrite($this->pipes[0], "$line\n");
    }

    /** Waits for its end. */
    public function end(): void
    {
        fclose($this->pipes[0]);
        proc_close($this->process);
    }

    public function kill(): void
    {
        proc_terminate($this->process, 9);
    }
}

/** Seconds of processor time that a process has used: all, and the kernel's part. */
function cpu(int $pid): array
{
    $fields = explode(' ', substr(strrchr((string)file_get_contents("/proc/$pid/stat"), ')'), 2));
    return [($fields[11] + $fields[12]) / 100, $fields[12] / 100];
}

/** Resident KiB: all, and the part that is the segment. */
function resident(int $pid): array
{
    preg_match_all('/^(VmRSS|RssShmem):\s+(\d+)/m', (string)file_get_contents("/proc/$pid/status"), $match);
    return array_map('intval', array_combine($match[1], $match[2]));
}

/** Bytes and packets that loopback has carried. */
function loopback(): array
{
    preg_match('/^\s*lo:\s*(\d+)\s+(\d+)/m', (string)file_get_contents('/proc/net/dev'), $match);
    return [(int)$match[1], (int)$match[2]];
}

/** How long the machine keeps a process waiting that has slept, in ms: the yardstick for the lags. */
function lateness(): float
{
    $start = hrtime(true);
    usleep(1_000);
    return (hrtime(true) - $start) / 1e6 - 1;
}

/** The lags, in ms, of a probe's values: written here, first seen there. */
function lags(string $directory, float $from): array
{
    $written = $lags = [];
    foreach (glob("$directory/written-*") as $file) {
        foreach (file($file) as $line) {
            [$key, $value, $at] = explode(' ', $line);
            $written[$key][(int)$value] = (int)$at;
        }
    }
    foreach (glob("$directory/seen-*") as $file) {
        $last = [];
        foreach (file($file) as $line) {
            [$key, $value, $at] = explode(' ', $line);
            for ($each = ($last[$key] ?? 0) + 1; $each <= (int)$value; $each++) {
                if (isset($written[$key][$each]) && $written[$key][$each] >= $from) {
                    $lags[] = ((int)$at - $written[$key][$each]) / 1e6;
                }
            }
            $last[$key] = (int)$value;
        }
    }
    return $lags;
}

$count = setting('HOSTS', 10);
$ttl = setting('TTL', 60);
$seconds = setting('SECONDS', 30);
$fresh = setting('FRESH', 1_700);
$hits = setting('HITS', 0);
$directory = sys_get_temp_dir() . '/ephpm-kv-limiter-' . getmypid();
mkdir($directory);
$ports = array_map(static fn() => free_port(), range(1, $count));
$join = implode(',', array_map(static fn(int $port): string => "127.0.0.1:$port", $ports));
$hosts = [];
register_shutdown_function(static function () use (&$hosts, $directory): void {
    array_map(static fn(Host $host) => $host->kill(), $hosts);
    array_map('unlink', glob("$directory/*"));
    rmdir($directory);
});
foreach ($ports as $number => $port) {
    $settings = [
        'extension' => $module, 'ephpm_kv.role' => 'member', 'ephpm_kv.runtime' => 'process', 'ephpm_kv.socket' => 'off',
        'ephpm_kv.bind' => "127.0.0.1:$port", 'ephpm_kv.join' => $join, 'ephpm_kv.node_id' => "host$number",
    ];
    $hosts[] = new Host($number, [
        ...php($settings), __DIR__ . '/limiter-host.php', (string)$number, (string)$count, (string)($fresh / $count),
        (string)$hits, (string)$ttl, $directory,
    ]);
}
foreach ($hosts as $host) {
    $host->node = $host->ask()['node'];
}
printf("%d hosts are ready; %d fresh counters a second with a TTL of %d s, %d hits for each\n", $count, $fresh, $ttl, $hits);
echo 'nodes: ', implode(' ', array_map(static fn(Host $host): int => $host->node, $hosts)), "\n";
foreach ($hosts as $host) {
    $host->tell('start');
}
sleep($ttl + 5);

$lateness = $lag_metric = [];
$begun = hrtime(true);
$before = array_map(static fn(Host $host): array => cpu($host->node), $hosts);
$carried = loopback();
$samples = max(2, min(20, intdiv($seconds, 5)));
printf("%8s %10s %14s %14s %14s %14s\n", 'seconds', 'entries', 'segment MiB', 'RSS MiB', 'of it shared', 'calls/s');
for ($sample = 1; $sample <= $samples; $sample++) {
    $until = $begun + intdiv($seconds * $sample * 1_000_000_000, $samples);
    while (hrtime(true) < $until) {
        $lateness[] = lateness();
        usleep((int)max(0, min(50_000, ($until - hrtime(true)) / 1_000)));
    }
    $said = array_map(static fn(Host $host): array => $host->ask('sample'), $hosts);
    $residents = array_map(static fn(Host $host): array => resident($host->node), $hosts);
    array_push($lag_metric, ...array_column($said, 'lag_ms'));
    printf(
        "%8.0f %10d %14.1f %14.1f %14.1f %14.0f\n",
        (hrtime(true) - $begun) / 1e9, max(array_column($said, 'entries')), max(array_column($said, 'memory')) / 1048576,
        max(array_column($residents, 'VmRSS')) / 1024, max(array_column($residents, 'RssShmem')) / 1024,
        array_sum(array_column($said, 'calls')) / ((hrtime(true) - $begun) / 1e9 + $ttl + 5),
    );
}
$wall = (hrtime(true) - $begun) / 1e9;
$after = array_map(static fn(Host $host): array => cpu($host->node), $hosts);
[$cpu, $kernel] = array_map(
    static fn(int $part): array => array_map(static fn(array $now, array $then): float => ($now[$part] - $then[$part]) / $wall * 100, $after, $before),
    [0, 1],
);
[$bytes, $packets] = array_map(static fn(int $now, int $then): float => ($now - $then) / $wall, loopback(), $carried);
touch("$directory/end");
foreach ($hosts as $host) {
    $host->tell('end');
}
$ends = array_map(static fn(Host $host): array => $host->ask(), $hosts);
$lags = lags($directory, $begun);
printf(
    "\nCPU of a node, %% of one core: mean %.2f (kernel %.2f), least %.2f, most %.2f\n",
    array_sum($cpu) / $count, array_sum($kernel) / $count, min($cpu), max($cpu),
);
printf("lag of %d probes, ms: p50 %.1f, p99 %.1f, most %.1f\n", count($lags), median($lags), quantile($lags, 0.99), quantile($lags, 1));
printf("a sleep of 1 ms was late by, ms: p50 %.1f, p99 %.1f, most %.1f\n", median($lateness), quantile($lateness, 0.99), quantile($lateness, 1));
printf("replication_lag_seconds, sampled, ms: p50 %.1f, most %.1f\n", median($lag_metric), quantile($lag_metric, 1));
printf(
    "on loopback%s: %.0f KiB/s and %.0f packets/s in all, %.1f KiB/s and %.0f packets/s for each host\n",
    getenv(NAMESPACE_MARK) === false ? ' (others included)' : '', $bytes / 1024, $packets, $bytes / 1024 / $count, $packets / $count,
);
printf("%d calls, %d degraded, %d refused\n", ...array_map(static fn(string $of): int => array_sum(array_column($ends, $of)), ['calls', 'degraded', 'refused']));
foreach ($hosts as $host) {
    $host->end();
}
$hosts = [];
