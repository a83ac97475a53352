//! A host that has one key, and dice: what the histories of that key are made of.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ephpm_kv::clock::Clock;
use ephpm_kv::metrics::Lost;
use ephpm_kv::record::{Body, Copy, Key, KeyBuf, Share, State};
use ephpm_kv::segment::Segment;
use ephpm_kv::store::{Store, StoreOptions, Value, counter_value};

pub const KEY: Key<'static> = Key { namespace: b"", name: b"hits" };

pub struct Host {
    pub store: Store,
    pub hand: Arc<AtomicU64>,
}

impl Host {
    pub fn new(now: u64) -> Self {
        let (clock, hand) = Clock::manual(now);
        let segment = Segment::create(2 << 20).unwrap();
        Self { store: Store::open(segment, clock, StoreOptions { clustered: true, value_max: 1 << 20 }), hand }
    }

    pub fn origin(&self) -> u64 {
        self.store.segment().origin()
    }

    pub fn value(&self) -> Option<i64> {
        let int = |value: Value<'_>| match value {
            Value::Int(value) => value,
            other => panic!("{other:?}"),
        };
        self.store.read(KEY, int).unwrap()
    }

    pub fn copy(&self) -> Option<Copy> {
        let state = self.store.state(KEY)?;
        if let Some(value) = counter_value(&state) {
            assert_eq!(self.value(), Some(value), "a state says what the store reads: {state:?}");
        }
        Some(Copy { key: KeyBuf::new(KEY), state })
    }

    pub fn shares(&self) -> Vec<Share> {
        match self.store.state(KEY).map(|state| state.body) {
            Some(Body::Counter(shares)) => shares,
            _ => Vec::new(),
        }
    }

    pub fn lost(&self) -> u64 {
        self.store.segment().metrics().lost(Lost::WindowEnded)
    }

    /// The own share that a state has, the latest window's.
    pub fn own_share(&self, state: &State) -> Option<Share> {
        let Body::Counter(shares) = &state.body else { return None };
        shares.iter().rfind(|share| share.origin == self.origin() && !share.is_fold()).copied()
    }
}

/// splitmix64
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
