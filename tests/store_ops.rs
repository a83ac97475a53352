//! What each operation of the store means, in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::error::Refusal;
use ephpm_kv::record::{Body, Key};
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{
    Called, Drained, Fate, Op, Outcome, RequestId, Standing, Store, StoreOptions, TOMBSTONE_GRACE_MS,
    TOMBSTONE_GRACE_SHORT_MS, Ttl, Value,
};

const OWNER: Standing = Standing::Owner { term: 1 << 32 };
const MB: u32 = 1 << 20;

fn key(name: &[u8]) -> Key<'_> {
    Key { namespace: b"", name }
}

fn store(memory: u64, clustered: bool) -> (Store, Arc<AtomicU64>) {
    let (clock, hand) = Clock::manual(1_000_000);
    let segment = Segment::create(memory).unwrap();
    (Store::open(segment, clock, StoreOptions { clustered, value_max: 16 * MB }), hand)
}

fn get(store: &Store, name: &[u8]) -> Option<Vec<u8>> {
    let copy = |value: Value<'_>| match value {
        Value::Int(value) => value.to_string().into_bytes(),
        Value::Bytes(bytes) => bytes.to_vec(),
        Value::Elsewhere(len) => panic!("{len} bytes elsewhere"),
    };
    store.read(key(name), copy).unwrap()
}

#[test]
fn a_counter_keeps_its_deadline_and_starts_anew_after_it() {
    let (store, hand) = store(4 << 20, true);
    let first = store.incr(key(b"k"), 5, Some(1_000), OWNER).unwrap();
    assert_eq!((first.value, first.created, first.ttl_ms), (5, true, Some(1_000)));
    hand.fetch_add(400, Ordering::Relaxed);
    let second = store.incr(key(b"k"), 5, Some(9_000), OWNER).unwrap();
    assert_eq!((second.value, second.created, second.ttl_ms, second.window), (10, false, Some(600), first.window));
    assert_eq!(store.ttl(key(b"k")), Ok(Ttl::Ms(600)));
    hand.fetch_add(600, Ordering::Relaxed);
    assert_eq!(get(&store, b"k"), None);
    assert_eq!(store.ttl(key(b"k")), Ok(Ttl::NoKey));
    assert_eq!(store.expire(key(b"k"), None, OWNER), Ok(false));
    let third = store.incr(key(b"k"), 3, None, OWNER).unwrap();
    assert_eq!((third.value, third.created, third.ttl_ms), (3, true, None));
    assert_ne!(third.window, first.window);
    assert_eq!(store.ttl(key(b"k")), Ok(Ttl::NoDeadline));
    assert_eq!(store.expire(key(b"k"), Some(50), OWNER), Ok(true));
    assert_eq!(store.incr(key(b"k"), 1, None, OWNER).unwrap().ttl_ms, Some(50));
    store.verify().unwrap();
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let (store, _) = store(4 << 20, true);
    store.set(key(b"text"), b"abc", None, OWNER).unwrap();
    assert_eq!(store.incr(key(b"text"), 1, None, OWNER), Err(Refusal::NotAnInteger));
    assert_eq!(get(&store, b"text").unwrap(), b"abc");
    store.set(key(b"n"), b"9223372036854775806", None, OWNER).unwrap();
    assert_eq!(store.incr(key(b"n"), 1, None, OWNER).unwrap().value, i64::MAX);
    assert_eq!(store.incr(key(b"n"), 1, None, OWNER), Err(Refusal::Overflow));
    assert_eq!(store.incr(key(b"n"), -1, None, OWNER).unwrap().value, i64::MAX - 1);
    store.set(key(b"m"), b"-9223372036854775808", None, OWNER).unwrap();
    assert_eq!(store.incr(key(b"m"), -1, None, OWNER), Err(Refusal::Overflow));
    let huge = vec![b'x'; 16 * MB as usize + 1];
    assert_eq!(store.set(key(b"text"), &huge, None, OWNER), Err(Refusal::ValueTooLarge));
    assert_eq!(store.set(key(b"text"), &huge[1..], None, OWNER), Err(Refusal::MemoryFull));
    assert_eq!(get(&store, b"n").unwrap(), i64::MAX.wrapping_sub(1).to_string().into_bytes());
    store.verify().unwrap();
}

