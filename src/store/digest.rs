//! What the entries of each slot come to, in one number: two hosts whose numbers differ hold different things.
//!
//! A digest is the sum of a hash per live entry, so it does not depend on their order. In the hash is what all copies
//! have in common: key, value (a counter's sum; bytes only if short, since of long ones some hosts have stubs), whether
//! there is a deadline, term, stamp and window. Tombstones are left out: each host keeps them as long as it must, and
//! one that is missing shows where it matters, by the copy it should have ended.

use xxhash_rust::xxh3::xxh3_64;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Store;
use super::drain::Stuck;
use super::item::{Kind, is_mark};
use super::layout::{Meta, shard_of, unpair};
use super::shard::Locked;
use crate::placement;
use crate::record::{Body, Copy, Key, KeyBuf, Share, State};
use crate::segment::table::{Owner, SLOTS};

/// Most counters with shares of unknown segments that a pass lists.
pub const SHARED_MAX: usize = 4_096;

/// A pass over all entries, in steps.
pub struct Digests {
    page: usize,
    small_max: u32,
    sums: Vec<u64>,
    remembered: BTreeSet<u64>,
    shared: Vec<(KeyBuf, Vec<u64>)>,
    missed: bool,
}

impl Digests {
    /// A pass that has not begun, with bytes of up to `small_max` in it. Segments of members are `remembered`.
    pub fn new(small_max: u32, remembered: BTreeSet<u64>) -> Self {
        Self { page: 0, small_max, sums: vec![0; SLOTS], remembered, shared: Vec::new(), missed: false }
    }

    /// The digest of a slot, once the pass has ended.
    pub fn of(&self, slot: u16) -> u64 {
        self.sums.get(slot as usize).copied().unwrap_or(0)
    }

    /// Counters that this host owns with shares of segments that are not remembered, and whose (none: old folds are all
    /// there is to do); at most [`SHARED_MAX`].
    pub fn shared(&self) -> &[(KeyBuf, Vec<u64>)] {
        &self.shared
    }

    /// Whether a stopped process held a part of the store, so that the digests say nothing.
    pub fn missed(&self) -> bool {
        self.missed
    }

    /// Bytes up to this length are in it.
    pub fn small_max(&self) -> u32 {
        self.small_max
    }
}

impl Locked<'_> {
    /// The slot and the hash of an entry, unless it has ended. `key` is scratch space.
    fn digest(&self, reference: u32, pass: &mut Digests, now_ms: u64, key: &mut Vec<u8>) -> Option<(u16, u64)> {
        let item = self.load(reference);
        if !item.is_live(now_ms) {
            return None;
        }
        let small_max = pass.small_max;
        let namespace_len = self.area.read_key(reference, key);
        let unknown = item.shares.iter().filter(|share| !is_mark(share) && !pass.remembered.contains(&share.origin));
        let origins: Vec<u64> = unknown.map(|share| share.origin).collect();
        let slot = placement::slot(&key[namespace_len..]);
        let table = self.area.segment().table();
        let mine = || matches!(table.owner(slot), Owner::Member(index) if Some(index) == table.self_index());
        let now_s = self.inner.clock.wall_ms() / 1_000;
        if (!origins.is_empty() || item.has_old_folds(now_s)) && pass.shared.len() < SHARED_MAX && mine() {
            let (namespace, name) = key.split_at(namespace_len);
            pass.shared.push((KeyBuf::new(Key { namespace, name }), origins));
        }
        let value = match item.kind {
            Kind::Counter => item.total(self.inner.origin()) as u64,
            Kind::Bytes(len) if len <= small_max => xxh3_64(&self.load_bytes(reference, &item)),
            Kind::Bytes(len) | Kind::Elsewhere(len) => u64::from(len),
            Kind::Tombstone => return None,
        };
        let words = [
            namespace_len as u64,
            u64::from(item.kind == Kind::Counter),
            value,
            u64::from(item.deadline != 0),
            item.term,
            item.stamp,
            item.window.stamp,
            item.window.origin,
        ];
        words.iter().for_each(|word| key.extend_from_slice(&word.to_le_bytes()));
        Some((slot, xxh3_64(key)))
    }
}

impl Store {
    /// Looks at `pages` more that have entries; `true`: the pass has ended.
    pub fn digest(&self, pass: &mut Digests, pages: usize) -> bool {
        let (area, now_ms) = (&self.inner.area, self.inner.clock.now_ms());
        let (mut stuck, mut key, mut left) = (Stuck::default(), Vec::new(), pages);
        while pass.page < area.page_count && left > 0 {
            let page = pass.page;
            pass.page += 1;
            let Some(shard) = area.page_state(page).entries_of() else { continue };
            left -= 1;
            let Some(locked) = stuck.lock(&self.inner, shard) else {
                pass.missed = true;
                continue;
            };
            let state = area.page_state(page);
            for index in 0..state.carved as usize {
                let reference = area.reference(page, state.class as usize, index);
                let (_, meta) = unpair(area.pair(reference).load(Ordering::Acquire));
                if !meta.has(Meta::LIVE) {
                    continue;
                }
                if let Some((slot, hash)) = locked.digest(reference, pass, now_ms, &mut key) {
                    let sum = &mut pass.sums[slot as usize];
                    *sum = sum.wrapping_add(hash);
                }
            }
        }
        pass.page >= area.page_count
    }

