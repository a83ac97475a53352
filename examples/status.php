<?php
// The state of this host and its cluster, for people. Nobody is let in until one of these two is set; either one
// opens it. ?refresh=5 loads it anew every 5 seconds.

declare(strict_types=1);

// What `php -r 'echo password_hash("your password", PASSWORD_DEFAULT), "\n";'` prints, in single quotes. The browser
// asks for the password; any user name will do. It travels with every request: serve this page over HTTPS.
const PASSWORD_HASH = '';

// Who may look without a password: addresses or networks, as ['127.0.0.1', '10.0.0.0/24', '2001:db8::/32']. It is
// REMOTE_ADDR that counts: behind a proxy that speaks HTTP this is the proxy's address, so use a password there.
const ALLOWED_ADDRESSES = [];

/** @param list<string> $allowed addresses and networks; one that makes no sense allows nobody */
function is_allowed(string $address, array $allowed): bool
{
    // An IPv4 client of a socket that serves both comes as ::ffff:10.0.0.1.
    $ip = @inet_pton(preg_replace('/^::ffff:(?=\d+\.)/i', '', $address));
    foreach ($ip === false ? [] : $allowed as $network) {
        [$base, $bits] = explode('/', $network, 2) + [1 => (string)(8 * strlen($ip))];
        $base = @inet_pton($base);
        $range = ['min_range' => 0, 'max_range' => 8 * strlen($ip)];
        $bits = filter_var($bits, FILTER_VALIDATE_INT, ['options' => $range]);
        if ($base === false || strlen($base) !== strlen($ip) || $bits === false) {
            continue;
        }
        $mask = str_pad(str_repeat("\xff", intdiv($bits, 8)) . chr(0xff00 >> $bits % 8 & 0xff), strlen($ip), "\0");
        $mask = substr($mask, 0, strlen($ip));
        if (($ip & $mask) === ($base & $mask)) {
            return true;
        }
    }
    return false;
}

function refuse(int $status, string $text): never
{
    http_response_code($status);
    header('Content-Type: text/plain; charset=utf-8');
    echo "$text\n";
    exit;
}

function e(string|int|float $text): string
{
    return htmlspecialchars((string)$text, ENT_QUOTES | ENT_SUBSTITUTE, 'UTF-8');
}

function bytes(int $bytes): string
{
    return match (true) {
        $bytes >= 1 << 30 => sprintf('%.2f GiB', $bytes / (1 << 30)),
        $bytes >= 1 << 20 => sprintf('%.1f MiB', $bytes / (1 << 20)),
        default => sprintf('%.1f KiB', $bytes / 1024),
    };
}

function seconds(float $seconds): string
{
    return match (true) {
        $seconds >= 1 => sprintf('%.2f s', $seconds),
        $seconds >= 0.001 => sprintf('%.4g ms', $seconds * 1e3),
        default => sprintf('%.3g µs', $seconds * 1e6),
    };
}

/** @return array<string, float> the samples of a Prometheus text, by name and labels as they stand there */
function samples(string $text): array
{
    preg_match_all('/^(ephpm_\w+(?:\{[^}]*\})?) (\S+)$/m', $text, $matches);
    return array_combine($matches[1], array_map('floatval', $matches[2]));
}

/**
 * @param array<string, float> $samples
 * @return array<string, float> samples of one metric, by the value of its one label
 */
function by_label(array $samples, string $metric, string $label): array
{
    $found = [];
    foreach ($samples as $name => $value) {
        if (preg_match('/^' . preg_quote($metric) . '\{' . $label . '="([^"]*)"\}$/', $name, $match)) {
            $found[$match[1]] = $value;
        }
    }
    return $found;
}

/** @param array<string, float> $buckets cumulative counts by upper bound: the bound below which so many are */
function quantile(array $buckets, float $part): string
{
    $all = $buckets['+Inf'] ?? 0;
    foreach ($buckets as $bound => $count) {
        if ($all > 0 && $count >= $part * $all) {
            return $bound === '+Inf' ? 'over ' . seconds((float)$last) : 'at most ' . seconds((float)$bound);
        }
        $last = $bound;
    }
    return '–';
}

