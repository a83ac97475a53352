//! How two states of a key become one.
//!
//! Shares join: per (origin, window) the larger sequence wins. Everything else about a key is the owner's, by
//! (term, stamp). A diverged change keeps the stamp it was made over, its base: a clean state of that very stamp does not
//! replace it, whoever owns the key by now; one that was written meanwhile does (`replay` brings it to the owner). A share whose window is known to have ended does not count: windows of the live window's origin that
//! are older, windows listed in a tombstone, and windows under a mark (a share whose sequence has the top bit set),
//! which an owner leaves when a new window follows one of another origin. Marks travel in the owner's states only.
//!
//! Bytes of one window and one length are the same bytes. So a stub never takes away bytes that are still the key's,
//! and whole bytes complete a stub of theirs, whichever of the two states is newer.

use std::sync::atomic::Ordering;

use super::item::{Content, Item, Kind, is_mark};
use super::layout::{Meta, shard_of};
use super::shard::Locked;
use super::sweep::Room;
use super::{Applied, Fail, Joined, Store};
use crate::record::{Body, Copy, Diverged, Key, Share, State, Window};

/// Joins one share; whether it was new.
fn join(shares: &mut Vec<Share>, share: Share) -> bool {
    match shares.iter_mut().find(|have| have.origin == share.origin && have.window == share.window) {
        Some(have) if have.sequence < share.sequence => {
            let changed = have.amount != share.amount || is_mark(&share) != is_mark(have);
            *have = share;
            changed
        }
        Some(_) => false,
        None => {
            shares.push(share);
            true
        }
    }
}

fn follows(later: Window, window: Window) -> bool {
    window.origin == later.origin && window.stamp < later.stamp
}

fn listed(list: &[Share], window: Window) -> bool {
    list.iter().any(|share| window == share.window || follows(share.window, window))
}

fn marked(list: &[Share], window: Window) -> bool {
    list.iter().filter(|share| is_mark(share)).any(|mark| window == mark.window || follows(mark.window, window))
}

/// Whether `window` has ended, as far as `item` knows.
fn ended(item: &Item, window: Window) -> bool {
    follows(item.window, window)
        || marked(&item.shares, window)
        || item.kind == Kind::Tombstone && (window == item.window || listed(&item.shares, window))
}

/// Takes out what has ended under the live window.
fn drop_ended(item: &mut Item) {
    let marks: Vec<Share> = item.shares.iter().copied().filter(is_mark).collect();
    let window = item.window;
    item.shares.retain(|share| {
        is_mark(share) || share.window == window || !(follows(window, share.window) || marked(&marks, share.window))
    });
}

/// Brings this segment's share of the live window into its place, unless it is there already (then that is newer).
fn adopt_own(item: &mut Item, origin: u64) {
    let mine = |share: &Share| share.origin == origin && share.window == item.window && !is_mark(share);
    if let Some(at) = item.shares.iter().position(mine) {
        let share = item.shares.remove(at);
        if !item.has(Meta::OWN) {
            item.own = share.amount;
            item.flags |= Meta::OWN;
        }
    }
    // An owner has folded it: this segment was taken for gone. What it counts goes on from there.
    if let Some(amount) = item.folded_amount(origin).filter(|_| !item.has(Meta::OWN) && item.kind == Kind::Counter) {
        item.own = amount;
        item.flags |= Meta::OWN;
    }
}

/// Whether both are the same bytes, here or elsewhere.
fn same_bytes(local: &Item, state: &State) -> bool {
    local.window == state.window && state.byte_len().is_some_and(|len| local.kind.len() == Some(len))
}

enum Verdict<'a> {
    Stale,
    /// The item to write, its content, and how much is lost by it.
    Write(Item, Content<'a>, u64),
}

