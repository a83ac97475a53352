--TEST--
examples/status.php: closed by default, opened by address or password, shows the state and escapes everything
--EXTENSIONS--
ephpm_kv
pcntl
--FILE--
<?php
require __DIR__ . "/examples.inc";

function header_line(string $head, string $name): string
{
    return preg_match("/^$name: (.*?)\r?$/mi", $head, $match) ? $match[1] : "no $name";
}

echo "as it comes\n";
serve("status.php", [], [], function ($ask) {
    foreach (["", "Authorization: Basic " . base64_encode("x:")] as $header) {
        [$status, , $body] = $ask("", $header);
        echo "$status $body";
    }
});

echo "by password\n";
$hash = password_hash("open sesame", PASSWORD_BCRYPT, ["cost" => 4]);
serve("status.php", ["PASSWORD_HASH" => $hash], [], function ($ask) {
    foreach (["", "x:wrong", "x:", "anybody:open sesame"] as $credentials) {
        $header = $credentials === "" ? "" : "Authorization: Basic " . base64_encode($credentials);
        [$status, $head, $body] = $ask("", $header);
        echo "$status ", header_line($head, "WWW-Authenticate"), " ", strlen($body) > 1000 ? "page" : $body, "\n";
    }
});

echo "by address\n";
serve("status.php", ["ALLOWED_ADDRESSES" => ["10.0.0.0/8"]], [], fn($ask) => print($ask()[0] . "\n"));

echo "hostile names\n";
$hostile = host(free_port(), ["node_id" => "<b>&'node</b>", "namespace" => "'><script>alert(1)</script>"]);
$open = ["ALLOWED_ADDRESSES" => ["127.0.0.1"]];
serve("status.php", $open, $hostile, function ($ask) {
    $deadline = microtime(true) + 15;
    do {
        [$status, $head, $body] = $ask("refresh=7");
    } while (!str_contains($body, ">ready<") && microtime(true) < $deadline && usleep(20000) === null);
    echo "$status ", header_line($head, "Refresh"), ", ", header_line($head, "Cache-Control"), "\n";
    $text = preg_replace('/\s+/', " ", html_entity_decode(strip_tags(strstr($body, "<body>"))));
    foreach (["ready", "<b>&'node</b> (this host)", "16,384 (100 %)", "'><script>alert(1)</script>",
        "in use, 0 entries", "incr0 0 0"] as $expected) {
        echo str_contains($text, $expected) ? "has" : "lacks", " $expected\n";
    }
    var_dump(preg_match('/<script|<b>|Warning|Notice|Deprecated|src=|href=|url\(/i', $body));
    var_dump(substr_count($body, "</table>"));
});

echo "no secret\n";
serve("status.php", $open, ["ephpm_kv.secret" => "hush", "ephpm_kv.bind" => "127.0.0.1:1"], function ($ask) {
    [$status, , $body] = $ask("refresh=0&x[]=");
    var_dump($status, str_contains($body, "hush"), str_contains($body, "(hidden)"), str_contains($body, ">alone<"));
});

echo "without the extension\n";
foreach ([["ephpm_kv.enabled" => "0"], ["missing"]] as $settings) {
    serve("status.php", $open, $settings, function ($ask) {
        [$status, $head, $body] = $ask();
        preg_match('/<p>(.*)<\/p>/', $body, $line);
        echo "$status ", strip_tags($line[1]), ", ", preg_match('/Warning|Notice|Fatal/', $body), ", ",
            header_line($head, "Refresh"), "\n";
    });
}
?>
--EXPECT--
as it comes
403 Closed: set PASSWORD_HASH or ALLOWED_ADDRESSES in this file.
403 Closed: set PASSWORD_HASH or ALLOWED_ADDRESSES in this file.
by password
401 Basic realm="ephpm_kv", charset="UTF-8" A password is needed.

401 Basic realm="ephpm_kv", charset="UTF-8" A password is needed.

401 Basic realm="ephpm_kv", charset="UTF-8" A password is needed.

200 no WWW-Authenticate page
by address
403
hostile names
200 7, no-store
has ready
has <b>&'node</b> (this host)
has 16,384 (100 %)
has '><script>alert(1)</script>
has in use, 0 entries
has incr0 0 0
int(0)
int(6)
no secret
int(200)
bool(false)
bool(true)
bool(true)
without the extension
200 disabled: ephpm_kv.enabled is 0, 0, no Refresh
200 missing: the extension is not loaded in this PHP, 0, no Refresh