#[test]
fn values_of_all_sizes_read_back_and_leave_nothing_behind() {
    for (memory, clustered) in [(8 << 20, false), (40 << 20, false)] {
        let (store, _) = store(memory, clustered);
        let base = store.stats();
        let big = if memory > 16 << 20 { 16 * MB as usize } else { MB as usize };
        for len in [0, 1, 7, 8, 55, 56, 57, 500, 4_000, 4_088, 4_089, 16_376, 16_377, 70_000, MB as usize, big] {
            let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            store.set(key(b"v"), &value, None, OWNER).unwrap();
            assert_eq!(get(&store, b"v").unwrap(), value, "{len}");
            store.verify().unwrap();
        }
        assert_eq!(store.del(key(b"v"), OWNER), Ok(true));
        assert_eq!(store.stats(), base);
        store.verify().unwrap();
    }
}

#[test]
fn keys_of_all_lengths_and_namespaces_are_different_keys() {
    let (store, _) = store(8 << 20, false);
    let name: Vec<u8> = (0..1024).map(|i| i as u8).collect();
    let mut keys = Vec::new();
    for namespace in [&b""[..], b"n", b"12345678", &[b'x'; 64]] {
        for len in [1, 2, 7, 8, 9, 24, 100, 1_023, 1_024] {
            keys.push(Key { namespace, name: &name[..len] });
        }
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(store.incr(*key, i as i64 + 1, None, OWNER).unwrap().value, i as i64 + 1);
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(store.incr(*key, 1, None, OWNER).unwrap().value, i as i64 + 2);
    }
    assert_eq!(store.flush(b"n", &|_| true, OWNER), 9);
    assert_eq!(store.stats().entries as usize, keys.len() - 9);
    store.verify().unwrap();
}

#[test]
fn tombstones_stay_for_their_grace() {
    let (store, hand) = store(4 << 20, true);
    store.incr(key(b"k"), 1, None, OWNER).unwrap();
    let window = store.state(key(b"k")).unwrap().window;
    assert_eq!(store.del(key(b"k"), OWNER), Ok(true));
    assert_eq!(store.del(key(b"k"), OWNER), Ok(false));
    assert_eq!(get(&store, b"k"), None);
    let state = store.state(key(b"k")).unwrap();
    assert_eq!(state.window, window);
    assert!(matches!(state.body, Body::Tombstone(_)));
    let sweep_all = || {
        while !store.sweep(1_000).round_ended {}
        let mut freed = 0;
        loop {
            let swept = store.sweep(1_000);
            freed += swept.freed;
            if swept.round_ended {
                return freed;
            }
        }
    };
    hand.fetch_add(TOMBSTONE_GRACE_MS - 1, Ordering::Relaxed);
    assert_eq!((sweep_all(), store.stats().tombstones), (0, 1));
    hand.fetch_add(1, Ordering::Relaxed);
    while !store.sweep(1_000).round_ended {}
    while !store.sweep(1_000).round_ended {}
    assert_eq!((store.stats().tombstones, store.stats().bytes_used), (0, 0));
    assert_eq!(store.state(key(b"k")), None);
    store.verify().unwrap();
}