/// Two states of the same bytes: the newer one's deadline and stamp, and the bytes of whichever has them.
fn completed<'a>(local: &Item, theirs: Item, newer: bool, content: Content<'a>, now_ms: u64) -> Verdict<'a> {
    let brings = matches!(local.kind, Kind::Elsewhere(_)) && matches!(content, Content::Bytes(_));
    if !(newer || brings && local.is_live(now_ms)) {
        return Verdict::Stale;
    }
    let (kind, flags) = (if brings { theirs.kind } else { local.kind }, theirs.flags | local.flags);
    let head = if newer { &theirs } else { local };
    let item = Item { kind, flags, shares: local.shares.clone(), ..head.clone() };
    Verdict::Write(item, if brings { content } else { Content::Keep }, 0)
}

/// The shares that a state has, and how they are written.
fn shares_and_content(state: &State) -> (&[Share], Content<'_>) {
    match &state.body {
        Body::Counter(shares) | Body::Tombstone(shares) => (shares, Content::Shares),
        Body::Bytes(bytes) => (&[], Content::Bytes(bytes)),
        Body::Elsewhere { .. } => (&[], Content::Shares),
    }
}

/// A state as an entry that has no deadline yet.
fn read(state: &State) -> Item {
    let kind = match &state.body {
        Body::Counter(_) => Kind::Counter,
        Body::Bytes(bytes) => Kind::Bytes(bytes.len() as u32),
        Body::Tombstone(_) => Kind::Tombstone,
        Body::Elsewhere { len } => Kind::Elsewhere(*len),
    };
    // A diverged change is replayed by whoever holds it: the one who made it may be gone.
    let flags = if state.diverged.is_some() { Meta::PENDING | Meta::DIRTY } else { 0 };
    let (shares, _) = shares_and_content(state);
    let (mut folds, shares): (Vec<Share>, Vec<Share>) =
        shares.iter().copied().filter(|share| share.origin != 0).partition(Share::is_fold);
    if kind != Kind::Counter {
        folds.clear();
    }
    let State { term, stamp, window, diverged, .. } = *state;
    Item { kind, own: 0, flags, diverged, deadline: 0, window, stamp, term, shares, folds }
}

/// The value of a counter's state; `None`: it is no counter's.
pub fn counter_value(state: &State) -> Option<i64> {
    // Nobody has origin 0, so every share is another's.
    matches!(state.body, Body::Counter(_)).then(|| read(state).total(0))
}

