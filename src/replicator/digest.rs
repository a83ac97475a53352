//! Nothing drifts: owners tell the others what each slot of theirs comes to, and what differs twice is put right.
//!
//! The two sides never look at the same moment, so one difference means nothing. But if the owner's digest is the same
//! when it looks again after that, nothing has changed there; a copy that differs both times has missed something, or has
//! something that it should not. It pulls the slot anew. What it has and the owner has not: if this very owner (by its
//! term) has written it, it has ended it since; else the owner has never heard of it, and is offered it. So it is with
//! a state that comes after the owner's, and with what a host that is gone has counted: the owner may have taken over
//! from it while the one that had a copy was away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::scope::Wanted;
use super::{BATCH_BYTES_MAX, PAGE_TIMEOUT, Replicator, ranges_of};
use crate::cluster::membership::remember_ms;
use crate::config::testing_number;
use crate::dataplane::Peer;
use crate::dataplane::age::CHANGE_AGE_MAX;
use crate::placement;
use crate::quiet::Quiet;
use crate::record::{Body, Copy, Key, KeyBuf};
use crate::segment::table::{Owner, SLOTS};
use crate::store::{Applied, Digests};
use crate::wire::message::{Request, Response};

/// Time between two comparisons.
const COMPARE_EVERY_MS: u64 = 10_000;

/// And for so long after a peer has been out of reach: copies must agree soon after a cut, also about what has expired
/// meanwhile, of which no batch and no pull tells.
const HURRY_EVERY: Duration = Duration::from_secs(1);
const HURRY_FOR: Duration = Duration::from_secs(6);

/// Pages of the store looked at in one go.
const PAGES_PER_STEP: usize = 4;

/// The shortest pause between two of them; and so many times as long as they took: about 1% of a processor, or 10% where
/// comparisons follow each other closely.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_FACTOR: u32 = 100;
const PAUSE_FACTOR_IN_A_HURRY: u32 = 10;

/// Deadline of a digest.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Most slots that are put right at a time; the others wait for the next comparison.
const REPAIRS_MAX: usize = 256;

/// The digests of what an owner owns.
struct Told {
    at: Instant,
    small_max: u32,
    slots: Vec<(u16, u64)>,
}

/// What has been told to this host, and what it made of it.
#[derive(Default)]
pub(super) struct Comparing {
    /// By owner: what it has told last since the last pass began.
    told: BTreeMap<String, Told>,
    /// By owner and slot: the owner's digest when the copy differed, and when the pass that showed so had ended.
    differed: BTreeMap<String, BTreeMap<u16, (u64, Instant)>>,
    repaired_told: Quiet,
    /// Segments that a member has, or had and may bring back.
    remembered: BTreeSet<u64>,
    /// Segments with shares here that nobody remembers, and since when.
    gone: BTreeMap<u64, Instant>,
}

/// Comparisons follow each other closely for a while.
#[derive(Default)]
pub(super) struct Hurry {
    until: Mutex<Option<Instant>>,
    begun: Notify,
}

impl Hurry {
    /// From now on.
    pub(super) fn begin(&self) {
        *self.until.lock() = Some(Instant::now() + HURRY_FOR);
        self.begun.notify_one();
    }

    fn lasts(&self) -> bool {
        self.until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Until the next comparison is due.
    async fn pause(&self, every: Duration) {
        if !self.lasts() {
            tokio::select! {
                biased;
                () = self.begun.notified() => {}
                () = tokio::time::sleep(every) => return,
            }
        }
        tokio::time::sleep(HURRY_EVERY.min(every)).await;
    }
}

impl Replicator {
    /// `peer` tells what it owns.
    pub fn take_digest(&self, peer: &Peer, small_max: u32, slots: Vec<(u16, u64)>) {
        self.comparing.lock().told.insert(peer.node_id.clone(), Told { at: Instant::now(), small_max, slots });
    }

    /// Compares, again and again.
    pub async fn compare_forever(self: Arc<Self>, small_max: u32) {
        let every = Duration::from_millis(testing_number("EPHPM_KV_TEST_COMPARE_MS").unwrap_or(COMPARE_EVERY_MS));
        loop {
            self.hurry.pause(every).await;
            // What is told from now on is compared with the next pass, which will have begun after that was sent.
            let told = std::mem::take(&mut self.comparing.lock().told);
            let begun = Instant::now();
            let digests = self.pass(small_max).await;
            if digests.missed() {
                continue;
            }
            let repairs = self.judge(told, &digests, begun.elapsed());
            // At once: others take it for what was there just now.
            self.tell(&digests);
            for (owner, slots) in repairs {
                self.repair(&owner, &slots).await;
            }
            self.fold(&digests).await;
        }
    }

    /// The segments of all members that are there, or that may come back.
    pub fn remember(&self, origins: BTreeSet<u64>) {
        self.comparing.lock().remembered = origins;
    }

