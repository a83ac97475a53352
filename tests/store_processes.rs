//! Several processes on one segment, some of them killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ephpm_kv::clock::Clock;
use ephpm_kv::record::Key;
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Op, RequestId, Standing, Store, StoreOptions, Value};

const OWNER: Standing = Standing::Owner { term: 1 << 32 };

fn key(name: &[u8]) -> Key<'_> {
    Key { namespace: b"", name }
}

fn open(memory: u64, clustered: bool) -> Store {
    Store::open(Segment::create(memory).unwrap(), Clock::System, StoreOptions { clustered, value_max: 1 << 20 })
}

/// Memory that children write and the parent reads, zeroed.
struct Shared<T: 'static>(&'static [T]);

fn shared<T>(len: usize) -> Shared<T> {
    // SAFETY: a fresh anonymous mapping, never unmapped; T is an atomic integer or an array of them, valid as zero.
    let cells = unsafe {
        let bytes = (len * size_of::<T>()).max(1);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let base = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        std::slice::from_raw_parts(base.cast::<T>(), len)
    };
    Shared(cells)
}

struct Child(libc::pid_t);

impl Child {
    /// Runs `work` in a forked child, which only uses the store and leaves by `_exit`.
    fn start(work: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child touches the segment, its own stack and the heap (which libc keeps usable in a forked child),
        // and leaves without running the parent's destructors.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(99);
                // SAFETY: ends this child.
                unsafe { libc::_exit(code) }
            }
            pid => {
                assert!(pid > 0);
                Self(pid)
            }
        }
    }

    fn wait(self) -> i32 {
        let mut status = 0;
        // SAFETY: `self.0` is a child of this process, not yet waited for.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        std::mem::forget(self);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: `self.0` is a child of this process, not yet waited for.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let mut status = 0;
        // SAFETY: as in `wait`.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn int(store: &Store, name: &[u8]) -> Option<i64> {
    let int = |value: Value<'_>| match value {
        Value::Int(value) => value,
        other => panic!("{other:?}"),
    };
    store.read(key(name), int).unwrap()
}

#[test]
fn processes_count_exactly_while_other_keys_come_and_go() {
    let store = open(8 << 20, false);
    const EACH: u64 = 20_000;
    let children: Vec<Child> = (0..4)
        .map(|child| {
            let store = store.clone();
            Child::start(move || {
                let mut random = 77 + child;
                let mut last: HashMap<u64, i64> = HashMap::new();
                for round in 0..EACH {
                    let name = next(&mut random) % 20;
                    if round % 4 == 0 {
                        // Keys of the same length come and go in the same memory.
                        let other = ((1_u64 << 60) | (next(&mut random) % 200)).to_le_bytes();
                        let _ = if round % 8 == 0 {
                            store.incr(key(&other), 1_000_000, None, OWNER).map(|_| true)
                        } else {
                            store.del(key(&other), OWNER)
                        };
                    }
                    // A process that was only slow, not stopped, is waited for.
                    let Ok(counted) =
                        (0..100).find_map(|_| store.incr(key(&name.to_le_bytes()), 1, None, OWNER).ok()).ok_or(())
                    else {
                        return 2;
                    };
                    // What one process sees of a counter only grows.
                    if last.insert(name, counted.value).is_some_and(|last| last >= counted.value) {
                        return 1;
                    }
                }
                0
            })
        })
        .collect();
    assert!(children.into_iter().all(|child| child.wait() == 0));
    let total: i64 = (0..20_u64).filter_map(|name| int(&store, &name.to_le_bytes())).sum();
    assert_eq!(total, 4 * EACH as i64);
    store.verify().unwrap();
}

