//! Values whose bytes other hosts keep: a stub never hides a newer value, and no stale bytes outlive one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::placement;
use ephpm_kv::record::{Body, Copy, Key, KeyBuf, Share, State, Window};
use ephpm_kv::segment::Segment;
use ephpm_kv::segment::table::Owner;
use ephpm_kv::store::{Applied, Drained, Held, Standing, Store, StoreOptions, Ttl, Value};
use proptest::prelude::*;

const KEY: Key<'static> = Key { namespace: b"n", name: b"page" };
const OWNER: Standing = Standing::Owner { term: 1 << 32 };

struct Host {
    store: Store,
    hand: Arc<AtomicU64>,
}

/// What a host reads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Read {
    Absent,
    Bytes(Vec<u8>),
    Elsewhere(u32),
}

impl Host {
    fn new() -> Self {
        let (clock, hand) = Clock::manual(1_000_000);
        let segment = Segment::create(2 << 20).unwrap();
        Self { store: Store::open(segment, clock, StoreOptions { clustered: true, value_max: 1 << 20 }), hand }
    }

    fn read(&self, key: Key<'_>) -> Read {
        let read = |value: Value<'_>| match value {
            Value::Int(value) => Read::Bytes(value.to_string().into_bytes()),
            Value::Bytes(bytes) => Read::Bytes(bytes.to_vec()),
            Value::Elsewhere(len) => Read::Elsewhere(len),
        };
        self.store.read(key, read).unwrap().unwrap_or(Read::Absent)
    }

    /// The key's copy, with the bytes of values up to `whole_max`.
    fn copy(&self, whole_max: u32) -> Copy {
        Copy { key: KeyBuf::new(KEY), state: self.store.state_up_to(KEY, whole_max).unwrap() }
    }

    fn whole(&self) -> Copy {
        self.copy(u32::MAX)
    }

    fn stub(&self) -> Copy {
        self.copy(0)
    }

    fn take(&self, copy: &Copy) -> Applied {
        self.store.apply_copy(copy, true)
    }

    fn held(&self) -> Vec<Held> {
        let (mut cursor, mut all) = (Some(0), Vec::new());
        while let Some(from) = cursor {
            let (mut held, next) = self.store.values(from, 0);
            all.append(&mut held);
            cursor = next;
        }
        all
    }
}

fn long(byte: u8) -> Vec<u8> {
    vec![byte; 5_000]
}

#[test]
fn a_stub_knows_all_but_the_bytes() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), Some(5_000), OWNER).unwrap();
    assert_eq!(a.stub().state.body, Body::Elsewhere { len: 5_000 });
    assert_eq!(b.take(&a.stub()), Applied::Stored);
    assert_eq!(b.read(KEY), Read::Elsewhere(5_000));
    assert_eq!(b.store.ttl(KEY).unwrap(), Ttl::Ms(5_000));
    assert_eq!(b.whole().state, a.stub().state);
    b.store.verify().unwrap();
    assert_eq!(b.held().iter().map(|held| (held.len, held.whole)).collect::<Vec<_>>(), [(5_000, false)]);
    b.hand.fetch_add(5_000, Ordering::Relaxed);
    assert_eq!((b.read(KEY), b.held().len()), (Read::Absent, 0));
}

#[test]
fn a_stub_can_be_replaced_deleted_and_dated() {
    let a = Host::new();
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    for change in 0..4 {
        let b = Host::new();
        b.take(&a.stub());
        match change {
            0 => b.store.set(KEY, b"short", None, OWNER).unwrap(),
            1 => assert!(b.store.expire(KEY, Some(100), OWNER).unwrap()),
            2 => assert!(b.store.incr(KEY, 1, None, OWNER).is_err()),
            _ => assert!(b.store.del(KEY, OWNER).unwrap()),
        }
        b.store.verify().unwrap();
        let expected = [Read::Bytes(b"short".to_vec()), Read::Elsewhere(5_000), Read::Elsewhere(5_000), Read::Absent];
        assert_eq!(b.read(KEY), expected[change]);
        let fresh = Host::new();
        assert_eq!(fresh.take(&b.whole()), Applied::Stored);
        assert_eq!(fresh.read(KEY), b.read(KEY));
    }
}

