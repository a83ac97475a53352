//! A host that was away for too long starts clean: its copies may be of what was deleted since.

use super::drain::Stuck;
use super::item::{Content, Item, Kind, is_mark};
use super::layout::{Meta, shard_of};
use super::shard::Locked;
use super::{Fail, Store};
use crate::record::{Key, KeyBuf};

/// Pages per call.
const PAGES_PER_CALL: usize = 16;

/// Stamp, in term 0, of what is kept although an owner has known its window: that one may have ended it since.
const UNCONFIRMED: u64 = 1;

/// What a walk over the entries does to one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Keeps only what nobody else may know.
    Forget,
    /// Ends what no owner has shown since.
    Confirm,
}

impl Locked<'_> {
    fn forget_copy(&mut self, key: Key<'_>, hash: u64) -> Result<(), Fail> {
        let Some(reference) = self.find(key, hash) else { return Ok(()) };
        self.claim(reference);
        let mut item = self.load(reference);
        if item.diverged.is_some() {
            self.unclaim();
            return Ok(());
        }
        if item.kind != Kind::Counter || !item.has(Meta::PENDING) {
            self.unclaim();
            self.free_entry(reference);
            return Ok(());
        }
        let origin = self.inner.origin();
        // What others have counted is theirs to tell, and what it ended too.
        item.shares.retain(|share| share.origin == origin && !is_mark(share));
        item.folds.clear();
        let known = item.term != 0;
        (item.term, item.stamp) = (0, if known { UNCONFIRMED } else { 0 });
        self.save(key, hash, Some(reference), &item, Content::Shares, None)?;
        Ok(())
    }

    fn confirm(&mut self, key: Key<'_>, hash: u64) {
        let unconfirmed = |item: &Item| (item.term, item.stamp) == (0, UNCONFIRMED) && item.diverged.is_none();
        let Some(reference) = self.find(key, hash) else { return };
        if unconfirmed(&self.load(reference)) {
            self.claim(reference);
            let item = self.load(reference);
            self.free_entry(reference);
            self.inner.lose(item.own_amount(self.inner.origin()));
        }
    }
}

impl Store {
    /// Drops every entry (from page `from` on) but diverged ones and counters with an own share that no owner has
    /// acknowledged, of which it keeps that share only. Where to go on; `None`: all done. Bounded work per call.
    pub fn forget_copies(&self, from: usize) -> Option<usize> {
        self.walk(from, Walk::Forget)
    }

    /// After what [`Store::forget_copies`] left has met every owner's state: drops (and counts as lost) own shares of
    /// windows that owners knew and that none has shown since. Where to go on; `None`: all done.
    pub fn end_unconfirmed(&self, from: usize) -> Option<usize> {
        self.walk(from, Walk::Confirm)
    }

    fn walk(&self, from: usize, walk: Walk) -> Option<usize> {
        let area = &self.inner.area;
        let end = (from + PAGES_PER_CALL).min(area.page_count);
        let mut stuck = Stuck::default();
        for page in from..end {
            if area.page_state(page).entries_of().is_none() {
                continue;
            }
            for (_, key) in self.keys_of(page, 0, &mut stuck) {
                self.judge(&key, walk);
            }
        }
        (end < area.page_count).then_some(end)
    }

    fn judge(&self, key: &KeyBuf, walk: Walk) {
        let key = key.as_key();
        let hash = self.inner.area.hash(key);
        // One that a stopped process holds, or that finds no room to be written in, stays as it is.
        let _ = self.attempt(hash, |locked| {
            debug_assert_eq!(shard_of(hash), locked.index);
            match walk {
                Walk::Forget => locked.forget_copy(key, hash)?,
                Walk::Confirm => locked.confirm(key, hash),
            }
            Ok(())
        });
    }
}
