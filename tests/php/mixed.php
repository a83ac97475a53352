<?php
// Load with calls of every kind, each on keys of its own kind, so that what must hold stays checkable:
//
//   c:N            counters that all hosts count and nobody ends
//   t:N            counters made with a TTL
//   d:N            counters that anyone deletes, or gives a deadline
//   b:HOST.PID:N   values of one process, which goes on to new ones all the time
//   s:N            locks: setnx with a TTL, released by the holder with cas
//   x:N            versions: read, then cas to the next
//   a:N            lists: each process appends words of its own

declare(strict_types=1);

/** Seconds after which a process leaves its own keys and goes on to new ones. */
const OWN_KEYS_FOR = 4;

/** Own keys that a process writes at one time. */
const OWN_KEYS = 4;

/** A value as it is logged: long ones made by token() are named by their token and length. */
function shown(mixed $value): string
{
    if (is_string($value)) {
        $token = rtrim($value, '.');
        $same = strlen($value) > 100 && strlen($token) < 100;
        return 's' . rawurlencode($same ? $token . '~' . strlen($value) : $value);
    }
    return match (true) {
        is_int($value) => "i$value",
        $value === true => 't',
        $value === false => 'f',
        default => 'n',
    };
}

/** A value that nobody else writes, of about this many bytes. */
function token(string $host, int $pid, int $number, int $length): string
{
    return str_pad("$host.$pid.$number", $length, '.');
}

/** PHP's posix extension is a module of its own, and none is loaded here. */
function parent_pid(): int
{
    return (int)explode(' ', substr(strrchr((string)file_get_contents('/proc/self/stat'), ')'), 2))[1];
}

/** One call of a kind: [op, key, argument, ttl in seconds]. */
function drawn(string $kind, array $option, string $host, int $pid, int $number, float $age): array
{
    $chance = mt_rand(0, 99);
    $any = static fn(string $prefix, int $count): string => "$prefix:" . mt_rand(0, $count - 1);
    switch ($kind) {
        case 'count':
            return [$chance < 85 ? 'incr' : 'get', $any('c', (int)$option['counters']), mt_rand(1, 9), 0.0];
        case 'ttl':
            return [$chance < 85 ? 'incr_ttl' : 'pttl', $any('t', 6), mt_rand(1, 9), (float)$option['ttl']];
        case 'reset':
            $key = $any('d', 6);
            return match (true) {
                $chance < 84 => ['incr', $key, mt_rand(1, 9), 0.0],
                $chance < 93 => ['del', $key, 0, 0.0],
                default => ['expire', $key, 0, $chance < 97 ? 0.5 : 0.0],
            };
        case 'own':
            $key = "b:$host.$pid:" . (int)($age / OWN_KEYS_FOR) * OWN_KEYS + mt_rand(0, OWN_KEYS - 1);
            return match (true) {
                $chance < 50 => ['set', $key, token($host, $pid, $number, $chance < 6 ? (int)$option['large'] : 0), $chance < 35 ? 0.0 : mt_rand(2, 20)],
                $chance < 75 => ['get', $key, 0, 0.0],
                $chance < 88 => ['del', $key, 0, 0.0],
                default => ['expire', $key, 0, mt_rand(0, 20)],
            };
        case 'lock':
            return ['setnx', $any('s', 4), "$host.$pid.$number", 2.0];
        case 'version':
            return ['cas', $any('x', 4), '', 0.0];
        case 'list':
            return ['append', $any('a', 4), "$host.$pid.$number;", 0.0];
    }
    throw new Error("no such kind: $kind");
}

/**
 * A child's whole life. Every call is one line: C, start, end (hrtime, ns), pid, key, op, argument, ttl in ms, result,
 * degraded, window stamp and origin, owner right after. Before it stands the same announced: I, start, pid, key, op,
 * argument. Nothing is buffered: the process may be killed. SIGUSR1 ends it after the call it is in.
 */
