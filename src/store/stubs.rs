//! Values whose bytes are kept by other hosts: finding them, and letting go of bytes that are.

use std::sync::atomic::Ordering;

use super::drain::Stuck;
use super::item::{Content, Kind};
use super::layout::{Meta, shard_of, unpair};
use super::shard::Locked;
use super::{Fail, Standing, Store};
use crate::record::{Body, Copy, Key, KeyBuf, Window};

/// Pages that one call of [`Store::values`] looks at.
const PAGES_PER_CALL: usize = 256;

/// A live value that is no counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its key.
    pub key: KeyBuf,
    /// The life of the key it belongs to.
    pub window: Window,
    /// How many bytes it has.
    pub len: u32,
    /// Whether they are here.
    pub whole: bool,
}

impl Locked<'_> {
    /// Turns an entry with bytes into a stub. Needs no memory: a late share can do bytes no harm, so marks may go.
    pub fn stub(&mut self, reference: u32, key: Key<'_>, hash: u64) -> Result<(), Fail> {
        let mut item = self.load(reference);
        if let Kind::Bytes(len) = item.kind {
            item.kind = Kind::Elsewhere(len);
            item.shares.clear();
            self.save(key, hash, Some(reference), &item, Content::Drop, None)?;
        }
        Ok(())
    }
}

impl Store {
    /// Lets go of the bytes of a value that has not changed: it becomes a stub. Whether it is one now.
    pub fn let_go(&self, held: &Held) -> bool {
        let key = held.key.as_key();
        let hash = self.inner.area.hash(key);
        let done = self.attempt(hash, |locked| {
            let Some(reference) = locked.find(key, hash) else { return Ok(false) };
            let item = locked.load(reference);
            if item.window != held.window || item.kind.len() != Some(held.len) || item.diverged.is_some() {
                return Ok(false);
            }
            locked.stub(reference, key, hash)?;
            Ok(true)
        });
        done.unwrap_or(false)
    }

    /// What this host has of a value; `None`: no such key, or a counter.
    pub fn held(&self, key: Key<'_>) -> Option<Held> {
        let hash = self.inner.area.hash(key);
        let locked = self.inner.lock(shard_of(hash)).ok()?;
        let reference = locked.find(key, hash)?;
        let item = locked.load(reference);
        let len = item.kind.len().filter(|_| item.is_live(self.inner.clock.now_ms()))?;
        Some(Held { key: KeyBuf::new(key), window: item.window, len, whole: matches!(item.kind, Kind::Bytes(_)) })
    }

    /// An owner gives up a value whose bytes nobody has, unless it has changed: goes on from an older copy of it, until the
    /// earlier of their deadlines, or deletes it if there is none. Whether it did.
    pub fn give_up(&self, held: &Held, older: Option<&Copy>, term: u64) -> bool {
        let key = held.key.as_key();
        let change = self.change(key, Standing::Owner { term });
        let done = self.attempt(change.hash, |locked| {
            let Some(reference) = locked.find(key, change.hash) else { return Ok(false) };
            let item = locked.load(reference);
            if item.window != held.window || item.kind != Kind::Elsewhere(held.len) {
                return Ok(false);
            }
            match older.map(|older| &older.state.body) {
                Some(Body::Bytes(bytes)) => {
                    let (found, now_ms) = locked.open(&change);
                    let deadline = older.map_or(0, |older| locked.inner.deadline(now_ms, older.state.ttl_ms));
                    // The earlier one; 0 is none.
                    let deadline = [deadline, item.deadline].into_iter().filter(|at| *at != 0).min().unwrap_or(0);
                    locked.replace_at(&change, found, bytes, deadline).map(|_| true)
                }
                _ => Ok(locked.remove(&change)?.0),
            }
        });
        done.unwrap_or(false)
    }

    /// A page of the live values of more than `over` bytes, whole or not, and the cursor of the next. A value that is
    /// there all the time is seen, unless a stopped process holds its shard.
    pub fn values(&self, cursor: u64, over: u32) -> (Vec<Held>, Option<u64>) {
        let area = &self.inner.area;
        let (mut values, mut stuck) = (Vec::new(), Stuck::default());
        let start = cursor as usize;
        let end = area.page_count.min(start.saturating_add(PAGES_PER_CALL));
        for page in start..end {
            let Some(shard) = area.page_state(page).entries_of() else { continue };
            let Some(locked) = stuck.lock(&self.inner, shard) else { continue };
            let state = area.page_state(page);
            let now_ms = self.inner.clock.now_ms();
            for index in 0..state.carved as usize {
                let reference = area.reference(page, state.class as usize, index);
                let (value, meta) = unpair(area.pair(reference).load(Ordering::Acquire));
                let is_value = meta.has(Meta::LIVE) && !meta.has(Meta::COUNTER);
                if !is_value || value as u32 <= over || meta.expired(|| now_ms) {
                    continue;
                }
                let mut bytes = Vec::new();
                let namespace_len = area.read_key(reference, &mut bytes);
                if let Some(key) = KeyBuf::from_parts(bytes.into(), namespace_len) {
                    let (window, whole) = (area.window(reference), meta.has_bytes());
                    values.push(Held { key, window, len: value as u32, whole });
                }
            }
            drop(locked);
        }
        (values, (end < area.page_count).then_some(end as u64))
    }
}
