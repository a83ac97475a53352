<?php
// A lock that one process of the whole cluster holds.
//
//     require 'lock.php';
//     $lock = KvLock::take('lock:newsletter', 30);
//     if ($lock === null) {
//         exit; // somebody else is at it
//     }
//     foreach ($pages as $page) {
//         if (!$lock->extend(30)) {
//             exit; // it was lost: too late to go on
//         }
//         // ... less than 30 seconds of work ...
//     }
//     $lock->release();
//
// It is given by the host that owns the key when a quorum of the hosts knows of it, or not at all: a host that is cut off
// from the others takes none. It ends by itself after its TTL, so a process that dies does not keep it for ever. As with every lock that ends by itself, a
// process that stalls for longer than the TTL may still believe to hold it: extend it before each step that must not
// happen twice, and give what you write elsewhere a condition of its own where you can.
//
// ephpm_kv_get() reads this host's copy, which may be some milliseconds behind. Read what the lock guards by a call that
// its owner decides and whose answer renews this host's copy: ephpm_kv_incr($key, 0) for a counter, ephpm_kv_expire() and
// then ephpm_kv_get() for anything else.

declare(strict_types=1);

final class KvLock
{
    private function __construct(private string $key, private string $token)
    {
    }

    /** The lock, for so many seconds; null: another process holds it, or nobody can say who does. */
    public static function take(string $key, int|float $ttl): ?self
    {
        $token = bin2hex(random_bytes(16));
        return ephpm_kv_setnx($key, $token, $ttl) ? new self($key, $token) : null;
    }

    /** As take(), but tries for so many seconds. */
    public static function wait(string $key, int|float $ttl, float $patience): ?self
    {
        $until = hrtime(true) + (int)($patience * 1e9);
        do {
            $lock = self::take($key, $ttl);
            if ($lock !== null) {
                return $lock;
            }
            usleep(random_int(5_000, 20_000));
        } while (hrtime(true) < $until);
        return null;
    }

    /** Holds it for so many seconds more, from now; false: it was not held any more. */
    public function extend(int|float $ttl): bool
    {
        return ephpm_kv_cas($this->key, $this->token, $this->token, $ttl);
    }

    /** Gives it up; false: it was not held any more. */
    public function release(): bool
    {
        return ephpm_kv_cas($this->key, $this->token, null);
    }
}