    /// Makes what segments have counted that are gone for good part of this host's share of the keys that it owns.
    async fn fold(&self, digests: &Digests) {
        let table = self.peers.table();
        let gone = self.gone(digests);
        if !table.lease_holds(self.store.clock().now_ms()) || !table.is_heard() {
            return;
        }
        let mut folded = 0;
        for (key, origins) in digests.shared() {
            let (owner, term) = table.ownership(placement::slot(key.as_key().name));
            let mine = matches!(owner, Owner::Member(index) if Some(index) == table.self_index());
            if mine && (origins.is_empty() || origins.iter().any(|origin| gone.contains(origin))) {
                folded += u32::from(self.store.fold(key.as_key(), term, &|origin| gone.contains(&origin)));
                tokio::task::yield_now().await;
            }
        }
        if folded > 0 {
            tracing::debug!(keys = folded, "folded what segments have counted that are gone");
        }
    }

    /// Segments with shares here that have been in nobody's memory for as long as members are remembered.
    fn gone(&self, digests: &Digests) -> BTreeSet<u64> {
        let mut comparing = self.comparing.lock();
        let Comparing { remembered, gone, .. } = &mut *comparing;
        if remembered.is_empty() {
            return BTreeSet::new();
        }
        let origins = digests.shared().iter().flat_map(|(_, origins)| origins);
        let unknown: BTreeSet<u64> = origins.copied().filter(|origin| !remembered.contains(origin)).collect();
        gone.retain(|origin, _| unknown.contains(origin));
        for origin in unknown {
            gone.entry(origin).or_insert_with(Instant::now);
        }
        let long = |since: &Instant| since.elapsed() >= Duration::from_millis(remember_ms());
        gone.iter().filter(|(_, since)| long(since)).map(|(origin, _)| *origin).collect()
    }

    async fn pass(&self, small_max: u32) -> Digests {
        let remembered = self.comparing.lock().remembered.clone();
        let mut digests = Digests::new(small_max, remembered);
        loop {
            let begun = Instant::now();
            if self.store.digest(&mut digests, PAGES_PER_STEP) {
                return digests;
            }
            let factor = if self.hurry.lasts() { PAUSE_FACTOR_IN_A_HURRY } else { PAUSE_FACTOR };
            tokio::time::sleep((begun.elapsed() * factor).max(PAUSE_MIN)).await;
        }
    }

    /// Tells every peer that keeps copies of everything what this host's slots come to.
    fn tell(self: &Arc<Self>, digests: &Digests) {
        let table = self.peers.table();
        if !table.lease_holds(self.store.clock().now_ms()) {
            return;
        }
        let own = (0..SLOTS as u16)
            .filter(|slot| matches!(table.owner(*slot), Owner::Member(index) if Some(index) == table.self_index()));
        let slots: Vec<(u16, u64)> = own.map(|slot| (slot, digests.of(slot))).collect();
        if slots.is_empty() {
            return;
        }
        let up_to_date = |receiver: &super::Receiver| {
            let nothing = matches!(&receiver.wants, Some(Wanted::Slots(set)) if set.is_empty());
            !receiver.behind && !nothing
        };
        let receivers: Vec<String> = {
            let inner = self.inner.lock();
            let current = inner.receivers.iter().filter(|(_, receiver)| up_to_date(receiver));
            current.map(|(node_id, _)| node_id.clone()).collect()
        };
        for node_id in receivers {
            let request = Request::Digest { small_max: digests.small_max(), slots: slots.clone() };
            let replicator = self.clone();
            tokio::spawn(async move { drop(replicator.peers.ask(&node_id, request, TELL_TIMEOUT).await) });
        }
    }

    /// The slots that have differed twice, by owner, after a pass that took `took`.
    fn judge(&self, told: BTreeMap<String, Told>, digests: &Digests, took: Duration) -> BTreeMap<String, Vec<u16>> {
        // An owner's pass takes about as long as this host's, and has to have begun after the difference was seen; but after a
        // cut rather one repair too many than one too late.
        let wait = if self.hurry.lasts() { Duration::ZERO } else { took };
        let mut repairs: BTreeMap<String, Vec<u16>> = BTreeMap::new();
        let mut comparing = self.comparing.lock();
        let mut before = std::mem::take(&mut comparing.differed);
        for (owner, Told { at, small_max, slots }) in told {
            let Some(have) = self.follows(&owner).filter(|_| small_max == digests.small_max()) else { continue };
            let (last, mut differ, mut due) = (before.remove(&owner).unwrap_or_default(), BTreeMap::new(), Vec::new());
            for (slot, digest) in slots {
                let not_ours = matches!(&have, Wanted::Slots(set) if !set.contains(slot));
                if not_ours || digest == digests.of(slot) || self.peers.owner_of(slot).as_deref() != Some(&owner) {
                    continue;
                }
                let last = last.get(&slot).filter(|(last, _)| *last == digest);
                if last.is_some_and(|(_, since)| at >= *since + wait) && due.len() < REPAIRS_MAX {
                    due.push(slot);
                } else {
                    differ.insert(slot, last.copied().unwrap_or_else(|| (digest, Instant::now())));
                }
            }
            if !due.is_empty() {
                repairs.insert(owner.clone(), due);
            }
            comparing.differed.insert(owner, differ);
        }
        // Those who have told nothing meanwhile.
        before.retain(|owner, _| self.follows(owner).is_some());
        comparing.differed.append(&mut before);
        repairs.values_mut().for_each(|slots| slots.sort_unstable());
        repairs
    }

