//! An entry as plain values, read and written back under the shard's lock.

use std::sync::atomic::{Ordering, fence};

use super::layout::{Meta, Shape, entry_class, shard_of, tag_of, unpair};
use super::shard::Locked;
use super::{Fail, Inner, RequestId, TOMBSTONE_GRACE_MS};
use crate::metrics::Lost;
use crate::record::{Body, Copy, Diverged, Key, KeyBuf, Share, State, Window};

/// The top bit of a sequence marks a share as ended: larger than any stamp, so it wins every join. The rest is when.
pub(super) const ENDED: u64 = 1 << 63;
/// A deadline that is earlier by less is the same one, as another host has told it.
const SHORTER_MS: u64 = 100;
/// More shares than this are refused as full.
pub(super) const SHARES_MAX: usize = 1_000;
/// Bytes of a share in a chain.
pub(super) const SHARE_LEN: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    /// This many bytes.
    Bytes(u32),
    /// A stub: this many bytes, which other hosts keep.
    Elsewhere(u32),
    Tombstone,
}

impl Kind {
    /// How many bytes the value has, here or elsewhere.
    pub fn len(self) -> Option<u32> {
        match self {
            Self::Bytes(len) | Self::Elsewhere(len) => Some(len),
            Self::Counter | Self::Tombstone => None,
        }
    }
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub kind: Kind,
    /// This segment's share of `window`; of a tombstone, what it was.
    pub own: i64,
    /// Among DIRTY, PENDING, OWN.
    pub flags: u64,
    /// Changed without an owner over the state (term, stamp).
    pub diverged: Option<Diverged>,
    /// Of a tombstone: when it may go.
    pub deadline: u64,
    pub window: Window,
    pub stamp: u64,
    pub term: u64,
    /// Other shares that count, ended marks included. Of a tombstone: that counted.
    pub shares: Vec<Share>,
    /// Shares that are part of others by now, see `fold`.
    pub folds: Vec<Share>,
}

/// Origin of the record that keeps what is known of a diverged change, in the chain behind the shares.
const DIVERGED_ORIGIN: u64 = 0;

/// What to do with the entry's chain.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// Shares and bytes are as they were.
    Keep,
    /// Write `Item::shares`.
    Shares,
    /// Write `Item::shares` and these bytes.
    Bytes(&'a [u8]),
    /// No chain, and no memory needed: the shares are forgotten.
    Drop,
}

/// A mark that the windows of `window.origin` up to this one have ended. It has no amount.
pub(super) fn ended_mark(window: Window, at: u64) -> Share {
    Share { origin: window.origin, window, sequence: ENDED | at, amount: 0 }
}

pub(super) fn is_mark(share: &Share) -> bool {
    share.sequence & ENDED != 0
}

/// A sum as scripts see it: shares that were counted apart may add up to more than fits.
pub(super) fn clamped(sum: i128) -> i64 {
    sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl Item {
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.kind != Kind::Tombstone && (self.deadline == 0 || now_ms < self.deadline)
    }

    /// Whether it was there, and its deadline has passed.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.kind != Kind::Tombstone && !self.is_live(now_ms)
    }

    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Makes this a tombstone until `deadline`. The shares stay where they are, which needs no memory.
    pub fn end(&mut self, deadline: u64) -> Content<'static> {
        let content = if self.kind.len().is_some() { Content::Drop } else { Content::Keep };
        if matches!(content, Content::Drop) {
            self.shares.clear();
        }
        (self.kind, self.deadline) = (Kind::Tombstone, deadline);
        content
    }

    /// The sum of all but the own share.
    pub fn foreign(&self, me: u64) -> i128 {
        let base = self.diverged.map_or(0, |diverged| i128::from(diverged.amount));
        self.shares.iter().map(|share| i128::from(share.amount)).sum::<i128>() + base + self.fold_net(me)
    }

    /// The value of a counter in the segment `me`.
    pub fn total(&self, me: u64) -> i64 {
        clamped(self.foreign(me) + i128::from(self.own))
    }

    /// Makes this a change without an owner, over the state that was there.
    pub fn diverge(&mut self, diverged: Diverged) {
        self.diverged = Some(diverged);
        self.flags |= Meta::PENDING | Meta::DIRTY;
    }

    /// The change is the owner's now: an integer that was set becomes its share.
    pub fn converge(&mut self) {
        if let Some(Diverged { amount, .. }) = self.diverged.take()
            && amount != 0
        {
            self.own = self.own.saturating_add(amount);
            self.flags |= Meta::OWN;
        }
    }

    /// What is kept in the chain.
    pub fn records(&self) -> Vec<Share> {
        let mut records = self.shares.clone();
        if self.kind.len().is_none() {
            records.extend_from_slice(&self.folds);
        }
        if let Some(Diverged { at, amount, sets }) = self.diverged.filter(|diverged| diverged.at != 0) {
            let window = Window { stamp: sets.into(), origin: 0 };
            records.push(Share { origin: DIVERGED_ORIGIN, window, sequence: at, amount });
        }
        records
    }

    /// How much of its own nobody else knows: what is lost if the window ends here and now.
    pub fn own_amount(&self, origin: u64) -> u64 {
        let explicit = self.shares.iter().filter(|share| share.origin == origin && !is_mark(share));
        explicit.map(|share| share.amount.unsigned_abs()).sum::<u64>() + self.own.unsigned_abs()
    }

    /// Marks for the windows that end when one of `origin` begins, and earlier marks that are still young.
    pub fn marks_for(&self, origin: u64, now: u64) -> Vec<Share> {
        let mut marks: Vec<Share> = Vec::new();
        let mut add = |mark: Share| match marks.iter_mut().find(|have| have.origin == mark.origin) {
            Some(have) if have.window.stamp < mark.window.stamp => *have = mark,
            Some(_) => {}
            None => marks.push(mark),
        };
        for share in &self.shares {
            if is_mark(share) {
                let age_ms = (now >> 16).saturating_sub((share.sequence & !ENDED) >> 16);
                if share.origin != origin && age_ms < TOMBSTONE_GRACE_MS {
                    add(*share);
                }
            } else if share.window.origin != origin {
                add(ended_mark(share.window, now));
            }
        }
        if self.window.origin != origin {
            add(ended_mark(self.window, now));
        }
        marks
    }
}