/** @param array<string, string> $rows label => HTML */
function facts(array $rows): string
{
    $html = '';
    foreach ($rows as $label => $value) {
        $html .= '<tr><th scope="row">' . e($label) . "</th><td>$value</td></tr>";
    }
    return "<table>$html</table>";
}

function number(float $number, bool $alarming = false): string
{
    $text = number_format($number);
    return $alarming && $number > 0 ? "<strong class=\"bad\">$text</strong>" : $text;
}

header('Cache-Control: no-store');
header('X-Content-Type-Options: nosniff');
header('Referrer-Policy: no-referrer');
$nonce = base64_encode(random_bytes(12));
header("Content-Security-Policy: default-src 'none'; style-src 'nonce-$nonce'; base-uri 'none'; form-action 'none'; "
    . "frame-ancestors 'none'");

if (!is_allowed($_SERVER['REMOTE_ADDR'] ?? '', ALLOWED_ADDRESSES)) {
    if (PASSWORD_HASH === '') {
        $closed = ALLOWED_ADDRESSES === [];
        refuse(403, $closed ? 'Closed: set PASSWORD_HASH or ALLOWED_ADDRESSES in this file.' : 'Forbidden');
    }
    if (!password_verify($_SERVER['PHP_AUTH_PW'] ?? '', PASSWORD_HASH)) {
        header('WWW-Authenticate: Basic realm="ephpm_kv", charset="UTF-8"');
        refuse(401, 'A password is needed.');
    }
}

$range = ['min_range' => 1, 'max_range' => 3600];
$refresh = filter_var($_GET['refresh'] ?? '', FILTER_VALIDATE_INT, ['options' => $range]);
if ($refresh !== false) {
    header("Refresh: $refresh");
}