function mixed(array $option, string $host, int $first): void
{
    pcntl_alarm((int)(getenv('EPHPM_KV_TEST_LIMIT') ?: LIMIT_SECONDS));
    $stop = false;
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, static function () use (&$stop): void {
        $stop = true;
    });
    // What a function warns of is part of the record: its result says so.
    set_error_handler(static fn(): bool => true, E_WARNING);
    mt_srand((int)$option['seed'] * 1000 + $first);
    $pid = getmypid();
    $kinds = [];
    foreach (explode(',', $option['kinds']) as $weighed) {
        [$kind, $weight] = explode(':', $weighed);
        array_push($kinds, ...array_fill(0, (int)$weight, $kind));
    }
    $log = fopen("{$option['dir']}/mixed-$host-$pid.log", 'w');
    $until = (int)$option['until'];
    $pause = (int)$option['pause_us'];
    $parent = parent_pid();
    $born = hrtime(true);
    $seen = $held = [];
    $call = static function (string $op, string $key, mixed $argument, float $ttl, callable $function) use ($log, $pid): mixed {
        $named = rawurlencode($key);
        $text = is_array($argument) ? implode('>', array_map('shown', $argument)) : shown($argument);
        fwrite($log, 'I' . "\t" . hrtime(true) . "\t$pid\t$named\t$op\t$text\n");
        $start = hrtime(true);
        $result = $function();
        $end = hrtime(true);
        $degraded = (int)ephpm_kv_degraded();
        [$stamp, $origin] = str_starts_with($op, 'incr') ? window() : ['0', '0'];
        $ms = (int)round($ttl * 1000);
        $owner = ephpm_kv_owner($key);
        fwrite($log, "C\t$start\t$end\t$pid\t$named\t$op\t$text\t$ms\t" . shown($result) . "\t$degraded\t$stamp\t$origin\t$owner\n");
        return $result;
    };
    for ($number = 0; !$stop && hrtime(true) < $until && ($number % 64 !== 0 || parent_pid() === $parent); $number++) {
        $age = (hrtime(true) - $born) / 1e9;
        [$op, $key, $argument, $ttl] = drawn($kinds[mt_rand(0, count($kinds) - 1)], $option, $host, $pid, $number, $age);
        switch ($op) {
            case 'incr':
                $call($op, $key, $argument, $ttl, static fn() => ephpm_kv_incr($key, $argument));
                break;
            case 'incr_ttl':
                $call($op, $key, $argument, $ttl, static fn() => ephpm_kv_incr_ttl($key, $argument, $ttl));
                break;
            case 'pttl':
                $call($op, $key, 0, $ttl, static fn() => ephpm_kv_pttl($key));
                break;
            case 'get':
                $call($op, $key, 0, 0.0, static fn() => ephpm_kv_get($key));
                break;
            case 'set':
                $call($op, $key, $argument, (float)$ttl, static fn() => ephpm_kv_set($key, $argument, $ttl));
                break;
            case 'del':
                $call($op, $key, 0, 0.0, static fn() => ephpm_kv_del($key));
                break;
            case 'expire':
                $call($op, $key, 0, (float)$ttl, static fn() => ephpm_kv_expire($key, $ttl));
                break;
            case 'setnx':
                if (isset($held[$key])) {
                    $token = $held[$key];
                    unset($held[$key]);
                    $call('cas', $key, [$token, null], 0.0, static fn() => ephpm_kv_cas($key, $token, null));
                } elseif ($call($op, $key, $argument, $ttl, static fn() => ephpm_kv_setnx($key, $argument, $ttl))) {
                    $held[$key] = $argument;
                }
                break;
            case 'cas':
                $old = $seen[$key] ?? null;
                // No integer: that would be a counter, and what two sides of a fork count is summed.
                $new = 'v' . ((int)substr($old ?? 'v0', 1) + 1);
                if ($call($op, $key, [$old, $new], 0.0, static fn() => ephpm_kv_cas($key, $old, $new))) {
                    $seen[$key] = $new;
                } else {
                    $seen[$key] = $call('get', $key, 0, 0.0, static fn() => ephpm_kv_get($key));
                }
                break;
            case 'append':
                $call($op, $key, $argument, 0.0, static fn() => ephpm_kv_append($key, $argument));
                break;
        }
        usleep(mt_rand(intdiv($pause, 2), $pause + intdiv($pause, 2)));
    }
    fwrite($log, "# end\n");
    fclose($log);
}
