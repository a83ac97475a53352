//! Operations whose effect depends on the value that is there: only an owner can decide them.

use super::item::{Item, Kind};
use super::ops::Change;
use super::shard::Locked;
use super::{Fail, Standing, Store};
use crate::error::Refusal;
use crate::record::Key;

impl Locked<'_> {
    /// The value of a live entry as a script reads it. Errors: an owner that does not have its bytes yet is busy.
    fn text_of(&self, reference: u32, item: &Item) -> Result<Vec<u8>, Fail> {
        match item.kind {
            Kind::Counter => Ok(item.total(self.inner.origin()).to_string().into_bytes()),
            Kind::Bytes(_) => Ok(self.load_bytes(reference, item)),
            Kind::Elsewhere(_) => Err(Fail::Refused(Refusal::Busy)),
            Kind::Tombstone => Ok(Vec::new()),
        }
    }

    /// Whether it was set, and the entry.
    pub fn set_nx(
        &mut self,
        change: &Change<'_>,
        value: &[u8],
        ttl_ms: Option<u64>,
    ) -> Result<(bool, Option<u32>), Fail> {
        self.cas(change, None, Some(value), ttl_ms)
    }

    /// The new length, and the entry. A key that is not there begins without a deadline.
    pub fn append(&mut self, change: &Change<'_>, more: &[u8]) -> Result<(usize, u32), Fail> {
        let (found, now_ms) = self.open(change);
        let (mut value, deadline) = match &found {
            Some((reference, item)) if item.is_live(now_ms) => (self.text_of(*reference, item)?, item.deadline),
            _ => (Vec::new(), 0),
        };
        value.extend_from_slice(more);
        let reference = self.replace_at(change, found, &value, deadline)?;
        Ok((value.len(), reference))
    }

    /// Whether the value was the expected one (`None`: absent) and has been replaced (`None`: deleted), and the entry.
    pub fn cas(
        &mut self,
        change: &Change<'_>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        ttl_ms: Option<u64>,
    ) -> Result<(bool, Option<u32>), Fail> {
        if new.is_some_and(|new| new.len() > self.inner.options.value_max as usize) {
            return Err(Fail::Refused(Refusal::ValueTooLarge));
        }
        let (found, now_ms) = self.open(change);
        let live = found.as_ref().filter(|(_, item)| item.is_live(now_ms));
        let there = live.map(|(reference, _)| *reference);
        let as_expected = match (live, expected) {
            (Some((reference, item)), Some(expected)) => self.text_of(*reference, item)? == expected,
            (live, expected) => live.is_none() && expected.is_none(),
        };
        if !as_expected {
            self.unclaim();
            return Ok((false, there));
        }
        match new {
            Some(new) => {
                let deadline = self.inner.deadline(now_ms, ttl_ms);
                Ok((true, Some(self.replace_at(change, found, new, deadline)?)))
            }
            None => {
                self.unclaim();
                let (_, reference) = self.remove(change)?;
                Ok((true, reference))
            }
        }
    }
}

impl Store {
    /// Sets the value unless the key is there; whether it did. Errors (nothing changed): ValueTooLarge, MemoryFull,
    /// Busy.
    pub fn set_nx(&self, key: Key<'_>, value: &[u8], ttl_ms: Option<u64>, standing: Standing) -> Result<bool, Refusal> {
        self.cas(key, None, Some(value), ttl_ms, standing)
    }

    /// Adds bytes at the end of the value; the new length. A key that is there keeps its deadline, one that is not
    /// begins without. A canonical integer becomes a counter, as with [`Store::set`]. Errors (nothing changed):
    /// ValueTooLarge, MemoryFull, Busy.
    pub fn append(&self, key: Key<'_>, more: &[u8], standing: Standing) -> Result<usize, Refusal> {
        let change = self.change(key, standing);
        self.run(change.hash, |locked| locked.append(&change, more).map(|(len, _)| len))
    }

    /// Replaces the value (`None`: deletes it) if it is the expected one (`None`: absent), byte for byte as a read gives
    /// it; whether it was. Errors (nothing changed): ValueTooLarge, MemoryFull, Busy.
    pub fn cas(
        &self,
        key: Key<'_>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        ttl_ms: Option<u64>,
        standing: Standing,
    ) -> Result<bool, Refusal> {
        let change = self.change(key, standing);
        self.run(change.hash, |locked| locked.cas(&change, expected, new, ttl_ms).map(|(done, _)| done))
    }
}
