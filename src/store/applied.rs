//! Which requests have been applied: per stream the largest id seen and a bitmap of the last [`IDS_KEPT`].
//!
//! The words belong to no shard: they are written under the global lock, in the transaction of the change itself
//! ([`Locked::mark_applied`]) or in one of the side shard.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{IDS_KEPT, SIDE_SHARD, Stream};
use super::shard::Locked;
use super::{Fate, RequestId, Store};
use crate::error::Refusal;

/// Larger ids (nobody counts that far) are refused, so that arithmetic on ids cannot overflow.
const ID_MAX: u64 = u64::MAX / 2;
const WORDS: usize = (IDS_KEPT / 64) as usize;

impl Stream {
    /// Of its last `count` ids (at most [`IDS_KEPT`]) those that are applied.
    fn applied(&self, count: u64) -> Vec<u64> {
        let last = self.last.load(Ordering::Relaxed);
        let applied = |id: &u64| {
            let (word, bit) = Locked::bit(*id);
            self.bits[word].load(Ordering::Relaxed) & bit != 0
        };
        ((last + 1).saturating_sub(count.min(IDS_KEPT)).max(1)..=last).filter(applied).collect()
    }
}

impl Locked<'_> {
    fn bit(id: u64) -> (usize, u64) {
        ((id / 64) as usize % WORDS, 1 << (id % 64))
    }

    /// The stream's place; the least recently used one's is taken for a stream not known. Holds the global lock.
    fn stream(&mut self, stream: u64, create: bool) -> Option<usize> {
        let area = self.area;
        let streams = 0..area.stream_count;
        let now = self.inner.clock.now_ms();
        let seen = &self.inner.streams_seen[stream as usize % self.inner.streams_seen.len()];
        let is_it = |i: &usize| area.stream(*i).id.load(Ordering::Relaxed) == stream;
        let guess = seen.load(Ordering::Relaxed) as usize;
        if let Some(index) = Some(guess).filter(is_it).or_else(|| streams.clone().find(is_it)) {
            area.stream(index).used.store(now, Ordering::Relaxed);
            seen.store(index as u32, Ordering::Relaxed);
            return Some(index);
        }
        if !create {
            return None;
        }
        let age = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let index = streams.min_by_key(|i| (age(&area.stream(*i).id) != 0, age(&area.stream(*i).used)))?;
        let cell = area.stream(index);
        cell.used.store(now, Ordering::Relaxed);
        self.put_global(&cell.id, stream);
        self.put_global(&cell.last, 0);
        for word in &cell.bits {
            if word.load(Ordering::Relaxed) != 0 {
                self.put_global(word, 0);
            }
        }
        Some(index)
    }

    /// Raises the stream's last id; ids jumped over are not applied.
    fn raise(&mut self, index: usize, id: u64) {
        let cell = self.area.stream(index);
        let last = self.get(&cell.last);
        let mut jumped = last + 1;
        if id - last >= IDS_KEPT {
            jumped = id - IDS_KEPT + 1;
        }
        while jumped <= id {
            let (word, bit) = Self::bit(jumped);
            let (mask, step) = if jumped.is_multiple_of(64) && id - jumped >= 63 { (u64::MAX, 64) } else { (bit, 1) };
            let bits = self.get(&cell.bits[word]);
            if bits & mask != 0 {
                self.put_global(&cell.bits[word], bits & !mask);
            }
            jumped += step;
        }
        self.put_global(&cell.last, id);
    }

    fn set_bit(&mut self, index: usize, id: u64) {
        let (word, bit) = Self::bit(id);
        let cell = &self.area.stream(index).bits[word];
        let bits = self.get(cell);
        self.put_global(cell, bits | bit);
    }

    /// Adds the mark of a request to the transaction; `false` if the id was used before. Holds the global lock.
    pub fn mark_applied(&mut self, request: RequestId) -> bool {
        let Some(index) = self.stream(request.stream, true) else { return false };
        if request.id <= self.get(&self.area.stream(index).last) || request.id > ID_MAX {
            return false;
        }
        self.raise(index, request.id);
        self.set_bit(index, request.id);
        true
    }
}

impl Store {
    /// What became of a request. Asking voids it if it was not applied: a late original will be refused. When a
    /// stopped process holds the table the answer is Unknown, and nothing is voided.
    pub fn resolve(&self, stream: u64, id: u64) -> Fate {
        self.try_resolve(stream, id).unwrap_or(Fate::Unknown)
    }

    fn try_resolve(&self, stream: u64, id: u64) -> Result<Fate, Refusal> {
        let mut locked = self.inner.lock(SIDE_SHARD)?;
        locked.take_global()?;
        let Some(index) = locked.stream(stream, true) else { return Ok(Fate::Unknown) };
        let cell = locked.area.stream(index);
        let last = locked.get(&cell.last);
        let (word, bit) = Locked::bit(id);
        let fate = if id > ID_MAX {
            Fate::NotApplied
        } else if id > last {
            locked.raise(index, id);
            Fate::NotApplied
        } else if last - id >= IDS_KEPT {
            Fate::Unknown
        } else if locked.get(&cell.bits[word]) & bit != 0 {
            Fate::Applied
        } else {
            Fate::NotApplied
        };
        locked.commit();
        Ok(fate)
    }

    /// Notes that the owner has applied these requests of `stream`. When a stopped process holds the table nothing is
    /// noted and `false` is returned.
    pub fn merge_applied(&self, stream: u64, ids: &[u64]) -> bool {
        let Ok(mut locked) = self.inner.lock(SIDE_SHARD) else { return false };
        if locked.take_global().is_err() {
            return false;
        }
        if let Some(index) = locked.stream(stream, true) {
            for id in ids.iter().filter(|id| **id <= ID_MAX) {
                let last = locked.get(&locked.area.stream(index).last);
                if *id > last {
                    locked.raise(index, *id);
                }
                if last.saturating_sub(*id) < IDS_KEPT {
                    locked.set_bit(index, *id);
                }
            }
        }
        locked.commit();
        true
    }

    /// The requests known to be applied, by stream, among its last `count` ids; `None`: a stopped process holds the table.
    pub fn applied_lately(&self, count: u64) -> Option<Vec<(u64, Vec<u64>)>> {
        let mut locked = self.inner.lock(SIDE_SHARD).ok()?;
        locked.take_global().ok()?;
        let streams = (0..locked.area.stream_count).map(|index| locked.area.stream(index));
        let streams = streams.filter(|cell| cell.id.load(Ordering::Relaxed) != 0);
        let all = streams.map(|cell| (cell.id.load(Ordering::Relaxed), cell.applied(count)));
        Some(all.filter(|(_, ids)| !ids.is_empty()).collect())
    }

    /// Largest id seen of a stream, and the ids known to be applied among the last 4,096; `None`: unknown stream.
    pub fn applied(&self, stream: u64) -> Option<(u64, Vec<u64>)> {
        let mut locked = self.inner.lock(SIDE_SHARD).ok()?;
        locked.take_global().ok()?;
        let index = locked.stream(stream, false)?;
        let cell = locked.area.stream(index);
        Some((cell.last.load(Ordering::Relaxed), cell.applied(IDS_KEPT)))
    }
}
