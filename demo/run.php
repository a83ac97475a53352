<?php
// Three web servers on this machine as three hosts of one cluster. Usage: php -n demo/run.php MODULE
// Shows one counter growing on all of them, kills the host that owns it, and brings it back.
// Ends with a verdict; the exit status is 1 when a number is wrong.

declare(strict_types=1);

require __DIR__ . '/Server.php';
require __DIR__ . '/Load.php';

const KEY = 'visits';
const REQUESTS = 3_000;
const REQUESTS_AFTER = 600;
/** Seconds of load before and after the kill. */
const BEFORE_KILL = 1.5;
const AFTER_KILL = 4.0;
/** Seconds: what a dead owner acknowledged longer before than this must be on the other hosts. */
const LAG = 0.25;

$module = $argv[1] ?? '';
if (!is_file($module)) {
    fwrite(STDERR, "usage: php -n demo/run.php MODULE (make demo builds it)\n");
    exit(2);
}

/** A port that is free on TCP and UDP. */
function free_port(): int
{
    while (true) {
        $tcp = stream_socket_server('tcp://127.0.0.1:0');
        $port = (int)substr(strrchr(stream_socket_get_name($tcp, false), ':'), 1);
        $udp = @stream_socket_server("udp://127.0.0.1:$port", $code, $message, STREAM_SERVER_BIND);
        if ($udp !== false) {
            return $port;
        }
    }
}

$dir = sys_get_temp_dir() . '/ephpm_kv-demo-' . getmypid();
mkdir($dir, 0700);
$nodes = $https = [];
while (count($nodes) < 3) {
    [$node, $http] = [free_port(), free_port()];
    if (count(array_unique([...$nodes, ...$https, $node, $http])) === count($nodes) * 2 + 2) {
        $nodes[] = $node;
        $https[] = $http;
    }
}
$join = implode(',', array_map(static fn(int $port): string => "127.0.0.1:$port", $nodes));
$names = ['anna', 'ben', 'cleo'];
$servers = array_map(
    static fn(int $i): Server => new Server($names[$i], $https[$i], $nodes[$i], $join, $module, $dir),
    [0, 1, 2],
);

$problems = [];
register_shutdown_function(static function () use ($servers, $dir): void {
    foreach ($servers as $server) {
        $server->kill();
    }
    array_map('unlink', glob("$dir/*"));
    rmdir($dir);
});
if (function_exists('pcntl_signal')) {
    pcntl_async_signals(true);
    foreach ([SIGINT, SIGTERM, SIGHUP] as $signal) {
        pcntl_signal($signal, static fn() => exit(130));
    }
}

function say(string $line = ''): void
{
    echo $line, "\n";
    flush();
}

/** Notes whether something is as it must be. */
function check(bool $right, string $what): void
{
    global $problems;
    say(($right ? '   ok     ' : '   WRONG  ') . $what);
    if (!$right) {
        $problems[] = $what;
    }
}

/** Waits until all these servers are ready and see so many members; false after 15 s. */
function ready(array $servers, int $members): bool
{
    $until = microtime(true) + 15;
    do {
        $good = true;
        foreach ($servers as $server) {
            $state = $server->state(KEY);
            $good = $good && $state !== null && $state['state'] === 'ready' && $state['members'] === $members;
        }
        if (!$good) {
            usleep(50_000);
        }
    } while (!$good && microtime(true) < $until);
    return $good;
}

/** The counter on every living server, once they agree (or 5 s have passed). */
function agreed(array $servers): array
{
    $until = microtime(true) + 5;
    do {
        $values = [];
        foreach ($servers as $server) {
            if ($server->alive()) {
                $values[$server->name] = $server->state(KEY)['value'] ?? null;
            }
        }
    } while (count(array_unique($values)) > 1 && microtime(true) < $until && usleep(50_000) === null);
    return $values;
}

/** Sum of a number over the living servers. */
function sum(array $servers, string $name): int
{
    $living = array_filter($servers, static fn(Server $server): bool => $server->alive());
    return array_sum(array_map(static fn(Server $server): int => $server->state(KEY)[$name] ?? 0, $living));
}

/** Prints a line with the count on every server, at most every 0.3 s. */
function watch(array $servers, Load $load): callable
{
    $started = microtime(true);
    $next = $started;
    return static function () use ($servers, $load, $started, &$next): void {
        if (microtime(true) < $next) {
            return;
        }
        $line = sprintf('   %4.1f s ', microtime(true) - $started);
        foreach ($servers as $server) {
            $value = $server->alive() ? (string)($server->state(KEY)['value'] ?? '?') : 'dead';
            $line .= sprintf('  %-5s%6s', $server->name, $value);
        }
        $degraded = count(array_filter($load->answers, static fn(array $answer): bool => $answer['degraded']));
        say($line . sprintf('   answered %6d   degraded %4d', count($load->answers), $degraded));
        $next = microtime(true) + 0.3;
    };
}

/** The values answered are exactly FROM+1 .. FROM+COUNT, each once. */
function gapless(array $answers, int $from): bool
{
    $values = array_column($answers, 'value');
    sort($values);
    return $values === range($from + 1, $from + count($values));
}

say('Three web servers (php -S), each a host of one cluster: ' . implode(', ', $names) . '.');
foreach ($servers as $server) {
    $server->start();
}
if (!ready($servers, 3)) {
    say('They do not find each other:');
    foreach ($servers as $server) {
        say("--- $server->name: " . json_encode($server->state(KEY)) . "\n" . $server->log());
    }
    exit(1);
}
$owner = $servers[0]->state(KEY)['owner'];
say(sprintf('They have found each other. The counter "%s" is owned by %s.', KEY, $owner));

