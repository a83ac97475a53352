<?php
// One host of a test cluster: this process and the children it forks share one host segment.
//
// Commands come as lines of tab-separated fields on stdin, one answer line each on stdout: "ok<TAB>..." or
// "error<TAB>message". Values travel as i:5, d:0.2, s:percent-encoded, t, f, n.
//
//   call FUNCTION ARG...   value, degraded, nanoseconds, window stamp, window origin
//   info                   state, live members, node id, node pid, memory used, entries, epoch, reason
//   run CODE               percent-encoded code: what it prints, warnings included; in_child() in it forks
//   metrics                percent-encoded Prometheus text
//   clock                  hrtime
//   load NAME=VALUE...     forks children that call until told to end (see load()); answers their pids
//   mixed NAME=VALUE...    the same with calls of every kind (see mixed.php)
//   dump KEY...            "value pttl" of each percent-encoded key, in one answer (see shown() in mixed.php)
//   wait                   waits for the children: "pid:status" each
//   rss                    resident KiB, threads, descriptors of this process and each child
//   exit                   ends in order

declare(strict_types=1);

require __DIR__ . '/mixed.php';

// Nothing may outlive the test, even if the runner was killed: default action of SIGALRM is the end.
const LIMIT_SECONDS = 7200;
pcntl_alarm((int)(getenv('EPHPM_KV_TEST_LIMIT') ?: LIMIT_SECONDS));

$host = getenv('EPHPM_KV_TEST_HOST') ?: 'host';
$children = [];

function encode(mixed $value): string
{
    return match (true) {
        is_int($value) => "i:$value",
        is_float($value) => 'd:' . var_export($value, true),
        is_string($value) => 's:' . rawurlencode($value),
        $value === true => 't',
        $value === false => 'f',
        $value === null => 'n',
        default => 's:' . rawurlencode(json_encode($value, JSON_PARTIAL_OUTPUT_ON_ERROR)),
    };
}

function decode(string $field): mixed
{
    [$kind, $rest] = explode(':', $field, 2) + [1 => ''];
    return match ($kind) {
        'i' => (int)$rest,
        'd' => (float)$rest,
        's' => rawurldecode($rest),
        't' => true,
        'f' => false,
        'n' => null,
    };
}

function window(): array
{
    return function_exists('ephpm_kv_test_window') ? ephpm_kv_test_window() : ['0', '0'];
}

function live_members(array $info): int
{
    return count(array_filter($info['members'] ?? [], static fn(array $member): bool => (bool)($member['live'] ?? true)));
}

/**
 * A child's whole life: calls the module in a loop and logs every call as one line:
 * start, end (hrtime, ns), host, pid, key, op, delta, ttl in ms, result (F: false), degraded, window stamp and origin.
 * With intent=1 an "I" line is written before each call, and no line is ever buffered, for processes that get killed.
 */
function load(array $option, string $host, int $number): void
{
    pcntl_alarm((int)(getenv('EPHPM_KV_TEST_LIMIT') ?: LIMIT_SECONDS));
    mt_srand((int)$option['seed'] * 1000 + $number);
    $pid = getmypid();
    $keys = isset($option['keylist'])
        ? array_map('rawurldecode', explode(',', $option['keylist']))
        : array_map(static fn(int $i): string => "{$option['prefix']}:$i", range(0, (int)$option['keys'] - 1));
    $mix = explode(',', $option['mix'] ?? 'incr');
    $low = (int)($option['low'] ?? 1);
    $high = (int)($option['high'] ?? 1);
    // With perkey, all values of one key are multiples of its own number: an answer to another key's call shows.
    $perkey = array_map('intval', array_filter(explode(',', $option['perkey'] ?? '')));
    $ttl = (float)($option['ttl'] ?? 0);
    $calls = (int)($option['calls'] ?? 0) ?: PHP_INT_MAX;
    // Never for ever: the test may be gone.
    $until = (int)($option['until'] ?? 0) ?: hrtime(true) + 600_000_000_000;
    $pause = (int)($option['pause_us'] ?? 0);
    $intent = (bool)($option['intent'] ?? false);
    // A file whose appearance ends the load.
    $stop = $option['stop'] ?? '';
    $looked = 0;
    $log = isset($option['dir']) ? fopen("{$option['dir']}/calls-$host-$pid.log", 'w') : null;
    $buffer = '';
    for ($wait = (int)($option['at'] ?? 0) - hrtime(true); $wait > 0; $wait = (int)$option['at'] - hrtime(true)) {
        usleep(intdiv($wait, 1000) + 1);
    }
    for ($done = 0; $done < $calls; $done++) {
        $index = mt_rand(0, count($keys) - 1);
        $key = $keys[$index];
        $op = $mix[mt_rand(0, count($mix) - 1)];
        do {
            $by = mt_rand($low, $high);
        } while ($by === 0);
        if ($perkey) {
            $by = $perkey[$index];
        }
        $name = rawurlencode($key);
        $start = hrtime(true);
        if ($start >= $until) {
            break;
        }
        if ($stop !== '' && $start >= $looked + 20_000_000) {
            $looked = $start;
            if (file_exists($stop)) {
                break;
            }
        }
        if ($intent) {
            fwrite($log, "I\t$start\t$host\t$pid\t$name\t$op\t$by\n");
            $start = hrtime(true);
        }
        switch ($op) {
            case 'incr':
            case 'incr_expire':
                $result = $by === 1 ? ephpm_kv_incr($key) : ephpm_kv_incr($key, $by);
                break;
            case 'incr_by':
                $result = ephpm_kv_incr_by($key, $by);
                break;
            case 'incr_ttl':
                $result = ephpm_kv_incr_ttl($key, $by, $ttl);
                break;
            case 'pttl':
                $result = ephpm_kv_pttl($key);
                break;
            default:
                throw new Error("no such op: $op");
        }
        $end = hrtime(true);
        if ($log) {
            $degraded = (int)ephpm_kv_degraded();
            [$stamp, $origin] = $op === 'pttl' ? ['0', '0'] : window();
            $value = $result === false ? 'F' : $result;
            $logged = $op === 'incr_expire' ? 'incr' : $op;
            $ms = $op === 'incr_ttl' ? (int)round($ttl * 1000) : 0;
            $buffer .= "$start\t$end\t$host\t$pid\t$name\t$logged\t$by\t$ms\t$value\t$degraded\t$stamp\t$origin\n";
        }
        if ($op === 'incr_expire' && $result === $by) {
            ephpm_kv_expire($key, $ttl);
        }
        if ($log && ($intent || strlen($buffer) > 65536)) {
            fwrite($log, $buffer);
            $buffer = '';
        }
        if ($pause > 0) {
            usleep($pause);
        }
    }
    if ($log) {
        fwrite($log, $buffer . "# end\n");
        fclose($log);
    }
}

