//! Collecting what has ended, and making room when memory is full.

use std::sync::atomic::Ordering;

use super::drain::Stuck;
use super::item::{Item, is_mark};
use super::layout::{ENTRY_CLASSES, Meta, Shape, unpair};
use super::shard::Locked;
use super::{Fail, Inner, Standing, Stats, Store, Swept, TOMBSTONE_GRACE_MS};
use crate::error::Refusal;
use crate::placement;
use crate::record::Key;
use crate::segment::table::Owner;

/// Pages that one attempt to make room looks at.
const RECLAIM_PAGES: usize = 512;
/// Pages that it passes over, at most, to find them.
const STEPS_MAX: usize = 1 << 16;

/// A counter that has expired is kept for so long if windows had ended in it: a little longer than a share may be on its
/// way home.
const MARKS_OUTLIVE_MS: u64 = 1_500;

/// What room is made for, and so what may give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// A write that this host makes: other byte values, unless they were read since the last visit.
    Own,
    /// Copies that every host keeps: bytes of other owners' values, which can be read there.
    Copies,
    /// The bytes of a copy: nothing, since the bytes of others are worth as much.
    Bytes,
}

/// What a visit to a page may free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// What has expired, and old tombstones.
    Sweep,
    /// What may give way to an object of this class as well.
    Evict { class: usize, room: Room },
    /// What tells of evictions and has been sent.
    Told,
}

/// Whose an entry is, as eviction sees it.
enum Whose {
    /// Nobody else has it, or nobody could be asked: what goes is gone.
    Alone,
    /// This host's since this term: what goes is deleted everywhere.
    Own(u64),
    /// Another host's: its bytes can be read there.
    Others,
    /// Changing hands.
    Moving,
}