impl Locked<'_> {
    /// The entry that a state makes where nothing is known of the key.
    fn item_of(&self, state: &State, now_ms: u64, sender_owns: bool) -> Item {
        let mut item = read(state);
        item.deadline = match item.kind {
            Kind::Tombstone => self.inner.grace_deadline(now_ms),
            Kind::Counter | Kind::Bytes(_) | Kind::Elsewhere(_) => self.inner.deadline(now_ms, state.ttl_ms),
        };
        item.flags |= if sender_owns { 0 } else { Meta::DIRTY };
        item
    }

    fn verdict<'a>(&self, local: Option<&Item>, state: &'a State, now_ms: u64, sender_owns: bool) -> Verdict<'a> {
        // It has expired on its way, and so have older states of its window; what was counted apart may not have.
        let over = state.ttl_ms == Some(0) && !matches!(state.body, Body::Tombstone(_));
        let ends = |local: &Item| local.window == state.window || !local.has(Meta::PENDING);
        if over && !local.is_some_and(ends) {
            return Verdict::Stale;
        }
        let origin = self.inner.origin();
        let (theirs, content) = shares_and_content(state);
        let fresh = || self.item_of(state, now_ms, sender_owns);
        // A change made apart that has expired ends with what it was made over: it is as good as swept.
        let expired = local.is_some_and(|local| local.has_expired(now_ms));
        let Some(local) = local.filter(|local| !(expired && local.diverged.is_some())) else {
            let lost = local.filter(|local| local.has(Meta::PENDING)).map_or(0, |local| local.own_amount(origin));
            let mut item = fresh();
            adopt_own(&mut item, origin);
            return Verdict::Write(item, content, lost);
        };
        let same = local.window == state.window;
        let at = |diverged: Option<Diverged>| diverged.map_or(0, |diverged| diverged.at);
        if local.diverged.is_some() && state.diverged.is_none() && state.stamp == local.stamp {
            return self.over_its_base(local, state, theirs);
        }
        let order = (state.term, state.stamp, at(state.diverged)).cmp(&(local.term, local.stamp, at(local.diverged)));
        let newer = order.is_gt() || order.is_eq() && sender_owns && !same;
        let clean = local.diverged.is_none() && state.diverged.is_none();
        if clean && same_bytes(local, state) {
            return completed(local, fresh(), newer, content, now_ms);
        }
        if newer {
            return self.replaced(local, fresh(), content, now_ms);
        }
        // Not newer: only its shares can be, and only to a counter.
        let is_counter = matches!(state.body, Body::Counter(_));
        if !is_counter || local.kind != Kind::Counter || !same && ended(local, state.window) {
            return Verdict::Stale;
        }
        if expired && !same {
            let mut item = fresh();
            item.shares.retain(|share| !is_mark(share));
            adopt_own(&mut item, origin);
            let lost = if local.has(Meta::PENDING) { local.own_amount(origin) } else { 0 };
            return Verdict::Write(item, content, lost);
        }
        let mut item = local.clone();
        if !self.join_into(&mut item, theirs) {
            return Verdict::Stale;
        }
        if !sender_owns {
            item.flags |= Meta::DIRTY;
        }
        Verdict::Write(item, Content::Shares, 0)
    }

    /// The state that a diverged change was made over: the change stays, in the term that the state has by now.
    fn over_its_base<'a>(&self, local: &Item, state: &'a State, theirs: &'a [Share]) -> Verdict<'a> {
        let mut item = local.clone();
        item.term = item.term.max(state.term);
        let counters = matches!(state.body, Body::Counter(_)) && local.kind == Kind::Counter;
        let joined = counters && local.window == state.window && self.join_into(&mut item, theirs);
        if item.term == local.term && !joined {
            return Verdict::Stale;
        }
        // Another owner, perhaps: it is told at once.
        item.flags |= Meta::PENDING | Meta::DIRTY;
        Verdict::Write(item, if joined { Content::Shares } else { Content::Keep }, 0)
    }

    fn tidy(&self, item: &mut Item) {
        if !item.folds.is_empty() {
            item.tidy_folds(self.inner.origin(), (self.inner.hlc() >> 16) / 1_000);
        }
    }

    /// Joins another host's shares, not its marks; whether anything counts that did not before.
    pub fn join_into(&self, item: &mut Item, theirs: &[Share]) -> bool {
        let origin = self.inner.origin();
        let mut changed = false;
        for fold in theirs.iter().filter(|share| share.is_fold()) {
            changed |= item.join_fold(*fold);
        }
        for share in theirs.iter().filter(|share| share.origin != 0 && !is_mark(share) && !share.is_fold()) {
            if item.is_folded(share) {
                continue;
            }
            let window_is_live = share.window == item.window;
            let mine = share.origin == origin && window_is_live;
            if (window_is_live || !ended(item, share.window)) && !(mine && item.has(Meta::OWN)) {
                changed |= join(&mut item.shares, *share);
            }
        }
        adopt_own(item, origin);
        self.tidy(item);
        changed
    }

    /// The owner's newer state over what is here: what this host has counted and nobody has acknowledged stays, unless
    /// its window has ended.
    fn replaced<'a>(&self, local: &Item, mut item: Item, content: Content<'a>, now_ms: u64) -> Verdict<'a> {
        let origin = self.inner.origin();
        let same = local.window == item.window;
        let pending = local.has(Meta::PENDING);
        let lost = if pending { local.own_amount(origin) } else { 0 };
        let dirty = local.flags & Meta::DIRTY;
        if item.kind.len().is_some() {
            // Nothing can be added to bytes.
            return Verdict::Write(item, content, lost);
        }
        let inline = Share { origin, window: local.window, sequence: self.inner.hlc(), amount: local.own };
        if item.kind == Kind::Tombstone {
            let ends =
                |window: Window| window == item.window || follows(item.window, window) || listed(&item.shares, window);
            if local.has(Meta::OWN) && local.is_live(now_ms) && !ends(local.window) {
                // Counted apart, in a window that the tombstone knows nothing of: it still has to go home.
                let mut kept = local.clone();
                kept.shares.retain(|share| share.origin == origin && !is_mark(share) && !ends(share.window));
                (kept.term, kept.stamp, kept.diverged) = (item.term, item.stamp, item.diverged);
                kept.flags |= Meta::PENDING | Meta::DIRTY;
                return Verdict::Write(kept, Content::Shares, 0);
            }
            // What the owner knew of our share is in its list, and was ended by it rather than lost.
            let known = item.shares.iter().filter(|share| share.origin == origin && !is_mark(share));
            let known: u64 = known.map(|share| share.amount.unsigned_abs()).sum();
            if same {
                (item.own, item.flags) = (local.own, item.flags | local.flags & Meta::OWN);
                local.shares.iter().for_each(|share| {
                    join(&mut item.shares, *share);
                });
            }
            adopt_own(&mut item, origin);
            return Verdict::Write(item, content, if pending { lost.saturating_sub(known) } else { 0 });
        }
        if same {
            // A diverged change is pending, too; what is left of it is not.
            let counted =
                local.has(Meta::OWN) || local.shares.iter().any(|share| share.origin == origin && !is_mark(share));
            let kept = Meta::OWN | if counted { Meta::PENDING } else { 0 };
            (item.own, item.flags) = (local.own, item.flags | local.flags & kept | dirty);
            let known =
                |share: &Share| share.origin == origin && share.window == local.window && share.amount == local.own;
            if local.has(Meta::OWN) && !item.shares.iter().any(known) {
                item.flags |= Meta::PENDING | Meta::DIRTY;
            }
            // What has ended is for the owner to say: a mark that its state lacks is no longer one.
            local.shares.iter().filter(|share| !is_mark(share)).for_each(|share| {
                join(&mut item.shares, *share);
            });
            local.folds.iter().for_each(|fold| _ = item.join_fold(*fold));
            adopt_own(&mut item, origin);
            drop_ended(&mut item);
            self.tidy(&mut item);
            return Verdict::Write(item, content, 0);
        }
        let mut dropped = lost;
        let counts = local.is_live(now_ms) && local.kind == Kind::Counter;
        let counted = local.has(Meta::OWN).then_some(inline);
        for share in local.shares.iter().copied().chain(counted) {
            let over = follows(item.window, share.window) || marked(&item.shares, share.window);
            // What was counted here in a window that had ended here and lives on is not taken back.
            let revived = share.origin == origin && share.window == item.window;
            if is_mark(&share) || over || !(counts || revived) {
                continue;
            }
            if share.origin == origin {
                dropped = dropped.saturating_sub(share.amount.unsigned_abs());
                // Counted here as the owner, perhaps: then it is pending only now that another has taken over.
                let known = item.shares.iter().any(|their| {
                    their.origin == origin && their.window == share.window && their.amount == share.amount
                });
                item.flags |= if known { 0 } else { Meta::PENDING | Meta::DIRTY };
            }
            join(&mut item.shares, share);
        }
        if counts {
            local.folds.iter().for_each(|fold| _ = item.join_fold(*fold));
        }
        adopt_own(&mut item, origin);
        drop_ended(&mut item);
        self.tidy(&mut item);
        Verdict::Write(item, content, if pending { dropped } else { 0 })
    }

    /// Writes the owner's state over a diverged change, whatever their order.
    pub fn overrule(&mut self, copy: &Copy, hash: u64, reference: u32, local: &Item) -> Result<(), Fail> {
        let now_ms = self.inner.clock.now_ms();
        let (_, content) = shares_and_content(&copy.state);
        let item = self.item_of(&copy.state, now_ms, true);
        if let Verdict::Write(item, content, lost) = self.replaced(local, item, content, now_ms) {
            self.save(copy.key.as_key(), hash, Some(reference), &item, content, None)?;
            self.inner.lose(lost);
        }
        Ok(())
    }

    fn apply(&mut self, key: Key<'_>, hash: u64, state: &State, sender_owns: bool) -> Result<Applied, Fail> {
        let found = self.find(key, hash);
        let local = found.map(|reference| {
            self.claim(reference);
            self.load(reference)
        });
        let now_ms = self.inner.clock.now_ms();
        match self.verdict(local.as_ref(), state, now_ms, sender_owns) {
            Verdict::Stale => {
                self.unclaim();
                Ok(Applied::Stale)
            }
            Verdict::Write(item, content, lost) => {
                let local = found.zip(local.as_ref()).filter(|_| matches!(item.kind, Kind::Elsewhere(_)));
                let replaced = local.and_then(|(at, local)| self.replaced_by(at, local, &item, now_ms));
                self.save(key, hash, found, &item, content, None)?;
                if let Some((_, local)) = local {
                    self.keep_replaced(key, local, &item, replaced);
                }
                self.inner.lose(lost);
                Ok(Applied::Stored)
            }
        }
    }

    fn home(&mut self, copy: &Copy, hash: u64, term: u64) -> Result<Joined, Fail> {
        let (key, state) = (copy.key.as_key(), &copy.state);
        let found = self.find(key, hash);
        let local = found.map(|reference| {
            self.claim(reference);
            self.load(reference)
        });
        let now_ms = self.inner.clock.now_ms();
        let Body::Counter(theirs) = &state.body else { return Ok(Joined::Ended(None)) };
        let expired = local.as_ref().is_some_and(|item| item.has_expired(now_ms));
        let over = local.as_ref().is_some_and(|item| {
            let same = item.window == state.window;
            if same { expired || item.kind != Kind::Counter } else { ended(item, state.window) }
        });
        let bytes = local.as_ref().is_some_and(|item| item.kind.len().is_some() && !expired);
        // A window that this segment began and has no more has ended: what it has counted in is never evicted.
        if local.is_none() && state.window.origin == self.inner.origin() {
            let (stamp, body) = (self.inner.hlc(), Body::Tombstone(Vec::new()));
            let told = State { term, stamp, ttl_ms: None, diverged: None, body, ..state.clone() };
            // What it tells one host of it has to know itself, or takes an older copy of another for news.
            let item = Item {
                kind: Kind::Tombstone,
                own: 0,
                flags: Meta::DIRTY,
                diverged: None,
                deadline: self.inner.grace_deadline(now_ms),
                window: state.window,
                stamp,
                term,
                shares: Vec::new(),
                folds: Vec::new(),
            };
            self.save(key, hash, None, &item, Content::Shares, None)?;
            return Ok(Joined::Ended(Some(told)));
        }
        if over || bytes || state.ttl_ms == Some(0) {
            let Some((reference, mut item)) = found.zip(local) else { return Ok(Joined::Ended(None)) };
            if !expired {
                self.unclaim();
                return Ok(Joined::Ended(self.state_of(reference, &item, now_ms)));
            }
            // The sender learns of an expiry as of a delete.
            item.term = item.term.max(term);
            if item.diverged.take().is_none() {
                self.unclaim();
                (item.kind, item.deadline, item.stamp) = (Kind::Tombstone, 0, self.inner.hlc());
                return Ok(Joined::Ended(self.state_of(reference, &item, now_ms)));
            }
            // And so does this host, of a change made apart: what that was made over may live on elsewhere.
            item.stamp = self.inner.hlc();
            let pending = item.has(Meta::PENDING);
            let reference = self.end_entry(key, hash, reference, item, pending, Meta::DIRTY)?;
            let ended = self.load(reference);
            return Ok(Joined::Ended(self.state_of(reference, &ended, now_ms)));
        }
        let (live, before) = match local {
            Some(item) if item.kind == Kind::Counter && !expired => (Some(item), None),
            other => (None, other),
        };
        let sent = theirs.iter().filter(|share| share.window == state.window && !is_mark(share) && !share.is_fold());
        let sent_at = sent.map(|share| share.sequence).max().unwrap_or(0);
        if before.as_ref().is_some_and(|item| item.kind == Kind::Tombstone && sent_at < item.stamp) {
            // On its way since before the delete: its host may have ended the window meanwhile. If it has not, it sends it
            // again, and knows of the delete by then.
            self.unclaim();
            return Ok(Joined::Early);
        }
        if live.is_none() && state.diverged.is_some() {
            // The change is replayed: shares alone would begin its window without what was set, and the change, no longer
            // over what it was made over, would yield to them.
            self.unclaim();
            return Ok(Joined::Ended(None));
        }
        let item = match live {
            Some(mut item) => {
                self.join_into(&mut item, theirs);
                item
            }
            None => {
                let stamp = self.inner.hlc();
                let mut item = Item {
                    kind: Kind::Counter,
                    own: 0,
                    flags: 0,
                    diverged: None,
                    deadline: self.inner.deadline(now_ms, state.ttl_ms),
                    window: state.window,
                    stamp,
                    term,
                    shares: before.map_or(Vec::new(), |item| item.marks_for(state.window.origin, stamp)),
                    folds: Vec::new(),
                };
                self.join_into(&mut item, theirs);
                item
            }
        };
        let item = Item { flags: item.flags | Meta::DIRTY, ..item };
        let reference = self.save(key, hash, found, &item, Content::Shares, None)?;
        self.area.segment().metrics().shares_merged.fetch_add(1, Ordering::Relaxed);
        let merged = self.load(reference);
        Ok(self.state_of(reference, &merged, now_ms).map_or(Joined::Ended(None), Joined::Merged))
    }

    /// Ends the wait for an acknowledgement of every own share that `told` has, and drops those it has dropped.
    fn settle(&mut self, key: Key<'_>, hash: u64, sent: &Share, told: &[Share]) -> Result<(), Fail> {
        let Some(reference) = self.find(key, hash) else { return Ok(()) };
        self.claim(reference);
        let mut item = self.load(reference);
        if item.kind != Kind::Counter || !item.has(Meta::PENDING) {
            self.unclaim();
            return Ok(());
        }
        let origin = self.inner.origin();
        let known = |window: Window| told.iter().find(|share| share.origin == origin && share.window == window);
        let mut lost = 0;
        let before = item.shares.len();
        let window = item.window;
        item.shares.retain(|share| {
            let gone = share.origin == origin
                && !is_mark(share)
                && share.window == sent.window
                && share.window != window
                && known(share.window).is_none()
                && !Item::has_folded(told, origin, share.window, share.amount);
            lost += if gone { share.amount.unsigned_abs() } else { 0 };
            !gone
        });
        let inline = item.has(Meta::OWN).then_some((item.window, item.own));
        let explicit = item.shares.iter().filter(|share| share.origin == origin && !is_mark(share));
        let home = explicit.map(|share| (share.window, share.amount)).chain(inline).all(|(window, amount)| {
            let said = known(window).is_some_and(|share| {
                share.amount == amount && (window != sent.window || share.sequence >= sent.sequence)
            });
            said || Item::has_folded(told, origin, window, amount)
        });
        if home && item.diverged.is_none() {
            item.flags &= !Meta::PENDING;
        } else if lost == 0 {
            self.unclaim();
            return Ok(());
        }
        let content = if item.shares.len() == before { Content::Keep } else { Content::Shares };
        self.save(key, hash, Some(reference), &item, content, None)?;
        self.inner.lose(lost);
        Ok(())
    }
}

