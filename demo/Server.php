<?php
// One web server, `php -S`, that is one host of the cluster.

declare(strict_types=1);

final class Server
{
    /** @var resource|null */
    private $process = null;

    public function __construct(
        public readonly string $name,
        public readonly int $http,
        private readonly int $node,
        private readonly string $join,
        private readonly string $module,
        private readonly string $dir,
    ) {
    }

    public function start(): void
    {
        $settings = [
            'extension' => $this->module,
            'ephpm_kv.bind' => "127.0.0.1:$this->node",
            'ephpm_kv.join' => $this->join,
            'ephpm_kv.node_id' => $this->name,
            'ephpm_kv.role' => 'member',
            'ephpm_kv.memory' => '16M',
            'ephpm_kv.log' => "$this->dir/$this->name.log",
        ];
        $command = [PHP_BINARY, '-n'];
        foreach ($settings as $name => $value) {
            array_push($command, '-d', "$name=\"$value\"");
        }
        array_push($command, '-S', "127.0.0.1:$this->http", __DIR__ . '/www/count.php');
        $output = ['file', "$this->dir/$this->name.out", 'a'];
        // An array, so no shell stands between this script and the process it has to kill.
        $this->process = proc_open($command, [['file', '/dev/null', 'r'], $output, $output], $pipes);
        if ($this->process === false) {
            throw new RuntimeException("$this->name does not start");
        }
    }

    /** SIGKILL: no chance to say goodbye. */
    public function kill(): void
    {
        if ($this->process !== null) {
            proc_terminate($this->process, 9);
            proc_close($this->process);
            $this->process = null;
        }
    }

    public function alive(): bool
    {
        return $this->process !== null;
    }

    /** What `/state` says, or null when nobody answers. */
    public function state(string $key): ?array
    {
        $context = stream_context_create(['http' => ['timeout' => 2, 'protocol_version' => '1.0']]);
        $body = @file_get_contents("http://127.0.0.1:$this->http/state?key=$key", false, $context);
        return $body === false ? null : json_decode($body, true);
    }

    /** The end of its log, for when something went wrong. */
    public function log(): string
    {
        $lines = '';
        foreach (['out', 'log'] as $kind) {
            $text = (string)@file_get_contents("$this->dir/$this->name.$kind");
            $interesting = preg_grep('/Accepted|Closing|\[200\]/', explode("\n", $text), PREG_GREP_INVERT);
            $lines .= implode("\n", array_slice($interesting, -15));
        }
        return $lines;
    }
}
