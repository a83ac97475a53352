<?php
// One measurement in a process of its own; argv: mode, then what the mode takes. Prints one line of numbers.

declare(strict_types=1);

pcntl_alarm(600);

/** Waits until the node is ready with so many members. */
function ready(int $members): void
{
    $until = hrtime(true) + 15_000_000_000;
    do {
        ephpm_kv_get('warm');
        $info = ephpm_kv_info();
        if ($info['state'] === 'ready' && count($info['members']) >= $members) {
            return;
        }
        usleep(10_000);
    } while (hrtime(true) < $until);
    fwrite(STDERR, 'not ready: ' . json_encode($info) . "\n");
    exit(1);
}

/** Keys this host does not own. */
function remote_keys(): array
{
    $mine = ephpm_kv_info()['node_id'];
    for ($keys = [], $i = 0; count($keys) < 16; $i++) {
        if (ephpm_kv_owner("bench:$i") !== $mine) {
            $keys[] = "bench:$i";
        }
    }
    return $keys;
}

/** Nanoseconds of each call, sorted, as "p50 p99". */
function quantiles(callable $call, int $calls): string
{
    $took = [];
    for ($i = 0; $i < $calls; $i++) {
        $start = hrtime(true);
        $call($i);
        $took[] = hrtime(true) - $start;
    }
    sort($took);
    return $took[intdiv($calls, 2)] . ' ' . $took[(int)($calls * 0.99)];
}

/** Nanoseconds per turn of a loop that makes the call, the empty loop's share taken off. */
function per_call(callable $loop, int $calls): float
{
    $loop(1_000);
    $start = hrtime(true);
    $loop($calls);
    $full = hrtime(true) - $start;
    $start = hrtime(true);
    for ($i = 0; $i < $calls; $i++) {
    }
    return ($full - (hrtime(true) - $start)) / $calls;
}

[, $mode] = $argv;
$number = (int)($argv[2] ?? 0);
switch ($mode) {
    case 'local':
        ready(1);
        $key = 'bench:local-counter-name';
        echo per_call(static function (int $calls) use ($key): void {
            for ($i = 0; $i < $calls; $i++) {
                ephpm_kv_incr($key);
            }
        }, $number);
        if (ephpm_kv_degraded() || (int)ephpm_kv_get($key) !== $number + 1_000) {
            fwrite(STDERR, "the count is wrong or degraded\n");
            exit(1);
        }
        break;
    case 'apcu':
        $key = 'bench:local-counter-name';
        echo per_call(static function (int $calls) use ($key): void {
            for ($i = 0; $i < $calls; $i++) {
                apcu_inc($key);
            }
        }, $number);
        break;
    case 'serve':
        ready(1);
        echo "ready\n";
        fgets(STDIN);
        break;
    case 'remote':
        ready(2);
        $keys = remote_keys();
        quantiles(static fn(int $i) => ephpm_kv_incr($keys[$i % 16]), 500);
        $degraded = 0;
        echo quantiles(static function (int $i) use ($keys, &$degraded): void {
            ephpm_kv_incr($keys[$i % 16]);
            $degraded += (int)ephpm_kv_degraded();
        }, $number);
        if ($degraded > 0) {
            fwrite(STDERR, "$degraded calls were degraded\n");
        }
        break;
    case 'redis':
        $redis = new Redis();
        $redis->connect('127.0.0.1', (int)$argv[3], 2.0);
        quantiles(static fn(int $i) => $redis->incr('bench:' . $i % 16), 500);
        $keys = array_map(static fn(int $i): string => "bench:$i", range(0, 15));
        echo quantiles(static fn(int $i) => $redis->incr($keys[$i % 16]), $number);
        break;
    case 'bytes':
        $before = ephpm_kv_info()['memory_used'];
        for ($i = 0; $i < $number; $i++) {
            if (ephpm_kv_incr(sprintf('bytes:%018d', $i)) !== 1) {
                fwrite(STDERR, "counter $i was refused\n");
                exit(1);
            }
        }
        echo (ephpm_kv_info()['memory_used'] - $before) / $number;
        break;
    case 'peak':
        preg_match('/VmHWM:\s+(\d+)/', file_get_contents('/proc/self/status'), $match);
        echo $match[1];
        break;
    default:
        fwrite(STDERR, "no such mode: $mode\n");
        exit(2);
}
echo "\n";