impl Store {
    pub(super) fn observe(&self, state: &State) {
        let (segment, clock) = (self.segment(), self.clock());
        segment.hlc_observe(state.stamp, clock);
        segment.hlc_observe(state.window.stamp, clock);
        if let Body::Counter(shares) | Body::Tombstone(shares) = &state.body {
            for share in shares.iter().filter(|share| !is_mark(share) && !share.is_fold()) {
                segment.hlc_observe(share.sequence, clock);
            }
        }
    }

    /// Takes in a copy: shares join, the rest is replaced by a larger (term, stamp), or an equal one where this copy has
    /// diverged. `sender_owns` false (a pull from somebody who does not own the key) marks what is new as changed.
    pub fn apply_copy(&self, copy: &Copy, sender_owns: bool) -> Applied {
        self.observe(&copy.state);
        let key = copy.key.as_key();
        let hash = self.inner.area.hash(key);
        let room = match &copy.state.body {
            _ if !sender_owns => Room::Own,
            Body::Bytes(_) => Room::Bytes,
            _ => Room::Copies,
        };
        let applied = self.attempt_for(hash, room, |locked| locked.apply(key, hash, &copy.state, sender_owns));
        applied.unwrap_or(Applied::Full)
    }

    /// The owner, in `term`, takes in the shares that another host's state has.
    pub fn join_home(&self, copy: &Copy, term: u64) -> Joined {
        self.observe(&copy.state);
        let hash = self.inner.area.hash(copy.key.as_key());
        self.attempt(hash, |locked| locked.home(copy, hash, term)).unwrap_or(Joined::Full)
    }