#[test]
fn whole_bytes_replace_a_stub_of_the_same_write_and_not_the_other_way_round() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), Some(9_000), OWNER).unwrap();
    b.take(&a.stub());
    assert_eq!(b.take(&a.whole()), Applied::Stored);
    assert_eq!(b.read(KEY), Read::Bytes(long(b'a')));
    assert_eq!(b.take(&a.stub()), Applied::Stale);
    assert_eq!(b.read(KEY), Read::Bytes(long(b'a')));
    b.store.verify().unwrap();
}

#[test]
fn a_newer_stub_of_the_same_bytes_keeps_them_and_takes_its_deadline() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), Some(1_000), OWNER).unwrap();
    b.take(&a.whole());
    a.store.expire(KEY, Some(60_000), OWNER).unwrap();
    assert_eq!(b.take(&a.stub()), Applied::Stored);
    assert_eq!((b.read(KEY), b.store.ttl(KEY).unwrap()), (Read::Bytes(long(b'a')), Ttl::Ms(60_000)));
    // A former deadline's bytes complete it as well, and do not bring that deadline back.
    let old = a.whole();
    a.store.expire(KEY, Some(90_000), OWNER).unwrap();
    let c = Host::new();
    c.take(&a.stub());
    assert_eq!(c.take(&old), Applied::Stored);
    assert_eq!((c.read(KEY), c.store.ttl(KEY).unwrap()), (Read::Bytes(long(b'a')), Ttl::Ms(90_000)));
    b.store.verify().unwrap();
    c.store.verify().unwrap();
}

#[test]
fn a_stub_of_other_bytes_takes_the_old_ones_away() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    let old = a.whole();
    b.take(&old);
    a.store.set(KEY, &long(b'b'), None, OWNER).unwrap();
    assert_eq!(b.take(&a.stub()), Applied::Stored);
    assert_eq!(b.read(KEY), Read::Elsewhere(5_000));
    assert_eq!((b.take(&old), b.read(KEY)), (Applied::Stale, Read::Elsewhere(5_000)));
    b.take(&a.whole());
    assert_eq!(b.read(KEY), Read::Bytes(long(b'b')));
    b.store.verify().unwrap();
}

#[test]
fn what_a_stub_has_replaced_is_kept_until_its_bytes_are_there() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), Some(50_000), OWNER).unwrap();
    b.take(&a.whole());
    assert_eq!(b.store.replaced(KEY), None);
    // A stub after the other.
    for number in 1..=2 {
        a.store.append(KEY, b"b", OWNER).unwrap();
        b.take(&a.stub());
        assert_eq!(b.read(KEY), Read::Elsewhere(5_000 + number));
        let older = b.store.replaced(KEY).expect("kept");
        assert_eq!(older.state.body, Body::Bytes(long(b'a').into()));
        assert!(a.whole().state.comes_after(&older.state));
    }
    b.hand.fetch_add(1_000, Ordering::Relaxed);
    assert_eq!(b.store.replaced(KEY).unwrap().state.ttl_ms, Some(49_000));
    b.take(&a.whole());
    assert_eq!(b.store.replaced(KEY), None);
    // Not beyond a delete.
    let c = Host::new();
    c.store.set(KEY, b"before", None, OWNER).unwrap();
    c.store.del(KEY, OWNER).unwrap();
    c.store.set(KEY, b"after", None, OWNER).unwrap();
    c.store.drain(10, &mut Drained::default());
    let before = c.whole();
    a.take(&before);
    c.store.set(KEY, &long(b'd'), None, OWNER).unwrap();
    a.take(&c.stub());
    assert_eq!(a.store.replaced(KEY).map(|copy| copy.state.body), Some(before.state.body));
    c.store.del(KEY, OWNER).unwrap();
    a.take(&c.whole());
    assert_eq!(a.store.replaced(KEY), None);
    c.store.set(KEY, &long(b'e'), None, OWNER).unwrap();
    a.take(&c.stub());
    assert_eq!((a.read(KEY), a.store.replaced(KEY)), (Read::Elsewhere(5_000), None));
}

