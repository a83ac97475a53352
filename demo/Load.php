<?php
// Concurrent requests to several servers over plain sockets, and what was answered.

declare(strict_types=1);

final class Load
{
    /** Requests open at one time at each server. */
    private const OPEN_PER_SERVER = 8;

    /** How long a request to a living server may take, in seconds. */
    private const LIMIT = 5.0;

    /** @var list<array{server: string, value: int, degraded: bool, sent: float, at: float}> every answer */
    public array $answers = [];

    /** Requests to living servers that were not answered. */
    public int $failed = 0;

    /** Requests that a killed server had received or was about to: cut off with it. */
    public int $cut = 0;

    /** @var array<int, array{stream: resource, server: Server, buffer: string, sent: float, written: bool}> */
    private array $open = [];

    public function __construct(private readonly string $key)
    {
    }

    /**
     * Keeps requests open at every living server until `$enough` says so; calls `$meanwhile` now and then.
     *
     * @param list<Server> $servers
     */
    public function run(array $servers, callable $enough, callable $meanwhile): void
    {
        $sent = 0;
        do {
            $meanwhile();
            $done = $enough($sent);
            foreach ($done ? [] : $servers as $server) {
                while ($server->alive() && $this->open_at($server) < self::OPEN_PER_SERVER && !$enough($sent)) {
                    $this->send($server);
                    $sent++;
                }
            }
            $this->wait();
        } while (!$done || $this->open);
    }

    private function open_at(Server $server): int
    {
        return count(array_filter($this->open, static fn(array $request): bool => $request['server'] === $server));
    }

    private function send(Server $server): void
    {
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $stream = @stream_socket_client("tcp://127.0.0.1:$server->http", $code, $message, 2, $flags);
        if ($stream === false) {
            $this->miss($server);
            return;
        }
        stream_set_blocking($stream, false);
        $this->open[(int)$stream] =
            ['stream' => $stream, 'server' => $server, 'buffer' => '', 'sent' => microtime(true), 'written' => false];
    }

    private function miss(Server $server): void
    {
        $server->alive() ? $this->failed++ : $this->cut++;
    }

    private function wait(): void
    {
        $read = $write = [];
        foreach ($this->open as $request) {
            $request['written'] ? $read[] = $request['stream'] : $write[] = $request['stream'];
        }
        $except = null;
        if (!$read && !$write || !stream_select($read, $write, $except, 0, 20_000)) {
            usleep(1_000);
        }
        foreach ($write as $stream) {
            @fwrite($stream, "GET /count?key=$this->key HTTP/1.0\r\nHost: demo\r\n\r\n");
            $this->open[(int)$stream]['written'] = true;
        }
        foreach ($read as $stream) {
            $request = &$this->open[(int)$stream];
            $request['buffer'] .= (string)@fread($stream, 8192);
            if (feof($stream)) {
                $this->finish($request);
            }
            unset($request);
        }
        foreach ($this->open as $request) {
            if (microtime(true) - $request['sent'] > self::LIMIT) {
                $this->finish($request);
            }
        }
    }

    private function finish(array $request): void
    {
        [, $body] = explode("\r\n\r\n", $request['buffer'], 2) + [1 => ''];
        $answer = json_decode($body, true);
        if (is_int($answer['value'] ?? null)) {
            $this->answers[] = [
                'server' => $request['server']->name,
                'value' => $answer['value'],
                'degraded' => (bool)$answer['degraded'],
                'sent' => $request['sent'],
                'at' => microtime(true),
            ];
        } else {
            $this->miss($request['server']);
        }
        unset($this->open[(int)$request['stream']]);
        fclose($request['stream']);
    }
}
