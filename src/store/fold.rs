//! Folding: shares of segments that are gone for good become part of the owner's, so that an entry stays small.
//!
//! The owner adds the amount of a share to its own and leaves a *fold* in its place: how much it took over from whom, up
//! to which sequence. Both are written in one transaction and travel in one state, so no copy has one without the
//! other. A late copy of the share up to that sequence is covered by the fold and counts nothing; a later one (the
//! segment is not gone after all) counts what it has beyond it. Two owners that have folded the same share on two sides
//! of a split leave a fold each, and what was taken over twice is taken off. So folds join like shares do.
//!
//! A fold is a share by form: origin is the segment folded; the window's stamp holds a hash of the window's (32 bits) and
//! when it was folded (seconds since 1970), the window's origin is the segment folded into; the sequence has bit 62 set.

use super::item::{Content, Item, Kind, is_mark};
use super::layout::Meta;
use super::shard::Locked;
use super::{Fail, Store};
use crate::record::{FOLDED, Key, Share, Window};

/// How long a fold is kept, in seconds: copies of what it covers are on no host by then that has not started clean.
pub const FOLD_KEPT_S: u64 = 3_600;

/// Stands for a window in its folds.
fn life(window: Window) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&window.stamp.to_le_bytes());
    bytes[8..].copy_from_slice(&window.origin.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes) >> 32
}

fn life_of(fold: &Share) -> u64 {
    fold.window.stamp >> 32
}

fn is_old(fold: &Share, now_s: u64) -> bool {
    now_s.saturating_sub(fold.window.stamp & 0xffff_ffff) >= FOLD_KEPT_S
}

fn covers(fold: &Share, share: &Share) -> bool {
    fold.origin == share.origin && life_of(fold) == life(share.window) && fold.sequence & !FOLDED >= share.sequence
}

impl Item {
    /// Joins a fold; whether it was new.
    pub fn join_fold(&mut self, fold: Share) -> bool {
        let same = |have: &&mut Share| {
            have.origin == fold.origin && have.window.origin == fold.window.origin && life_of(have) == life_of(&fold)
        };
        match self.folds.iter_mut().find(same) {
            Some(have) if have.sequence < fold.sequence => *have = fold,
            Some(_) => return false,
            None => self.folds.push(fold),
        }
        true
    }

    /// Whether a share is part of another by now.
    pub fn is_folded(&self, share: &Share) -> bool {
        !is_mark(share) && self.folds.iter().any(|fold| covers(fold, share))
    }

    /// Whether this much of `origin` in `window` is part of another's share.
    pub fn has_folded(folds: &[Share], origin: u64, window: Window, amount: i64) -> bool {
        let it = |fold: &&Share| fold.is_fold() && fold.origin == origin && life_of(fold) == life(window);
        folds.iter().filter(it).max_by_key(|fold| fold.sequence).is_some_and(|fold| fold.amount == amount)
    }

    /// What `origin` had counted in the live window when it was folded.
    pub fn folded_amount(&self, origin: u64) -> Option<i64> {
        let live = life(self.window);
        let mine = self.folds.iter().filter(|fold| fold.origin == origin && life_of(fold) == live);
        mine.max_by_key(|fold| fold.sequence).map(|fold| fold.amount)
    }

    /// Whether there are folds that may be dropped.
    pub fn has_old_folds(&self, now_s: u64) -> bool {
        self.folds.iter().any(|fold| is_old(fold, now_s))
    }

    /// Drops what folds cover, folds of windows that are gone, and old ones.
    pub fn tidy_folds(&mut self, me: u64, now_s: u64) {
        if self.folds.is_empty() {
            return;
        }
        let mut lives = vec![life(self.window)];
        lives.extend(self.shares.iter().filter(|share| !is_mark(share)).map(|share| life(share.window)));
        self.folds.retain(|fold| lives.contains(&life_of(fold)));
        let folds = std::mem::take(&mut self.folds);
        self.shares.retain(|share| is_mark(share) || !folds.iter().any(|fold| covers(fold, share)));
        let counts_on = |fold: &Share| {
            let inline = fold.origin == me && self.has(Meta::OWN) && life_of(fold) == life(self.window);
            inline
                || self.shares.iter().any(|s| !is_mark(s) && s.origin == fold.origin && life(s.window) == life_of(fold))
        };
        let alone =
            |fold: &Share| folds.iter().filter(|f| f.origin == fold.origin && life_of(f) == life_of(fold)).count() == 1;
        self.folds =
            folds.iter().copied().filter(|fold| !is_old(fold, now_s) || counts_on(fold) || !alone(fold)).collect();
    }