function usage(int $pid): string
{
    $status = (string)@file_get_contents("/proc/$pid/status");
    preg_match('/VmRSS:\s+(\d+)/', $status, $rss);
    preg_match('/Threads:\s+(\d+)/', $status, $threads);
    // The node's thread has a descriptor table of its own.
    $descriptors = 0;
    foreach (glob("/proc/$pid/task/*") ?: [] as $task) {
        $descriptors += max(0, count(@scandir("$task/fd") ?: []) - 2);
    }
    return "$pid:" . ($rss[1] ?? 0) . ':' . ($threads[1] ?? 0) . ":$descriptors";
}

/** What code prints, with its warnings as "Warning: ..." lines. */
function run(string $code): string
{
    ob_start();
    set_error_handler(static function (int $level, string $message): bool {
        echo $level === E_WARNING ? 'Warning' : "Error $level", ": $message\n";
        return true;
    });
    try {
        eval($code);
    } finally {
        restore_error_handler();
        $output = ob_get_clean();
    }
    return $output;
}

/** What a function prints that runs in a forked child. */
function in_child(callable $function): string
{
    [$here, $there] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $pid = pcntl_fork();
    if ($pid === 0) {
        // Not the parent's output, which is not this process's to print.
        while (ob_get_level() > 0) {
            ob_end_clean();
        }
        ob_start();
        pcntl_alarm(60);
        try {
            $function();
        } catch (Throwable $error) {
            echo get_class($error), ': ', $error->getMessage(), "\n";
        }
        fwrite($there, ob_get_clean());
        exit(0);
    }
    fclose($there);
    $output = stream_get_contents($here);
    pcntl_waitpid($pid, $status);
    return $output . (pcntl_wifexited($status) && pcntl_wexitstatus($status) === 0 ? '' : "child: status $status\n");
}

/** Fields of the answer to one command. */
function answer(array $fields, string $host, array &$children): array
{
    $command = array_shift($fields);
    switch ($command) {
        case 'call':
            $function = array_shift($fields);
            $arguments = array_map('decode', $fields);
            $start = hrtime(true);
            $result = $function(...$arguments);
            $elapsed = hrtime(true) - $start;
            return [encode($result), (int)ephpm_kv_degraded(), $elapsed, ...window()];
        case 'run':
            return [rawurlencode(run(rawurldecode($fields[0])))];
        case 'info':
            $info = ephpm_kv_info();
            return [
                $info['state'], live_members($info), $info['node_id'] ?? '', $info['node_pid'] ?? 0,
                $info['memory_used'] ?? 0, $info['entries'] ?? 0, $info['epoch'] ?? 0, rawurlencode((string)($info['reason'] ?? '')),
            ];
        case 'metrics':
            return [rawurlencode(ephpm_kv_metrics())];
        case 'clock':
            return [hrtime(true)];
        case 'dump':
            $held = static fn(string $key): string => shown(ephpm_kv_get($key)) . ' ' . ephpm_kv_pttl($key);
            return array_map($held, array_map('rawurldecode', $fields));
        case 'load':
        case 'mixed':
            $life = $command === 'mixed' ? 'mixed' : 'load';
            $option = [];
            foreach ($fields as $field) {
                [$name, $value] = explode('=', $field, 2);
                $option[$name] = $value;
            }
            for ($number = 0; $number < (int)$option['procs']; $number++) {
                $pid = pcntl_fork();
                if ($pid === 0) {
                    $life($option, $host, (int)($option['first'] ?? 0) + $number);
                    exit(0);
                }
                $children[] = $pid;
            }
            return [implode(',', $children)];
        case 'wait':
            $statuses = [];
            foreach ($children as $pid) {
                pcntl_waitpid($pid, $status);
                $statuses[] = "$pid:" . (pcntl_wifexited($status) ? pcntl_wexitstatus($status) : 'signal' . pcntl_wtermsig($status));
            }
            $children = [];
            return [implode(',', $statuses)];
        case 'rss':
            return [implode(',', array_map('usage', [getmypid(), ...$children]))];
        default:
            throw new Error('no such command');
    }
}

while (($line = fgets(STDIN)) !== false) {
    $fields = explode("\t", rtrim($line, "\n"));
    if ($fields[0] === 'exit') {
        break;
    }
    try {
        $reply = ['ok', ...answer($fields, $host, $children)];
    } catch (Throwable $error) {
        $reply = ['error', rawurlencode(get_class($error) . ': ' . $error->getMessage())];
    }
    fwrite(STDOUT, implode("\t", $reply) . "\n");
}
foreach ($children as $pid) {
    pcntl_waitpid($pid, $status);
}
exit(0);
