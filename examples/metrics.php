<?php
// The metrics of this host for Prometheus. Nobody is let in until one of these two is set; either one opens it.

declare(strict_types=1);

// Who may read them: addresses or networks, as ['127.0.0.1', '10.0.0.0/24', '2001:db8::/32']. It is REMOTE_ADDR that
// counts: behind a proxy that speaks HTTP this is the proxy's address, so use a token there.
const ALLOWED_ADDRESSES = [];

// A long random text that the reader sends as "Authorization: Bearer ...".
const TOKEN = '';

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

function has_token(string $token): bool
{
    // Apache keeps this header from $_SERVER.
    $headers = array_change_key_case(function_exists('getallheaders') ? getallheaders() : []);
    $sent = $_SERVER['HTTP_AUTHORIZATION'] ?? $headers['authorization'] ?? '';
    return $token !== '' && hash_equals("Bearer $token", $sent);
}

function answer(int $status, string $text): never
{
    http_response_code($status);
    header('Content-Type: text/plain; ' . ($status === 200 ? 'version=0.0.4; ' : '') . 'charset=utf-8');
    header('Cache-Control: no-store');
    header('X-Content-Type-Options: nosniff');
    echo $text;
    exit;
}

if (!is_allowed($_SERVER['REMOTE_ADDR'] ?? '', ALLOWED_ADDRESSES) && !has_token(TOKEN)) {
    $closed = ALLOWED_ADDRESSES === [] && TOKEN === '';
    answer(403, $closed ? "Closed: set ALLOWED_ADDRESSES or TOKEN in this file.\n" : "Forbidden\n");
}
if (!function_exists('ephpm_kv_metrics')) {
    answer(503, "The extension ephpm_kv is not loaded.\n");
}
$metrics = ephpm_kv_metrics();
if ($metrics === '') {
    answer(503, 'ephpm_kv is disabled: ' . ephpm_kv_info()['reason'] . "\n");
}
answer(200, $metrics);
