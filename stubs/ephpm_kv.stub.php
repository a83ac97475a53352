<?php

/**
 * Counters and values shared by all PHP processes of all hosts of a cluster.
 *
 * Rules that hold for all functions:
 *
 * - Arguments follow PHP's own rules, weak and strict. A wrong argument throws `TypeError` or `ValueError`, and nothing
 *   has changed.
 * - `$key` is any 1 to 1,024 bytes, otherwise `ValueError`. A `{tag}` in it decides, instead of the whole key, which
 *   host owns it, so that related keys can share an owner.
 * - `$ttl` is in seconds, fractions allowed, at most 315,576,000 (ten years). A positive TTL below the resolution of
 *   one millisecond counts as one millisecond; in practice keys end within 10 ms of their deadline. A TTL that is
 *   negative, NaN, infinite or too long throws `ValueError`.
 * - A refusal at run time (the value is not an integer, it would overflow, memory is full, the store is busy) emits an
 *   `E_WARNING` that names the function, the key and the reason, and nothing has changed. What is returned then is said
 *   below as "on a refusal".
 * - Without an owner in reach an increment is counted on this host and merged later, and a set, delete or new deadline is
 *   made on this host and replayed later, unless the key was written elsewhere meanwhile; {@see ephpm_kv_degraded()} says
 *   so. No call waits longer than `ephpm_kv.timeout_ms`.
 * - With `ephpm_kv.enabled=0`, or when the set-up failed (a warning at start-up says why), every function returns what
 *   it returns on a refusal, without a warning.
 */

/**
 * Adds to a counter. A key that does not exist starts at 0 and gets no deadline; one with a deadline keeps it.
 *
 * @param string $key 1 to 1,024 bytes
 * @param int $by what to add, may be negative or 0
 * @return int|false the new value, which is the cluster's; false on a refusal (a value that is not an integer, a
 *     result beyond 64 bits, memory full)
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_incr(string $key, int $by = 1): int|false {}

/**
 * Adds to a counter and, only when this call creates it, sets its TTL in the same atomic step. A counter that is
 * already there keeps the deadline it has, or has none.
 *
 * @param string $key 1 to 1,024 bytes
 * @param int $by what to add, may be negative or 0
 * @param int|float $ttl seconds from creation to deadline, greater than 0
 * @return int|false the new value, which is the cluster's; `$by` when the call created the counter; false on a refusal
 * @throws ValueError if the key is empty or too long, or the TTL is not in range
 */
function ephpm_kv_incr_ttl(string $key, int $by, int|float $ttl): int|false {}

/**
 * Deletes a key.
 *
 * @param string $key 1 to 1,024 bytes
 * @return int 1 if it was deleted, 0 if there was no such key; 0 on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_del(string $key): int {}

/**
 * Sets the deadline of a key, or removes it. Never touches the value.
 *
 * @param string $key 1 to 1,024 bytes
 * @param int|float $ttl seconds from now; 0 removes the deadline
 * @return bool true if the key exists; false if it does not, and on a refusal
 * @throws ValueError if the key is empty or too long, or the TTL is negative or not in range
 */
function ephpm_kv_expire(string $key, int|float $ttl): bool {}

/**
 * Subtracts from a counter; otherwise as {@see ephpm_kv_incr()}.
 *
 * @param string $key 1 to 1,024 bytes
 * @param int $by what to subtract, may be negative or 0; PHP_INT_MIN, which has no opposite, is refused
 * @return int|false the new value, which is the cluster's; false on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_decr(string $key, int $by = 1): int|false {}

/**
 * Adds to a counter: {@see ephpm_kv_incr()} with `$by` required.
 *
 * @param string $key 1 to 1,024 bytes
 * @param int $by what to add, may be negative or 0
 * @return int|false the new value, which is the cluster's; false on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_incr_by(string $key, int $by): int|false {}

/**
 * Adds to several counters. All keys and deltas are checked before anything changes; then each counter is counted by
 * itself, so one may be refused while the others are not.
 *
 * @param array $deltas key => int to add; PHP has made ints of keys that look like one
 * @param int|float|null $ttl null: none; otherwise seconds, greater than 0, for the counters that this call creates,
 *     as with {@see ephpm_kv_incr_ttl()}
 * @return array the same keys in the same order => the new value (int), or false where it was refused
 * @throws TypeError if a delta is not an int
 * @throws ValueError if a key is empty or too long, or the TTL is not in range
 */
function ephpm_kv_incr_multi(array $deltas, int|float|null $ttl = null): array {}

/**
 * Reads a value.
 *
 * @param string $key 1 to 1,024 bytes
 * @return string|null the bytes, a counter in decimal; null if there is no such key, and on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_get(string $key): ?string {}

/**
 * Stores a value, whatever was there before. A canonical decimal integer ("42", "-7", not "07" or "1.5") is stored as
 * a counter.
 *
 * @param string $key 1 to 1,024 bytes
 * @param string $value any bytes, at most `ephpm_kv.value_max` (1 MiB)
 * @param int|float $ttl seconds; 0: no deadline
 * @return bool true if it was stored; false on a refusal (memory full)
 * @throws ValueError if the key is empty or too long, the value is too long, or the TTL is negative or not in range
 */