    /// The owner has merged `sent` (the latest own share sent for this key) and answered with its state: takes that in
    /// and ends the wait for an acknowledgement, unless this host has counted on since. A share of a former window
    /// that the owner's state lacks is dropped as ended and counted as lost.
    pub fn acknowledge_share(&self, key: Key<'_>, sent: &Share, owner_state: &State) {
        let copy = Copy { key: crate::record::KeyBuf::new(key), state: owner_state.clone() };
        self.apply_copy(&copy, true);
        let told = match &owner_state.body {
            Body::Counter(shares) => shares.as_slice(),
            _ => return,
        };
        let hash = self.inner.area.hash(key);
        // When it fails the share stays pending, and is sent and acknowledged once more.
        let _ = self.attempt(hash, |locked| locked.settle(key, hash, sent, told));
    }

    /// This segment owns the key's slot since `term`: its own share is home, and its state is the owner's. With `raise`
    /// (it speaks for the cluster) that state outranks every copy's, and what was changed without an owner is a change of
    /// this one; without (a minority that took over: no write of the other side must yield to that) neither. The stamp
    /// stays where nothing was changed: a takeover is no write. Whether the key is there.
    pub fn settle_own(&self, key: Key<'_>, term: u64, raise: bool) -> bool {
        let hash = self.inner.area.hash(key);
        let settled = self.attempt(hash, |locked| {
            debug_assert_eq!(shard_of(hash), locked.index);
            let Some(reference) = locked.find(key, hash) else { return Ok(false) };
            locked.claim(reference);
            let mut item = locked.load(reference);
            item.flags |= Meta::DIRTY;
            let converges = raise && item.diverged.is_some();
            if raise {
                item.term = item.term.max(term);
            }
            if converges {
                item.stamp = locked.inner.hlc();
                item.converge();
            }
            if item.diverged.is_none() {
                item.flags &= !Meta::PENDING;
            }
            let mut bytes = Vec::new();
            let content = if converges { locked.content_of(reference, &item, &mut bytes) } else { Content::Keep };
            locked.save(key, hash, Some(reference), &item, content, None)?;
            Ok(true)
        });
        settled.unwrap_or(false)
    }
}