#[test]
fn every_short_window_is_one_chain_with_one_creator() {
    for ttl in [1, 5] {
        let store = open(8 << 20, true);
        // Enough for an optimised build; pages that are not reached cost nothing.
        const LOG: usize = 4_000_000;
        // Per process: (window stamp, value) of each of its increments.
        let logs = shared::<[AtomicU64; 2]>(3 * LOG);
        let lens = shared::<AtomicU64>(3);
        let children: Vec<Child> = (0..3)
            .map(|child| {
                let store = store.clone();
                Child::start(move || {
                    let until = Instant::now() + Duration::from_millis(700);
                    let mut len = 0;
                    while len < LOG && Instant::now() < until {
                        let Ok(counted) = store.incr(key(b"w"), 1, Some(ttl), OWNER) else { continue };
                        if counted.ttl_ms.is_none() || counted.created != (counted.value == 1) {
                            return 1;
                        }
                        let cell = &logs.0[child * LOG + len];
                        cell[0].store(counted.window.stamp, Ordering::Relaxed);
                        cell[1].store(counted.value as u64, Ordering::Relaxed);
                        len += 1;
                    }
                    lens.0[child].store(len as u64, Ordering::Relaxed);
                    0
                })
            })
            .collect();
        assert!(children.into_iter().all(|child| child.wait() == 0));
        let mut windows: HashMap<u64, Vec<u64>> = HashMap::new();
        for child in 0..3 {
            let len = lens.0[child].load(Ordering::Relaxed) as usize;
            for cell in &logs.0[child * LOG..child * LOG + len] {
                let [window, value] = [&cell[0], &cell[1]].map(|word| word.load(Ordering::Relaxed));
                windows.entry(window).or_default().push(value);
            }
        }
        assert!(windows.len() > 30, "{} windows of {ttl} ms", windows.len());
        for values in windows.values_mut() {
            values.sort_unstable();
            assert!(values.iter().zip(1..).all(|(have, due)| *have == due), "{values:?}");
        }
        store.verify().unwrap();
    }
}

/// What one child says of its own work: per key the sum it was about to add and the sum that was added.
struct Ledger {
    intended: Shared<AtomicI64>,
    done: Shared<AtomicI64>,
}

const COUNTERS: usize = 40;

fn kill_worker(store: &Store, ledger: &Ledger, seed: u64, ids: &AtomicU64) -> ! {
    let mut random = seed | 1;
    let big = vec![b'x'; 20_000];
    loop {
        let dice = next(&mut random);
        let slot = (dice >> 32) as usize % COUNTERS;
        let name = format!("counter {slot}");
        match dice % 16 {
            0..=5 => {
                ledger.intended.0[slot].fetch_add(1, Ordering::SeqCst);
                match store.incr(key(name.as_bytes()), 1, None, OWNER) {
                    Ok(_) => ledger.done.0[slot].fetch_add(1, Ordering::SeqCst),
                    Err(_) => ledger.intended.0[slot].fetch_sub(1, Ordering::SeqCst),
                };
            }
            6 => {
                let stream = seed | 1;
                let request = RequestId { stream, id: ids.fetch_add(1, Ordering::SeqCst) + 1 };
                ledger.intended.0[slot].fetch_add(3, Ordering::SeqCst);
                let op = Op::Incr { deltas: &[1, 2], ttl_ms: None };
                match store.call(key(name.as_bytes()), op, OWNER, request) {
                    ephpm_kv::store::Called::Done { outcome: ephpm_kv::store::Outcome::Values(_), .. } => {
                        ledger.done.0[slot].fetch_add(3, Ordering::SeqCst)
                    }
                    _ => ledger.intended.0[slot].fetch_sub(3, Ordering::SeqCst),
                };
            }
            7..=9 => {
                let name = format!("short {}", dice >> 16 & 0x3ff);
                let _ = store.incr(key(name.as_bytes()), 1, Some(1 + dice % 20), OWNER);
            }
            10 => {
                let name = format!("short {}", dice >> 16 & 0x3ff);
                let _ = store.del(key(name.as_bytes()), OWNER);
            }
            11..=13 => {
                let len = (dice >> 20) as usize % if dice & 1 == 0 { 200 } else { big.len() };
                let _ = store.set(key(format!("bytes {}", dice >> 40 & 0x7f).as_bytes()), &big[..len], None, OWNER);
            }
            14 => {
                let _ = store.del(key(format!("bytes {}", dice >> 40 & 0x7f).as_bytes()), OWNER);
            }
            _ => {
                store.sweep(500);
            }
        }
    }
}

#[test]
fn killed_at_any_moment_nothing_breaks() {
    killed_at_any_moment(false);
}

#[test]
fn killed_at_any_moment_nothing_breaks_in_a_cluster() {
    killed_at_any_moment(true);
}

