//! A process killed after every machine instruction of an operation: afterwards it has happened, or it has not.
//!
//! Most instructions change nothing that outlives the process, so a kill after them leaves what one before them does:
//! they are left out unless `EPHPM_STEPS=all`, which takes a quarter of an hour.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod tracer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::record::{Body, Copy, Diverged, Key, KeyBuf, Share, State, Window};
use ephpm_kv::segment::Segment;
use ephpm_kv::segment::table::{Owner, SLOTS};
use ephpm_kv::store::{Called, Fate, Op, RequestId, Standing, Store, StoreOptions, Value};
use tracer::{Path, Stop, Traced};

const OWNER: Standing = Standing::Owner { term: 1 << 32 };
const KEY: Key<'static> = Key { namespace: b"n", name: b"the key under test" };

struct World {
    store: Store,
    hand: Arc<AtomicU64>,
    round: u64,
}

impl World {
    fn get(&self) -> Option<Vec<u8>> {
        let copy = |value: Value<'_>| match value {
            Value::Int(value) => value.to_string().into_bytes(),
            Value::Bytes(bytes) => bytes.to_vec(),
            Value::Elsewhere(len) => format!("{len} elsewhere").into_bytes(),
        };
        self.store.read(KEY, copy).unwrap()
    }

    fn request(&self) -> RequestId {
        RequestId { stream: 5, id: self.round }
    }
}

struct Case {
    name: &'static str,
    clustered: bool,
    prepare: fn(&World),
    act: fn(&World),
    /// Whether it has happened; an error if neither.
    happened: fn(&World) -> Result<bool, String>,
}

fn either(world: &World, before: Option<&[u8]>, after: Option<&[u8]>) -> Result<bool, String> {
    let have = world.get();
    match have.as_deref() {
        have if have == before => Ok(false),
        have if have == after => Ok(true),
        _ => Err(format!("{} bytes", have.map_or(0, |have| have.len()))),
    }
}

const BIG: [u8; 600] = [b'b'; 600];
const OTHER: [u8; 400] = [b'o'; 400];
/// Takes the same room as `BIG`, so that room for that is made by evicting one of these.
const FILLER: [u8; 600] = [b'f'; 600];

/// Names of more values than fit.
fn fillers() -> impl Iterator<Item = String> {
    (0..5_000).map(|number| format!("filler {number}"))
}

fn filler(name: &str) -> Key<'_> {
    Key { namespace: b"n", name: name.as_bytes() }
}

/// Fills the store with values until setting `KEY` has to evict one.
fn fill(world: &World) {
    let segment = world.store.segment();
    let evictions = || segment.metrics().evictions.load(Ordering::Relaxed);
    for name in fillers() {
        world.store.set(filler(&name), &FILLER, None, OWNER).unwrap();
        if evictions() > 0 {
            let (before, there) = (Snapshot::of(segment), evictions());
            world.store.set(KEY, &BIG, None, OWNER).unwrap();
            let evicts = evictions() > there;
            before.restore(segment);
            if evicts {
                return;
            }
        }
    }
    panic!("nothing had to be evicted");
}

fn own_everything(world: &World) {
    let table = world.store.segment().table();
    table.set_self_index(Some(0));
    (0..SLOTS as u16).for_each(|slot| table.set_owner(slot, Owner::Member(0), 1 << 32));
}

fn foreign(world: &World, amount: i64) -> Copy {
    let window = world.store.state(KEY).map_or(Window { stamp: 7, origin: 77 }, |state| state.window);
    let share = Share { origin: 77, window, sequence: world.round, amount };
    let state = State { term: 0, stamp: 0, window, ttl_ms: None, diverged: None, body: Body::Counter(vec![share]) };
    Copy { key: KeyBuf::new(KEY), state }
}

/// A set to 9 that another host made over what is here, without an owner.
fn made_elsewhere(world: &World) -> Copy {
    let base = world.store.state(KEY).unwrap();
    let window = Window { stamp: base.stamp + 1, origin: 77 };
    let diverged = Some(Diverged { at: base.stamp + 1, amount: 9, sets: true });
    Copy { key: KeyBuf::new(KEY), state: State { window, diverged, body: Body::Counter(Vec::new()), ..base } }
}

