//! A process killed after every machine instruction of an operation: afterwards it has happened, or it has not.
//!
//! The default looks at a few instructions of each operation, because a step takes 40 us in some virtual machines and an
//! unoptimised operation has thousands; by hand:
//! EPHPM_STEPS=500 cargo nextest run --release --no-capture --test store_steps

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ephpm_kv::clock::Clock;
use ephpm_kv::record::{Body, Copy, Key, KeyBuf, Share, State, Window};
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Called, Fate, Op, RequestId, Standing, Store, StoreOptions, Value};

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

const BIG: [u8; 9_000] = [b'b'; 9_000];
const OTHER: [u8; 5_000] = [b'o'; 5_000];

fn foreign(world: &World, amount: i64) -> Copy {
    let window = world.store.state(KEY).map_or(Window { stamp: 7, origin: 77 }, |state| state.window);
    let share = Share { origin: 77, window, sequence: world.round, amount };
    let state = State { term: 0, stamp: 0, window, ttl_ms: None, body: Body::Counter(vec![share]) };
    Copy { key: KeyBuf::new(KEY), state }
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
            name: "set",
            clustered: false,
            prepare: |world| world.store.set(KEY, &BIG, None, OWNER).unwrap(),
            act: |world| {
                let _ = world.store.set(KEY, &OTHER, None, OWNER);
            },
            happened: |world| either(world, Some(&BIG), Some(&OTHER)),
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
                world.store.expire(KEY, Some(10), OWNER).unwrap();
                world.hand.fetch_add(10, Ordering::Relaxed);
                world.store.segment().sweep_cursor().store(0, Ordering::Relaxed);
            },
            act: |world| {
                let _ = world.store.sweep(8);
            },
            happened: |world| Ok(world.store.stats().entries == 0),
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

fn traced(act: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child touches the segment, its stack and its heap, and leaves without running destructors; both calls
    // on it are plain system calls.
    unsafe {
        match libc::fork() {
            0 => {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
                libc::_exit(if done.is_ok() { 0 } else { 99 })
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert!(libc::WIFSTOPPED(status), "not traced: {status}");
                child
            }
        }
    }
}

/// Lets the child make at most `steps` steps; how many it made, and whether it has ended.
fn step(child: libc::pid_t, steps: usize) -> (usize, bool) {
    for made in 0..steps {
        let mut status = 0;
        // SAFETY: `child` is a stopped, traced child of this process.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0), 0, "ptrace is not allowed here");
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0);
            return (made, true);
        }
        assert!(libc::WIFSTOPPED(status), "{status}");
    }
    (steps, false)
}

#[test]
fn killed_after_an_instruction_it_has_happened_or_it_has_not() {
    let points: usize = std::env::var("EPHPM_STEPS").ok().and_then(|points| points.parse().ok()).unwrap_or(2);
    for case in cases() {
        let (clock, hand) = Clock::manual(1_000_000);
        let segment = Segment::create(2 << 20).unwrap();
        let options = StoreOptions { clustered: case.clustered, value_max: 1 << 20 };
        let mut world = World { store: Store::open(segment, clock, options), hand, round: 1 };
        // The pages are there already, as in a store that has been used for a while.
        (case.prepare)(&world);
        (case.act)(&world);
        world.round += 1;
        (case.prepare)(&world);
        let (total, ended) = step(traced(|| (case.act)(&world)), 10_000_000);
        assert!(ended && total > 50, "{}: {total} steps", case.name);
        assert_eq!((case.happened)(&world), Ok(true), "{}", case.name);
        let stride = (total / points).max(1);
        let mut outcomes = [0, 0];
        // Not a multiple of anything, so that repeated runs at least differ in where they look.
        let first = 1 + std::process::id() as usize % stride;
        for steps in (first..total).step_by(stride) {
            world.round += 1;
            (case.prepare)(&world);
            let child = traced(|| (case.act)(&world));
            let (_, ended) = step(child, steps);
            if !ended {
                let mut status = 0;
                // SAFETY: `child` is a child of this process, not yet waited for.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                }
            }
            let place = format!("{} after {steps} of {total} steps", case.name);
            world.store.verify().unwrap_or_else(|error| panic!("{place}: {error}"));
            let happened = (case.happened)(&world).unwrap_or_else(|error| panic!("{place}: {error}"));
            outcomes[usize::from(happened)] += 1;
        }
        let recoveries = world.store.segment().metrics().lock_recoveries.load(Ordering::Relaxed);
        println!(
            "{}: {total} steps, old {}, new {}, {recoveries} locks taken over",
            case.name, outcomes[0], outcomes[1]
        );
        assert!(outcomes[0] > 0 || points < 20, "{}: never before it happened", case.name);
        assert!(recoveries > 0 || points < 20 || case.name == "increment", "{}: no lock was ever held", case.name);
        world.store.verify().unwrap();
    }
}

#[test]
fn an_increment_that_came_in_before_the_kill_is_kept() {
    let points: usize = std::env::var("EPHPM_STEPS").ok().and_then(|points| points.parse().ok()).unwrap_or(40);
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
    let (total, ended) = step(traced(act), 10_000_000);
    assert!(ended && total > 50, "{total} steps");
    let mut kept = 0;
    // Most of them near the end, where the change is visible and the journal may not be cleared yet.
    let steps = (0..points)
        .map(|point| if point % 4 == 0 { total * point / points } else { total * 3 / 4 + total * point / points / 4 });
    for steps in steps {
        prepare();
        let child = traced(act);
        let (_, ended) = step(child, steps);
        // The child is stopped: without the lock this works, behind the lock it is refused.
        let counted = world.store.incr(KEY, 10, None, OWNER).is_ok();
        if !ended {
            let mut status = 0;
            // SAFETY: `child` is our child, stopped.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
            }
        }
        // Whoever locks the shard next finishes what the child left.
        world.store.verify().unwrap();
        let expected: &[u8] = if counted { b"15" } else { b"5" };
        assert_eq!(world.get().as_deref(), Some(expected), "after {steps} of {total} steps");
        kept += usize::from(counted);
    }
    assert!(kept > 0 && kept < points, "{kept} of {points}: both must have happened");
}
