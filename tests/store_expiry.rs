//! What expires leaves a tombstone where an older copy of it may live on, and nothing elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::placement;
use ephpm_kv::record::{Body, Copy, Key, KeyBuf};
use ephpm_kv::segment::Segment;
use ephpm_kv::segment::table::Owner;
use ephpm_kv::store::{Applied, Drained, Standing, Store, StoreOptions, TOMBSTONE_GRACE_MS};

const TERM: u64 = 1 << 32;
const OWNER: Standing = Standing::Owner { term: TERM };
const KEY: Key<'_> = Key { namespace: b"", name: b"key" };

fn host() -> (Store, Arc<AtomicU64>) {
    let (clock, hand) = Clock::manual(1_000);
    let segment = Segment::create(4 << 20).unwrap();
    (Store::open(segment, clock, StoreOptions { clustered: true, value_max: 1 << 20 }), hand)
}

/// A host that owns everything.
fn owner() -> (Store, Arc<AtomicU64>) {
    let (store, hand) = host();
    let table = store.segment().table();
    table.set_self_index(Some(0));
    (0..placement::SLOTS as u16).for_each(|slot| table.set_owner(slot, Owner::Member(0), TERM));
    (store, hand)
}

fn sweep(store: &Store) {
    while !store.sweep(10_000).round_ended {}
    store.verify().unwrap();
}

fn sent(store: &Store) -> Vec<Copy> {
    let mut out = Drained::default();
    while store.drain(100, &mut out) > 0 {}
    out.copies.into_iter().map(|drained| drained.copy).collect()
}

fn copy(store: &Store) -> Copy {
    Copy { key: KeyBuf::new(KEY), state: store.state(KEY).expect("a state") }
}

type Op = fn(&Store);

/// Begins a key, has a copy made, ends it early and lets it expire.
fn expired(begin: Op, end: Op, swept: bool) -> (Store, Arc<AtomicU64>, Copy, Vec<Copy>) {
    let (store, hand) = owner();
    begin(&store);
    let old = copy(&store);
    sent(&store);
    end(&store);
    hand.fetch_add(2_000, Ordering::Relaxed);
    if swept {
        sweep(&store);
    }
    let told = sent(&store);
    (store, hand, old, told)
}

const COUNT: Op = |store| _ = store.incr(KEY, 5, None, OWNER).unwrap();
const COUNT_FOR_A_MINUTE: Op = |store| _ = store.incr(KEY, 5, Some(60_000), OWNER).unwrap();
const SET: Op = |store| store.set(KEY, b"some bytes", None, OWNER).unwrap();
const SET_FOR_LESS: Op = |store| store.set(KEY, b"others", Some(1_000), OWNER).unwrap();
const END_SOON: Op = |store| assert!(store.expire(KEY, Some(1_000), OWNER).unwrap());
const BEGIN_ANEW: Op = |store| {
    assert!(store.del(KEY, OWNER).unwrap());
    store.incr(KEY, 1, Some(1_000), OWNER).unwrap();
};

#[test]
fn an_older_copy_that_would_live_longer_does_not_come_back() {
    for (begin, end) in [
        (COUNT, END_SOON),
        (COUNT_FOR_A_MINUTE, END_SOON),
        (COUNT, SET_FOR_LESS),
        (SET, SET_FOR_LESS),
        (SET, END_SOON),
        (COUNT, BEGIN_ANEW),
    ] {
        // Whether it was still to be told of when it expired, or swept before.
        for swept in [false, true] {
            let (store, hand, old, told) = expired(begin, end, swept);
            assert_eq!(store.state(KEY).map(|state| state.ttl_ms), Some(None), "a tombstone is there");
            assert_eq!(store.apply_copy(&old, false), Applied::Stale);
            assert_eq!(store.read(KEY, |_| ()).unwrap(), None);
            let [tombstone] = &told[..] else { panic!("{told:?}") };
            assert!(matches!(tombstone.state.body, Body::Tombstone(_)) && tombstone.state.comes_after(&old.state));
            // Who has the older copy parts with it.
            let (other, _) = host();
            other.apply_copy(&old, true);
            assert_eq!(other.apply_copy(tombstone, true), Applied::Stored);
            assert_eq!(other.read(KEY, |_| ()).unwrap(), None);
            hand.fetch_add(TOMBSTONE_GRACE_MS, Ordering::Relaxed);
            sweep(&store);
            assert_eq!((store.state(KEY), store.stats().tombstones), (None, 0));
        }
    }
}