impl Inner {
    pub(super) fn hlc(&self) -> u64 {
        self.area.segment().hlc(&self.clock)
    }

    pub(super) fn origin(&self) -> u64 {
        self.area.segment().origin()
    }

    /// Where the flags that only a cluster needs are masked out without one.
    pub(super) fn flags(&self, flags: u64) -> u64 {
        if self.options.clustered { flags } else { flags & Meta::OWN }
    }

    /// Until when a tombstone that is made now is kept, at the most.
    pub(super) fn grace_deadline(&self, now_ms: u64) -> u64 {
        self.deadline(now_ms, Some(TOMBSTONE_GRACE_MS))
    }

    pub(super) fn deadline(&self, now_ms: u64, ttl_ms: Option<u64>) -> u64 {
        ttl_ms.map_or(0, |ttl| now_ms.saturating_add(ttl).min(Meta::DEADLINE_MAX))
    }

    /// Whether counts as an owner are not home either, see [`crate::segment::table::Table::is_heard`].
    #[inline]
    pub(super) fn is_unheard(&self) -> bool {
        !self.area.segment().table().is_heard()
    }

    pub(super) fn lose(&self, amount: u64) {
        if amount != 0 {
            self.area.segment().metrics().lose(Lost::WindowEnded, amount);
        }
    }

    pub(super) fn count_pending(&self, before: bool, after: bool) {
        let pending = &self.area.global().pending;
        if after && !before {
            pending.fetch_add(1, Ordering::Relaxed);
        } else if before && !after {
            let _ = pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }
}

impl Locked<'_> {
    /// The entry of a key, tombstones included.
    pub fn find(&self, key: Key<'_>, hash: u64) -> Option<u32> {
        let (cell, shift) = self.area.bucket(hash);
        let mut reference = (cell.load(Ordering::Acquire) >> shift) as u32;
        while reference != 0 {
            let word = self.area.word(reference, 2).load(Ordering::Acquire);
            if (word >> 32) as u32 == tag_of(hash) && self.area.key_is(reference, key) {
                return Some(reference);
            }
            reference = word as u32;
        }
        None
    }

