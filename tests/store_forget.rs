//! A host that was away for too long forgets everything but what only it knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::metrics::Lost;
use ephpm_kv::record::{Body, Copy, Key, KeyBuf, Share, Window};
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Joined, Standing, Store, StoreOptions, Value};

const OWNER: Standing = Standing::Owner { term: 1 << 32 };

fn host() -> (Store, Arc<AtomicU64>) {
    let (clock, hand) = Clock::manual(1_000);
    let segment = Segment::create(4 << 20).unwrap();
    (Store::open(segment, clock, StoreOptions { clustered: true, value_max: 1 << 20 }), hand)
}

fn key(name: &[u8]) -> Key<'_> {
    Key { namespace: b"", name }
}

fn value(store: &Store, name: &[u8]) -> Option<i64> {
    let int = |value: Value<'_>| if let Value::Int(value) = value { value } else { panic!("bytes") };
    store.read(key(name), int).unwrap()
}

fn send(from: &Store, to: &Store, name: &[u8]) {
    let state = from.state(key(name)).unwrap();
    to.apply_copy(&Copy { key: KeyBuf::new(key(name)), state }, true);
}

fn go_home(from: &Store, to: &Store, name: &[u8]) -> Joined {
    let state = from.state(key(name)).unwrap();
    to.join_home(&Copy { key: KeyBuf::new(key(name)), state }, 2 << 32)
}

fn forget(store: &Store) {
    let mut page = Some(0);
    while let Some(from) = page {
        page = store.forget_copies(from);
    }
    store.verify().unwrap();
}

fn end_unconfirmed(store: &Store) {
    let mut page = Some(0);
    while let Some(from) = page {
        page = store.end_unconfirmed(from);
    }
    store.verify().unwrap();
}

fn shares(store: &Store, name: &[u8]) -> Vec<Share> {
    match store.state(key(name)).map(|state| state.body) {
        Some(Body::Counter(shares)) => shares,
        _ => Vec::new(),
    }
}

#[test]
fn copies_and_tombstones_go_and_unacknowledged_shares_stay() {
    let ((owner, _), (away, _)) = (host(), host());
    for name in [b"copy", b"both", b"gone"] {
        owner.incr(key(name), 10, None, OWNER).unwrap();
        send(&owner, &away, name);
    }
    owner.set(key(b"bytes"), b"text", None, OWNER).unwrap();
    send(&owner, &away, b"bytes");
    owner.del(key(b"gone"), OWNER).unwrap();
    send(&owner, &away, b"gone");
    away.incr(key(b"both"), 3, None, Standing::Degraded).unwrap();
    away.incr(key(b"only"), 4, None, Standing::Degraded).unwrap();
    forget(&away);
    let stats = away.stats();
    assert_eq!((stats.entries, stats.tombstones, stats.pending), (2, 0, 2));
    assert_eq!((value(&away, b"both"), value(&away, b"only")), (Some(3), Some(4)));
    assert_eq!(shares(&away, b"both").len(), 1, "what others counted is theirs to tell");
    // The owner shows what it has, and takes what it lacks.
    for name in [b"copy", b"both"] {
        send(&owner, &away, name);
    }
    end_unconfirmed(&away);
    assert_eq!((value(&away, b"copy"), value(&away, b"both"), value(&away, b"only")), (Some(10), Some(13), Some(4)));
    for name in [b"both", b"only"] {
        assert!(matches!(go_home(&away, &owner, name), Joined::Merged(_)));
    }
    assert_eq!((value(&owner, b"both"), value(&owner, b"only")), (Some(13), Some(4)));
    assert_eq!(away.segment().metrics().lost(Lost::WindowEnded), 0);
}

#[test]
fn a_share_of_a_window_that_no_owner_shows_any_more_has_ended() {
    let ((owner, _), (away, _)) = (host(), host());
    owner.incr(key(b"k"), 10, None, OWNER).unwrap();
    send(&owner, &away, b"k");
    away.incr(key(b"k"), 3, None, Standing::Degraded).unwrap();
    // Deleted since, and the tombstone is gone: nothing comes.
    forget(&away);
    end_unconfirmed(&away);
    assert_eq!((value(&away, b"k"), away.stats().pending), (None, 0));
    assert_eq!(away.segment().metrics().lost(Lost::WindowEnded), 3);
}

