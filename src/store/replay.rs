//! Changes that were made without an owner, replayed through one: applied if the key was not written since the state
//! they were made over.

use super::item::{Content, Item, Kind};
use super::layout::Meta;
use super::ops::Change;
use super::shard::Locked;
use super::{Fail, Replayed, Standing, Store};
use crate::record::{Body, Copy, Diverged, Share, State};

impl Locked<'_> {
    /// Whether the owner's entry is not (any more) what the change was made over.
    fn was_written(found: Option<&Item>, live: bool, state: &State, at: u64) -> bool {
        let Some(item) = found else { return false };
        // Made where nothing was known of the key: over one that had ended before.
        let over_nothing = state.stamp == 0 && !live && item.stamp < at;
        item.diverged.is_some() || item.stamp != state.stamp && !over_nothing
    }

    fn replay(&mut self, change: &Change<'_>, state: &State, made: Diverged) -> Result<Replayed, Fail> {
        let (found, now_ms) = self.open(change);
        let item = found.as_ref().map(|(_, item)| item);
        let live = item.is_some_and(|item| item.is_live(now_ms));
        let ended = matches!(state.body, Body::Tombstone(_)) || !made.sets;
        if Self::was_written(item, live, state, made.at) || state.ttl_ms == Some(0) || ended && !live {
            self.unclaim();
            return Ok(Replayed::Yielded(self.told(found, live, state, now_ms)));
        }
        let reference = match &state.body {
            Body::Tombstone(_) => {
                self.unclaim();
                self.remove(change)?.1
            }
            Body::Elsewhere { .. } | Body::Bytes(_) | Body::Counter(_) if !made.sets => {
                if let (Body::Counter(theirs), Some((reference, item))) = (&state.body, &found) {
                    self.join_before(change, *reference, item, theirs)?;
                }
                self.unclaim();
                self.redate(change, state.ttl_ms)?.1
            }
            Body::Bytes(bytes) => {
                let deadline = self.inner.deadline(now_ms, state.ttl_ms);
                Some(self.replace_at(change, found, bytes, deadline)?)
            }
            // Another host has the bytes that were set, or nobody has.
            Body::Elsewhere { .. } => {
                self.unclaim();
                return Ok(Replayed::Yielded(self.told(found, live, state, now_ms)));
            }
            Body::Counter(theirs) => Some(self.adopt(change, found, state, theirs, now_ms)?),
        };
        let applied = reference.and_then(|reference| self.answer_state(reference, self.inner.clock.now_ms()));
        Ok(applied.map_or(Replayed::Yielded(None), Replayed::Applied))
    }

    /// The shares that come with a new deadline.
    fn join_before(&mut self, change: &Change<'_>, reference: u32, item: &Item, theirs: &[Share]) -> Result<(), Fail> {
        let mut joined = item.clone();
        if joined.kind == Kind::Counter && self.join_into(&mut joined, theirs) {
            joined.flags |= Meta::DIRTY;
            self.put_item(change, Some(reference), &joined, Content::Shares)?;
        }
        Ok(())
    }

    /// A set to an integer: the window that it began becomes the owner's, with what was counted on top of it.
    fn adopt(
        &mut self,
        change: &Change<'_>,
        found: Option<(u32, Item)>,
        state: &State,
        theirs: &[Share],
        now_ms: u64,
    ) -> Result<u32, Fail> {
        let Standing::Owner { term } = change.standing else { return Err(Fail::Handled) };
        let stamp = self.inner.hlc();
        let mut shares = found.as_ref().map_or(Vec::new(), |(_, old)| old.marks_for(state.window.origin, stamp));
        // Shares of this window that came home before the change did.
        let early = found.iter().flat_map(|(_, old)| &old.shares).filter(|share| share.window == state.window);
        shares.extend(early.copied());
        let mut item = Item {
            kind: Kind::Counter,
            own: state.diverged.map_or(0, |diverged| diverged.amount),
            flags: Meta::OWN | Meta::DIRTY,
            diverged: None,
            deadline: self.inner.deadline(now_ms, state.ttl_ms),
            window: state.window,
            stamp,
            term,
            shares,
            folds: Vec::new(),
        };
        self.join_into(&mut item, theirs);
        self.put_item(change, found.map(|(reference, _)| reference), &item, Content::Shares)
    }

    /// What the owner has instead; that it has nothing is told as a delete, made just now.
    fn told(&self, found: Option<(u32, Item)>, live: bool, state: &State, now_ms: u64) -> Option<State> {
        if let Some((reference, item)) = found
            && (live || item.kind == Kind::Tombstone)
        {
            return self.state_of(reference, &item, now_ms);
        }
        let body = Body::Tombstone(Vec::new());
        Some(State { stamp: self.inner.hlc(), ttl_ms: None, diverged: None, body, ..state.clone() })
    }

    /// Takes the owner's answer to the change `sent`.
    fn settle_replay(&mut self, copy: &Copy, hash: u64, sent: Diverged, applied: bool) -> Result<(), Fail> {
        let (key, state) = (copy.key.as_key(), &copy.state);
        let Some(reference) = self.find(key, hash) else { return Ok(()) };
        self.claim(reference);
        let mut item = self.load(reference);
        let Some(diverged) = item.diverged else {
            self.unclaim();
            return Ok(());
        };
        if applied && diverged.at > sent.at {
            // Changed again since: over what the owner has now.
            (item.term, item.stamp) = (state.term, state.stamp);
            self.save(key, hash, Some(reference), &item, Content::Keep, None)?;
            return Ok(());
        }
        self.overrule(copy, hash, reference, &item)
    }
}

impl Store {
    /// The owner, in `term`, takes a change that was made without it, if the key was not written since.
    pub fn replay(&self, copy: &Copy, term: u64) -> Replayed {
        self.observe(&copy.state);
        let change = self.change(copy.key.as_key(), Standing::Owner { term });
        let Some(made) = copy.state.diverged else { return Replayed::Yielded(None) };
        self.attempt(change.hash, |locked| locked.replay(&change, &copy.state, made)).unwrap_or(Replayed::Full)
    }

    /// The owner has answered the change `sent` with its state: takes that in, unless the key was changed again since and
    /// the owner had `applied` it; then the later change is one over that state.
    pub fn settle_replay(&self, answer: &Copy, sent: Diverged, applied: bool) {
        self.observe(&answer.state);
        let hash = self.change(answer.key.as_key(), Standing::Degraded).hash;
        // When it fails the change stays, and is replayed and answered once more.
        let _ = self.attempt(hash, |locked| locked.settle_replay(answer, hash, sent, applied));
    }
}