#[test]
fn what_was_to_expire_by_then_leaves_nothing() {
    let soon: Op = |store| _ = store.incr(KEY, 5, Some(1_000), OWNER).unwrap();
    let again: Op = |store| _ = store.incr(KEY, 5, Some(1_000), OWNER).unwrap();
    let longer: Op = |store| assert!(store.expire(KEY, Some(1_500), OWNER).unwrap());
    let anew: Op = |store| store.set(KEY, b"others", Some(1_500), OWNER).unwrap();
    for end in [again, longer, anew] {
        for swept in [false, true] {
            let (store, _, _, told) = expired(soon, end, swept);
            sweep(&store);
            assert_eq!((told, store.state(KEY)), (vec![], None));
            assert_eq!((store.stats().entries, store.stats().tombstones, store.stats().bytes_used), (0, 0, 0));
        }
    }
}

#[test]
fn a_copy_that_has_expired_yields_to_what_its_owner_did_meanwhile() {
    let ((store, _), (other, hand)) = (owner(), host());
    COUNT(&store);
    other.apply_copy(&copy(&store), true);
    END_SOON(&store);
    other.apply_copy(&copy(&store), true);
    // In time there, and too late here.
    assert!(store.expire(KEY, None, OWNER).unwrap());
    hand.fetch_add(2_000, Ordering::Relaxed);
    sweep(&other);
    assert_eq!(other.stats().tombstones, 1);
    assert_eq!(other.apply_copy(&copy(&store), true), Applied::Stored);
    assert!(other.read(KEY, |_| ()).unwrap().is_some());
}

#[test]
fn a_change_made_apart_that_an_owner_takes_over_is_told_of_when_it_has_expired() {
    let ((apart, _), (other, _), (store, _)) = (host(), host(), owner());
    COUNT(&store);
    let old = copy(&store);
    apart.apply_copy(&old, true);
    other.apply_copy(&old, true);
    apart.set(KEY, b"apart", Some(1_000), Standing::Degraded).unwrap();
    // The next owner has nothing else of it.
    let (next, hand) = owner();
    next.apply_copy(&copy(&apart), true);
    assert!(next.settle_own(KEY, 2 * TERM, true));
    sent(&next);
    hand.fetch_add(2_000, Ordering::Relaxed);
    sweep(&next);
    let [tombstone] = &sent(&next)[..] else { panic!("nothing is told") };
    assert_eq!(other.apply_copy(tombstone, true), Applied::Stored);
    assert_eq!(other.read(KEY, |_| ()).unwrap(), None);
}

#[test]
fn what_was_changed_apart_ends_with_what_it_was_made_over() {
    let (store, hand) = host();
    store.incr(KEY, 5, None, Standing::Owner { term: TERM }).unwrap();
    store.expire(KEY, Some(1_000), Standing::Degraded).unwrap();
    store.set(KEY, b"apart", Some(500), Standing::Degraded).unwrap();
    hand.fetch_add(2_000, Ordering::Relaxed);
    // Whatever its owner has comes by itself: nothing is told of it, before it is swept or after.
    assert_eq!(sent(&store), []);
    sweep(&store);
    assert_eq!((sent(&store), store.stats().tombstones, store.stats().pending), (vec![], 0, 0));
}

#[test]
fn without_a_cluster_nothing_is_left() {
    let (clock, hand) = Clock::manual(1_000);
    let options = StoreOptions { clustered: false, value_max: 1 << 20 };
    let store = Store::open(Segment::create(4 << 20).unwrap(), clock, options);
    store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    store.expire(KEY, Some(1_000), Standing::Degraded).unwrap();
    hand.fetch_add(2_000, Ordering::Relaxed);
    sweep(&store);
    assert_eq!((store.stats().tombstones, store.stats().bytes_used), (0, 0));
}
