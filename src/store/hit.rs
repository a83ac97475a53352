//! What goes without the lock: increments and reads of a live counter that has no shares but this segment's.
//!
//! The pair is read before the key is compared, and the swap (or a second read) proves that its generation has not
//! changed since: so the key was this entry's all along. A miss is believed only if the shard's chains did not change.

use std::sync::atomic::{Ordering, fence};

use portable_atomic::AtomicU128;

use super::layout::{Meta, pair, shard_of, tag_of, unpair};
use super::{Counted, Inner, Standing, Ttl};
use crate::record::Key;

/// A chain longer than this is walked under the lock: a walker may have been led astray by changes under its feet.
const STEPS: usize = 48;

enum Seen<'a> {
    /// The entry, its cell, and the pair before its key was compared.
    Entry(u32, &'a AtomicU128, u128),
    Nothing,
    /// Take the lock.
    Unsure,
}

/// An answer without the lock.
pub(super) enum Quick<T> {
    Found(T),
    Absent,
    /// Take the lock.
    Unsure,
}

fn same_generation(one: Meta, other: Meta) -> bool {
    one.0 >> Meta::GENERATION == other.0 >> Meta::GENERATION
}

impl Inner {
    #[inline]
    fn look(&self, key: Key<'_>, hash: u64) -> Seen<'_> {
        let area = &self.area;
        let shard = area.shard(shard_of(hash));
        let seq = shard.seq.load(Ordering::Acquire);
        let (cell, shift) = area.bucket(hash);
        let mut reference = (cell.load(Ordering::Acquire) >> shift) as u32;
        for _ in 0..STEPS {
            if reference == 0 {
                fence(Ordering::Acquire);
                let quiet = seq & 1 == 0 && shard.seq.load(Ordering::Relaxed) == seq;
                return if quiet { Seen::Nothing } else { Seen::Unsure };
            }
            if !area.in_arena(reference) {
                return Seen::Unsure;
            }
            let word = area.word(reference, 2).load(Ordering::Acquire);
            if (word >> 32) as u32 == tag_of(hash) {
                let cell = area.pair(reference);
                let before = cell.load(Ordering::Acquire);
                if area.key_is(reference, key) {
                    return Seen::Entry(reference, cell, before);
                }
            }
            reference = word as u32;
        }
        Seen::Unsure
    }

    /// Increments without the lock, if this is a plain hit.
    #[inline]
    pub(super) fn hit(&self, key: Key<'_>, hash: u64, by: i64, standing: Standing) -> Option<Counted> {
        let Seen::Entry(reference, cell, before) = self.look(key, hash) else { return None };
        let window = self.area.window(reference);
        let degraded = standing == Standing::Degraded || self.options.clustered && self.is_unheard();
        let set = self.flags(Meta::OWN | Meta::DIRTY | if degraded { Meta::PENDING } else { 0 });
        let (_, first) = unpair(before);
        let mut now = before;
        loop {
            let (value, meta) = unpair(now);
            if !meta.has(Meta::LIVE | Meta::COUNTER)
                || meta.0 & (Meta::CLAIMED | Meta::SHARES) != 0
                || !same_generation(meta, first)
            {
                return None;
            }
            let mut ttl_ms = None;
            if meta.deadline() != 0 {
                // Read after the pair: an increment never counts past the deadline it saw.
                ttl_ms = Some(meta.deadline().checked_sub(self.clock.now_ms()).filter(|left| *left > 0)?);
            }
            let value = value.checked_add(by)?;
            let swapped = pair(value, Meta(meta.0 | set));
            match cell.compare_exchange(now, swapped, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if set & !meta.0 & Meta::DIRTY != 0 {
                        self.hint(self.area.page_of(reference));
                    }
                    if set & !meta.0 & Meta::PENDING != 0 {
                        self.count_pending(false, true);
                    }
                    return Some(Counted { value, window, created: false, ttl_ms });
                }
                Err(other) => now = other,
            }
        }
    }

    /// The pair of a live entry that needs no lock to be understood.
    #[inline]
    fn peek(&self, key: Key<'_>, hash: u64) -> Quick<(i64, Meta)> {
        match self.look(key, hash) {
            Seen::Nothing => Quick::Absent,
            Seen::Unsure => Quick::Unsure,
            Seen::Entry(_, cell, before) => {
                fence(Ordering::Acquire);
                let (value, meta) = unpair(before);
                if !meta.has(Meta::LIVE) || !same_generation(meta, unpair(cell.load(Ordering::Acquire)).1) {
                    return Quick::Unsure;
                }
                Quick::Found((value, meta))
            }
        }
    }

    /// Reads a counter without the lock.
    #[inline]
    pub(super) fn peek_value(&self, key: Key<'_>, hash: u64) -> Quick<i64> {
        match self.peek(key, hash) {
            Quick::Found((_, meta)) if meta.expired(|| self.clock.now_ms()) => Quick::Absent,
            Quick::Found((value, meta)) if meta.has(Meta::COUNTER) && !meta.has(Meta::SHARES) => Quick::Found(value),
            Quick::Absent => Quick::Absent,
            _ => Quick::Unsure,
        }
    }

    /// Reads a deadline without the lock.
    #[inline]
    pub(super) fn peek_ttl(&self, key: Key<'_>, hash: u64) -> Quick<Ttl> {
        match self.peek(key, hash) {
            Quick::Found((_, meta)) if meta.deadline() == 0 => Quick::Found(Ttl::NoDeadline),
            Quick::Found((_, meta)) => match meta.deadline().checked_sub(self.clock.now_ms()) {
                Some(left) if left > 0 => Quick::Found(Ttl::Ms(left)),
                _ => Quick::Found(Ttl::NoKey),
            },
            Quick::Absent => Quick::Found(Ttl::NoKey),
            Quick::Unsure => Quick::Unsure,
        }
    }
}