fn killed_at_any_moment(clustered: bool) {
    // More by hand: EPHPM_KILLS=5000 cargo nextest run killed
    let kills: usize = std::env::var("EPHPM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(300);
    let store = open(4 << 20, clustered);
    let ledger = Arc::new(Ledger { intended: shared(COUNTERS), done: shared(COUNTERS) });
    let ids = shared::<AtomicU64>(1);
    let seed = std::process::id() as u64 * 7_919;
    println!("seed {seed}");
    let mut random = seed | 1;
    let start = |seed: u64| {
        let (store, ledger) = (store.clone(), ledger.clone());
        Child::start(move || kill_worker(&store, &ledger, seed, &ids.0[0]))
    };
    let mut workers: Vec<Child> = (0..3).map(|_| start(next(&mut random))).collect();
    let began = Instant::now();
    for kill in 0..kills {
        std::thread::sleep(Duration::from_micros(200 + next(&mut random) % 3_000));
        let victim = next(&mut random) as usize % workers.len();
        workers[victim].signal(libc::SIGKILL);
        let dead = std::mem::replace(&mut workers[victim], start(next(&mut random)));
        assert_eq!(dead.wait(), 128 + libc::SIGKILL, "a worker ended by itself");
        if kill % 40 == 39 {
            // Everybody stops where they are told to: dead, with whatever they were doing half done.
            workers.clear();
            store.verify().unwrap();
            check(&store, &ledger);
            workers = (0..3).map(|_| start(next(&mut random))).collect();
        }
        assert!(began.elapsed() < Duration::from_millis(10_000 + 200 * kills as u64), "too slow");
    }
    workers.clear();
    store.verify().unwrap();
    check(&store, &ledger);
    let recoveries = store.segment().metrics().lock_recoveries.load(Ordering::Relaxed);
    println!("{recoveries} locks taken over");
    assert!(recoveries > 0);
    if clustered {
        return;
    }
    // Nothing has leaked: what was not a counter goes, and its memory with it.
    store.flush(b"", &|key| !key.name.starts_with(b"counter"), OWNER);
    while !store.sweep(10_000).round_ended {}
    while !store.sweep(10_000).round_ended {}
    let stats = store.stats();
    assert!(stats.entries <= COUNTERS as u64, "{stats:?}");
    assert!(stats.bytes_used <= COUNTERS as u64 * 128, "{stats:?}");
    store.verify().unwrap();
}

fn check(store: &Store, ledger: &Ledger) {
    for slot in 0..COUNTERS {
        let value = int(store, format!("counter {slot}").as_bytes()).unwrap_or(0);
        let [done, intended] = [&ledger.done, &ledger.intended].map(|cells| cells.0[slot].load(Ordering::SeqCst));
        assert!(done <= value && value <= intended, "counter {slot}: {done} <= {value} <= {intended}");
    }
}

#[test]
fn a_stopped_process_delays_others_by_no_more_than_the_limit() {
    let store = open(4 << 20, true);
    let stop = shared::<AtomicU64>(1);
    let child = {
        let store = store.clone();
        Child::start(move || {
            let mut i = 0_u64;
            loop {
                // Creates and deletes hold locks nearly all the time.
                let _ = store.set(key(&(i % 64).to_le_bytes()), &[b'x'; 4_000], None, OWNER);
                i += 1;
                stop.0[0].store(i, Ordering::Relaxed);
            }
        })
    };
    let mut longest = Duration::ZERO;
    let mut seen = 0;
    for _ in 0..200 {
        // The child is at work again.
        let until = Instant::now() + Duration::from_secs(5);
        let made = stop.0[0].load(Ordering::Relaxed);
        while stop.0[0].load(Ordering::Relaxed) < made + 10 && Instant::now() < until {
            std::thread::yield_now();
        }
        child.signal(libc::SIGSTOP);
        let mut held = false;
        for i in 0..64_u64 {
            let began = Instant::now();
            held |= store.set(key(&i.to_le_bytes()), b"text", None, OWNER).is_err();
            longest = longest.max(began.elapsed());
            if held {
                break;
            }
        }
        child.signal(libc::SIGCONT);
        seen += usize::from(held);
        if seen == 5 {
            break;
        }
    }
    assert!(seen > 0, "never stopped while it held a lock");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    drop(child);
    store.verify().unwrap();
}
