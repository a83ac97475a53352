//! Which entries have changed, and handing out their states.
//!
//! The truth is the DIRTY flag in an entry's meta, set in the same swap as the value. A bitmap with a summary says which
//! pages to look at; it is a hint: a process killed between the swap and the hint (or between draining and sending)
//! leaves it wrong, which [`Store::rescan_dirty`] puts right.

use std::sync::atomic::Ordering;

use super::item::{Kind, is_mark};
use super::layout::{ENTRY_CLASSES, Meta, shard_of, unpair};
use super::shard::Locked;
use super::{Drain, Drained, Inner, Store};
use crate::record::{Copy, Key, KeyBuf};

/// A pass over the hinted pages: the requests noted when it began are handed out when it has ended, because then every
/// entry that they changed has been handed out.
#[derive(Default)]
pub(super) struct Pass {
    running: bool,
    /// A page was left out: the requests wait for the end of another pass.
    missed: bool,
    /// Next page.
    page: usize,
    /// Shards that a stopped process holds, and until when they are left out (coarse monotonic milliseconds).
    stuck: Stuck,
    stuck_until_ms: u64,
    applied: Vec<(u64, u64)>,
}

/// How long a shard that was found stuck is left out of draining.
const STUCK_MS: u64 = 1_000;

/// Most requests that wait for a pass without a stuck shard; more, and the oldest are forgotten: asked about one, this
/// host cannot tell.
const APPLIED_MAX: usize = 100_000;

/// Shards whose lock was not to be had in one walk over the pages: each is waited for once, not once a page.
#[derive(Clone, Copy, Default)]
pub(super) struct Stuck(u64);

impl Stuck {
    /// Locks `shard`, unless it was stuck before.
    pub fn lock<'s>(&mut self, inner: &'s Inner, shard: usize) -> Option<Locked<'s>> {
        if self.0 >> shard & 1 != 0 {
            return None;
        }
        let locked = inner.lock(shard).ok();
        self.0 |= u64::from(locked.is_none()) << shard;
        locked
    }
}