#[test]
fn an_owner_goes_back_to_what_a_stub_has_replaced_and_only_for_that_stub() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    b.take(&a.whole());
    a.store.append(KEY, b"b", OWNER).unwrap();
    b.take(&a.stub());
    let (held, older) = (b.held().remove(0), b.store.replaced(KEY));
    a.store.append(KEY, b"b", OWNER).unwrap();
    b.take(&a.stub());
    assert!(!b.store.give_up(&held, older.as_ref(), 2 << 32));
    assert!(b.store.give_up(&b.held()[0], older.as_ref(), 2 << 32));
    assert_eq!(b.read(KEY), Read::Bytes(long(b'a')));
    // Everybody's from now on.
    assert_eq!((a.take(&b.whole()), a.read(KEY)), (Applied::Stored, b.read(KEY)));
    b.store.verify().unwrap();
}

#[test]
fn what_an_owner_goes_back_to_lives_no_longer_than_either() {
    for (before, after, left) in
        [(Some(9_000), None, Ttl::Ms(8_000)), (None, Some(5_000), Ttl::Ms(4_000)), (None, None, Ttl::NoDeadline)]
    {
        let (a, b) = (Host::new(), Host::new());
        a.store.set(KEY, b"before", before, OWNER).unwrap();
        b.take(&a.whole());
        a.store.set(KEY, &long(b'a'), after, OWNER).unwrap();
        b.take(&a.stub());
        b.hand.fetch_add(1_000, Ordering::Relaxed);
        let older = b.store.replaced(KEY);
        assert!(b.store.give_up(&b.held()[0], older.as_ref(), 2 << 32));
        assert_eq!((b.read(KEY), b.store.ttl(KEY).unwrap()), (Read::Bytes(b"before".to_vec()), left));
    }
}

#[test]
fn what_stubs_have_replaced_is_kept_for_a_while_and_within_bounds() {
    let (a, b) = (Host::new(), Host::new());
    let number = |number: usize| format!("{number}");
    for name in (0..1_100).map(number) {
        a.store.set(key(&name), b"short", None, OWNER).unwrap();
        b.take(&Copy { key: KeyBuf::new(key(&name)), state: a.store.state(key(&name)).unwrap() });
        a.store.set(key(&name), &[b'l'; 600], None, OWNER).unwrap();
        b.hand.fetch_add(1, Ordering::Relaxed);
        b.take(&Copy { key: KeyBuf::new(key(&name)), state: a.store.state_up_to(key(&name), 0).unwrap() });
    }
    let kept = |name: usize| b.store.replaced(key(&number(name))).is_some();
    // The first 76 had to go. The next is asked for now, so it stays longer than those that nobody wants.
    assert!(!kept(75) && kept(76));
    b.hand.fetch_add(60_000 - 100, Ordering::Relaxed);
    b.store.sweep(1);
    let left: Vec<usize> = (0..1_100).filter(|name| kept(*name)).collect();
    assert_eq!(left, [76].into_iter().chain(1_000..1_100).collect::<Vec<_>>());
}

#[test]
fn an_expired_stub_is_not_completed() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), Some(1_000), OWNER).unwrap();
    let whole = a.whole();
    b.take(&a.stub());
    b.hand.fetch_add(1_000, Ordering::Relaxed);
    assert_eq!((b.take(&whole), b.read(KEY)), (Applied::Stale, Read::Absent));
}

