//! The operations of scripts and of other hosts' requests.

use std::sync::atomic::Ordering;

use super::hit::Quick;
use super::item::{Content, Item, Kind, clamped};
use super::layout::{Meta, Shape, shard_of};
use super::shard::Locked;
use super::sweep::Room;
use super::{Called, Counted, Fail, Op, Outcome, RequestId, Standing, Store, Ttl, Value};
use crate::error::Refusal;
use crate::record::{Diverged, Key, State, Window, canonical_integer};

/// Longer bytes do not come back with the answer to a request: the caller has them, or reads them when it needs them.
const STATE_BYTES_MAX: u32 = 4096;
/// How often an operation makes room and tries again.
const ATTEMPTS: usize = 4;

/// One operation on one key, under the lock.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub key: Key<'a>,
    pub hash: u64,
    pub standing: Standing,
    pub request: Option<RequestId>,
}

impl Locked<'_> {
    /// The entry of the key, claimed, and the time (read afterwards).
    pub fn open(&mut self, change: &Change<'_>) -> (Option<(u32, Item)>, u64) {
        let found = self.find(change.key, change.hash).map(|reference| {
            self.claim(reference);
            (reference, self.load(reference))
        });
        (found, self.inner.clock.now_ms())
    }

    pub fn put_item(
        &mut self,
        change: &Change<'_>,
        at: Option<u32>,
        item: &Item,
        content: Content<'_>,
    ) -> Result<u32, Fail> {
        self.save(change.key, change.hash, at, item, content, change.request)
    }

    /// The head of an entry that begins a new life over `old`, and the share it loses by that.
    fn new_life(&self, change: &Change<'_>, old: Option<&Item>, kind: Kind, deadline: u64) -> (Item, u64) {
        let (stamp, origin) = (self.inner.hlc(), self.inner.origin());
        let (term, own_stamp, diverged) = match change.standing {
            Standing::Owner { term } if old.is_none_or(|old| old.term <= term) => (term, stamp, None),
            // Degraded, or an owner that has been replaced since it looked.
            Standing::Owner { .. } | Standing::Degraded => {
                let at = |old: &Item| old.diverged.map(|_| Diverged { at: stamp, amount: 0, sets: true });
                old.map_or((0, 0, None), |old| (old.term, old.stamp, at(old)))
            }
        };
        let pending = old.is_some_and(|old| old.has(Meta::PENDING));
        let lost = match (change.standing, old) {
            (Standing::Degraded, Some(old)) if pending => old.own_amount(origin),
            _ => 0,
        };
        let shares = match old {
            Some(old) if self.inner.options.clustered => old.marks_for(origin, stamp),
            _ => Vec::new(),
        };
        let window = Window { stamp, origin };
        let flags = Meta::DIRTY | if diverged.is_some() { Meta::PENDING } else { 0 };
        let item =
            Item { kind, own: 0, flags, diverged, deadline, window, stamp: own_stamp, term, shares, folds: Vec::new() };
        (item, lost)
    }

    fn restamp(&self, change: &Change<'_>, item: &mut Item) {
        match change.standing {
            Standing::Owner { term } if item.term <= term => {
                (item.term, item.stamp) = (term, self.inner.hlc());
                item.converge();
                item.flags |= Meta::DIRTY;
            }
            // Degraded, or an owner that has been replaced since it looked.
            Standing::Owner { .. } | Standing::Degraded => {
                let before = item.diverged.unwrap_or(Diverged { at: 0, amount: 0, sets: false });
                item.diverge(Diverged { at: self.inner.hlc(), ..before });
            }
        }
    }

    /// Increments, each judged for itself; `each` is told its result. Errors (nothing changed): bytes, no room.
    pub fn increment(
        &mut self,
        change: &Change<'_>,
        deltas: &[i64],
        ttl_ms: Option<u64>,
        mut each: impl FnMut(Result<i64, Refusal>),
    ) -> Result<(Counted, Option<u32>), Fail> {
        let (found, now_ms) = self.open(change);
        let live = found.as_ref().is_some_and(|(_, item)| item.is_live(now_ms));
        let at = found.as_ref().map(|(reference, _)| *reference);
        let (mut item, lost) = match found {
            Some((_, item)) if live => (item, 0),
            found => {
                let deadline = self.inner.deadline(now_ms, ttl_ms);
                self.new_life(change, found.as_ref().map(|(_, item)| item), Kind::Counter, deadline)
            }
        };
        if item.kind != Kind::Counter {
            return Err(Fail::Refused(Refusal::NotAnInteger));
        }
        let foreign = item.foreign(self.inner.origin());
        let mut any = false;
        for by in deltas {
            let sum = item.own.checked_add(*by);
            let total = sum.and_then(|own| i64::try_from(foreign + i128::from(own)).ok());
            if let (Some(own), Some(_)) = (sum, total) {
                item.own = own;
                any = true;
            }
            each(total.ok_or(Refusal::Overflow));
        }
        let value = clamped(foreign + i128::from(item.own));
        let ttl_ms = (item.deadline != 0).then(|| item.deadline - now_ms);
        let counted = Counted { value, window: item.window, created: !live, ttl_ms };
        if !any {
            self.unclaim();
            return Ok((counted, at.filter(|_| live)));
        }
        item.flags |= Meta::OWN | Meta::DIRTY;
        match change.standing {
            Standing::Degraded => item.flags |= Meta::PENDING,
            Standing::Owner { .. } if self.inner.is_unheard() => item.flags |= Meta::PENDING,
            // What the owner counts is home.
            Standing::Owner { .. } if item.diverged.is_none() => item.flags &= !Meta::PENDING,
            Standing::Owner { .. } => {}
        }
        let content = if live { Content::Keep } else { Content::Shares };
        let reference = self.put_item(change, at, &item, content)?;
        self.inner.lose(lost);
        Ok((counted, Some(reference)))
    }

    pub fn replace(&mut self, change: &Change<'_>, value: &[u8], ttl_ms: Option<u64>) -> Result<u32, Fail> {
        let (found, now_ms) = self.open(change);
        let deadline = self.inner.deadline(now_ms, ttl_ms);
        self.replace_at(change, found, value, deadline)
    }

    /// Replaces what was [opened](Self::open) by a value with a deadline in coarse monotonic milliseconds.
    pub fn replace_at(
        &mut self,
        change: &Change<'_>,
        found: Option<(u32, Item)>,
        value: &[u8],
        deadline: u64,
    ) -> Result<u32, Fail> {
        if value.len() > self.inner.options.value_max as usize {
            return Err(Fail::Refused(Refusal::ValueTooLarge));
        }
        let integer = canonical_integer(value);
        let kind = integer.map_or(Kind::Bytes(value.len() as u32), |_| Kind::Counter);
        let (mut item, lost) = self.new_life(change, found.as_ref().map(|(_, item)| item), kind, deadline);
        match (change.standing, integer) {
            (Standing::Owner { term }, integer) if item.term == term => {
                if let Some(integer) = integer {
                    item.own = integer;
                    item.flags |= Meta::OWN;
                }
            }
            (_, integer) => {
                item.diverge(Diverged { at: item.window.stamp, amount: integer.unwrap_or(0), sets: true });
            }
        }
        let content = if integer.is_some() { Content::Shares } else { Content::Bytes(value) };
        let reference = self.put_item(change, found.map(|(reference, _)| reference), &item, content)?;
        self.inner.lose(lost);
        Ok(reference)
    }

    /// Whether it was there, and the entry that is left.
    pub fn remove(&mut self, change: &Change<'_>) -> Result<(bool, Option<u32>), Fail> {
        let (found, now_ms) = self.open(change);
        let Some((reference, mut item)) = found else { return Ok((false, None)) };
        if !item.is_live(now_ms) {
            let owns = matches!(change.standing, Standing::Owner { term } if item.term <= term);
            if item.kind != Kind::Tombstone || !owns || item.diverged.is_some() || !self.inner.options.clustered {
                self.unclaim();
                return Ok((false, None));
            }
            // Nothing is there; what was made apart before now, and is still on its way here, yields all the same.
            item.deadline = self.inner.grace_deadline(now_ms);
            self.restamp(change, &mut item);
            return Ok((false, Some(self.put_item(change, Some(reference), &item, Content::Keep)?)));
        }
        if !self.inner.options.clustered {
            self.free_entry(reference);
            return Ok((true, None));
        }
        let was_counter = item.kind == Kind::Counter;
        let content = item.end(self.inner.grace_deadline(now_ms));
        if change.standing != Standing::Degraded {
            // What the owner counted is home. A degraded delete may yet yield to the owner's state, and then what was
            // counted before it still has to go home.
            item.flags &= !Meta::PENDING;
        }
        self.restamp(change, &mut item);
        if item.diverged.is_none() {
            return Ok((true, Some(self.put_item(change, Some(reference), &item, content)?)));
        }
        match self.put_item(change, Some(reference), &item, Content::Shares) {
            // No room to keep when it was made: then it is the oldest of the changes over its base.
            Err(Fail::Need { .. }) => {
                let (value, _) = self.claim(reference);
                if was_counter {
                    // Counted since the attempt gave up.
                    item.own = value;
                }
                item.diverge(Diverged { at: 0, amount: 0, sets: false });
                Ok((true, Some(self.put_item(change, Some(reference), &item, content)?)))
            }
            put => put.map(|reference| (true, Some(reference))),
        }
    }

    pub fn redate(&mut self, change: &Change<'_>, ttl_ms: Option<u64>) -> Result<(bool, Option<u32>), Fail> {
        let (found, now_ms) = self.open(change);
        let Some((reference, mut item)) = found.filter(|(_, item)| item.is_live(now_ms)) else {
            self.unclaim();
            return Ok((false, None));
        };
        item.deadline = self.inner.deadline(now_ms, ttl_ms);
        let before = item.diverged;
        self.restamp(change, &mut item);
        let mut bytes = Vec::new();
        let content =
            if item.diverged == before { Content::Keep } else { self.content_of(reference, &item, &mut bytes) };
        Ok((true, Some(self.put_item(change, Some(reference), &item, content)?)))
    }

    fn carry_out(&mut self, change: &Change<'_>, op: Op<'_>) -> Result<Called, Fail> {
        // The state as of the operation: a window that ends between the two is still the one that was counted in.
        let mut at_ms = None;
        let (outcome, reference) = match op {
            Op::Incr { deltas, ttl_ms } => {
                let mut values = Vec::with_capacity(deltas.len());
                let (counted, reference) = self.increment(change, deltas, ttl_ms, |value| values.push(value))?;
                at_ms = counted.ttl_ms.zip(reference).map(|(left, reference)| self.load(reference).deadline - left);
                (Outcome::Values(values), reference)
            }
            Op::Set { value, ttl_ms } => (Outcome::Done(true), Some(self.replace(change, value, ttl_ms)?)),
            Op::SetNx { value, ttl_ms } => {
                let (done, reference) = self.set_nx(change, value, ttl_ms)?;
                (Outcome::Done(done), reference)
            }
            Op::Append { value } => {
                let (len, reference) = self.append(change, value)?;
                (Outcome::Values(vec![Ok(len as i64)]), Some(reference))
            }
            Op::Cas { expected, new, ttl_ms } => {
                let (done, reference) = self.cas(change, expected, new, ttl_ms)?;
                (Outcome::Done(done), reference)
            }
            Op::Del => {
                let (was_there, reference) = self.remove(change)?;
                (Outcome::Done(was_there), reference)
            }
            Op::Expire { ttl_ms } => {
                let (was_there, reference) = self.redate(change, ttl_ms)?;
                (Outcome::Done(was_there), reference)
            }
        };
        let at_ms = at_ms.unwrap_or_else(|| self.inner.clock.now_ms());
        let state = reference.and_then(|reference| self.answer_state(reference, at_ms));
        Ok(Called::Done { outcome, state })
    }

    /// The state of an entry at `now_ms`, for whoever asked for a change of it; `None`: expired. Long bytes are left out.
    pub fn answer_state(&self, reference: u32, now_ms: u64) -> Option<State> {
        let item = self.load(reference);
        let whole = item.kind.len().is_none_or(|len| len <= STATE_BYTES_MAX);
        self.state_with(reference, &item, now_ms, whole)
    }

    /// Reads under the lock.
    fn value(&self, key: Key<'_>, hash: u64) -> Option<Read> {
        let reference = self.find(key, hash)?;
        let item = self.load(reference);
        if !item.is_live(self.inner.clock.now_ms()) {
            return None;
        }
        if item.kind == Kind::Counter {
            return Some(Read::Int(item.total(self.inner.origin())));
        }
        if let Kind::Elsewhere(len) = item.kind {
            return Some(Read::Elsewhere(len));
        }
        let cell = self.area.word(reference, 7);
        let mut shape = Shape::decode(cell.load(Ordering::Relaxed));
        if shape.flags & Shape::REFERENCED == 0 {
            shape.flags |= Shape::REFERENCED;
            cell.store(shape.encode(), Ordering::Relaxed);
        }
        Some(Read::Bytes(self.load_bytes(reference, &item)))
    }
}

