<?php
// Ratios against what people use today, all in one run, in turns (A B A B ...). Usage: php -n bench/bench.php MODULE
// EPHPM_KV_BENCH_ROUNDS (7) and EPHPM_KV_BENCH_CALLS (200000 local, a tenth of it remote) change its size.

declare(strict_types=1);

require __DIR__ . '/support.php';

$module = $argv[1] ?? '';
if (!is_file($module)) {
    fwrite(STDERR, "usage: php -n bench/bench.php MODULE (make bench builds it)\n");
    exit(2);
}
$rounds = (int)(getenv('EPHPM_KV_BENCH_ROUNDS') ?: 7);
$calls = (int)(getenv('EPHPM_KV_BENCH_CALLS') ?: 200_000);
$counters = 100_000;
$started = [];
register_shutdown_function(static function () use (&$started): void {
    foreach ($started as $process) {
        proc_terminate($process, 9);
        proc_close($process);
    }
});

/** Runs a command to its end and gives the numbers it prints. */
function numbers(array $command): array
{
    $process = proc_open($command, [['file', '/dev/null', 'r'], ['pipe', 'w'], STDERR], $pipes);
    $output = stream_get_contents($pipes[1]);
    $status = proc_close($process);
    if ($status !== 0) {
        throw new RuntimeException(implode(' ', $command) . " ended with $status");
    }
    return array_map('floatval', explode(' ', trim($output)));
}

/** Starts a command that serves until the end of this script. */
function serve(array $command, string $until): void
{
    global $started;
    $process = proc_open($command, [['pipe', 'r'], ['pipe', 'w'], STDERR], $pipes);
    $started[] = $process;
    $GLOBALS['pipes'][] = $pipes;
    while (($line = fgets($pipes[1])) !== false) {
        if (str_contains($line, $until)) {
            return;
        }
    }
    throw new RuntimeException(implode(' ', $command) . ' did not start');
}

/** Wall time of a command, in ms. */
function wall(array $command): float
{
    $start = hrtime(true);
    numbers($command);
    return (hrtime(true) - $start) / 1e6;
}

/** One line of the table: both medians, and the ratio's median and spread over the rounds. */
function row(string $what, array $ours, array $theirs, string $unit): void
{
    $ratios = array_map(static fn(float $a, float $b): float => $a / $b, $ours, $theirs);
    printf(
        "%-58s %9.2f %9.2f %-4s %7.2f  (%.2f to %.2f)\n",
        $what, median($ours), median($theirs), $unit, median($ratios), min($ratios), max($ratios),
    );
}

$worker = __DIR__ . '/worker.php';
$extension = static fn(string $name): string => ini_get('extension_dir') . "/$name.so";
$alone = ['extension' => $module, 'ephpm_kv.role' => 'member', 'ephpm_kv.socket' => 'off'];

$redis = free_port();
serve(
    ['redis-server', '--port', (string)$redis, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--daemonize', 'no'],
    'Ready to accept connections',
);
$ports = [free_port(), free_port()];
$join = "127.0.0.1:$ports[0],127.0.0.1:$ports[1]";
$host = static fn(int $i): array => $alone + [
    'ephpm_kv.bind' => "127.0.0.1:$ports[$i]", 'ephpm_kv.join' => $join, 'ephpm_kv.node_id' => "bench$i",
];
// The first host waits for the second to become ready, so it is only told to start here.
$process = proc_open([...php($host(0)), $worker, 'serve'], [['pipe', 'r'], ['pipe', 'w'], STDERR], $peer);
$started[] = $process;

$data = [];
for ($round = 0; $round < $rounds; $round++) {
    $one = $alone + ['ephpm_kv.bind' => '127.0.0.1:' . free_port()];
    $data['local'][] = numbers([...php($one), $worker, 'local', (string)$calls])[0];
    $apcu = ['extension' => $extension('apcu'), 'apc.enable_cli' => '1'];
    $data['apcu'][] = numbers([...php($apcu), $worker, 'apcu', (string)$calls])[0];

    $remote = numbers([...php($host(1)), $worker, 'remote', (string)intdiv($calls, 10)]);
    // Debian's phpredis needs igbinary's symbols.
    $load = is_file($extension('igbinary')) ? ['-d', 'extension=' . $extension('igbinary')] : [];
    $load = [PHP_BINARY, '-n', ...$load, '-d', 'extension=' . $extension('redis')];
    $peers = numbers([...$load, $worker, 'redis', (string)intdiv($calls, 10), (string)$redis]);
    foreach (['p50', 'p99'] as $index => $name) {
        $data["remote $name"][] = $remote[$index] / 1e3;
        $data["redis $name"][] = $peers[$index] / 1e3;
    }

    foreach (['with' => ['extension' => $module], 'without' => []] as $name => $settings) {
        $walls = [];
        for ($i = 0; $i < 10; $i++) {
            $walls[] = wall([...php($settings), '-r', '']);
        }
        $data["wall $name"][] = median($walls);
        $data["peak $name"][] = numbers([...php($settings), $worker, 'peak'])[0];
    }
}
$bytes = numbers([...php(['extension' => $module, 'ephpm_kv.memory' => '64M']), $worker, 'bytes', (string)$counters])[0];

printf("%d rounds in turns; ratio: median (smallest to largest)\n", $rounds);
printf("%-58s %9s %9s %-4s %7s\n", '', 'ours', 'theirs', '', 'ratio');
row('increment, owner-local (cluster of one) / apcu_inc', $data['local'], $data['apcu'], 'ns');
row('increment, remote p50 / phpredis INCR over TCP p50', $data['remote p50'], $data['redis p50'], 'us');
row('increment, remote p99 / phpredis INCR over TCP p99', $data['remote p99'], $data['redis p99'], 'us');
row("php -n -r '' wall time, with / without the module", $data['wall with'], $data['wall without'], 'ms');
row('php -n peak resident memory, with / without the module', $data['peak with'], $data['peak without'], 'KiB');
printf("%-58s %9.1f\n", sprintf('bytes per counter (24-byte keys, %d counters)', $counters), $bytes);