#[test]
fn tombstones_go_sooner_while_nobody_is_away() {
    let (store, hand) = store(4 << 20, true);
    let grace = &store.segment().table().tombstone_grace_ms;
    let sweep_all = || {
        while !store.sweep(1_000).round_ended {}
        while !store.sweep(1_000).round_ended {}
    };
    for i in 0..100_u32 {
        store.set(key(&i.to_le_bytes()), b"x", None, OWNER).unwrap();
        store.del(key(&i.to_le_bytes()), OWNER).unwrap();
    }
    grace.store(TOMBSTONE_GRACE_SHORT_MS, Ordering::Relaxed);
    hand.fetch_add(TOMBSTONE_GRACE_SHORT_MS - 1, Ordering::Relaxed);
    sweep_all();
    assert_eq!(store.stats().tombstones, 100);
    // Somebody has gone: what there is is kept for it.
    grace.store(TOMBSTONE_GRACE_MS, Ordering::Relaxed);
    hand.fetch_add(TOMBSTONE_GRACE_SHORT_MS, Ordering::Relaxed);
    sweep_all();
    assert_eq!(store.stats().tombstones, 100);
    grace.store(TOMBSTONE_GRACE_SHORT_MS, Ordering::Relaxed);
    sweep_all();
    assert_eq!((store.stats().tombstones, store.stats().bytes_used), (0, 0));
    store.verify().unwrap();
}

#[test]
fn a_storm_of_deletes_does_not_fill_the_memory() {
    let (store, hand) = store(4 << 20, true);
    store.segment().table().tombstone_grace_ms.store(1_000, Ordering::Relaxed);
    // 1,000 a second for ten minutes; at most those of a second or two are kept.
    for i in 0..600_000_u32 {
        store.set(key(&i.to_le_bytes()), b"x", None, OWNER).unwrap();
        store.del(key(&i.to_le_bytes()), OWNER).unwrap();
        if i % 100 == 0 {
            hand.fetch_add(100, Ordering::Relaxed);
            store.sweep(2_000);
        }
    }
    assert!(store.stats().tombstones < 4_000, "{:?}", store.stats());
    store.verify().unwrap();
}

#[test]
fn expired_keys_go_though_nobody_reads_them() {
    let (store, hand) = store(4 << 20, false);
    for i in 0..2_000_u32 {
        store.incr(key(&i.to_le_bytes()), 1, Some(100), OWNER).unwrap();
    }
    assert_eq!(store.stats().entries, 2_000);
    hand.fetch_add(100, Ordering::Relaxed);
    for _ in 0..200 {
        hand.fetch_add(10_000 / 64 + 1, Ordering::Relaxed);
        store.sweep_if_due(10_000);
    }
    assert_eq!(store.stats().entries, 0);
    assert_eq!(store.stats().bytes_used, 0);
    store.verify().unwrap();
}