impl Inner {
    /// Says that the page has a dirty entry.
    pub(super) fn hint(&self, page: usize) {
        let word = page / 64;
        let (hint, bit) = (self.area.hint(word), 1 << (page % 64));
        if hint.load(Ordering::SeqCst) & bit == 0 {
            hint.fetch_or(bit, Ordering::SeqCst);
        }
        // Looked at even if the hint was there: a process may have been killed between the two.
        let (summary, bit) = (self.area.summary(word / 64), 1 << (word % 64));
        if summary.load(Ordering::SeqCst) & bit == 0 {
            summary.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// The first hinted page from `page` on.
    fn next_hinted(&self, page: usize) -> Option<usize> {
        let mut word = page / 64;
        let mut mask = u64::MAX << (page % 64);
        while word < self.area.hint_words {
            let summary = self.area.summary(word / 64);
            let marked = summary.load(Ordering::SeqCst) & (u64::MAX << (word % 64));
            if marked == 0 {
                word = (word / 64 + 1) * 64;
                mask = u64::MAX;
                continue;
            }
            let next = word / 64 * 64 + marked.trailing_zeros() as usize;
            if next != word {
                mask = u64::MAX;
            }
            word = next;
            let bits = self.area.hint(word).load(Ordering::SeqCst);
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
            }
            if bits == 0 {
                // Cleared before the word is read again: who sets a bit after that sees the summary's gap and fills it.
                summary.fetch_and(!(1 << (word % 64)), Ordering::SeqCst);
                if self.area.hint(word).load(Ordering::SeqCst) != 0 {
                    summary.fetch_or(1 << (word % 64), Ordering::SeqCst);
                    continue;
                }
            }
            word += 1;
            mask = u64::MAX;
        }
        None
    }

    /// Hands out the dirty entries of a page; whether all of them found room below `max`. `None`: a stopped process
    /// holds the shard.
    fn drain_page(&self, page: usize, max: usize, out: &mut Vec<Drain>, stuck: &mut Stuck) -> Option<bool> {
        let (hint, bit) = (self.area.hint(page / 64), 1 << (page % 64));
        let state = self.area.page_state(page);
        let Some(shard) = state.entries_of() else {
            hint.fetch_and(!bit, Ordering::SeqCst);
            return Some(true);
        };
        let mut locked = stuck.lock(self, shard)?;
        hint.fetch_and(!bit, Ordering::SeqCst);
        let state = self.area.page_state(page);
        let class = state.class as usize;
        let now_ms = self.clock.now_ms();
        for index in 0..state.carved as usize {
            let reference = self.area.reference(page, class, index);
            let (_, meta) = unpair(self.area.pair(reference).load(Ordering::SeqCst));
            if !meta.has(Meta::DIRTY) {
                continue;
            }
            if out.len() >= max {
                drop(locked);
                self.hint(page);
                return Some(false);
            }
            // Others are told of what has expired by its tombstone, if at all. What is pending may yet go home.
            if meta.expired(|| now_ms) && !meta.has(Meta::PENDING) && locked.is_outlived(reference, meta) {
                let _ = locked.bury(reference);
            }
            let (value, meta, _) =
                locked.change_pair(reference, |value, meta| Some((value, Meta(meta.0 & !Meta::DIRTY))));
            let mut item = locked.load(reference);
            if item.kind == Kind::Counter {
                // As it was in the very swap that cleared the flag.
                item.own = value;
            }
            if let Some(copy) = locked.copy_of(reference, &item, now_ms) {
                out.push(Drain { copy, pending: meta.has(Meta::PENDING) });
            }
        }
        Some(true)
    }
}

impl Store {
    /// Hands out the latest state of changed entries, at most `max` more, and the requests whose effects are then out.
    /// How many entries. An entry is no longer marked once it is handed out: see [`Store::mark_dirty`].
    pub fn drain(&self, max: usize, out: &mut Drained) -> usize {
        let mut pass = self.inner.drain.lock();
        let before = out.copies.len();
        let max = before + max;
        // What has changed behind it is for the next.
        let resumed = pass.running;
        if !pass.running {
            (pass.running, pass.missed, pass.page) = (true, false, 0);
            for list in &self.inner.applied {
                pass.applied.append(&mut list.lock());
            }
            let surplus = pass.applied.len().saturating_sub(APPLIED_MAX);
            pass.applied.drain(..surplus);
            if self.inner.clock.now_ms() >= pass.stuck_until_ms {
                pass.stuck = Stuck::default();
            }
        }
        let mut complete = true;
        while let Some(page) = self.inner.next_hinted(pass.page) {
            if out.copies.len() >= max {
                complete = false;
                break;
            }
            let mut stuck = pass.stuck;
            let drained = self.inner.drain_page(page, max, &mut out.copies, &mut stuck);
            if stuck.0 != pass.stuck.0 {
                (pass.stuck, pass.stuck_until_ms) = (stuck, self.inner.clock.now_ms() + STUCK_MS);
            }
            match drained {
                Some(true) => pass.page = page + 1,
                Some(false) => {
                    complete = false;
                    break;
                }
                // A stopped process must not hold up what others have changed.
                None => (pass.page, pass.missed) = (page + 1, true),
            }
        }
        (out.ended, out.resumed, out.missed) = (complete, resumed, pass.missed);
        if complete {
            pass.running = false;
            if !pass.missed {
                out.applied.append(&mut pass.applied);
            }
        }
        out.copies.len() - before
    }

    /// Marks a key as changed again, after a failed delivery.
    pub fn mark_dirty(&self, key: Key<'_>) {
        self.mark(key, Meta::DIRTY);
    }

    /// Marks a counter as changed, with an own share that no owner has acknowledged: found again by every
    /// [`Store::rescan_dirty`] until one has.
    pub fn mark_pending(&self, key: Key<'_>) {
        self.mark(key, Meta::DIRTY | Meta::PENDING);
    }

    fn mark(&self, key: Key<'_>, flags: u64) {
        let hash = self.inner.area.hash(key);
        let Ok(locked) = self.inner.lock(shard_of(hash)) else { return };
        let Some(reference) = locked.find(key, hash) else { return };
        let flags = self.inner.flags(flags);
        if flags != 0 {
            // Only a counter has shares; something else is pending only as a diverged change. Nobody would acknowledge a
            // counter in which this segment has nothing (any more).
            let (item, origin) = (locked.load(reference), self.inner.origin());
            let explicit = item.shares.iter().any(|share| share.origin == origin && !is_mark(share));
            let after = |meta: Meta| {
                let own = meta.has(Meta::OWN) || explicit || item.diverged.is_some();
                let pends = meta.has(Meta::LIVE | Meta::COUNTER) && own;
                Meta(meta.0 | if pends { flags } else { flags & !Meta::PENDING })
            };
            let (_, before, _) = locked.change_pair(reference, |value, meta| Some((value, after(meta))));
            self.inner.count_pending(before.has(Meta::PENDING), after(before).has(Meta::PENDING));
            self.inner.hint(self.inner.area.page_of(reference));
        }
    }

    /// Looks at every entry: hints those that are dirty, marks those with an unacknowledged share as dirty (so that
    /// they are sent again), and returns how many of the latter there are.
    pub fn rescan_dirty(&self) -> usize {
        self.rescan(&|_| true)
    }