enum Read {
    Int(i64),
    Bytes(Vec<u8>),
    Elsewhere(u32),
}

impl Store {
    /// Runs an attempt under the lock of the key's shard; makes room and tries again when it asks for that.
    pub(super) fn attempt<R>(
        &self,
        hash: u64,
        attempt: impl FnMut(&mut Locked<'_>) -> Result<R, Fail>,
    ) -> Result<R, Fail> {
        self.attempt_for(hash, Room::Own, attempt)
    }

    /// The same, making room from what may give way to it.
    pub(super) fn attempt_for<R>(
        &self,
        hash: u64,
        room: Room,
        mut attempt: impl FnMut(&mut Locked<'_>) -> Result<R, Fail>,
    ) -> Result<R, Fail> {
        let index = shard_of(hash);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut locked = self.inner.lock(index)?;
            match attempt(&mut locked) {
                Err(Fail::Need { class, pages }) => {
                    drop(locked);
                    last = Some(Fail::Need { class, pages });
                    if !self.inner.reclaim(index, class, pages, room) {
                        break;
                    }
                }
                done => return done,
            }
        }
        self.segment().metrics().memory_full.fetch_add(1, Ordering::Relaxed);
        Err(last.map_or(Fail::Refused(Refusal::Busy), |_| Fail::Refused(Refusal::MemoryFull)))
    }

    pub(super) fn run<R>(
        &self,
        hash: u64,
        attempt: impl FnMut(&mut Locked<'_>) -> Result<R, Fail>,
    ) -> Result<R, Refusal> {
        self.attempt(hash, attempt).map_err(|fail| match fail {
            Fail::Refused(refusal) => refusal,
            Fail::Need { .. } | Fail::Handled => Refusal::MemoryFull,
        })
    }

    pub(super) fn change<'a>(&self, key: Key<'a>, standing: Standing) -> Change<'a> {
        Change { key, hash: self.inner.area.hash(key), standing, request: None }
    }

