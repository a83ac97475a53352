//! The store against a plain map, with a clock moved by hand.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use ephpm_kv::clock::Clock;
use ephpm_kv::error::Refusal;
use ephpm_kv::record::{Key, canonical_integer};
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Standing, Store, StoreOptions, TOMBSTONE_GRACE_MS, Ttl, Value};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Incr(u8, i64, Option<u64>),
    Set(u8, Vec<u8>, Option<u64>),
    Append(u8, Vec<u8>),
    /// Expects what is there, or something else.
    Cas(u8, bool, Option<Vec<u8>>, Option<u64>),
    SetNx(u8, Vec<u8>, Option<u64>),
    Del(u8),
    Expire(u8, Option<u64>),
    Pass(u64),
    Sweep(usize),
    Flush,
}

fn key_name(index: u8) -> Vec<u8> {
    // Lengths that fall into different classes.
    let mut name = vec![index; 1 + usize::from(index) * 37 % 300];
    name[0] = b'k';
    name.push(index);
    name
}

fn namespace(index: u8) -> &'static [u8] {
    if index.is_multiple_of(2) { b"" } else { b"pool" }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = || prop_oneof![2 => Just(None), 3 => (1..200_u64).prop_map(Some)];
    let index = || 0..12_u8;
    let delta = prop_oneof![8 => -5..10_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let value = || {
        prop_oneof![
            2 => any::<i64>().prop_map(|value| value.to_string().into_bytes()),
            3 => proptest::collection::vec(any::<u8>(), 0..200),
            1 => (0..40_000_usize).prop_map(|len| vec![b'v'; len]),
        ]
    };
    let step = prop_oneof![
        8 => (index(), delta, ttl()).prop_map(|(index, by, ttl)| Step::Incr(index, by, ttl)),
        3 => (index(), value(), ttl()).prop_map(|(index, value, ttl)| Step::Set(index, value, ttl)),
        2 => (index(), proptest::collection::vec(any::<u8>(), 0..50)).prop_map(|(index, more)| Step::Append(index, more)),
        1 => (index(), any::<u8>()).prop_map(|(index, digit)| Step::Append(index, vec![b'0' + digit % 10])),
        2 => (index(), any::<bool>(), proptest::option::of(value()), ttl())
            .prop_map(|(index, right, new, ttl)| Step::Cas(index, right, new, ttl)),
        1 => (index(), value(), ttl()).prop_map(|(index, value, ttl)| Step::SetNx(index, value, ttl)),
        2 => index().prop_map(Step::Del),
        2 => (index(), ttl()).prop_map(|(index, ttl)| Step::Expire(index, ttl)),
        3 => (1..150_u64).prop_map(Step::Pass),
        1 => (1..5_000_usize).prop_map(Step::Sweep),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..150)
}

type Model = HashMap<u8, (Vec<u8>, Option<u64>)>;