function ephpm_kv_set(string $key, string $value, int|float $ttl = 0): bool {}

/**
 * Stores a value unless the key exists: of any number of callers on any hosts one wins. Decided by the key's owner, and
 * answered when a quorum of the hosts knows of it, which takes a round trip; there is no degraded answer.
 *
 * @param string $key 1 to 1,024 bytes
 * @param string $value any bytes, at most `ephpm_kv.value_max` (1 MiB); an integer as with {@see ephpm_kv_set()}
 * @param int|float $ttl seconds; 0: no deadline
 * @return bool true if it was stored; false if the key exists, on a refusal (memory full), and, without a warning, when no
 *     owner answered in time: {@see ephpm_kv_degraded()} tells the last case. After a timeout the value may have been
 *     stored all the same, so give a lock a TTL.
 * @throws ValueError if the key is empty or too long, the value is too long, or the TTL is negative or not in range
 */
function ephpm_kv_setnx(string $key, string $value, int|float $ttl = 0): bool {}

/**
 * Adds bytes at the end of a value. A key that exists keeps its deadline; one that does not begins with `$value` and no
 * deadline. A result that is a canonical decimal integer is stored as a counter, as with {@see ephpm_kv_set()}. Decided as
 * {@see ephpm_kv_setnx()} is.
 *
 * @param string $key 1 to 1,024 bytes
 * @param string $value any bytes
 * @return int|false the new length in bytes; false on a refusal (the result is longer than `ephpm_kv.value_max`, memory
 *     full, no owner answered in time). After a timeout it may have been added all the same.
 * @throws ValueError if the key is empty or too long, or the value is too long
 */
function ephpm_kv_append(string $key, string $value): int|false {}

/**
 * Replaces a value if it is the expected one, in one step (compare and set). Decided as {@see ephpm_kv_setnx()} is.
 *
 * @param string $key 1 to 1,024 bytes
 * @param string|null $expected what {@see ephpm_kv_get()} must give now, byte for byte; null: no such key
 * @param string|null $new the new value, as with {@see ephpm_kv_set()}; null: delete the key
 * @param int|float $ttl seconds, of the new value; 0: no deadline (the old one is not kept)
 * @return bool true if it was replaced; false if the value is another, on a refusal, and, without a warning, when no owner
 *     answered in time, as with {@see ephpm_kv_setnx()}
 * @throws ValueError if the key is empty or too long, a value is too long, or the TTL is negative or not in range
 */
function ephpm_kv_cas(string $key, ?string $expected, ?string $new, int|float $ttl = 0): bool {}

/**
 * Whether a key exists.
 *
 * @param string $key 1 to 1,024 bytes
 * @return bool false on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_exists(string $key): bool {}

/**
 * The remaining time of a key in seconds.
 *
 * @param string $key 1 to 1,024 bytes
 * @return int seconds, rounded up; -1 if the key has no deadline, -2 if there is no such key; -2 on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_ttl(string $key): int {}

/**
 * The remaining time of a key in milliseconds.
 *
 * @param string $key 1 to 1,024 bytes
 * @return int milliseconds; -1 if the key has no deadline, -2 if there is no such key; -2 on a refusal
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_pttl(string $key): int {}

/**
 * Deletes every key of this namespace, on all hosts.
 *
 * @return bool true if every owner did; false if one was out of reach, and on a refusal
 */
function ephpm_kv_flush_all(): bool {}

/**
 * Whether the last operation of this thread was degraded: answered without the key's owner, or by a host that cannot
 * be sure to speak for the cluster.
 *
 * @return bool false before the first operation
 */
function ephpm_kv_degraded(): bool {}

/**
 * The node that owns a key.
 *
 * @param string $key 1 to 1,024 bytes
 * @return string its node id; empty if there is no owner or the extension is disabled
 * @throws ValueError if the key is empty or too long
 */
function ephpm_kv_owner(string $key): string {}

/**
 * The state of this host.
 *
 * @return array{
 *     version: string,
 *     state: string,
 *     reason: string,
 *     node_id: string,
 *     node_pid: int,
 *     clustered: bool,
 *     epoch: int,
 *     members: list<array{node_id: string, address: string, live: bool, owner_slots: int, client: bool}>,
 *     entries: int,
 *     memory_used: int,
 *     memory_total: int,
 *     layout: int,
 *     protocol: int,
 *     origin: string
 * } `state` is disabled, alone, joining, ready or leaving, and `reason` says why in words. `node_pid` is the process
 *     that runs the node, 0 if none does. `clustered` says whether a cluster is configured. `epoch` counts changes of
 *     the view. `owner_slots` is how many of the 16,384 slots a member owns. Memory is in bytes. `layout` and
 *     `protocol` are versions, `origin` names the host's segment.
 */
function ephpm_kv_info(): array {}

/**
 * The metrics of this host, over all its processes.
 *
 * @return string Prometheus text exposition, version 0.0.4
 */
function ephpm_kv_metrics(): string {}
