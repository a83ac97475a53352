//! What a stub has replaced. Of a write that no quorum has confirmed a stub may be all that is left: whoever had the bytes
//! is gone, or has taken them back. Then the value before it is the newest that anybody can read, and the host where the
//! stub came over it may be the only one that had it. So it is kept for a while, in this process's memory.

use std::collections::BTreeMap;

use super::item::{Item, Kind};
use super::shard::Locked;
use super::{Inner, Store};
use crate::record::{Copy, Key, KeyBuf, State, Window};

/// How long after it was replaced, or asked for: an owner looks for the bytes of a stub for half a minute before it goes
/// back to an older value.
const KEPT_MS: u64 = 60_000;

/// Most values, and most bytes of them; beyond that the oldest go.
const VALUES_MAX: usize = 1_024;
const BYTES_MAX: usize = 16 << 20;

struct Older {
    /// Window and length of the bytes that replaced it.
    by: (Window, u32),
    at_ms: u64,
    /// When it was asked for last.
    wanted_ms: u64,
    state: State,
}

impl Older {
    fn len(&self) -> usize {
        self.state.byte_len().unwrap_or(0) as usize
    }
}

/// Such values, by key.
#[derive(Default)]
pub(super) struct Replaced {
    values: BTreeMap<KeyBuf, Older>,
    bytes: usize,
}

impl Replaced {
    fn put(&mut self, key: KeyBuf, older: Older) {
        self.drop_old(older.at_ms);
        self.bytes += older.len();
        if let Some(before) = self.values.insert(key, older) {
            self.bytes -= before.len();
        }
        while self.values.len() > VALUES_MAX || self.bytes > BYTES_MAX {
            let oldest = self.values.iter().min_by_key(|(_, older)| older.at_ms).map(|(key, _)| key.clone());
            let Some(older) = oldest.and_then(|key| self.values.remove(&key)) else { return };
            self.bytes -= older.len();
        }
    }

    fn drop_old(&mut self, now_ms: u64) {
        let bytes = &mut self.bytes;
        self.values.retain(|_, older| {
            let keep = now_ms < older.wanted_ms + KEPT_MS;
            *bytes -= if keep { 0 } else { older.len() };
            keep
        });
    }
}

impl Inner {
    /// Forgets what has been kept for long enough.
    pub(super) fn forget_replaced(&self) {
        self.replaced.lock().drop_old(self.clock.now_ms());
    }
}

impl Locked<'_> {
    /// What `stub` replaces, if that is readable and the owner's.
    pub fn replaced_by(&self, reference: u32, local: &Item, stub: &Item, now_ms: u64) -> Option<State> {
        let replaces = matches!((local.kind, stub.kind), (Kind::Bytes(_), Kind::Elsewhere(_)));
        (replaces && local.diverged.is_none()).then(|| self.state_of(reference, local, now_ms))?
    }

    /// `stub` has been written over `local`: `replaced` was there. Or nothing readable: where one stub follows another, what
    /// came before the first is still the newest.
    pub fn keep_replaced(&self, key: Key<'_>, local: &Item, stub: &Item, replaced: Option<State>) {
        let Kind::Elsewhere(len) = stub.kind else { return };
        let (by, at_ms) = ((stub.window, len), self.inner.clock.now_ms());
        let mut kept = self.inner.replaced.lock();
        if let Some(state) = replaced {
            kept.put(KeyBuf::new(key), Older { by, at_ms, wanted_ms: at_ms, state });
        } else if let Kind::Elsewhere(len) = local.kind
            && !kept.values.is_empty()
            && let Some(older) = kept.values.get_mut(&KeyBuf::new(key)).filter(|older| older.by == (local.window, len))
        {
            older.by = by;
        }
    }
}

impl Store {
    /// What the key had here before the stub that it has now, while that is kept. No more than the newest value that this
    /// host knows the bytes of.
    pub fn replaced(&self, key: Key<'_>) -> Option<Copy> {
        let held = self.held(key).filter(|held| !held.whole)?;
        let mut kept = self.inner.replaced.lock();
        let older = kept.values.get_mut(&held.key).filter(|older| older.by == (held.window, held.len))?;
        older.wanted_ms = self.inner.clock.now_ms();
        let mut state = older.state.clone();
        if let Some(ttl_ms) = &mut state.ttl_ms {
            *ttl_ms = ttl_ms.checked_sub(older.wanted_ms - older.at_ms).filter(|left| *left > 0)?;
        }
        Some(Copy { key: held.key, state })
    }
}
