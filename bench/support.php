<?php
// What the measurements share: processes of PHP with settings, ports, and numbers about numbers.

declare(strict_types=1);

function free_port(): int
{
    $tcp = stream_socket_server('tcp://127.0.0.1:0');
    return (int)substr(strrchr(stream_socket_get_name($tcp, false), ':'), 1);
}

/** `php -n` with these settings. */
function php(array $settings): array
{
    $command = [PHP_BINARY, '-n'];
    foreach ($settings as $name => $value) {
        array_push($command, '-d', "$name=\"$value\"");
    }
    return $command;
}

/** The value below which this fraction of the values lies. */
function quantile(array $values, float $fraction): float
{
    sort($values);
    return $values === [] ? NAN : (float)$values[(int)round((count($values) - 1) * $fraction)];
}

function median(array $values): float
{
    return quantile($values, 0.5);
}