$loaded = function_exists('ephpm_kv_info');
$info = $loaded ? ephpm_kv_info() : ['state' => 'missing', 'reason' => 'the extension is not loaded in this PHP'];
$why = $info['reason'] === '' ? '' : ": {$info['reason']}";
$works = $loaded && $info['state'] !== 'disabled';
$samples = $works ? samples(ephpm_kv_metrics()) : [];
$clustered = $info['clustered'] ?? false;
$mood = match (true) {
    $info['state'] === 'ready' && $info['reason'] === '', $info['state'] === 'alone' && !$clustered => 'good',
    in_array($info['state'], ['ready', 'joining', 'leaving'], true) => 'fair',
    default => 'bad',
};
?>
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title><?= e($info['state']) ?> – ephpm_kv</title>
<style nonce="<?= $nonce ?>">
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --fair: #9a6700; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --fair: #d29922; --bad: #f85149 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line) }
td { overflow-wrap: anywhere }
th { font-weight: 600 } tbody th, table:not(:has(thead)) th { width: 17rem; font-weight: 400 }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
meter { width: 100%; height: 1.2rem }
.state { font-weight: 700 } .good { color: var(--good) } .fair { color: var(--fair) } .bad { color: var(--bad) }
footer { margin-top: 2rem; color: #888 }
</style>
</head>
<body>
<h1>ephpm_kv <?= e($info['version'] ?? '') ?> on <?= e(($info['node_id'] ?? '') ?: php_uname('n')) ?></h1>
<p><span class="state <?= $mood ?>"><?= e($info['state']) ?></span><?= e($why) ?></p>
<?php if ($works): ?>

<h2>Memory</h2>
<p><meter value="<?= $info['memory_used'] ?>" max="<?= max(1, $info['memory_total']) ?>"
  high="<?= 0.85 * $info['memory_total'] ?>" optimum="0"></meter>
<?= e(bytes($info['memory_used'])) ?> of <?= e(bytes($info['memory_total'])) ?> in use,
<?= number($info['entries']) ?> entries</p>

<?php if ($clustered): ?>
<h2>Members</h2>
<table>
<thead><tr><th>Node</th><th>Address</th><th>State</th><th>Role</th><th class="number">Slots owned</th></tr></thead>
<?php foreach ($info['members'] as $member): ?>
<tr><td><?= e($member['node_id']) ?><?= $member['node_id'] === $info['node_id'] ? ' (this host)' : '' ?></td>
<td><?= e($member['address']) ?></td>
<td class="<?= $member['live'] ? 'good' : 'bad' ?>"><?= $member['live'] ? 'live' : 'gone' ?></td>
<td><?= $member['client'] ? 'client' : 'member' ?></td>
<td class="number"><?= number($member['owner_slots']) ?> (<?= round($member['owner_slots'] / 163.84, 1) ?> %)</td></tr>
<?php endforeach ?>
</table>
<?php endif ?>

<h2>Operations</h2>
<table>
<thead><tr><th>Operation</th><th class="number">Here</th><th class="number">At the owner</th>
<th class="number">Degraded</th></tr></thead>
<?php
    preg_match_all('/^ephpm_kv_ops_total\{op="(\w+)"/m', implode("\n", array_keys($samples)), $ops);
    foreach (array_unique($ops[1]) as $op):
        $count = static fn(string $path): float => $samples["ephpm_kv_ops_total{op=\"$op\",path=\"$path\"}"] ?? 0;
?>
<tr><td><?= e($op) ?></td><td class="number"><?= number($count('local')) ?></td>
<td class="number"><?= number($count('remote')) ?></td>
<td class="number"><?= number($count('degraded'), true) ?></td></tr>
<?php endforeach ?>
</table>

<?php
    $buckets = by_label($samples, 'ephpm_kv_remote_seconds_bucket', 'le');
    $calls = $samples['ephpm_kv_remote_seconds_count'] ?? 0;
    $mean = $calls > 0 ? seconds($samples['ephpm_kv_remote_seconds_sum'] / $calls) : '–';
?>
<h2>Calls to other hosts</h2>
<?= facts([
    'Calls' => number($calls),
    'Mean' => e($mean),
    'Half of them' => e(quantile($buckets, 0.5)),
    '95 %' => e(quantile($buckets, 0.95)),
    '99 %' => e(quantile($buckets, 0.99)),
    'Replication lag' => e(seconds($samples['ephpm_kv_replication_lag_seconds'] ?? 0)),
]) ?>

<h2>Trouble</h2>
<?php
    $trouble = ['Answered without the owner (degraded)' => number($samples['ephpm_kv_degraded_total'] ?? 0, true)];
    foreach (by_label($samples, 'ephpm_kv_lost_total', 'reason') as $reason => $count) {
        $trouble["Lost: $reason"] = number($count, true);
    }
    echo facts($trouble + [
        'Shares that wait for an owner' => number($samples['ephpm_kv_shares_pending'] ?? 0, true),
        'Increments being asked after' => number($samples['ephpm_kv_unresolved'] ?? 0, true),
        'Shares merged' => number($samples['ephpm_kv_shares_merged_total'] ?? 0),
        'Writes refused for want of memory' => number($samples['ephpm_kv_memory_full_total'] ?? 0, true),
        'Values evicted' => number($samples['ephpm_kv_evictions_total'] ?? 0),
        'Locks taken over from dead processes' => number($samples['ephpm_kv_lock_recoveries_total'] ?? 0),
    ]);
?>

<h2>Node</h2>
<?= facts([
    'Node process' => e($info['node_pid'] ?: 'none'),
    'This PHP process' => e(getmypid() . ', ' . PHP_SAPI . ', PHP ' . PHP_VERSION),
    'Segment' => e("{$info['origin']}, layout {$info['layout']}"),
    'Protocol' => e($info['protocol']),
    'View' => e("number {$info['epoch']}"),
]) ?>
<?php endif ?>
<?php if ($loaded): ?>

<h2>Settings</h2>
<?php
    $settings = [];
    foreach (ini_get_all('ephpm_kv', false) ?: [] as $name => $value) {
        $hidden = str_contains($name, 'secret') && (string)$value !== '';
        $settings[$name] = $hidden ? '(hidden)' : e((string)$value);
    }
    echo facts($settings);
?>
<?php endif ?>

<footer><?= date('Y-m-d H:i:s T') ?>. Counts are since this host's segment was made.</footer>
</body>
</html>