    /// Reads an entry. Its counter must be claimed if the answer is to stay true.
    pub fn load(&self, reference: u32) -> Item {
        let (value, meta) = unpair(self.area.pair(reference).load(Ordering::Acquire));
        let shape = Shape::decode(self.area.word(reference, 7).load(Ordering::Relaxed));
        let (kind, shares) = if !meta.has(Meta::LIVE) {
            (Kind::Tombstone, usize::MAX)
        } else if meta.has(Meta::COUNTER) {
            (Kind::Counter, usize::MAX)
        } else {
            let kind = if meta.has(Meta::ELSEWHERE) { Kind::Elsewhere } else { Kind::Bytes };
            (kind(value as u32), (value as u64 >> 32) as usize)
        };
        let mut shares =
            if shape.chain == 0 || shares == 0 { Vec::new() } else { self.load_shares(shape.chain, shares) };
        let record = shares.iter().position(|share| share.origin == DIVERGED_ORIGIN).map(|at| shares.remove(at));
        let folds = shares.extract_if(.., |share| share.is_fold()).collect();
        let known = record.map_or(Diverged { at: 0, amount: 0, sets: false }, |record| Diverged {
            at: record.sequence,
            amount: record.amount,
            sets: record.window.stamp != 0,
        });
        Item {
            kind,
            own: if kind.len().is_some() { 0 } else { value },
            flags: meta.0 & (Meta::DIRTY | Meta::PENDING | Meta::OWN),
            diverged: (shape.flags & Shape::DIVERGED != 0).then_some(known),
            deadline: meta.deadline(),
            window: self.area.window(reference),
            stamp: self.area.word(reference, 5).load(Ordering::Relaxed),
            term: self.area.word(reference, 6).load(Ordering::Relaxed),
            shares,
            folds,
        }
    }