#[test]
fn what_an_owner_counts_apart_is_not_home() {
    let (apart, hand) = host();
    for name in [b"before", b"beside"] {
        apart.incr(key(name), 10, None, OWNER).unwrap();
    }
    apart.segment().table().set_apart(true);
    for _ in 0..2 {
        apart.incr(key(b"beside"), 1, None, OWNER).unwrap();
        apart.incr(key(b"anew"), 1, Some(500), OWNER).unwrap();
    }
    assert_eq!(apart.rescan_dirty(), 2);
    // It ends by itself as it would at any owner.
    hand.fetch_add(500, Ordering::Relaxed);
    while !apart.sweep(1_000).round_ended {}
    while !apart.sweep(1_000).round_ended {}
    assert_eq!(apart.segment().metrics().lost(Lost::WindowEnded), 0);
    forget(&apart);
    assert_eq!((value(&apart, b"before"), value(&apart, b"beside"), value(&apart, b"anew")), (None, Some(12), None));
}

#[test]
fn a_copy_that_is_wrong_is_told_from_one_that_is_newer() {
    let ((owner, _), (copy, _)) = (host(), host());
    owner.incr(key(b"k"), 10, None, OWNER).unwrap();
    let early = Copy { key: KeyBuf::new(key(b"k")), state: owner.state(key(b"k")).unwrap() };
    send(&owner, &copy, b"k");
    assert!(!copy.contradicts(&early, owner.segment().origin()));
    owner.incr(key(b"k"), 1, None, OWNER).unwrap();
    send(&owner, &copy, b"k");
    assert!(!copy.contradicts(&early, owner.segment().origin()), "newer");
    let mut wrong = Copy { key: KeyBuf::new(key(b"k")), state: owner.state(key(b"k")).unwrap() };
    assert!(!copy.contradicts(&wrong, owner.segment().origin()));
    if let Body::Counter(shares) = &mut wrong.state.body {
        shares[0].amount += 1;
    }
    assert!(copy.contradicts(&wrong, owner.segment().origin()));
    // The same share, sent once more since, is no newer.
    if let Body::Counter(shares) = &mut wrong.state.body {
        shares[0].sequence -= 1;
        let window = Window { origin: 77, stamp: 1 };
        shares.push(Share { origin: 77, window, sequence: 1, amount: 1 });
        shares[0].amount -= 1;
    }
    assert!(copy.contradicts(&wrong, owner.segment().origin()));
    assert!(copy.drop_copy(key(b"k")) && value(&copy, b"k").is_none());
    copy.incr(key(b"mine"), 1, None, Standing::Degraded).unwrap();
    assert!(!copy.drop_copy(key(b"mine")), "nobody else has it");
}

#[test]
fn a_late_share_of_a_window_that_its_owner_has_ended_is_wrong() {
    let ((owner, hand), (other, _), (copy, _)) = (host(), host(), host());
    owner.incr(key(b"k"), 10, Some(500), OWNER).unwrap();
    let early = Copy { key: KeyBuf::new(key(b"k")), state: owner.state(key(b"k")).unwrap() };
    hand.fetch_add(500, Ordering::Relaxed);
    while !owner.sweep(1_000).round_ended {}
    other.incr(key(b"k"), 1, None, Standing::Degraded).unwrap();
    assert!(matches!(go_home(&other, &owner, b"k"), Joined::Merged(_)));
    send(&owner, &copy, b"k");
    let now = Copy { key: KeyBuf::new(key(b"k")), state: owner.state(key(b"k")).unwrap() };
    assert!(!copy.contradicts(&now, owner.segment().origin()));
    copy.apply_copy(&early, true);
    assert_eq!((value(&owner, b"k"), value(&copy, b"k")), (Some(1), Some(11)));
    assert!(copy.contradicts(&now, owner.segment().origin()));
    // An older copy of it was brought home: what the owner has of its own share then is right.
    let mut older = early;
    if let Body::Counter(shares) = &mut older.state.body {
        (shares[0].sequence, shares[0].amount) = (shares[0].sequence - 1, 7);
    }
    assert!(matches!(owner.join_home(&older, 1 << 32), Joined::Merged(_)));
    let now = Copy { key: KeyBuf::new(key(b"k")), state: owner.state(key(b"k")).unwrap() };
    assert_eq!((value(&owner, b"k"), value(&copy, b"k")), (Some(8), Some(11)));
    assert!(copy.contradicts(&now, owner.segment().origin()));
}