say();
say(sprintf('1. %d requests, 24 at a time, spread over all three. Each adds 1.', REQUESTS));
$first = new Load(KEY);
$watch = watch($servers, $first);
$first->run($servers, static fn(int $sent): bool => $sent >= REQUESTS, $watch);
$values = agreed($servers);
$count = count($first->answers);
check($first->failed === 0 && $count === REQUESTS, "all $count requests were answered");
check(gapless($first->answers, 0), 'they were told the numbers 1 to ' . $count . ', each exactly once');
check(array_unique(array_values($values)) === [REQUESTS], 'the count is ' . json_encode($values));
$local = $remote = $degraded = 0;
foreach ($servers as $server) {
    $state = $server->state(KEY);
    $local += $state['local'];
    $remote += $state['remote'];
    $degraded += $state['degraded'];
    say(sprintf('          %-5s counted %d itself, asked %s for %d', $server->name, $state['local'], $owner, $state['remote']));
}
check($local + $remote === REQUESTS && $degraded === 0, "$local local + $remote remote increments, none degraded");

say();
say(sprintf('2. The same load, and after %.1f s SIGKILL for %s, the owner.', BEFORE_KILL, $owner));
$victim = $servers[array_search($owner, $names, true)];
$second = new Load(KEY);
$watch = watch($servers, $second);
$started = microtime(true);
$killed = null;
$meanwhile = static function () use ($watch, $victim, $started, &$killed): void {
    if ($killed === null && microtime(true) - $started > BEFORE_KILL) {
        $killed = microtime(true);
        $victim->kill();
        say("          $victim->name is dead; from here on only the other two are asked");
    }
    $watch();
};
$enough = static fn(int $sent): bool => microtime(true) - $started > BEFORE_KILL + AFTER_KILL;
$second->run($servers, $enough, $meanwhile);
$answers = $second->answers;
$values = agreed($servers);
$total = array_values($values)[0];
$survivors = array_filter($answers, static fn(array $answer): bool => $answer['server'] !== $victim->name);
check($second->failed === 0, sprintf('none of the %d requests to the living hosts failed', count($survivors)));
say("          $second->cut requests were open at $victim->name itself when it died; they may or may not be counted");
$flagged = array_column(array_filter($answers, static fn(array $answer): bool => $answer['degraded']), 'at');
$phase = $flagged ? max($flagged) - $killed : 0.0;
check($flagged && min($flagged) >= $killed, count($flagged) . ' answers were flagged degraded, all of them after the kill');
check($phase < 3.0, sprintf('the last of them came %.2f s after the kill', $phase));
$heir = null;
foreach ($servers as $server) {
    $heir ??= $server->alive() ? $server->state(KEY)['owner'] : null;
}
check($heir !== $owner, "$heir owns the counter now");
$after = array_filter($answers, static fn(array $a): bool => !$a['degraded'] && $a['sent'] > $killed);
check($after !== [], sprintf('%d requests were counted by %s; the first got %d', count($after), $heir, $after ? min(array_column($after, 'value')) : 0));
check(count(array_unique(array_values($values))) === 1, 'the two agree: ' . json_encode($values));
$answered = REQUESTS + count($answers);
$open = sum($servers, 'unresolved');
$gone = sum($servers, 'lost');
say("          $open of the calls that were on their way to $owner got a degraded answer and are still being asked after");
$difference = $answered - $total - $open - $gone;
$young = count(array_filter($answers, static fn(array $a): bool => $a['at'] <= $killed + 0.05 && $a['at'] > $killed - LAG));
check(
    $difference <= $young && -$difference <= $second->cut,
    match (true) {
        $difference === 0 => "the total is exact: $answered answers = $total counted + $open being asked after + $gone given up",
        $difference > 0 => "$answered answers, the counter is $total: $difference of the last $young that $owner had "
            . "acknowledged were not on another host yet, $open are being asked after",
        default => "$answered answers, the counter is $total: " . -$difference . " of the $second->cut open at $owner were counted",
    },
);

say();
say("3. $owner comes back.");
$victim->start();
check(ready($servers, 3), "$owner has joined, all three see each other");
// Its old memory is gone for good, so now it is certain which of the open calls it had not counted.
for ($until = microtime(true) + 12; sum($servers, 'unresolved') > 0 && microtime(true) < $until; usleep(50_000)) {
}
$late = $open - (sum($servers, 'lost') - $gone);
$values = agreed($servers);
check(
    array_unique(array_values($values)) === [$total + $late],
    'it has the count: ' . json_encode($values) . ($late > 0 ? ", with $late that $owner had not counted when it died" : ''),
);
$total += $late;
$third = new Load(KEY);
$third->run($servers, static fn(int $sent): bool => $sent >= REQUESTS_AFTER, watch($servers, $third));
$values = agreed($servers);
check($third->failed === 0 && count($third->answers) === REQUESTS_AFTER, 'all ' . count($third->answers) . ' requests were answered');
check(gapless($third->answers, $total), sprintf('they were told %d to %d, each exactly once', $total + 1, $total + REQUESTS_AFTER));
check(array_unique(array_values($values)) === [$total + REQUESTS_AFTER], 'the count is ' . json_encode($values));

say();
if ($problems) {
    say('VERDICT: wrong in ' . count($problems) . ' places.');
    foreach ($servers as $server) {
        say("--- $server->name\n" . $server->log());
    }
    exit(1);
}
say('VERDICT: three hosts, one count. Every number was right.');
exit(0);
