--TEST--
php --ri ephpm_kv: state and settings, and it starts nothing
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
require __DIR__ . "/cluster.inc";

$port = free_port();
// Somebody else has the port: a node that started would say so.
$taken = stream_socket_server("tcp://127.0.0.1:$port");
$command = array_map(escapeshellarg(...), [...php(host($port, ["log" => "stderr"])), "--ri", "ephpm_kv"]);
exec(implode(" ", $command) . " 2>&1", $lines, $status);
foreach ($lines as $line) {
    if ($line !== "" && !str_starts_with($line, "ephpm_kv.")) {
        echo $line, "\n";
    }
}
$settings = preg_grep('/^ephpm_kv\.\w+ => .* => .*$/', $lines);
var_dump(count($settings), $status, in_array("ephpm_kv.secret => no value => no value", $settings));
exec(implode(" ", array_map(escapeshellarg(...), [...php(["ephpm_kv.enabled" => 0]), "--ri", "ephpm_kv"])), $off);
echo implode("\n", preg_grep("/^(State|Reason) /", $off)), "\n";
?>
--EXPECTF--
ephpm_kv
ephpm_kv => %d.%d.%d
State => joining
Reason => not started yet: it starts at the first use
Node => host%d
Node process => 0
Entries => 0
Memory => %d of %d bytes
Segment layout => %d
Protocol => %d
Directive => Local Value => Master Value
int(25)
int(0)
bool(true)
State => disabled
Reason => ephpm_kv.enabled is 0