    /// Adds `by`. A missing or expired key becomes a counter of `by` with the TTL (milliseconds, above 0); a live one
    /// keeps its deadline. Errors (nothing changed): NotAnInteger, Overflow, MemoryFull, Busy.
    #[inline]
    pub fn incr(&self, key: Key<'_>, by: i64, ttl_ms: Option<u64>, standing: Standing) -> Result<Counted, Refusal> {
        let change = self.change(key, standing);
        if let Some(counted) = self.inner.hit(key, change.hash, by, standing) {
            return Ok(counted);
        }
        self.incr_locked(&change, by, ttl_ms)
    }

    #[cold]
    fn incr_locked(&self, change: &Change<'_>, by: i64, ttl_ms: Option<u64>) -> Result<Counted, Refusal> {
        self.run(change.hash, |locked| {
            let mut result = Ok(0);
            let (counted, _) = locked.increment(change, &[by], ttl_ms, |each| result = each)?;
            result?;
            Ok(counted)
        })
    }

    /// Replaces the value; a canonical integer becomes a counter. Always begins a new window. Errors (nothing changed):
    /// ValueTooLarge, MemoryFull, Busy.
    pub fn set(&self, key: Key<'_>, value: &[u8], ttl_ms: Option<u64>, standing: Standing) -> Result<(), Refusal> {
        let change = self.change(key, standing);
        self.run(change.hash, |locked| locked.replace(&change, value, ttl_ms).map(|_| ()))
    }

