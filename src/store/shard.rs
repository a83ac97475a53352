//! A shard under its lock, and its transactions.
//!
//! A transaction is a list of word writes in the shard's journal, in shared memory. It is committed by one store of
//! their number, then applied in order, then cleared. Whoever takes the lock and finds anything unfinished finishes it
//! first, however its predecessor ended: killed, or by a panic. So a process may die at any instruction.
//!
//! Words that shards share (page pool, applied ids, a pooled page's bookkeeping) are tagged; a transaction with such
//! words holds the global lock too, and names itself in `holder` before it commits. Whoever takes the global lock and
//! finds a holder applies that shard's tagged words, if committed; whoever recovers a shard takes the global lock first
//! (so that the tagged words are in) and then applies only the others.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use super::layout::{Area, JOURNAL_LEN, Meta, Shard, pair, unpair};
use super::{Fail, Inner};
use crate::error::Refusal;
use crate::segment::mutex::{Busy, Guard, RobustMutex};

/// How long a lock is waited for: a stopped holder must not stop others for longer.
const LOCK_MS: u64 = 20;
/// A holder that is not stopped but waits for a processor is given this many times as long.
const PATIENCE: usize = 10;

fn take(mutex: &RobustMutex) -> Result<(Guard<'_>, bool), Refusal> {
    for _ in 0..PATIENCE {
        match mutex.lock_timeout(LOCK_MS) {
            Ok(taken) => return Ok(taken),
            Err(Busy) if mutex.is_worth_waiting_for() => {}
            Err(Busy) => return Err(Refusal::Busy),
        }
    }
    Err(Refusal::Busy)
}

const PAIR: u64 = 1;
const GLOBAL: u64 = 2;
const TAGS: u64 = 7;

/// A locked shard, clean when handed out, with the transaction being built.
pub(super) struct Locked<'s> {
    pub inner: &'s Inner,
    pub area: &'s Area,
    pub shard: &'s Shard,
    pub index: usize,
    writes: usize,
    global: Option<Guard<'s>>,
    _guard: Guard<'s>,
}

impl Inner {
    /// Locks a shard and finishes whatever a dead predecessor left. Errors: [`Refusal::Busy`].
    pub(super) fn lock(&self, index: usize) -> Result<Locked<'_>, Refusal> {
        let shard = self.area.shard(index);
        let (guard, recovered) = take(&shard.lock)?;
        if recovered {
            self.area.segment().metrics().lock_recoveries.fetch_add(1, Ordering::Relaxed);
        }
        let area = &self.area;
        let mut locked = Locked { inner: self, area, shard, index, writes: 0, global: None, _guard: guard };
        let unfinished = shard.committed.load(Ordering::Acquire)
            | shard.claimed.load(Ordering::Relaxed)
            | shard.building.load(Ordering::Relaxed)
            | shard.freeing.load(Ordering::Relaxed);
        if unfinished != 0 {
            locked.recover()?;
        }
        Ok(locked)
    }

    fn lock_global(&self) -> Result<Guard<'_>, Refusal> {
        let global = self.area.global();
        let (guard, _) = take(&global.lock)?;
        let holder = global.holder.load(Ordering::Acquire) as usize;
        if holder != 0 {
            let shard = self.area.shard(holder - 1);
            apply(&self.area, shard, shard.committed.load(Ordering::Acquire) as usize, |tags| tags & GLOBAL != 0);
            global.holder.store(0, Ordering::Release);
        }
        Ok(guard)
    }
}

fn apply(area: &Area, shard: &Shard, writes: usize, wanted: impl Fn(u64) -> bool) {
    let mut i = 0;
    while i < writes.min(JOURNAL_LEN) {
        let tagged = shard.journal[i][0].load(Ordering::Relaxed);
        let word = shard.journal[i][1].load(Ordering::Relaxed);
        let offset = (tagged & !TAGS) as usize;
        let paired = tagged & PAIR != 0;
        if wanted(tagged & TAGS) {
            if paired {
                let meta = shard.journal[i + 1][1].load(Ordering::Relaxed);
                area.pair_at(offset).store(pair(word as i64, Meta(meta)), Ordering::Release);
            } else {
                area.word_at(offset).store(word, Ordering::Release);
            }
        }
        i += if paired { 2 } else { 1 };
    }
}