    fn load_shares(&self, chain: u32, at_most: usize) -> Vec<Share> {
        let mut bytes = Vec::new();
        self.read_chain(chain, at_most.saturating_mul(SHARE_LEN), &mut bytes);
        let word = |share: &[u8], i: usize| share[i * 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let share = |share: &[u8]| Share {
            origin: word(share, 0),
            window: Window { stamp: word(share, 1), origin: word(share, 2) },
            sequence: word(share, 3),
            amount: word(share, 4) as i64,
        };
        bytes.chunks_exact(SHARE_LEN).take(at_most).map(share).collect()
    }

    /// The bytes of an entry that holds bytes.
    pub fn load_bytes(&self, reference: u32, item: &Item) -> Vec<u8> {
        let shape = Shape::decode(self.area.word(reference, 7).load(Ordering::Relaxed));
        let Kind::Bytes(len) = item.kind else { return Vec::new() };
        let (value, _) = unpair(self.area.pair(reference).load(Ordering::Acquire));
        let skip = (value as u64 >> 32) as usize * SHARE_LEN;
        let mut bytes = Vec::with_capacity(skip + len as usize);
        self.read_chain(shape.chain, usize::MAX, &mut bytes);
        bytes.drain(..skip);
        bytes
    }

    /// What to write for an entry whose value stays and whose records have changed.
    pub fn content_of<'a>(&self, reference: u32, item: &Item, bytes: &'a mut Vec<u8>) -> Content<'a> {
        if !matches!(item.kind, Kind::Bytes(_)) {
            return Content::Shares;
        }
        *bytes = self.load_bytes(reference, item);
        Content::Bytes(bytes)
    }

    /// Writes an entry, in `at` or a new one, in one transaction, together with the mark of the request, if any.
    /// Errors leave everything as it was.
    pub fn save(
        &mut self,
        key: Key<'_>,
        hash: u64,
        at: Option<u32>,
        item: &Item,
        content: Content<'_>,
        request: Option<RequestId>,
    ) -> Result<u32, Fail> {
        let saved = self.try_save(key, hash, at, item, content, request);
        if saved.is_err() {
            self.abort();
        }
        saved
    }

    fn try_save(
        &mut self,
        key: Key<'_>,
        hash: u64,
        at: Option<u32>,
        item: &Item,
        content: Content<'_>,
        request: Option<RequestId>,
    ) -> Result<u32, Fail> {
        debug_assert_eq!(shard_of(hash), self.index);
        let records = item.records();
        if records.len() > SHARES_MAX {
            return Err(Fail::Refused(crate::error::Refusal::MemoryFull));
        }
        let area = self.area;
        let old = at.map(|reference| Shape::decode(area.word(reference, 7).load(Ordering::Relaxed)));
        let old_chain = old.map_or(0, |shape| shape.chain);
        let mut encoded = Vec::new();
        if matches!(content, Content::Shares | Content::Bytes(_)) {
            for share in &records {
                let words =
                    [share.origin, share.window.stamp, share.window.origin, share.sequence, share.amount as u64];
                words.iter().for_each(|word| encoded.extend_from_slice(&word.to_le_bytes()));
            }
        }
        let chain = match content {
            Content::Keep => old_chain,
            Content::Drop => 0,
            Content::Shares => self.build(&encoded, &[])?,
            Content::Bytes(bytes) => self.build(&encoded, bytes)?,
        };
        let key_len = key.namespace.len() + key.name.len();
        let class = entry_class(key_len);
        if at.is_none() {
            self.reserve(class)?;
        }
        if let Some(request) = request {
            self.take_global()?;
            if !self.mark_applied(request) {
                return Err(Fail::Handled);
            }
        }
        let diverged = if item.diverged.is_some() { Shape::DIVERGED } else { 0 };
        let shortened = if self.shortens(at, item) { Shape::SHORTENED } else { 0 };
        let shape = Shape {
            chain,
            key_len: key_len as u16,
            namespace_len: key.namespace.len() as u8,
            flags: diverged | shortened | Shape::REFERENCED,
        };
        let words = [item.window.stamp, item.window.origin, item.stamp, item.term, shape.encode()];
        let reference = at.unwrap_or_else(|| self.alloc(class));
        let (_, old_meta) = unpair(area.pair(reference).load(Ordering::Acquire));
        let meta = old_meta.next(item.deadline, self.meta_flags(item));
        let value = match item.kind {
            Kind::Bytes(len) | Kind::Elsewhere(len) => (u64::from(len) | (records.len() as u64) << 32) as i64,
            Kind::Counter | Kind::Tombstone => item.own,
        };
        if at.is_none() {
            // Nobody can reach it, so its words need no journal; but lock-free readers may still stand on it, who must
            // see it dead before they see the new key.
            fence(Ordering::Release);
            words.iter().enumerate().for_each(|(i, word)| area.word(reference, 3 + i).store(*word, Ordering::Relaxed));
            area.write_key(reference, key);
            self.put_pair(reference, value, meta);
            let (bucket, shift) = area.bucket(hash);
            let buckets = bucket.load(Ordering::Relaxed);
            let first = (buckets >> shift) as u32;
            self.put(area.word(reference, 2), u64::from(first) | u64::from(tag_of(hash)) << 32);
            self.put(bucket, buckets & !(0xffff_ffff << shift) | u64::from(reference) << shift);
        } else {
            for (i, word) in words.iter().enumerate() {
                if area.word(reference, 3 + i).load(Ordering::Relaxed) != *word {
                    self.put(area.word(reference, 3 + i), *word);
                }
            }
            self.put_pair(reference, value, meta);
        }
        self.put_counts(at.map(|_| old_meta), Some(meta));
        if chain != old_chain {
            if old_chain != 0 {
                self.put(&self.shard.freeing, u64::from(old_chain));
            }
            if chain != 0 {
                self.put(&self.shard.building, 0);
            }
        }
        self.finish();
        self.inner.count_pending(at.is_some() && old_meta.has(Meta::PENDING), meta.has(Meta::PENDING));
        if meta.has(Meta::DIRTY) {
            self.inner.hint(area.page_of(reference));
        }
        if let Some(request) = request {
            self.inner.applied[self.index].lock().push((request.stream, request.id));
        }
        // A busy global lock leaves the rest to the shard's next holder.
        let _ = self.drain_freeing();
        Ok(reference)
    }

    /// Whether a copy of what was there before may live on when this has expired.
    fn shortens(&self, at: Option<u32>, item: &Item) -> bool {
        let outlives = |at: u32| {
            let (_, meta) = unpair(self.area.pair(at).load(Ordering::Relaxed));
            // A tombstone's deadline is when it may go: until then there may be copies of what it ended.
            item.deadline != 0 && (meta.deadline() == 0 || meta.deadline() > item.deadline + SHORTER_MS)
        };
        // What a change made apart was made over is the owner's, whatever this host has of it.
        let apart = item.diverged.is_some();
        item.kind != Kind::Tombstone
            && (apart || at.is_some_and(|at| self.has_flag(at, Shape::SHORTENED) || outlives(at)))
    }

    /// Whether the entry has this flag of [`Shape`].
    pub fn has_flag(&self, at: u32, flag: u8) -> bool {
        Shape::decode(self.area.word(at, 7).load(Ordering::Relaxed)).flags & flag != 0
    }

    fn meta_flags(&self, item: &Item) -> u64 {
        let flags = self.inner.flags(item.flags);
        match item.kind {
            Kind::Tombstone => flags,
            Kind::Bytes(_) | Kind::Elsewhere(_) => {
                let pending = if item.diverged.is_some() { 0 } else { Meta::PENDING };
                let elsewhere = if matches!(item.kind, Kind::Elsewhere(_)) { Meta::ELSEWHERE } else { 0 };
                flags & !(Meta::OWN | pending) | Meta::LIVE | elsewhere
            }
            Kind::Counter => {
                let base = item.diverged.is_some_and(|diverged| diverged.amount != 0);
                let others =
                    base || item.fold_net(self.inner.origin()) != 0 || item.shares.iter().any(|share| !is_mark(share));
                flags | Meta::LIVE | Meta::COUNTER | if others { Meta::SHARES } else { 0 }
            }
        }
    }

    /// Keeps the shard's counts when an entry changes from one meta to another (`None`: not there).
    pub fn put_counts(&mut self, from: Option<Meta>, to: Option<Meta>) {
        let kinds = |meta: Option<Meta>| {
            meta.map_or([0, 0, 0], |meta| {
                let live = meta.has(Meta::LIVE);
                [u64::from(live), u64::from(meta.has_bytes()), u64::from(!live)]
            })
        };
        let cells = [&self.shard.live, &self.shard.live_bytes, &self.shard.tombstones];
        for ((cell, from), to) in cells.into_iter().zip(kinds(from)).zip(kinds(to)) {
            if from != to {
                self.put(cell, cell.load(Ordering::Relaxed) + to - from);
            }
        }
    }

    /// Frees an entry with all it has. Not to be called with writes pending.
    pub fn free_entry(&mut self, reference: u32) {
        let area = self.area;
        let (_, meta) = self.claim(reference);
        let mut bytes = Vec::new();
        let namespace_len = area.read_key(reference, &mut bytes);
        let (namespace, name) = bytes.split_at(namespace_len);
        let hash = area.hash(Key { namespace, name });
        let next = area.word(reference, 2).load(Ordering::Relaxed) & 0xffff_ffff;
        let (bucket, shift) = area.bucket(hash);
        let buckets = bucket.load(Ordering::Relaxed);
        let mut at = (buckets >> shift) as u32;
        if at == reference {
            self.put(bucket, buckets & !(0xffff_ffff << shift) | next << shift);
        } else {
            loop {
                let word = area.word(at, 2).load(Ordering::Relaxed);
                if word as u32 == reference {
                    self.put(area.word(at, 2), word & !0xffff_ffff | next);
                    break;
                }
                at = word as u32;
            }
        }
        let chain = Shape::decode(area.word(reference, 7).load(Ordering::Relaxed)).chain;
        self.put_pair(reference, 0, meta.next(0, 0));
        self.free(reference);
        self.put_counts(Some(meta), None);
        if chain != 0 {
            self.put(&self.shard.freeing, u64::from(chain));
        }
        self.finish();
        self.inner.count_pending(meta.has(Meta::PENDING), false);
        let _ = self.drain_freeing();
    }

    /// The state of an entry as it leaves the host, the own share with a fresh sequence. `None`: expired.
    pub fn state_of(&self, reference: u32, item: &Item, now_ms: u64) -> Option<State> {
        self.state_with(reference, item, now_ms, true)
    }

    /// The same, with or without the bytes of an entry that holds bytes.
    pub fn state_with(&self, reference: u32, item: &Item, now_ms: u64, whole: bool) -> Option<State> {
        let ttl_ms = match item.kind {
            Kind::Tombstone => None,
            _ if item.deadline == 0 => None,
            _ => Some(item.deadline.checked_sub(now_ms).filter(|left| *left > 0)?),
        };
        let shares = || {
            let mut shares = item.shares.clone();
            if item.kind == Kind::Counter {
                shares.extend_from_slice(&item.folds);
            }
            if item.has(Meta::OWN) {
                let (origin, sequence) = (self.inner.origin(), self.inner.hlc());
                shares.push(Share { origin, window: item.window, sequence, amount: item.own });
            }
            shares
        };
        let body = match item.kind {
            Kind::Counter => Body::Counter(shares()),
            Kind::Tombstone => Body::Tombstone(shares()),
            Kind::Elsewhere(len) => Body::Elsewhere { len },
            Kind::Bytes(len) if !whole => Body::Elsewhere { len },
            Kind::Bytes(_) => Body::Bytes(self.load_bytes(reference, item).into()),
        };
        let (term, stamp, window, diverged) = (item.term, item.stamp, item.window, item.diverged);
        Some(State { term, stamp, window, ttl_ms, diverged, body })
    }

    /// An entry with its key, as it leaves the host.
    pub fn copy_of(&self, reference: u32, item: &Item, now_ms: u64) -> Option<Copy> {
        let state = self.state_of(reference, item, now_ms)?;
        let mut bytes = Vec::new();
        let namespace_len = self.area.read_key(reference, &mut bytes);
        Some(Copy { key: KeyBuf::from_parts(bytes.into(), namespace_len)?, state })
    }
}