/// Lets the key expire, and has the next sweep begin with it.
fn expire(world: &World) {
    world.store.expire(KEY, Some(10), OWNER).unwrap();
    world.hand.fetch_add(10, Ordering::Relaxed);
    world.store.segment().sweep_cursor().store(0, Ordering::Relaxed);
}

fn sweep(world: &World) {
    let _ = world.store.sweep(8);
}

fn nothing_lives(world: &World) -> Result<bool, String> {
    Ok(world.store.stats().entries == 0)
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "increment",
            clustered: true,
            prepare: |world| world.store.set(KEY, b"5", None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.incr(KEY, 1, None, OWNER);
            },
            happened: |world| either(world, Some(b"5"), Some(b"6")),
        },
        Case {
            name: "create",
            clustered: false,
            prepare: |world| {
                world.store.del(KEY, OWNER).unwrap();
            },
            act: |world| {
                let _ = world.store.incr(KEY, 3, Some(1_000), OWNER);
            },
            happened: |world| either(world, None, Some(b"3")),
        },
        Case {
            name: "new window",
            clustered: true,
            prepare: |world| {
                world.store.del(KEY, OWNER).unwrap();
                world.store.incr(KEY, 8, Some(10), OWNER).unwrap();
                world.hand.fetch_add(10, Ordering::Relaxed);
            },
            act: |world| {
                let _ = world.store.incr(KEY, 2, Some(10), OWNER);
            },
            happened: |world| either(world, None, Some(b"2")),
        },
        Case {
            name: "replace",
            clustered: false,
            prepare: |world| world.store.set(KEY, &BIG, None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.set(KEY, &OTHER, None, OWNER);
            },
            happened: |world| either(world, Some(&BIG), Some(&OTHER)),
        },
        Case {
            name: "append",
            clustered: true,
            prepare: |world| world.store.set(KEY, &BIG[..500], None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.append(KEY, &BIG[500..], OWNER);
            },
            happened: |world| either(world, Some(&BIG[..500]), Some(&BIG)),
        },
        Case {
            name: "set without an owner",
            clustered: true,
            prepare: |world| world.store.set(KEY, &BIG, None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.set(KEY, b"5", None, Standing::Degraded);
            },
            happened: |world| {
                let happened = either(world, Some(&BIG), Some(b"5"))?;
                let diverged = world.store.state(KEY).and_then(|state| state.diverged);
                if diverged.map(|diverged| diverged.amount) == happened.then_some(5) {
                    Ok(happened)
                } else {
                    Err(format!("{happened}, but {diverged:?}"))
                }
            },
        },
        Case {
            name: "replay",
            clustered: true,
            prepare: |world| world.store.set(KEY, b"5", None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.replay(&made_elsewhere(world), 1 << 32);
            },
            happened: |world| either(world, Some(b"5"), Some(b"9")),
        },
        Case {
            name: "delete without a cluster",
            clustered: false,
            prepare: |world| world.store.set(KEY, &BIG, None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.del(KEY, OWNER);
            },
            happened: |world| either(world, Some(&BIG), None),
        },
        Case {
            name: "delete",
            clustered: true,
            prepare: |world| world.store.set(KEY, b"5", None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.del(KEY, OWNER);
            },
            happened: |world| either(world, Some(b"5"), None),
        },
        Case {
            name: "sweep",
            clustered: false,
            prepare: |world| {
                world.store.incr(KEY, 8, None, OWNER).unwrap();
                expire(world);
            },
            act: sweep,
            happened: nothing_lives,
        },
        Case {
            name: "sweep in a cluster",
            clustered: true,
            prepare: |world| {
                world.store.set(KEY, &BIG, None, OWNER).unwrap();
                expire(world);
            },
            act: sweep,
            happened: nothing_lives,
        },
        Case {
            name: "evict",
            clustered: false,
            prepare: |world| {
                // A counter: it has its place and needs no page yet.
                world.store.set(KEY, b"5", None, OWNER).unwrap();
                fill(world);
            },
            act: |world| {
                let _ = world.store.set(KEY, &BIG, None, OWNER);
            },
            happened: |world| {
                for name in fillers() {
                    let state = world.store.state(filler(&name));
                    if state.is_some_and(|state| state.body != Body::Bytes(FILLER.to_vec().into())) {
                        return Err(format!("{name} is neither there nor gone"));
                    }
                }
                either(world, Some(b"5"), Some(&BIG))
            },
        },
        Case {
            name: "evict in a cluster",
            clustered: true,
            prepare: |world| {
                own_everything(world);
                world.store.set(KEY, b"5", None, OWNER).unwrap();
                fill(world);
            },
            act: |world| {
                let _ = world.store.set(KEY, &BIG, None, OWNER);
            },
            happened: |world| {
                for name in fillers() {
                    let state = world.store.state(filler(&name)).map(|state| state.body);
                    if !matches!(&state, None | Some(Body::Tombstone(_)))
                        && state != Some(Body::Bytes(FILLER[..].into()))
                    {
                        return Err(format!("{name} is neither there nor deleted"));
                    }
                }
                either(world, Some(b"5"), Some(&BIG))
            },
        },
        Case {
            name: "let bytes go",
            clustered: true,
            prepare: |world| world.store.set(KEY, &BIG, None, OWNER).unwrap(),
            act: |world| {
                let (held, _) = world.store.values(0, 0);
                held.iter().for_each(|held| assert!(world.store.let_go(held)));
            },
            happened: |world| either(world, Some(&BIG), Some(b"600 elsewhere")),
        },
        Case {
            name: "another host's request",
            clustered: true,
            prepare: |world| world.store.set(KEY, b"5", None, OWNER).unwrap(),
            act: |world| {
                let op = Op::Incr { deltas: &[1, 2], ttl_ms: None };
                assert_ne!(world.store.call(KEY, op, OWNER, world.request()), Called::AlreadyHandled);
            },
            happened: |world| {
                let happened = either(world, Some(b"5"), Some(b"8"))?;
                let fate = world.store.resolve(5, world.request().id);
                if happened == (fate == Fate::Applied) {
                    Ok(happened)
                } else {
                    Err(format!("{happened}, but {fate:?}"))
                }
            },
        },
        Case {
            name: "share coming home",
            clustered: true,
            prepare: |world| world.store.set(KEY, b"5", None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.join_home(&foreign(world, 4), 1 << 32);
            },
            happened: |world| either(world, Some(b"5"), Some(b"9")),
        },
    ]
}