impl Locked<'_> {
    #[cold]
    fn recover(&mut self) -> Result<(), Refusal> {
        let writes = self.shard.committed.load(Ordering::Acquire) as usize;
        if writes != 0 {
            let global = self.inner.lock_global()?;
            self.change_chains(|| apply(self.area, self.shard, writes, |tags| tags & GLOBAL == 0));
            self.shard.committed.store(0, Ordering::Release);
            drop(global);
        }
        self.unclaim();
        self.drain_freeing()?;
        self.drop_building()
    }

    fn change_chains(&self, change: impl FnOnce()) {
        let seq = self.shard.seq.load(Ordering::Relaxed) | 1;
        self.shard.seq.store(seq, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.shard.seq.store(seq.wrapping_add(1), Ordering::Release);
    }

    /// Takes the global lock for the transaction being built, if it does not have it yet. Errors: Busy.
    pub fn take_global(&mut self) -> Result<(), Refusal> {
        if self.global.is_none() {
            self.global = Some(self.inner.lock_global()?);
        }
        Ok(())
    }

    fn push(&mut self, tagged: u64, word: u64) {
        // A kill between these leaves an uncommitted write, which counts for nothing.
        self.shard.journal[self.writes][0].store(tagged, Ordering::Relaxed);
        self.shard.journal[self.writes][1].store(word, Ordering::Relaxed);
        self.writes += 1;
    }

    fn written(&self, offset: u64) -> Option<usize> {
        (0..self.writes).rev().find(|i| self.shard.journal[*i][0].load(Ordering::Relaxed) & !TAGS == offset)
    }

    fn put_tagged(&mut self, word: &AtomicU64, value: u64, tags: u64) {
        let offset = self.area.offset_of(word) as u64;
        match self.written(offset) {
            Some(i) => {
                self.shard.journal[i][0].fetch_or(tags, Ordering::Relaxed);
                self.shard.journal[i][1].store(value, Ordering::Relaxed);
            }
            None => self.push(offset | tags, value),
        }
    }

    /// Adds a word write.
    pub fn put(&mut self, word: &AtomicU64, value: u64) {
        self.put_tagged(word, value, 0);
    }

    /// Adds a write of a word that shards share; the global lock is held until the commit.
    pub fn put_global(&mut self, word: &AtomicU64, value: u64) {
        debug_assert!(self.global.is_some());
        self.put_tagged(word, value, GLOBAL);
    }

    /// The word as the transaction has it so far.
    pub fn get(&self, word: &AtomicU64) -> u64 {
        match self.written(self.area.offset_of(word) as u64) {
            Some(i) => self.shard.journal[i][1].load(Ordering::Relaxed),
            None => word.load(Ordering::Acquire),
        }
    }

    /// Adds the write of an entry's pair, once per transaction. A live counter's is written claimed, and stays so until
    /// the journal is cleared: an increment that came in before, without the lock, would be undone by a recovery.
    pub fn put_pair(&mut self, reference: u32, value: i64, mut meta: Meta) {
        if meta.has(Meta::LIVE | Meta::COUNTER) {
            self.shard.claimed.store(u64::from(reference), Ordering::Release);
            compiler_fence(Ordering::SeqCst);
            meta = Meta(meta.0 | Meta::CLAIMED);
        }
        let offset = reference as u64 * 16;
        self.push(offset | PAIR, value as u64);
        self.push((offset + 8) | PAIR, meta.0);
    }

    /// Commits and applies. A claim stays.
    pub fn commit(&mut self) {
        self.commit_then(|_| {});
    }

    /// Commits and applies the transaction that writes the claimed pair.
    pub fn finish(&mut self) {
        self.commit_then(|locked| locked.unclaim());
    }

    fn commit_then(&mut self, then: impl FnOnce(&mut Self)) {
        debug_assert!(self.writes <= JOURNAL_LEN);
        let global = &self.area.global().holder;
        if self.global.is_some() {
            global.store(self.index as u64 + 1, Ordering::Release);
            compiler_fence(Ordering::SeqCst);
        }
        self.shard.committed.store(self.writes as u64, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        let writes = self.writes;
        self.change_chains(|| apply(self.area, self.shard, writes, |_| true));
        if self.global.is_some() {
            global.store(0, Ordering::Release);
        }
        compiler_fence(Ordering::SeqCst);
        self.shard.committed.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.writes = 0;
        self.global = None;
        then(self);
    }

    /// Forgets the transaction being built.
    pub fn forget(&mut self) {
        self.writes = 0;
        self.global = None;
    }

    /// Forgets the transaction being built, lets go of the claim, frees what was built.
    pub fn abort(&mut self) {
        self.forget();
        self.unclaim();
        // When the global lock is busy the rest waits for the next holder of this shard.
        let _ = self.drain_freeing();
        let _ = self.drop_building();
    }

    /// Stops lock-free increments of a live counter until the claim ends, and gives its pair (without the flag).
    pub fn claim(&mut self, reference: u32) -> (i64, Meta) {
        let cell = self.area.pair(reference);
        let mut now = cell.load(Ordering::Acquire);
        let (value, meta) = unpair(now);
        if !meta.has(Meta::LIVE | Meta::COUNTER) {
            return (value, meta);
        }
        self.shard.claimed.store(u64::from(reference), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        loop {
            let (value, meta) = unpair(now);
            let claimed = pair(value, Meta(meta.0 | Meta::CLAIMED));
            match cell.compare_exchange(now, claimed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (value, Meta(meta.0 & !Meta::CLAIMED)),
                Err(other) => now = other,
            }
        }
    }

    /// Ends the claim, if there is one: clears the flag where it is still set.
    pub fn unclaim(&mut self) {
        let reference = self.shard.claimed.load(Ordering::Relaxed) as u32;
        if reference != 0 {
            self.change_pair(reference, |value, meta| Some((value, Meta(meta.0 & !Meta::CLAIMED))));
            compiler_fence(Ordering::SeqCst);
            self.shard.claimed.store(0, Ordering::Release);
        }
    }

    /// Changes a pair in one atomic step, racing with lock-free increments; `None` leaves it. Gives what was there
    /// when it was changed (or left).
    pub fn change_pair(
        &self,
        reference: u32,
        mut change: impl FnMut(i64, Meta) -> Option<(i64, Meta)>,
    ) -> (i64, Meta, bool) {
        let cell = self.area.pair(reference);
        let mut now = cell.load(Ordering::Acquire);
        loop {
            let (value, meta) = unpair(now);
            let Some((new_value, new_meta)) = change(value, meta) else { return (value, meta, false) };
            match cell.compare_exchange(now, pair(new_value, new_meta), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (value, meta, true),
                Err(other) => now = other,
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Early returns and panics: what is not committed is nothing, and a claim must not outlive its holder.
        if self.shard.committed.load(Ordering::Relaxed) == 0 {
            self.unclaim();
        }
    }
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
