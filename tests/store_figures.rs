//! Figures for the notes, by hand: cargo nextest run --release --run-ignored only --no-capture figures

use std::hint::black_box;
use std::time::Instant;

use ephpm_kv::clock::Clock;
use ephpm_kv::record::Key;
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Standing, Store, StoreOptions};

const OWNER: Standing = Standing::Owner { term: 1 << 32 };

fn time(what: &str, rounds: u64, mut work: impl FnMut(u64)) {
    (0..rounds / 10).for_each(&mut work);
    let began = Instant::now();
    (0..rounds).for_each(&mut work);
    println!("{what}: {:.0} ns", began.elapsed().as_nanos() as f64 / rounds as f64);
}

#[test]
#[ignore = "prints figures, proves nothing"]
fn figures() {
    for clustered in [false, true] {
        let options = StoreOptions { clustered, value_max: 1 << 20 };
        let store = Store::open(Segment::create(64 << 20).unwrap(), Clock::System, options);
        let keys: Vec<String> = (0..100_000).map(|i| format!("rate:10.0.0.1:key{i:07}")).collect();
        assert_eq!(keys[0].len(), 24);
        let key = |i: u64| Key { namespace: b"", name: keys[i as usize % keys.len()].as_bytes() };
        println!("clustered: {clustered}");
        time("increment, one key", 2_000_000, |_| {
            black_box(store.incr(key(0), 1, None, OWNER)).ok();
        });
        store.incr(key(1), 1, Some(1 << 30), OWNER).unwrap();
        time("increment, one key with a deadline", 2_000_000, |_| {
            black_box(store.incr(key(1), 1, None, OWNER)).ok();
        });
        let spaced = Key { namespace: b"pool-one:", name: keys[0].as_bytes() };
        time("increment, one key in a namespace", 2_000_000, |_| {
            black_box(store.incr(spaced, 1, None, OWNER)).ok();
        });
        time("read, one key", 2_000_000, |_| {
            black_box(store.read(key(0), |_| ())).ok();
        });
        time("read, absent", 2_000_000, |_| {
            black_box(store.read(Key { namespace: b"", name: b"no" }, |_| ())).ok();
        });
        let before = store.stats();
        let began = Instant::now();
        (2..100_000).for_each(|i| assert!(store.incr(key(i), 1, Some(60_000), OWNER).is_ok()));
        println!("create: {:.0} ns", began.elapsed().as_nanos() as f64 / 1e5);
        let after = store.stats();
        println!("bytes per counter: {:.1} of slab", (after.bytes_used - before.bytes_used) as f64 / 99_998.0);
        time("increment, 100,000 keys", 1_000_000, |i| {
            black_box(store.incr(key(i * 7_919), 1, None, OWNER)).ok();
        });
        store.set(spaced, &[b'x'; 100], None, OWNER).unwrap();
        time("read, 100 bytes", 1_000_000, |_| {
            black_box(store.read(spaced, |_| ())).ok();
        });
        time("set, 100 bytes", 500_000, |_| {
            black_box(store.set(spaced, &[b'y'; 100], None, OWNER)).ok();
        });
        if clustered {
            let mut out = ephpm_kv::store::Drained::default();
            let began = Instant::now();
            let drained = store.drain(usize::MAX >> 1, &mut out);
            println!("drain of {drained}: {:?}", began.elapsed());
            time("drain of nothing", 100_000, |_| {
                black_box(store.drain(100, &mut out));
            });
        }
    }
}