#[test]
fn full_of_live_counters_every_one_still_counts() {
    let (store, _) = store(2 << 20, true);
    let mut made = 0_u32;
    let refusal = loop {
        match store.incr(key(&made.to_le_bytes()), 1, None, OWNER) {
            Ok(_) => made += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Refusal::MemoryFull);
    assert!(made > 5_000, "{made}");
    assert_eq!(store.set(key(b"value"), &[b'x'; 2_000], None, OWNER), Err(Refusal::MemoryFull));
    assert!(store.segment().metrics().memory_full.load(Ordering::Relaxed) >= 2);
    // One shard is full; others may still have room, but no counter is ever given up.
    for i in 0..made {
        assert_eq!(store.incr(key(&i.to_le_bytes()), 1, None, OWNER).unwrap().value, 2);
    }
    assert_eq!(store.segment().metrics().evictions.load(Ordering::Relaxed), 0);
    // A delete needs no memory.
    assert_eq!(store.del(key(&0_u32.to_le_bytes()), OWNER), Ok(true));
    store.verify().unwrap();
}

#[test]
fn byte_values_make_room_for_counters_and_for_each_other() {
    let (store, _) = store(4 << 20, false);
    for i in 0..3_000_u32 {
        store.set(key(&i.to_le_bytes()), &[b'x'; 3_000], None, OWNER).unwrap();
    }
    let evicted = store.segment().metrics().evictions.load(Ordering::Relaxed);
    assert!(evicted > 1_000, "{evicted}");
    store.verify().unwrap();
    for i in 0..10_000_u32 {
        store.incr(key(format!("counter {i}").as_bytes()), 1, None, OWNER).unwrap();
    }
    store.set(key(b"big"), &vec![b'y'; MB as usize], None, OWNER).unwrap();
    assert_eq!(get(&store, b"big").unwrap().len(), MB as usize);
    for i in 0..10_000_u32 {
        assert_eq!(store.incr(key(format!("counter {i}").as_bytes()), 1, None, OWNER).unwrap().value, 2);
    }
    store.verify().unwrap();
}

fn incr_by(store: &Store, name: &[u8], deltas: &[i64], stream: u64, id: u64) -> Called {
    store.call(key(name), Op::Incr { deltas, ttl_ms: None }, OWNER, RequestId { stream, id })
}

#[test]
fn a_request_is_applied_once_or_voided() {
    let (store, _) = store(4 << 20, true);
    let values = |called: Called| match called {
        Called::Done { outcome: Outcome::Values(values), state } => (values, state.is_some()),
        other => panic!("{other:?}"),
    };
    assert_eq!(values(incr_by(&store, b"k", &[1, 2, 3], 9, 1)), (vec![Ok(1), Ok(3), Ok(6)], true));
    assert_eq!(incr_by(&store, b"k", &[1], 9, 1), Called::AlreadyHandled);
    assert_eq!(store.resolve(9, 1), Fate::Applied);
    assert_eq!(store.resolve(9, 2), Fate::NotApplied);
    assert_eq!(incr_by(&store, b"k", &[1], 9, 2), Called::AlreadyHandled);
    assert_eq!(values(incr_by(&store, b"k", &[1], 9, 5)).0, vec![Ok(7)]);
    assert_eq!(store.resolve(9, 3), Fate::NotApplied);
    assert_eq!(store.resolve(9, 5), Fate::Applied);
    assert_eq!(values(incr_by(&store, b"k", &[i64::MAX, 1], 9, 6)).0, vec![Err(Refusal::Overflow), Ok(8)]);
    assert_eq!(values(incr_by(&store, b"k", &[1], 9, 5_000)).0, vec![Ok(9)]);
    assert_eq!(store.resolve(9, 6), Fate::Unknown);
    assert_eq!(store.resolve(9, 4_999), Fate::NotApplied);
    assert_eq!(store.resolve(9, 5_000), Fate::Applied);
    // A stream that nobody has heard of is known from then on.
    assert_eq!(store.resolve(10, 7), Fate::NotApplied);
    assert_eq!(incr_by(&store, b"k", &[1], 10, 7), Called::AlreadyHandled);
    assert!(store.merge_applied(11, &[3, 1, 70]));
    assert_eq!(store.applied(11), Some((70, vec![1, 3, 70])));
    assert!(store.applied_lately(68).unwrap().contains(&(11, vec![3, 70])));
    assert!(store.applied_lately(u64::MAX).unwrap().contains(&(11, vec![1, 3, 70])));
    assert_eq!(store.resolve(11, 2), Fate::NotApplied);
    assert_eq!(store.resolve(11, 3), Fate::Applied);
    assert_eq!(get(&store, b"k").unwrap(), b"9");
    store.verify().unwrap();
}

#[test]
fn streams_beyond_the_table_replace_the_least_recently_used() {
    let (store, hand) = store(4 << 20, true);
    for stream in 1..=300 {
        hand.fetch_add(1, Ordering::Relaxed);
        incr_by(&store, b"k", &[1], stream, 1);
        incr_by(&store, b"k", &[1], 1, stream + 1);
    }
    assert_eq!(store.resolve(1, 301), Fate::Applied);
    assert_eq!(store.resolve(300, 1), Fate::Applied);
    assert_eq!(store.applied(2), None);
    assert_eq!(get(&store, b"k").unwrap(), b"600");
}

#[test]
fn draining_hands_out_each_change_once_with_its_requests() {
    let (store, _) = store(8 << 20, true);
    let drain = |max| {
        let mut out = Drained::default();
        assert_eq!(store.drain(max, &mut out), out.copies.len());
        out
    };
    assert_eq!(drain(10).copies, vec![]);
    for i in 0..1_000_u32 {
        store.incr(key(&i.to_le_bytes()), 1, None, OWNER).unwrap();
    }
    incr_by(&store, b"called", &[4], 9, 1);
    let mut copies = Vec::new();
    let mut rounds = 0;
    let applied = loop {
        let out = drain(100);
        copies.extend(out.copies);
        rounds += 1;
        if !out.applied.is_empty() {
            break out.applied;
        }
        assert!(rounds < 20);
    };
    assert!(rounds >= 10);
    assert_eq!(applied, vec![(9, 1)]);
    assert_eq!(copies.len(), 1_001, "all that came before the request is out with it");
    assert!(drain(10).copies.is_empty());
    for _ in 0..3 {
        store.incr(key(&7_u32.to_le_bytes()), 1, None, OWNER).unwrap();
    }
    store.del(key(&8_u32.to_le_bytes()), OWNER).unwrap();
    let out = drain(100);
    assert_eq!(out.copies.len(), 2);
    assert!(out.copies.iter().any(|drain| matches!(drain.copy.state.body, Body::Tombstone(_))));
    assert!(out.copies.iter().all(|drain| !drain.pending));
    store.mark_dirty(key(&9_u32.to_le_bytes()));
    assert_eq!(drain(100).copies.len(), 1);
    store.incr(key(b"mine"), 2, None, Standing::Degraded).unwrap();
    let out = drain(100);
    assert!(out.copies.len() == 1 && out.copies[0].pending);
    assert_eq!(store.stats().pending, 1);
    // Drained but never sent, as if the process had died: the rescan finds it.
    assert_eq!(store.rescan_dirty(), 1);
    assert_eq!(drain(100).copies.len(), 1);
    store.settle_own(key(b"mine"), 2 << 32, true);
    assert_eq!((store.rescan_dirty(), store.stats().pending), (0, 0));
}

#[test]
fn a_scan_sees_every_entry_that_stays() {
    let (store, _) = store(8 << 20, true);
    for i in 0..5_000_u32 {
        store.incr(key(&i.to_le_bytes()), i.into(), None, OWNER).unwrap();
    }
    let mut seen = std::collections::HashSet::new();
    let mut cursor = Some(0);
    let mut pages = 0;
    while let Some(at) = cursor {
        let (copies, next) = store.scan(at, 10_000, &|key| key.name[0] % 2 == 0);
        seen.extend(copies.into_iter().map(|copy| copy.key));
        // What comes and goes meanwhile hides nothing.
        store.incr(key(format!("new {pages}").as_bytes()), 1, None, OWNER).unwrap();
        store.del(key(&(pages * 2 + 1_u32).to_le_bytes()), OWNER).unwrap();
        (cursor, pages) = (next, pages + 1);
    }
    assert!(pages > 20);
    let even = (0..5_000_u32).filter(|i| i.is_multiple_of(2) && (*i as u8).is_multiple_of(2));
    assert!(even.into_iter().all(|i| seen.contains(&ephpm_kv::record::KeyBuf::new(key(&i.to_le_bytes())))));
}

#[test]
fn without_a_cluster_nothing_is_marked() {
    let (store, _) = store(4 << 20, false);
    store.incr(key(b"k"), 1, None, Standing::Owner { term: 0 }).unwrap();
    store.set(key(b"v"), b"x", None, Standing::Owner { term: 0 }).unwrap();
    store.del(key(b"v"), Standing::Owner { term: 0 }).unwrap();
    let mut out = Drained::default();
    assert_eq!(store.drain(10, &mut out), 0);
    assert_eq!((store.stats().tombstones, store.stats().entries), (0, 1));
}
