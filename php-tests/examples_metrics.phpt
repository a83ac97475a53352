--TEST--
examples/metrics.php: closed by default, opened by address or token, Prometheus text that nobody caches
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
require __DIR__ . "/examples.inc";

function show(array $answer): void
{
    [$status, $head, $body] = $answer;
    echo "$status ", strtok($body, "\n"), "\n";
}

echo "as it comes\n";
serve("metrics.php", [], [], fn($ask) => show($ask("", "Authorization: Bearer ")));

echo "by address\n";
foreach ([["127.0.0.1"], ["10.0.0.0/8", "127.0.0.0/8"], ["126.0.0.0/7"], ["0.0.0.0/0"], ["127.0.0.2"], ["128.0.0.0/1"],
    ["127.0.0.1/x"], ["127.0.0.1/33"], ["::/0"], ["nonsense"]] as $allowed) {
    serve("metrics.php", ["ALLOWED_ADDRESSES" => $allowed], [], function ($ask) use ($allowed) {
        echo implode(" ", $allowed), ": ";
        show($ask());
    });
}

echo "by token\n";
serve("metrics.php", ["TOKEN" => "open sesame"], [], function ($ask) {
    show($ask());
    show($ask("", "Authorization: Bearer open sesam"));
    show($ask("", "X-Forwarded-For: 127.0.0.1"));
    [$status, $head, $body] = $ask("", "Authorization: Bearer open sesame");
    echo "$status\n";
    preg_match_all('/^(Content-Type|Cache-Control): .*$/mi', str_replace("\r", "", $head), $lines);
    echo implode("\n", $lines[0]), "\n";
    preg_match_all('/^# TYPE (ephpm_kv_(?:ops|lost)_total \w+)$/m', $body, $lines);
    echo implode("\n", $lines[1]), "\n";
});

echo "without the extension\n";
$open = ["ALLOWED_ADDRESSES" => ["127.0.0.1"]];
serve("metrics.php", $open, ["ephpm_kv.enabled" => "0"], fn($ask) => show($ask()));
serve("metrics.php", $open, ["missing"], fn($ask) => show($ask()));
?>
--EXPECT--
as it comes
403 Closed: set ALLOWED_ADDRESSES or TOKEN in this file.
by address
127.0.0.1: 200 # HELP ephpm_kv_ops_total Operations by how they were answered.
10.0.0.0/8 127.0.0.0/8: 200 # HELP ephpm_kv_ops_total Operations by how they were answered.
126.0.0.0/7: 200 # HELP ephpm_kv_ops_total Operations by how they were answered.
0.0.0.0/0: 200 # HELP ephpm_kv_ops_total Operations by how they were answered.
127.0.0.2: 403 Forbidden
128.0.0.0/1: 403 Forbidden
127.0.0.1/x: 403 Forbidden
127.0.0.1/33: 403 Forbidden
::/0: 403 Forbidden
nonsense: 403 Forbidden
by token
403 Forbidden
403 Forbidden
403 Forbidden
200
Content-Type: text/plain; version=0.0.4; charset=utf-8
Cache-Control: no-store
ephpm_kv_ops_total counter
ephpm_kv_lost_total counter
without the extension
503 ephpm_kv is disabled: ephpm_kv.enabled is 0
503 The extension ephpm_kv is not loaded.