    /// What this host has of `owner`'s, if everything of that has come, so that what differs is not simply on its way.
    fn follows(&self, owner: &str) -> Option<Wanted> {
        let generation = self.peers.view().member(owner).map(|member| member.generation)?;
        let inner = self.inner.lock();
        inner.senders.get(owner).filter(|sender| sender.generation == generation)?.have.clone()
    }

    /// Makes this host's copies of the slots what `owner` has.
    async fn repair(&self, owner: &str, slots: &[u16]) {
        let (mut known, mut offers, mut repaired, mut cursor) = (BTreeSet::new(), Vec::new(), 0, 0);
        let Some(origin) = self.peers.view().member(owner).map(|member| member.origin) else { return };
        let told_by = [self.store.segment().origin(), origin];
        loop {
            let request = Request::Sync { cursor, slots: ranges_of(slots), owned: true, wants: None };
            let Ok(Response::Page { copies, next }) = self.peers.ask(owner, request, PAGE_TIMEOUT).await else {
                return;
            };
            for copy in copies {
                repaired += u64::from(self.put_right(&copy, origin));
                let term = self.peers.table().term(placement::slot(copy.key.as_key().name));
                let more = self.store.outranks(&copy, term).or_else(|| self.store.beyond(&copy, &told_by));
                if let Some(state) = more {
                    offers.push(Copy { key: copy.key.clone(), state });
                }
                known.insert(copy.key);
            }
            match next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        repaired += self.part_with(slots, &known, &mut offers).await + offers.len() as u64;
        for offer in offers {
            drop(self.peers.ask(owner, Request::Offer(vec![offer]), CHANGE_AGE_MAX).await);
        }
        if repaired == 0 {
            return;
        }
        self.store.segment().metrics().repairs.fetch_add(repaired, Ordering::Relaxed);
        if self.comparing.lock().repaired_told.due() {
            tracing::warn!(peer = %owner, slots = slots.len(), copies = repaired, "copies differed from their owner's: put right");
        }
    }

    /// Whether the copy was not as its owner has it, beyond what is on its way in a batch.
    fn put_right(&self, copy: &Copy, owner: u64) -> bool {
        let fresh = self.store.changed_within(&copy.state, CHANGE_AGE_MAX.as_millis() as u64);
        let contradicted = self.store.contradicts(copy, owner);
        if contradicted {
            self.store.drop_copy(copy.key.as_key());
        }
        self.store.apply_copy(copy, true) == Applied::Stored && (contradicted || !fresh)
    }

    /// What this host has in the slots and the owner has not: ended there and dropped (how often), or never heard of.
    async fn part_with(&self, slots: &[u16], known: &BTreeSet<KeyBuf>, offers: &mut Vec<Copy>) -> u64 {
        let table = self.peers.table();
        let unknown = |key: Key<'_>| {
            slots.binary_search(&placement::slot(key.name)).is_ok() && !known.contains(&KeyBuf::new(key))
        };
        let (mut dropped, mut cursor) = (0, Some(0));
        while let Some(from) = cursor {
            let (copies, next) = self.store.scan(from, BATCH_BYTES_MAX, &unknown);
            for copy in copies {
                let key = copy.key.as_key();
                // What is this host's alone finds its way home by itself.
                if matches!(copy.state.body, Body::Tombstone(_)) || self.store.has_own_business(key) {
                    continue;
                }
                // Whoever has the bytes of a stub offers them.
                let is_stub = matches!(copy.state.body, Body::Elsewhere { .. });
                if is_stub || copy.state.term == table.term(placement::slot(key.name)) {
                    dropped += u64::from(self.store.drop_copy(key));
                } else {
                    offers.push(copy);
                }
            }
            cursor = next;
            tokio::task::yield_now().await;
        }
        dropped
    }

    /// A peer has copies of keys of this host's that this host did not show it, or not with all that was counted, or
    /// that come after what it showed.
    pub fn take_offer(&self, copies: Vec<Copy>) -> Response {
        let table = self.peers.table();
        let speaks = table.lease_holds(self.store.clock().now_ms());
        for copy in copies {
            let key = copy.key.as_key();
            let whole = !matches!(copy.state.body, Body::Elsewhere { .. });
            let slot = placement::slot(key.name);
            if !(speaks && whole && self.owns(slot)) || copy.state.term > table.term(slot) {
                continue;
            }
            // As changed: everybody gets it.
            match self.store.state(key) {
                None if matches!(copy.state.body, Body::Tombstone(_)) => {}
                None => _ = self.store.apply_copy(&copy, false),
                Some(state) if copy.state.comes_after(&state) => _ = self.store.apply_copy(&copy, false),
                Some(state) if state.window == copy.state.window => _ = self.store.join_home(&copy, table.term(slot)),
                Some(_) => {}
            }
        }
        Response::Done
    }
}