    /// What folds add to the sum of the shares: the latest amount of each segment folded, unless a share has it, less
    /// what others' shares have taken over of it.
    pub fn fold_net(&self, me: u64) -> i128 {
        let mut net = 0;
        for (index, first) in self.folds.iter().enumerate() {
            let same = |fold: &&Share| fold.origin == first.origin && life_of(fold) == life_of(first);
            if self.folds[..index].iter().any(|fold| same(&fold)) {
                continue;
            }
            let group = || self.folds.iter().filter(same);
            net -= group().map(|fold| i128::from(fold.amount)).sum::<i128>();
            let inline = first.origin == me && self.has(Meta::OWN) && life_of(first) == life(self.window);
            let share = |s: &&Share| !is_mark(s) && s.origin == first.origin && life(s.window) == life_of(first);
            if !inline && !self.shares.iter().any(|s| share(&s)) {
                net += group().max_by_key(|fold| fold.sequence).map_or(0, |fold| i128::from(fold.amount));
            }
        }
        net
    }
}

impl Locked<'_> {
    /// Folds the shares of the live window that `gone` segments have counted; whether anything has changed.
    fn fold(&mut self, key: Key<'_>, hash: u64, term: u64, gone: &dyn Fn(u64) -> bool) -> Result<bool, Fail> {
        let Some(reference) = self.find(key, hash) else { return Ok(false) };
        self.claim(reference);
        let before = self.load(reference);
        let mut item = before.clone();
        let (me, now) = (self.inner.origin(), self.inner.hlc());
        let live = item.is_live(self.inner.clock.now_ms());
        if !live || item.kind != Kind::Counter || item.diverged.is_some() || item.term > term {
            self.unclaim();
            return Ok(false);
        }
        let now_s = (now >> 16) / 1_000;
        item.tidy_folds(me, now_s);
        let due = |share: &&Share| {
            !is_mark(share)
                && share.window == item.window
                && share.origin != me
                && share.origin != 0
                && gone(share.origin)
        };
        for share in item.shares.iter().filter(due).copied().collect::<Vec<Share>>() {
            item.take_over(share, me, now_s);
        }
        if item == before {
            self.unclaim();
            return Ok(false);
        }
        item.tidy_folds(me, now_s);
        item.flags |= Meta::DIRTY;
        self.save(key, hash, Some(reference), &item, Content::Shares, None)?;
        Ok(true)
    }
}

impl Item {
    /// Makes `share` part of the own share, unless the sum does not fit or another owner has taken over some of it.
    fn take_over(&mut self, share: Share, me: u64, now_s: u64) {
        let stamp = life(self.window) << 32 | now_s & 0xffff_ffff;
        let window = Window { stamp, origin: me };
        let group = |fold: &&Share| fold.origin == share.origin && life_of(fold) == stamp >> 32;
        if self.folds.iter().filter(group).any(|fold| fold.window.origin != me) {
            return;
        }
        let taken = self.folds.iter().find(group).map_or(0, |fold| fold.amount);
        let own = share.amount.checked_sub(taken).and_then(|more| self.own.checked_add(more));
        if let Some(own) = own {
            (self.own, self.flags) = (own, self.flags | Meta::OWN);
            let sequence = FOLDED | share.sequence;
            self.join_fold(Share { origin: share.origin, window, sequence, amount: share.amount });
        }
    }
}

impl Store {
    /// This segment owns the key's slot since `term`: makes the shares of segments that are `gone` part of its own.
    /// Whether any was.
    pub fn fold(&self, key: Key<'_>, term: u64, gone: &dyn Fn(u64) -> bool) -> bool {
        let hash = self.inner.area.hash(key);
        self.attempt(hash, |locked| locked.fold(key, hash, term, gone)).unwrap_or(false)
    }
}