impl Locked<'_> {
    /// Which objects of a page are free (a bit each).
    pub fn free_objects(&self, page: usize) -> [u64; 4] {
        let state = self.area.page_state(page);
        let mut free = [0; 4];
        let mut next = state.free as usize;
        while next != 0 {
            free[(next - 1) / 64] |= 1 << ((next - 1) % 64);
            let reference = self.area.reference(page, state.class as usize, next - 1);
            next = self.area.word(reference, 2).load(Ordering::Relaxed) as u32 as usize;
        }
        free
    }

    /// Visits the entries of a page until `enough`; how many were freed.
    fn visit(&mut self, page: usize, visit: Visit, enough: impl Fn(&Self) -> bool) -> usize {
        let state = self.area.page_state(page);
        let class = state.class as usize;
        let free = self.free_objects(page);
        let now_ms = self.inner.clock.now_ms();
        let early_ms = self.inner.tombstones_early_ms();
        let metrics = self.area.segment().metrics();
        let mut freed = 0;
        for index in (0..state.carved as usize).filter(|index| free[index / 64] & 1 << (index % 64) == 0) {
            let reference = self.area.reference(page, class, index);
            let (_, meta) = unpair(self.area.pair(reference).load(Ordering::Acquire));
            let early = !meta.has(Meta::LIVE) && !meta.has(Meta::PENDING) && meta.expired(|| now_ms + early_ms);
            let over = meta.expired(|| now_ms) && !(visit == Visit::Sweep && self.still_tells(reference, meta, now_ms));
            if early && !self.has_diverged(reference) || over {
                self.expire_entry(reference, meta);
                freed += 1;
            } else if visit == Visit::Told && self.is_told(reference, meta) {
                self.free_entry(reference);
                freed += 1;
            } else if let Visit::Evict { class: wanted, room } = visit
                && !meta.has(Meta::COUNTER)
                && self.evict(reference, meta, room, wanted == class)
            {
                metrics.evictions.fetch_add(u64::from(meta.has_bytes()), Ordering::Relaxed);
                freed += 1;
            } else {
                continue;
            }
            if enough(self) {
                break;
            }
        }
        freed
    }

    /// Makes an entry that is no counter give way, if it may: its bytes, or (`same_class`: that would help) all of it.
    fn evict(&mut self, reference: u32, meta: Meta, room: Room, same_class: bool) -> bool {
        let cell = self.area.word(reference, 7);
        let mut shape = Shape::decode(cell.load(Ordering::Relaxed));
        let mut bytes = Vec::new();
        let namespace_len = self.area.read_key(reference, &mut bytes);
        let (namespace, name) = bytes.split_at(namespace_len);
        let key = Key { namespace, name };
        let whose = self.whose(key);
        if !meta.has(Meta::LIVE) {
            return false;
        }
        let may = match whose {
            Whose::Alone | Whose::Own(_) => room == Room::Own && meta.has_bytes(),
            Whose::Others => room != Room::Bytes && (meta.has_bytes() || same_class),
            Whose::Moving => false,
        };
        // A change that no owner has seen is kept until one has.
        if !may || meta.has(Meta::PENDING) {
            return false;
        }
        if shape.flags & Shape::REFERENCED != 0 {
            shape.flags &= !Shape::REFERENCED;
            cell.store(shape.encode(), Ordering::Relaxed);
            return false;
        }
        let hash = self.area.hash(key);
        match whose {
            Whose::Own(term) => self.delete_evicted(reference, key, hash, term).is_ok(),
            Whose::Others if meta.has_bytes() => self.stub(reference, key, hash).is_ok(),
            _ => {
                self.free_entry(reference);
                if matches!(whose, Whose::Others) {
                    self.area.segment().table().dropped_copy();
                }
                true
            }
        }
    }

    /// Whether this says that a value was evicted, and has been sent: then it may go.
    fn is_told(&self, reference: u32, meta: Meta) -> bool {
        let flags = Shape::decode(self.area.word(reference, 7).load(Ordering::Relaxed)).flags;
        flags & (Shape::REFERENCED | Shape::DIVERGED) == 0 && !meta.has(Meta::LIVE) && !meta.has(Meta::DIRTY)
    }

    fn whose(&self, key: Key<'_>) -> Whose {
        if !self.inner.options.clustered {
            return Whose::Alone;
        }
        let table = self.area.segment().table();
        match table.ownership(placement::slot(key.name)) {
            (Owner::Nobody, _) => Whose::Alone,
            (Owner::Frozen, _) => Whose::Moving,
            (Owner::Member(index), term) if Some(index) == table.self_index() => Whose::Own(term),
            (Owner::Member(_), _) => Whose::Others,
        }
    }

    /// The owner's eviction of a value is its delete: no copy of it may outlive it.
    fn delete_evicted(&mut self, reference: u32, key: Key<'_>, hash: u64, term: u64) -> Result<(), Fail> {
        let mut item = self.load(reference);
        if item.term > term {
            return Err(Fail::Refused(Refusal::Busy));
        }
        // No counter: nothing of its chain stays.
        let content = item.end(self.inner.grace_deadline(self.inner.clock.now_ms()));
        item.diverged = None;
        (item.term, item.stamp) = (term, self.inner.hlc());
        item.flags = Meta::DIRTY;
        self.save(key, hash, Some(reference), &item, content, None)?;
        let cell = self.area.word(reference, 7);
        let mut shape = Shape::decode(cell.load(Ordering::Relaxed));
        shape.flags &= !Shape::REFERENCED;
        cell.store(shape.encode(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether this has expired so lately that what was counted in windows that had ended before may still come home. Its
    /// marks keep that from beginning anew.
    fn still_tells(&self, reference: u32, meta: Meta, now_ms: u64) -> bool {
        let lately = !meta.expired(|| now_ms.saturating_sub(MARKS_OUTLIVE_MS));
        let may = lately && meta.has(Meta::COUNTER) && !self.has_diverged(reference);
        may && self.load(reference).shares.iter().any(is_mark)
    }

    fn has_diverged(&self, reference: u32) -> bool {
        self.has_flag(reference, Shape::DIVERGED)
    }

    /// Takes away what has expired, or a tombstone that has served.
    fn expire_entry(&mut self, reference: u32, meta: Meta) {
        if self.is_outlived(reference, meta) && self.bury(reference).is_ok() {
            return;
        }
        // Claimed first: a degraded increment may have come in since `meta` was read.
        let (_, claimed) = self.claim(reference);
        let lost = self.not_home(reference, meta.has(Meta::PENDING) || claimed.has(Meta::PENDING));
        self.free_entry(reference);
        self.inner.lose(lost);
    }

    /// What is lost with an entry that is `pending`. On a host that does not speak for its cluster nothing: nobody else would
    /// have counted on what that counts as an owner.
    fn not_home(&self, reference: u32, pending: bool) -> u64 {
        if pending && !self.inner.is_unheard() { self.load(reference).own_amount(self.inner.origin()) } else { 0 }
    }

    /// Whether older copies of what expires here may live on elsewhere. A change made apart ends with what it was made over.
    pub(super) fn is_outlived(&self, reference: u32, meta: Meta) -> bool {
        let shortened = meta.has(Meta::LIVE) && self.has_flag(reference, Shape::SHORTENED);
        shortened && self.inner.options.clustered && !self.has_diverged(reference)
    }

    /// Makes a tombstone of what has expired here, because older copies elsewhere may not have: of the same state, so that
    /// whatever came after it comes after the tombstone, too.
    pub(super) fn bury(&mut self, reference: u32) -> Result<(), Fail> {
        let (_, claimed) = self.claim(reference);
        let item = self.load(reference);
        let mut bytes = Vec::new();
        let namespace_len = self.area.read_key(reference, &mut bytes);
        let (namespace, name) = bytes.split_at(namespace_len);
        let key = Key { namespace, name };
        let dirty = if matches!(self.whose(key), Whose::Own(_)) { Meta::DIRTY } else { 0 };
        let hash = self.area.hash(key);
        self.end_entry(key, hash, reference, item, claimed.has(Meta::PENDING), dirty).map(|_| ())
    }

    /// Makes the entry at `reference`, which has been claimed, the tombstone of `item`, which may be `pending`; where it is
    /// then.
    pub(super) fn end_entry(
        &mut self,
        key: Key<'_>,
        hash: u64,
        reference: u32,
        mut item: Item,
        pending: bool,
        dirty: u64,
    ) -> Result<u32, Fail> {
        let lost = self.not_home(reference, pending);
        let content = item.end(self.inner.grace_deadline(self.inner.clock.now_ms()));
        item.flags = item.flags & Meta::OWN | dirty;
        let reference = self.save(key, hash, Some(reference), &item, content, None)?;
        self.inner.lose(lost);
        Ok(reference)
    }
}

impl Inner {
    /// How much earlier than their deadline says tombstones may go by now: it was set for the longest grace.
    fn tombstones_early_ms(&self) -> u64 {
        match self.area.segment().table().tombstone_grace_ms.load(Ordering::Relaxed) {
            0 => 0,
            grace_ms => TOMBSTONE_GRACE_MS.saturating_sub(grace_ms),
        }
    }

    /// Makes room for an object of `class` in `shard`, or `pages` in the pool. Whether a retry makes sense. No lock is
    /// held by the caller.
    pub(super) fn reclaim(&self, shard: usize, class: usize, pages: usize, room: Room) -> bool {
        let area = &self.area;
        if pages > area.page_count {
            return false;
        }
        let enough = |locked: &Locked<'_>| {
            self.pages_free() >= pages
                || pages <= 1 && locked.index == shard && locked.shard.classes[class].load(Ordering::Relaxed) != 0
        };
        let hand = &area.global().hand;
        let bytes = |index: usize| area.shard(index).live_bytes.load(Ordering::Relaxed) != 0;
        let mut stuck = Stuck::default();
        if room == Room::Own && class < ENTRY_CLASSES && self.options.clustered {
            // Before any value has to go: the entries of those that have gone.
            for page in 0..area.page_count {
                let state = area.page_state(page);
                if state.entries_of() != Some(shard) || state.class as usize != class {
                    continue;
                }
                let Some(mut locked) = stuck.lock(self, shard) else { break };
                locked.visit(page, Visit::Told, enough);
                if enough(&locked) {
                    return true;
                }
            }
        }
        // First what the shard has itself, then anything; each page twice, since the first visit may only unmark.
        for mine in [true, false] {
            let mut visited = 0;
            let evictable = if mine { bytes(shard) } else { (0..super::SHARDS).any(bytes) };
            let budget = if evictable { RECLAIM_PAGES * pages.max(1) } else { RECLAIM_PAGES / 8 };
            for _ in 0..(2 * area.page_count).min(STEPS_MAX) {
                let page = hand.fetch_add(1, Ordering::Relaxed) as usize % area.page_count;
                let Some(owner) = area.page_state(page).entries_of() else { continue };
                if mine && owner != shard {
                    continue;
                }
                let Some(mut locked) = stuck.lock(self, owner) else { continue };
                if enough(&locked) {
                    return true;
                }
                locked.visit(page, Visit::Evict { class, room }, enough);
                if enough(&locked) {
                    return true;
                }
                visited += 1;
                if visited >= budget {
                    break;
                }
            }
        }
        false
    }
}

impl Store {
    /// Frees expired entries and old tombstones, looking at about `budget` entries; goes on where the last sweep of any
    /// process ended.
    pub fn sweep(&self, budget: usize) -> Swept {
        self.inner.forget_replaced();
        let area = &self.inner.area;
        let cursor = self.segment().sweep_cursor();
        let (mut swept, mut stuck) = (Swept::default(), Stuck::default());
        let mut seen = 0;
        while seen < budget.max(1) {
            let page = cursor.fetch_add(1, Ordering::Relaxed) as usize;
            if page >= area.page_count {
                cursor.store(0, Ordering::Relaxed);
                swept.round_ended = true;
                break;
            }
            seen += 1;
            let Some(shard) = area.page_state(page).entries_of() else { continue };
            seen += area.page_state(page).carved as usize;
            if let Some(mut locked) = stuck.lock(&self.inner, shard) {
                swept.freed += locked.visit(page, Visit::Sweep, |_| false);
            }
        }
        swept
    }

    /// For processes without a node: a bounded sweep when a share of `interval_ms` has passed since the last one by
    /// any process. Otherwise one load.
    #[inline]
    pub fn sweep_if_due(&self, interval_ms: u64) {
        let next = self.segment().next_sweep_ms();
        let due = next.load(Ordering::Relaxed);
        let now_ms = self.inner.clock.now_ms();
        if now_ms >= due {
            self.sweep_now(due, now_ms, interval_ms);
        }
    }

    #[cold]
    fn sweep_now(&self, due: u64, now_ms: u64, interval_ms: u64) {
        // A round must end within the interval, so each call does one part of 64 of the pages.
        const PARTS: u64 = 64;
        let next = now_ms + (interval_ms / PARTS).max(1);
        let won = self.segment().next_sweep_ms().compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
        if won.is_ok() {
            let area = &self.inner.area;
            let used = area.page_count.saturating_sub(self.inner.pages_free());
            let entries: u64 = (0..super::SHARDS).map(|shard| area.shard(shard).live.load(Ordering::Relaxed)).sum();
            self.sweep((entries as usize * 2 + used + area.page_count).div_ceil(PARTS as usize));
        }
    }

    /// Deletes all live keys of a namespace that pass `filter` (called with no lock held); how many. Keys in a
    /// shard that a stopped process holds are left.
    pub fn flush(&self, namespace: &[u8], filter: &dyn Fn(Key<'_>) -> bool, standing: Standing) -> usize {
        let mut stuck = Stuck::default();
        let keys = (0..self.inner.area.page_count).flat_map(|page| self.keys_of(page, 0, &mut stuck));
        keys.filter(|(_, key)| {
            let key = key.as_key();
            key.namespace == namespace && filter(key) && self.del(key, standing).unwrap_or(false)
        })
        .count()
    }

    /// How full the store is.
    pub fn stats(&self) -> Stats {
        let area = &self.inner.area;
        let mut stats = Stats {
            bytes_total: (area.page_count << area.page_shift) as u64,
            pending: area.global().pending.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for index in 0..super::SHARDS {
            let shard = area.shard(index);
            stats.entries += shard.live.load(Ordering::Relaxed);
            stats.tombstones += shard.tombstones.load(Ordering::Relaxed);
            stats.bytes_used += shard.used.load(Ordering::Relaxed);
        }
        stats
    }
}