fn step(store: &Store, model: &mut Model, now: &mut u64, step: &Step) -> Result<(), TestCaseError> {
    let owner = Standing::Owner { term: 3 };
    model.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| *now < deadline));
    let name = |index: u8| key_name(index);
    match step {
        Step::Incr(index, by, ttl) => {
            let name = name(*index);
            let got = store.incr(Key { namespace: namespace(*index), name: &name }, *by, *ttl, owner);
            let fresh = !model.contains_key(index);
            let (value, deadline) =
                model.get(index).cloned().unwrap_or_else(|| (b"0".to_vec(), ttl.map(|ttl| *now + ttl)));
            match canonical_integer(&value).map(|value| value.checked_add(*by)) {
                None => prop_assert_eq!(got, Err(Refusal::NotAnInteger)),
                Some(None) => prop_assert_eq!(got, Err(Refusal::Overflow)),
                Some(Some(sum)) => {
                    let counted = got.unwrap();
                    prop_assert_eq!((counted.value, counted.created), (sum, fresh));
                    prop_assert_eq!(counted.ttl_ms, deadline.map(|deadline| deadline - *now));
                    model.insert(*index, (sum.to_string().into_bytes(), deadline));
                }
            }
        }
        Step::Set(index, value, ttl) => {
            let name = name(*index);
            store.set(Key { namespace: namespace(*index), name: &name }, value, *ttl, owner).unwrap();
            model.insert(*index, (value.clone(), ttl.map(|ttl| *now + ttl)));
        }
        Step::Append(index, more) => {
            let name = name(*index);
            let got = store.append(Key { namespace: namespace(*index), name: &name }, more, owner);
            let (value, _) = model.entry(*index).or_insert((Vec::new(), None));
            value.extend_from_slice(more);
            prop_assert_eq!(got, Ok(value.len()));
        }
        Step::Cas(index, right, new, ttl) => {
            let name = name(*index);
            let held = model.get(index).map(|(value, _)| value.clone());
            let other = if held.is_none() { Some(b"other".to_vec()) } else { None };
            let expected = if *right { held } else { other };
            let key = Key { namespace: namespace(*index), name: &name };
            prop_assert_eq!(store.cas(key, expected.as_deref(), new.as_deref(), *ttl, owner), Ok(*right));
            match new {
                Some(new) if *right => drop(model.insert(*index, (new.clone(), ttl.map(|ttl| *now + ttl)))),
                None if *right => drop(model.remove(index)),
                _ => {}
            }
        }
        Step::SetNx(index, value, ttl) => {
            let name = name(*index);
            let got = store.set_nx(Key { namespace: namespace(*index), name: &name }, value, *ttl, owner);
            prop_assert_eq!(got, Ok(!model.contains_key(index)));
            model.entry(*index).or_insert((value.clone(), ttl.map(|ttl| *now + ttl)));
        }
        Step::Del(index) => {
            let name = name(*index);
            let got = store.del(Key { namespace: namespace(*index), name: &name }, owner);
            prop_assert_eq!(got, Ok(model.remove(index).is_some()));
        }
        Step::Expire(index, ttl) => {
            let name = name(*index);
            let got = store.expire(Key { namespace: namespace(*index), name: &name }, *ttl, owner);
            prop_assert_eq!(got, Ok(model.contains_key(index)));
            if let Some((_, deadline)) = model.get_mut(index) {
                *deadline = ttl.map(|ttl| *now + ttl);
            }
        }
        Step::Pass(ms) => *now += ms,
        Step::Sweep(budget) => {
            store.sweep(*budget);
        }
        Step::Flush => {
            let there = model.keys().filter(|index| namespace(**index) == b"pool").count();
            prop_assert_eq!(store.flush(b"pool", &|_| true, owner), there);
            model.retain(|index, _| namespace(*index) != b"pool");
        }
    }
    Ok(())
}

fn same(store: &Store, model: &Model, now: u64) -> Result<(), TestCaseError> {
    for index in 0..12 {
        let name = key_name(index);
        let key = Key { namespace: namespace(index), name: &name };
        let copy = |value: Value<'_>| match value {
            Value::Int(value) => value.to_string().into_bytes(),
            Value::Bytes(bytes) => bytes.to_vec(),
            Value::Elsewhere(len) => panic!("{len} bytes elsewhere"),
        };
        let live = model.get(&index).filter(|(_, deadline)| deadline.is_none_or(|deadline| now < deadline));
        prop_assert_eq!(store.read(key, copy).unwrap(), live.map(|(value, _)| value.clone()));
        let ttl = live
            .map_or(Ttl::NoKey, |(_, deadline)| deadline.map_or(Ttl::NoDeadline, |deadline| Ttl::Ms(deadline - now)));
        prop_assert_eq!(store.ttl(key), Ok(ttl));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_store_is_a_map_with_deadlines(steps in steps(), clustered in any::<bool>()) {
        let mut now = 1_000_000;
        let (clock, hand) = Clock::manual(now);
        let segment = Segment::create(6 << 20).unwrap();
        let store = Store::open(segment, clock, StoreOptions { clustered, value_max: 1 << 20 });
        let mut model = Model::new();
        for one in &steps {
            step(&store, &mut model, &mut now, one)?;
            hand.store(now, Ordering::Relaxed);
            same(&store, &model, now)?;
        }
        prop_assert_eq!(store.verify(), Ok(()));
        for index in 0..12 {
            let name = key_name(index);
            store.del(Key { namespace: namespace(index), name: &name }, Standing::Owner { term: 3 }).unwrap();
        }
        // What has expired may leave a tombstone, which has its own time.
        for _ in 0..2 {
            hand.fetch_add(TOMBSTONE_GRACE_MS + 200, Ordering::Relaxed);
            for _ in 0..3 {
                while !store.sweep(10_000).round_ended {}
            }
        }
        let stats = store.stats();
        prop_assert_eq!((stats.entries, stats.tombstones, stats.bytes_used, stats.pending), (0, 0, 0, 0));
        prop_assert_eq!(store.verify(), Ok(()));
    }
}
