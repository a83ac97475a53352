<?php
// Answers one question about the host, a line per fact.
declare(strict_types=1);

function info(): string
{
    $info = ephpm_kv_info();
    $info['pid'] = getmypid();
    $info['live'] = implode(' ', array_column(array_filter($info['members'], fn($member) => $member['live']), 'node_id'));
    $lines = [];
    foreach (array_filter($info, is_scalar(...)) as $name => $value) {
        $lines[] = $name . ' ' . rawurlencode((string)$value);
    }
    return implode("\n", $lines);
}

function owned(string $owner, string $prefix, int $count): string
{
    $keys = [];
    for ($number = 0; $number < 10000 && count($keys) < $count; $number++) {
        if (ephpm_kv_owner("$prefix:$number") === $owner) {
            $keys[] = "$prefix:$number";
        }
    }
    return implode("\n", $keys);
}

echo match ($_GET['do']) {
    'info' => info(),
    'metrics' => ephpm_kv_metrics(),
    'get' => implode("\n", array_map(fn($key) => ephpm_kv_get($key) ?? '0', explode(',', $_GET['keys']))),
    'owned' => owned($_GET['owner'], $_GET['prefix'], (int)$_GET['count']),
};