    /// The same, but an entry with an unacknowledged share is sent again only if `again` says so of its key.
    pub fn rescan(&self, again: &dyn Fn(Key<'_>) -> bool) -> usize {
        let area = &self.inner.area;
        let (mut pending, mut stuck, mut bytes) = (0, Stuck::default(), Vec::new());
        for page in 0..area.page_count {
            let Some(shard) = area.page_state(page).entries_of() else { continue };
            let Some(locked) = stuck.lock(&self.inner, shard) else { continue };
            let state = area.page_state(page);
            let mut hint = false;
            for index in 0..state.carved as usize {
                let reference = area.reference(page, state.class as usize, index);
                let (_, meta) = unpair(area.pair(reference).load(Ordering::Acquire));
                if meta.has(Meta::PENDING) {
                    pending += 1;
                    let namespace_len = area.read_key(reference, &mut bytes);
                    let (namespace, name) = bytes.split_at(namespace_len);
                    if !again(Key { namespace, name }) {
                        continue;
                    }
                    hint = true;
                    locked.change_pair(reference, |value, meta| Some((value, Meta(meta.0 | Meta::DIRTY))));
                }
                hint |= meta.has(Meta::DIRTY);
            }
            if hint {
                self.inner.hint(page);
            }
        }
        area.global().pending.store(pending as u64, Ordering::Relaxed);
        pending
    }

    /// A page of the states of all entries, tombstones included, whose key passes `filter` (called with no lock held),
    /// of about `max_bytes`, and the cursor of the next. An entry that is there all the time is seen (unless a stopped
    /// process holds its shard). Bounded work per
    /// call: a page may be empty and still have a next.
    pub fn scan(&self, cursor: u64, max_bytes: usize, filter: &dyn Fn(Key<'_>) -> bool) -> (Vec<Copy>, Option<u64>) {
        self.scan_up_to(cursor, max_bytes, &|key| filter(key).then_some(u32::MAX))
    }

    /// The same, with values of more bytes than `whole_max` says for the key (`None`: left out) as stubs.
    pub fn scan_up_to(
        &self,
        cursor: u64,
        max_bytes: usize,
        whole_max: &dyn Fn(Key<'_>) -> Option<u32>,
    ) -> (Vec<Copy>, Option<u64>) {
        const PAGES_PER_CALL: usize = 256;
        let area = &self.inner.area;
        let (mut copies, mut bytes, mut stuck) = (Vec::new(), 0, Stuck::default());
        let (start, mut skip) = ((cursor >> 16) as usize, (cursor & 0xffff) as usize);
        for page in start..area.page_count {
            if page - start >= PAGES_PER_CALL {
                return (copies, Some((page as u64) << 16));
            }
            for (index, key) in self.keys_of(page, std::mem::take(&mut skip), &mut stuck) {
                let Some(whole_max) = whole_max(key.as_key()) else { continue };
                if bytes >= max_bytes {
                    return (copies, Some((page as u64) << 16 | index as u64));
                }
                if let Some(state) = self.state_up_to(key.as_key(), whole_max) {
                    bytes += 128 + key.as_bytes().len() + size_of_body(&state.body);
                    copies.push(Copy { key, state });
                }
            }
        }
        (copies, None)
    }

    /// The keys in a page, from an index on, tombstones included.
    pub(super) fn keys_of(&self, page: usize, skip: usize, stuck: &mut Stuck) -> Vec<(usize, KeyBuf)> {
        let area = &self.inner.area;
        let Some(shard) = area.page_state(page).entries_of() else { return Vec::new() };
        let Some(locked) = stuck.lock(&self.inner, shard) else { return Vec::new() };
        let state = area.page_state(page);
        let class = state.class as usize;
        let free = locked.free_objects(page);
        let mut keys = Vec::new();
        for index in skip..state.carved as usize {
            if free[index / 64] & 1 << (index % 64) != 0 {
                continue;
            }
            let mut bytes = Vec::new();
            let namespace_len = area.read_key(area.reference(page, class, index), &mut bytes);
            if let Some(key) = KeyBuf::from_parts(bytes.into(), namespace_len) {
                keys.push((index, key));
            }
        }
        debug_assert!(class < ENTRY_CLASSES);
        keys
    }
}

fn size_of_body(body: &crate::record::Body) -> usize {
    use crate::record::Body;
    match body {
        Body::Counter(shares) | Body::Tombstone(shares) => shares.len() * 40,
        Body::Bytes(bytes) => bytes.len(),
        Body::Elsewhere { .. } => 0,
    }
}
