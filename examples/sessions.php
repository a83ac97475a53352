<?php
// Sessions that every host of the cluster has: a visitor may be served by another host with each request.
//
//     require 'sessions.php';
//     session_set_save_handler(new KvSessions(), true);
//     session_start();
//
// A session lives for session.gc_maxlifetime seconds after its last request: a request that changes nothing only moves
// the deadline (session.lazy_write). Nothing has to be collected: sessions end by themselves.
//
// As with most shared session stores two requests of one visitor at the same moment do not wait for each other, and the
// last one to end wins. Where that matters, take a lock (lock.php) around what must not overlap.

declare(strict_types=1);

final class KvSessions implements SessionHandlerInterface, SessionIdInterface, SessionUpdateTimestampHandlerInterface
{
    private int $lifetime = 0;

    public function __construct(private string $prefix = 'session:')
    {
    }

    public function open(string $path, string $name): bool
    {
        $this->lifetime = max(1, (int)ini_get('session.gc_maxlifetime'));
        return true;
    }

    public function close(): bool
    {
        return true;
    }

    public function create_sid(): string
    {
        return session_create_id();
    }

    /** Whether an id that a visitor sent is one of ours (session.use_strict_mode). */
    public function validateId(string $id): bool
    {
        return $this->refresh($id);
    }

    public function read(string $id): string
    {
        return $this->refresh($id) ? ephpm_kv_get($this->key($id)) ?? '' : '';
    }

    public function write(string $id, string $data): bool
    {
        return ephpm_kv_set($this->key($id), $data, $this->lifetime);
    }

    /** Called instead of write() when nothing has changed. */
    public function updateTimestamp(string $id, string $data): bool
    {
        return $this->refresh($id) || $this->write($id, $data);
    }

    public function destroy(string $id): bool
    {
        ephpm_kv_del($this->key($id));
        return true;
    }

    public function gc(int $lifetime): int
    {
        return 0;
    }

    /**
     * Moves the deadline; whether there is such a session. The owner is asked, and its answer renews this host's copy,
     * which may be some milliseconds behind: less than a redirect to another host may take.
     */
    private function refresh(string $id): bool
    {
        return ephpm_kv_expire($this->key($id), $this->lifetime);
    }

    private function key(string $id): string
    {
        return $this->prefix . $id;
    }
}