    /// Deletes. Whether the key was there. Errors: Busy.
    pub fn del(&self, key: Key<'_>, standing: Standing) -> Result<bool, Refusal> {
        let change = self.change(key, standing);
        self.run(change.hash, |locked| locked.remove(&change).map(|(was_there, _)| was_there))
    }

    /// Sets the time to live (milliseconds, above 0), or removes it. Whether the key was there. Errors: Busy.
    pub fn expire(&self, key: Key<'_>, ttl_ms: Option<u64>, standing: Standing) -> Result<bool, Refusal> {
        let change = self.change(key, standing);
        self.run(change.hash, |locked| locked.redate(&change, ttl_ms).map(|(was_there, _)| was_there))
    }

    /// Carries out another host's request as the owner: the change and the mark of the request are one step. What
    /// changes nothing (a refusal, the delete of an absent key) leaves no mark.
    pub fn call(&self, key: Key<'_>, op: Op<'_>, standing: Standing, request: RequestId) -> Called {
        let change = Change { request: Some(request), ..self.change(key, standing) };
        match self.attempt(change.hash, |locked| locked.carry_out(&change, op)) {
            Ok(called) => called,
            Err(Fail::Handled) => Called::AlreadyHandled,
            Err(fail) => {
                let refusal = if let Fail::Refused(refusal) = fail { refusal } else { Refusal::MemoryFull };
                let state = self.inner.lock(shard_of(change.hash)).ok().and_then(|locked| {
                    let reference = locked.find(key, change.hash)?;
                    locked.answer_state(reference, self.inner.clock.now_ms())
                });
                Called::Done { outcome: Outcome::Refused(refusal), state }
            }
        }
    }

