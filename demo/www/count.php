<?php
// One host of the demo's cluster: counts a request, or says what it knows.
//   /count?key=K   {"value": the counter after this request, "degraded": bool}
//   /state?key=K   {"value", "owner", "state", "members", "local", "remote", "degraded", "unresolved", "lost"}

declare(strict_types=1);

// The server ends by itself when nobody has asked for two minutes, whatever became of the demo.
if (function_exists('pcntl_alarm')) {
    pcntl_alarm(120);
}

function metric(string $text, string $name): int
{
    return preg_match('/^' . preg_quote($name, '/') . ' (\d+)/m', $text, $match) ? (int)$match[1] : 0;
}

$key = (string)($_GET['key'] ?? 'demo');
header('Content-Type: application/json');
if (parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH) === '/count') {
    $value = ephpm_kv_incr($key);
    echo json_encode(['value' => $value, 'degraded' => ephpm_kv_degraded()]);
    return;
}
$value = (int)ephpm_kv_get($key);
$info = ephpm_kv_info();
$metrics = ephpm_kv_metrics();
$live = array_filter($info['members'] ?? [], static fn(array $member): bool => (bool)($member['live'] ?? true));
echo json_encode([
    'value' => $value,
    'owner' => ephpm_kv_owner($key),
    'state' => $info['state'],
    'members' => count($live),
    'local' => metric($metrics, 'ephpm_kv_ops_total{op="incr",path="local"}'),
    'remote' => metric($metrics, 'ephpm_kv_ops_total{op="incr",path="remote"}'),
    'degraded' => metric($metrics, 'ephpm_kv_ops_total{op="incr",path="degraded"}'),
    'unresolved' => metric($metrics, 'ephpm_kv_unresolved'),
    'lost' => metric($metrics, 'ephpm_kv_lost_total{reason="unresolved"}'),
]);