#[test]
fn what_only_a_copy_has_of_a_host_that_is_gone_finds_its_owner() {
    let ((gone, _), (owner, _), (copy, _)) = (host(), host(), host());
    let origins = [owner.segment().origin(), copy.segment().origin()];
    gone.incr(key(b"k"), 10, None, OWNER).unwrap();
    send(&gone, &owner, b"k");
    gone.incr(key(b"k"), 1, None, OWNER).unwrap();
    send(&gone, &copy, b"k");
    assert!(owner.settle_own(key(b"k"), 2 << 32, true));
    send(&owner, &copy, b"k");
    assert_eq!((value(&owner, b"k"), value(&copy, b"k")), (Some(10), Some(11)));
    let shown = |store: &Store| Copy { key: KeyBuf::new(key(b"k")), state: store.state(key(b"k")).unwrap() };
    let more = copy.beyond(&shown(&owner), &origins).expect("one that the owner lacks");
    assert_eq!(copy.beyond(&shown(&owner), &[gone.segment().origin()]), None, "that one tells itself");
    owner.join_home(&Copy { key: KeyBuf::new(key(b"k")), state: more }, 2 << 32);
    owner.incr(key(b"k"), 1, None, OWNER).unwrap();
    assert_eq!(value(&owner, b"k"), Some(12));
    assert_eq!(copy.beyond(&shown(&owner), &origins), None);
    send(&owner, &copy, b"k");
    assert_eq!((value(&copy, b"k"), copy.beyond(&shown(&owner), &origins)), (Some(12), None));
}

#[test]
fn a_tombstone_that_comes_after_what_the_owner_has_is_told() {
    let ((gone, hand), (owner, _), (copy, _)) = (host(), host(), host());
    let shown = |store: &Store| Copy { key: KeyBuf::new(key(b"k")), state: store.state(key(b"k")).unwrap() };
    gone.set(key(b"k"), b"10", None, OWNER).unwrap();
    send(&gone, &owner, b"k");
    send(&gone, &copy, b"k");
    assert_eq!(copy.outranks(&shown(&owner), 2 << 32), None);
    hand.fetch_add(1, Ordering::Relaxed);
    gone.del(key(b"k"), OWNER).unwrap();
    send(&gone, &copy, b"k");
    assert_eq!(copy.outranks(&shown(&owner), 1 << 32), None, "the owner has told that itself");
    let state = copy.outranks(&shown(&owner), 2 << 32).expect("the delete");
    owner.apply_copy(&Copy { key: KeyBuf::new(key(b"k")), state }, false);
    assert_eq!((value(&owner, b"k"), copy.outranks(&shown(&owner), 2 << 32)), (None, None));
    // What is this host's own finds its way by itself.
    send(&gone, &owner, b"k");
    copy.set(key(b"k"), b"1", None, Standing::Degraded).unwrap();
    assert_eq!(copy.outranks(&shown(&owner), 2 << 32), None);
}

#[test]
fn a_share_that_comes_home_after_the_window_that_ended_it_does_not_begin_anew() {
    let ((owner, hand), (apart, _)) = (host(), host());
    apart.incr(key(b"k"), 5, Some(60_000), Standing::Degraded).unwrap();
    let late = Copy { key: KeyBuf::new(key(b"k")), state: apart.state(key(b"k")).unwrap() };
    assert!(matches!(go_home(&apart, &owner, b"k"), Joined::Merged(_)));
    owner.set(key(b"k"), b"1", Some(300), Standing::Owner { term: 2 << 32 }).unwrap();
    hand.fetch_add(300, Ordering::Relaxed);
    while !owner.sweep(1_000).round_ended {}
    assert_eq!(value(&owner, b"k"), None);
    assert!(matches!(owner.join_home(&late, 2 << 32), Joined::Ended(_)));
    assert_eq!(value(&owner, b"k"), None);
    // It does not stay for long.
    hand.fetch_add(1_500, Ordering::Relaxed);
    while !owner.sweep(1_000).round_ended {}
    assert_eq!(owner.stats().entries, 0);
}

#[test]
fn a_change_made_apart_that_has_expired_keeps_nothing_out() {
    let ((owner, _), (apart, hand)) = (host(), host());
    owner.set(key(b"k"), b"7", None, OWNER).unwrap();
    send(&owner, &apart, b"k");
    apart.set(key(b"k"), b"8", Some(300), Standing::Degraded).unwrap();
    send(&owner, &apart, b"k");
    assert_eq!(value(&apart, b"k"), Some(8), "made over what is sent");
    hand.fetch_add(300, Ordering::Relaxed);
    send(&owner, &apart, b"k");
    assert_eq!(value(&apart, b"k"), Some(7));
}