    /// Whether this host's copy says something else than `copy`, of the segment `owner`, although it claims to be the same
    /// state, which no join puts right.
    pub fn contradicts(&self, copy: &Copy, owner: u64) -> bool {
        let Some(mine) = self.state_up_to(copy.key.as_key(), u32::MAX) else { return false };
        let theirs = &copy.state;
        (mine.term, mine.stamp, mine.window) == (theirs.term, theirs.stamp, theirs.window)
            && differ(&mine, theirs, self.segment().origin(), owner)
    }

    /// This host's state of a counter, if it has a later share than `copy`, its owner's, of anybody but the segments
    /// `told_by` (which tell theirs themselves): of a host that is gone, and that could tell this one only.
    pub fn beyond(&self, copy: &Copy, told_by: &[u64]) -> Option<State> {
        let (Body::Counter(theirs), mine) = (&copy.state.body, self.state(copy.key.as_key())?) else { return None };
        let Body::Counter(shares) = &mine.body else { return None };
        let later = |share: &Share| {
            let same = |their: &&Share| their.origin == share.origin && their.window == share.window;
            let older = |their: &Share| their.sequence < share.sequence && their.amount != share.amount;
            !told_by.contains(&share.origin) && theirs.iter().find(same).is_none_or(older)
        };
        let counts = |share: &&Share| !is_mark(share) && !share.is_fold();
        (mine.window == copy.state.window && shares.iter().filter(counts).any(later)).then_some(mine)
    }

    /// This host's state of a key, if it comes after `copy`, which its owner since `term` has shown: of an owner before it.
    /// What the owner itself has written since then comes after it, too.
    pub fn outranks(&self, copy: &Copy, term: u64) -> Option<State> {
        let mine = self.state(copy.key.as_key())?;
        let is_news = mine.term < term && mine.comes_after(&copy.state);
        (is_news && !self.has_own_business(copy.key.as_key())).then_some(mine)
    }

    /// Whether this host has something of a key that no owner has taken in: a share, or a diverged write.
    pub fn has_own_business(&self, key: Key<'_>) -> bool {
        let hash = self.inner.area.hash(key);
        let Ok(locked) = self.inner.lock(shard_of(hash)) else { return true };
        let Some(reference) = locked.find(key, hash) else { return false };
        let item = locked.load(reference);
        item.diverged.is_some() || item.has(Meta::PENDING)
    }

    /// Whether a key began, or was changed other than by counting, within the last `ms` milliseconds of the hosts' common
    /// clock.
    pub fn changed_within(&self, state: &State, ms: u64) -> bool {
        state.stamp >> 16 >= (self.inner.hlc() >> 16).saturating_sub(ms)
    }

    /// Drops this host's copy of a key, as if it had never come. A copy with something of this host's own stays, and
    /// `false` is returned.
    pub fn drop_copy(&self, key: Key<'_>) -> bool {
        let hash = self.inner.area.hash(key);
        let dropped = self.attempt(hash, |locked| {
            let Some(reference) = locked.find(key, hash) else { return Ok(false) };
            locked.claim(reference);
            let item = locked.load(reference);
            locked.unclaim();
            if item.diverged.is_some() || item.has(Meta::PENDING) {
                return Ok(false);
            }
            locked.free_entry(reference);
            Ok(true)
        });
        dropped.unwrap_or(false)
    }
}

fn differ(mine: &State, theirs: &State, me: u64, owner: u64) -> bool {
    let window = theirs.window;
    match (&mine.body, &theirs.body) {
        (Body::Counter(mine), Body::Counter(theirs)) => {
            // What has come since `theirs` was read is newer, not wrong. The own share is always the latest.
            let newer = |share: &Share| {
                let same = |their: &&Share| their.origin == share.origin && their.window == share.window;
                // The owner counts in no former window: what it says of a share of its own there is the last word, and one
                // that it does not have (any more) has ended.
                let former = share.origin == owner && share.window != window;
                // Whoever sends its own share gives it a fresh sequence, also where nothing was counted.
                let older = |their: &Share| their.sequence < share.sequence && their.amount != share.amount;
                share.origin != me && !former && theirs.iter().find(same).is_none_or(older)
            };
            if mine.iter().chain(theirs).any(Share::is_fold) || mine.iter().any(newer) {
                return false;
            }
            let sum = |shares: &[Share]| shares.iter().map(|share| i128::from(share.amount)).sum::<i128>();
            sum(mine) != sum(theirs)
        }
        (Body::Tombstone(_), Body::Tombstone(_)) => false,
        (Body::Elsewhere { .. }, Body::Bytes(_)) | (Body::Bytes(_), Body::Elsewhere { .. }) => false,
        (mine, theirs) => mine != theirs,
    }
}