#[test]
fn bytes_are_let_go_only_while_they_are_the_same() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    b.take(&a.whole());
    let held = b.held().remove(0);
    a.store.set(KEY, &long(b'b'), None, OWNER).unwrap();
    b.take(&a.whole());
    assert!(!b.store.let_go(&held));
    assert_eq!(b.read(KEY), Read::Bytes(long(b'b')));
    let used = b.store.stats().bytes_used;
    assert!(b.store.let_go(&b.held()[0]));
    assert_eq!(b.read(KEY), Read::Elsewhere(5_000));
    assert!(b.store.stats().bytes_used + 5_000 <= used);
    assert_eq!(b.take(&a.whole()), Applied::Stored);
    b.store.verify().unwrap();
}

#[test]
fn bytes_that_were_fetched_are_marked_as_changed_for_their_owner() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    b.take(&a.stub());
    b.store.drain(10, &mut Drained::default());
    b.store.apply_copy(&a.whole(), false);
    let mut out = Drained::default();
    b.store.drain(10, &mut out);
    assert_eq!(out.copies.len(), 1);
    assert_eq!(out.copies[0].copy.state.body, Body::Bytes(long(b'a').into()));
}

/// Makes `host` member 0 of its table, and the owner of the keys that `own` picks; member 1 owns the others.
fn own(host: &Host, own: impl Fn(u16) -> bool) {
    let table = host.store.segment().table();
    table.set_self_index(Some(0));
    for slot in 0..placement::SLOTS as u16 {
        table.set_owner(slot, Owner::Member(u16::from(!own(slot))), 1 << 32);
    }
}

fn name(number: usize) -> String {
    format!("value {number}")
}

fn key(name: &str) -> Key<'_> {
    Key { namespace: b"n", name: name.as_bytes() }
}