    /// Reads the local copy and calls `f` with it, no lock held; `None`: absent or expired. Errors: Busy.
    pub fn read<R>(&self, key: Key<'_>, f: impl FnOnce(Value<'_>) -> R) -> Result<Option<R>, Refusal> {
        let hash = self.inner.area.hash(key);
        match self.inner.peek_value(key, hash) {
            Quick::Found(value) => return Ok(Some(f(Value::Int(value)))),
            Quick::Absent => return Ok(None),
            Quick::Unsure => {}
        }
        let read = self.inner.lock(shard_of(hash))?.value(key, hash);
        Ok(read.map(|read| match read {
            Read::Int(value) => f(Value::Int(value)),
            Read::Bytes(bytes) => f(Value::Bytes(&bytes)),
            Read::Elsewhere(len) => f(Value::Elsewhere(len)),
        }))
    }

    /// The local copy's time to live. Errors: Busy.
    pub fn ttl(&self, key: Key<'_>) -> Result<Ttl, Refusal> {
        let hash = self.inner.area.hash(key);
        if let Quick::Found(ttl) = self.inner.peek_ttl(key, hash) {
            return Ok(ttl);
        }
        let locked = self.inner.lock(shard_of(hash))?;
        let Some(reference) = locked.find(key, hash) else { return Ok(Ttl::NoKey) };
        let item = locked.load(reference);
        let now_ms = self.inner.clock.now_ms();
        Ok(match item.deadline {
            _ if !item.is_live(now_ms) => Ttl::NoKey,
            0 => Ttl::NoDeadline,
            deadline => Ttl::Ms(deadline - now_ms),
        })
    }

    /// The complete state of a key, a tombstone's too, the own share with a fresh sequence; `None`: unknown, expired,
    /// or its shard is held by a stopped process.
    pub fn state(&self, key: Key<'_>) -> Option<State> {
        self.state_up_to(key, u32::MAX)
    }

    /// The same, but a value of more than `whole_max` bytes as a stub.
    pub fn state_up_to(&self, key: Key<'_>, whole_max: u32) -> Option<State> {
        let hash = self.inner.area.hash(key);
        let locked = self.inner.lock(shard_of(hash)).ok()?;
        let reference = locked.find(key, hash)?;
        let item = locked.load(reference);
        let whole = item.kind.len().is_none_or(|len| len <= whole_max);
        locked.state_with(reference, &item, self.inner.clock.now_ms(), whole)
    }
}