/// What the store's part of the segment holds.
struct Snapshot {
    memory: Vec<u8>,
    sweep_cursor: u64,
}

impl Snapshot {
    fn of(segment: &Segment) -> Self {
        let (start, len) = segment.area();
        // SAFETY: mapped, and nobody changes it: the children that use it are gone.
        let memory = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }.to_vec();
        Self { memory, sweep_cursor: segment.sweep_cursor().load(Ordering::Relaxed) }
    }

    fn restore(&self, segment: &Segment) {
        // SAFETY: as above, and this process has one thread that uses the segment.
        unsafe { segment.area().0.as_ptr().copy_from_nonoverlapping(self.memory.as_ptr(), self.memory.len()) };
        segment.sweep_cursor().store(self.sweep_cursor, Ordering::Relaxed);
    }
}

/// After how many instructions of `path` to kill.
fn kills(path: &Path) -> Vec<usize> {
    if std::env::var("EPHPM_STEPS").is_ok_and(|steps| steps == "all") {
        return (0..path.len()).collect();
    }
    // What the last one leaves is left by a process that ends as well.
    path.states().iter().copied().filter(|steps| *steps < path.len()).collect()
}

fn killed_after_each_instruction(name: &str) {
    let case = cases().into_iter().find(|case| case.name == name).expect("a case");
    let (clock, hand) = Clock::manual(1_000_000);
    let segment = Segment::create(2 << 20).unwrap();
    let options = StoreOptions { clustered: case.clustered, value_max: 1 << 20 };
    let mut world = World { store: Store::open(segment.clone(), clock, options), hand, round: 1 };
    // The pages are there already, as in a store that has been used for a while.
    (case.prepare)(&world);
    (case.act)(&world);
    world.round += 1;
    (case.prepare)(&world);
    // Every child finds exactly this, so that all take the same path.
    let start = Snapshot::of(&segment);
    let path = Traced::new(|| (case.act)(&world)).record();
    assert_eq!((case.happened)(&world), Ok(true));
    let (total, kills) = (path.len(), kills(&path));
    assert!(total > 50, "{total} instructions");
    let (mut outcomes, mut elsewhere) = ([0, 0], 0);
    for &steps in &kills {
        start.restore(&segment);
        let mut child = Traced::new(|| (case.act)(&world));
        elsewhere += usize::from(child.run(&path, steps) == Stop::Ended);
        drop(child);
        let place = format!("after {steps} of {total} instructions");
        world.store.verify().unwrap_or_else(|error| panic!("{place}: {error}"));
        let happened = (case.happened)(&world).unwrap_or_else(|error| panic!("{place}: {error}"));
        outcomes[usize::from(happened)] += 1;
    }
    let recoveries = segment.metrics().lock_recoveries.load(Ordering::Relaxed);
    println!(
        "{name}: {total} instructions, killed after {}: old {}, new {}, {recoveries} locks taken over, {elsewhere} took \
         another path",
        kills.len(),
        outcomes[0],
        outcomes[1]
    );
    assert!(elsewhere <= 1 + kills.len() / 50, "{elsewhere} children took another path");
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "never before, or never after it happened");
    assert!(recoveries > 0 || name == "increment", "no lock was ever held");
    world.store.verify().unwrap();
}