#[test]
fn an_owner_that_evicts_deletes_for_the_cluster_and_others_bytes_become_stubs() {
    let host = Host::new();
    let is_own = |slot: u16| slot.is_multiple_of(2);
    own(&host, is_own);
    let mine = |name: &str| is_own(placement::slot(name.as_bytes()));
    let peer = Host::new();
    let names: Vec<String> = (0..1_500).map(name).collect();
    for name in &names {
        if mine(name) {
            host.store.set(key(name), &[b'm'; 2_000], None, OWNER).unwrap();
        } else {
            peer.store.set(key(name), &[b'o'; 2_000], None, OWNER).unwrap();
            let state = peer.store.state(key(name)).unwrap();
            host.store.apply_copy(&Copy { key: KeyBuf::new(key(name)), state }, true);
            peer.store.set(key(name), b"", None, OWNER).unwrap();
        }
    }
    host.store.verify().unwrap();
    let (mut gone, mut stubs, mut kept) = (0, 0, 0);
    for name in &names {
        match (mine(name), host.read(key(name))) {
            (true, Read::Bytes(bytes)) => kept += usize::from(bytes == [b'm'; 2_000]),
            (true, Read::Absent) => {
                let state = host.store.state(key(name)).expect("a tombstone");
                assert!(matches!(state.body, Body::Tombstone(_)), "{name}: {state:?}");
                gone += 1;
            }
            (false, Read::Bytes(bytes)) => kept += usize::from(bytes == [b'o'; 2_000]),
            (false, Read::Elsewhere(2_000)) => stubs += 1,
            (false, Read::Absent) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    println!("{kept} kept, {gone} deleted, {stubs} stubs");
    assert!(kept > 300 && gone > 50 && stubs > 50);
    // The deletes travel.
    let mut out = Drained::default();
    while host.store.drain(1_000, &mut out) > 0 {}
    let told = out.copies.iter().filter(|drain| matches!(drain.copy.state.body, Body::Tombstone(_))).count();
    assert_eq!(told, gone);
}

#[test]
fn what_tells_of_an_eviction_makes_room_once_it_is_sent_and_a_delete_does_not() {
    let host = Host::new();
    own(&host, |_| true);
    let deleted: Vec<String> = (0..100).map(|number| format!("delete {number}")).collect();
    for name in &deleted {
        host.store.set(key(name), b"x", None, OWNER).unwrap();
        assert!(host.store.del(key(name), OWNER).unwrap());
    }
    // Many times what fits, in entries as well as in bytes.
    for number in 0..60_000 {
        let name = name(number);
        host.store.set(key(&name), b"some bytes", None, OWNER).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
        if number.is_multiple_of(100) {
            while host.store.drain(1_000, &mut Drained::default()) > 0 {}
        }
    }
    host.store.verify().unwrap();
    for name in &deleted {
        let state = host.store.state(key(name)).expect("its tombstone");
        assert!(matches!(state.body, Body::Tombstone(_)));
    }
}

#[test]
fn a_copy_dropped_for_room_says_so() {
    let host = Host::new();
    own(&host, |_| false);
    let table = host.store.segment().table();
    table.set_complete(true, table.copies_dropped());
    let state = |number: u64| State {
        term: 1 << 32,
        stamp: number + 1,
        window: Window { stamp: number + 1, origin: 9 },
        diverged: None,
        ttl_ms: None,
        body: Body::Elsewhere { len: 1 << 20 },
    };
    let mut stored = 0_u64;
    while table.copies_dropped() == 0 {
        let name = name(stored as usize);
        let copy = Copy { key: KeyBuf::new(key(&name)), state: state(stored) };
        assert_eq!(host.store.apply_copy(&copy, true), Applied::Stored, "number {stored}");
        assert!(stored < 100_000);
        stored += 1;
    }
    assert!(!table.is_complete());
    table.set_complete(true, 0);
    assert!(!table.is_complete(), "found before the drop, published after it");
    host.store.verify().unwrap();
}

#[test]
fn the_bytes_of_a_copy_make_nothing_else_go() {
    let host = Host::new();
    own(&host, |slot| slot.is_multiple_of(2));
    let peer = Host::new();
    let mut refused = None;
    for number in 0..3_000 {
        let name = name(number);
        peer.store.set(key(&name), &[b'o'; 2_000], None, OWNER).unwrap();
        let copy = Copy { key: KeyBuf::new(key(&name)), state: peer.store.state(key(&name)).unwrap() };
        peer.store.del(key(&name), OWNER).unwrap();
        if host.store.apply_copy(&copy, true) == Applied::Full {
            refused = Some(number);
            break;
        }
    }
    let refused = refused.expect("it is full at last");
    assert!((0..refused).all(|number| host.read(key(&name(number))) == Read::Bytes(vec![b'o'; 2_000])));
    host.store.verify().unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Set(usize, Option<u64>),
    Count,
    Expire(Option<u64>),
    Del,
    /// Delivers the state after this step to the receiver, whole or as a stub.
    Deliver {
        back: usize,
        whole: bool,
    },
    LetGo,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = prop_oneof![Just(None), (1_000_u64..9_000).prop_map(Some)];
    let step = prop_oneof![
        3 => (0_usize..3, ttl.clone()).prop_map(|(size, ttl)| Step::Set(size, ttl)),
        1 => Just(Step::Count),
        2 => ttl.prop_map(Step::Expire),
        1 => Just(Step::Del),
        6 => (0_usize..6, any::<bool>()).prop_map(|(back, whole)| Step::Deliver { back, whole }),
        1 => Just(Step::LetGo),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// Whatever arrives in whatever order, whole or as stubs: no host ever reads bytes that are not those of the state
    /// it has, and the last state brings it to where the owner is.
    #[test]
    fn no_order_of_deliveries_leaves_stale_bytes(steps in steps()) {
        let (owner, receiver) = (Host::new(), Host::new());
        let mut history: Vec<Copy> = Vec::new();
        let mut written: HashMap<Window, Vec<u8>> = HashMap::new();
        let mut serial = 0_u8;
        for step in steps {
            match step {
                Step::Set(size, ttl_ms) => {
                    serial = serial.wrapping_add(1);
                    let value = vec![b'A' + serial % 26; [3, 700, 5_000][size]];
                    owner.store.set(KEY, &value, ttl_ms, OWNER).unwrap();
                    written.insert(owner.whole().state.window, value);
                }
                Step::Count => {
                    owner.store.set(KEY, b"7", None, OWNER).unwrap();
                    written.insert(owner.whole().state.window, b"7".to_vec());
                }
                Step::Expire(ttl_ms) => {
                    owner.store.expire(KEY, ttl_ms, OWNER).unwrap();
                }
                Step::Del => {
                    owner.store.del(KEY, OWNER).unwrap();
                }
                Step::LetGo => {
                    receiver.held().iter().for_each(|held| {
                        receiver.store.let_go(held);
                    });
                }
                Step::Deliver { back, whole } => {
                    let Some(at) = history.len().checked_sub(back + 1) else { continue };
                    let mut copy = history[at].clone();
                    if let (false, Body::Bytes(bytes)) = (whole, &copy.state.body) {
                        copy.state.body = Body::Elsewhere { len: bytes.len() as u32 };
                    }
                    receiver.take(&copy);
                }
            }
            if let Some(state) = owner.store.state(KEY) {
                history.push(Copy { key: KeyBuf::new(KEY), state });
            }
            receiver.store.verify().unwrap();
            if let (Read::Bytes(bytes), Some(state)) = (receiver.read(KEY), receiver.store.state(KEY)) {
                prop_assert_eq!(Some(&bytes), written.get(&state.window));
            }
        }
        let Some(state) = owner.store.state(KEY) else { return Ok(()) };
        receiver.take(&Copy { key: KeyBuf::new(KEY), state: owner.store.state_up_to(KEY, 512).unwrap() });
        let expected = match owner.read(KEY) {
            Read::Bytes(bytes) if bytes.len() > 512 => vec![Read::Elsewhere(bytes.len() as u32), Read::Bytes(bytes)],
            other => vec![other],
        };
        prop_assert!(expected.contains(&receiver.read(KEY)), "{:?} against {:?}", receiver.read(KEY), state);
        receiver.take(&owner.whole());
        prop_assert_eq!(receiver.read(KEY), owner.read(KEY));
        prop_assert_eq!(receiver.store.ttl(KEY).unwrap(), owner.store.ttl(KEY).unwrap());
    }
}

#[test]
fn a_late_share_does_a_stub_no_harm() {
    let (a, b) = (Host::new(), Host::new());
    a.store.set(KEY, &long(b'a'), None, OWNER).unwrap();
    b.take(&a.stub());
    let window = Window { stamp: 5, origin: 77 };
    let share = Share { origin: 77, window, sequence: 9, amount: 3 };
    let late = State { term: 0, stamp: 0, window, ttl_ms: None, diverged: None, body: Body::Counter(vec![share]) };
    assert_eq!(b.take(&Copy { key: KeyBuf::new(KEY), state: late }), Applied::Stale);
    assert_eq!(b.read(KEY), Read::Elsewhere(5_000));
}

#[test]
fn an_owner_goes_back_to_an_older_copy_of_what_nobody_has_the_bytes_of() {
    let (gone, owner, keeper) = (Host::new(), Host::new(), Host::new());
    gone.store.set(KEY, &[b'o'; 900], None, OWNER).unwrap();
    keeper.take(&gone.whole());
    gone.hand.fetch_add(1, Ordering::Relaxed);
    gone.store.set(KEY, &[b'n'; 950], Some(60_000), OWNER).unwrap();
    owner.take(&gone.stub());
    let held = owner.store.held(KEY).unwrap();
    let term = 2 << 32;
    owner.hand.fetch_add(10_000, Ordering::Relaxed);
    assert!(owner.store.give_up(&held, Some(&keeper.whole()), term));
    assert_eq!(owner.read(KEY), Read::Bytes(vec![b'o'; 900]));
    assert_eq!(owner.store.ttl(KEY).unwrap(), Ttl::Ms(50_000), "the deadline is the newest");
    // All take that now, the one that was gone included.
    for other in [&gone, &keeper] {
        other.take(&owner.whole());
        assert_eq!(other.read(KEY), Read::Bytes(vec![b'o'; 900]));
    }
    assert!(!owner.store.give_up(&held, Some(&keeper.whole()), term), "it has changed since");
    owner.store.verify().unwrap();
}