macro_rules! each_killed {
    ($($test:ident: $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                killed_after_each_instruction($name);
            }
        )*

        #[test]
        fn no_case_is_left_out() {
            let mut names: Vec<&str> = cases().iter().map(|case| case.name).collect();
            names.sort_unstable();
            let mut tested = [$($name),*];
            tested.sort_unstable();
            assert_eq!(names, tested);
        }
    };
}

each_killed! {
    killed_in_an_increment: "increment";
    killed_in_a_creation: "create";
    killed_in_a_window_reset: "new window";
    killed_in_a_replacement: "replace";
    killed_in_an_append: "append";
    killed_in_a_set_without_an_owner: "set without an owner";
    killed_in_a_replay: "replay";
    killed_in_a_delete_without_a_cluster: "delete without a cluster";
    killed_in_a_delete: "delete";
    killed_in_a_sweep: "sweep";
    killed_in_a_sweep_that_leaves_a_tombstone: "sweep in a cluster";
    killed_in_an_eviction: "evict";
    killed_in_an_owners_eviction: "evict in a cluster";
    killed_letting_bytes_go: "let bytes go";
    killed_in_another_hosts_request: "another host's request";
    killed_in_a_share_coming_home: "share coming home";
}

#[test]
fn an_increment_that_came_in_before_the_kill_is_kept() {
    let (clock, hand) = Clock::manual(1_000_000);
    let segment = Segment::create(2 << 20).unwrap();
    let world = World {
        store: Store::open(segment, clock, StoreOptions { clustered: true, value_max: 1 << 20 }),
        hand,
        round: 1,
    };
    let prepare = || world.store.set(KEY, b"5", None, OWNER).unwrap();
    let act = || {
        let _ = world.store.expire(KEY, Some(1_000_000), OWNER);
    };
    prepare();
    Traced::new(act).record();
    prepare();
    let path = Traced::new(act).record();
    let total = path.len();
    let mut kept = 0;
    let kills = kills(&path);
    for &steps in &kills {
        prepare();
        let mut child = Traced::new(act);
        child.run(&path, steps);
        // The child is stopped: without the lock this works, behind the lock it is refused.
        let counted = world.store.incr(KEY, 10, None, OWNER).is_ok();
        drop(child);
        // Whoever locks the shard next finishes what the child left.
        world.store.verify().unwrap();
        let expected: &[u8] = if counted { b"15" } else { b"5" };
        assert_eq!(world.get().as_deref(), Some(expected), "after {steps} of {total} instructions");
        kept += usize::from(counted);
    }
    assert!(kept > 0 && kept < kills.len(), "{kept} of {}: both must have happened", kills.len());
}
