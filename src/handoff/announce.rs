//! Saying who owns which slot, hearing it from others, and what follows when two say it of one slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::slots::Ownership;
use crate::cluster::View;
use crate::dataplane::Peer;
use crate::record::{Body, Copy};
use crate::replicator::{ranges_of, slots_of};
use crate::segment::table::{Owner, SLOTS};
use crate::wire::message::{Request, Response, SlotRange};

/// Deadline of an announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time between two reminders to a node that should own what we still own.
const REMIND_EVERY: Duration = Duration::from_millis(200);

/// How long slots may have no owner here before those who should own them are asked: longer than a takeover takes.
const LEADERLESS_MAX: Duration = Duration::from_millis(1_500);

impl Ownership {
    /// Tells `node_id` that this node owns `ranges` since `term`; if it cannot be told now it is told everything later.
    pub(super) fn announce(self: &Arc<Self>, node_id: &str, ranges: &[SlotRange], term: u64) {
        let request = Request::Announce { slots: ranges.to_vec(), term };
        let (ownership, node_id) = (self.clone(), node_id.to_string());
        tokio::spawn(async move {
            let told = ownership.peers.ask(&node_id, request, ANNOUNCE_TIMEOUT).await;
            match told {
                Ok(Response::Announced { contested }) => ownership.contest(&contested),
                _ => drop(ownership.inner.lock().untold.insert(node_id)),
            }
        });
    }

    /// A connection to `node_id` stands: it may have missed announcements.
    pub fn link_up(self: &Arc<Self>, node_id: &str) {
        for (term, slots) in self.owned_by_term() {
            self.announce(node_id, &ranges_of(&slots), term);
        }
    }

    /// The same for one who claims what we own, now and then: two who both think so would go on for ever, each answer
    /// answered by as many as there are terms.
    fn tell_back(self: &Arc<Self>, node_id: &str) {
        {
            let mut inner = self.inner.lock();
            if inner.told_back.get(node_id).is_some_and(|at| at.elapsed() < REMIND_EVERY) {
                return;
            }
            inner.told_back.insert(node_id.to_string(), Instant::now());
        }
        self.link_up(node_id);
    }

    fn owned_by_term(&self) -> BTreeMap<u64, Vec<u16>> {
        self.by_term((0..SLOTS as u16).filter(|slot| self.is_mine(*slot)))
    }

    fn by_term(&self, slots: impl Iterator<Item = u16>) -> BTreeMap<u64, Vec<u16>> {
        let table = self.peers.table();
        let mut by_term: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
        slots.for_each(|slot| by_term.entry(table.term(slot)).or_default().push(slot));
        by_term
    }

    /// Somebody else owns slots of ours, since later: we claim them anew, if they should be ours.
    fn contest(&self, ranges: &[SlotRange]) {
        if ranges.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        inner.contested.extend(ranges.iter().flat_map(slots_of).filter(|slot| self.is_mine(*slot)));
        inner.stale = true;
    }

    /// Whether this node may speak for what it owns, if it is `able` to (joined, on the majority's side) and its lease has
    /// been `held` all the time. One that has not spoken for a while asks every member first: another may have taken its
    /// slots over meanwhile, and two must not speak for one key.
    pub fn may_speak(self: &Arc<Self>, able: bool, held: bool) -> bool {
        let mut inner = self.inner.lock();
        let voice = &mut inner.voice;
        if !able || voice.spoke && !held {
            voice.fall_silent();
        }
        if able && voice.confirmed {
            voice.spoke = true;
        } else if able && !voice.asking {
            voice.asking = true;
            let (ownership, round) = (self.clone(), voice.round);
            tokio::spawn(async move {
                let agreed = ownership.ask_for_confirmation().await;
                let voice = &mut ownership.inner.lock().voice;
                voice.asking = false;
                voice.confirmed = agreed && voice.round == round;
            });
        }
        voice.spoke
    }

    /// Announces everything to every member; whether all of them have agreed.
    async fn ask_for_confirmation(self: &Arc<Self>) -> bool {
        let view = self.peers.view();
        let mut asked = tokio::task::JoinSet::new();
        for member in view.members.iter().filter(|member| !member.is_me && !member.client) {
            for (term, slots) in self.owned_by_term() {
                let (peers, node_id) = (self.peers.clone(), member.node_id.clone());
                let request = Request::Announce { slots: ranges_of(&slots), term };
                asked.spawn(async move { peers.ask(&node_id, request, ANNOUNCE_TIMEOUT).await });
            }
        }
        let mut confirmed = true;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(Response::Announced { contested })) => {
                    confirmed &= contested.is_empty();
                    self.contest(&contested);
                }
                _ => confirmed = false,
            }
        }
        // A member that has come meanwhile has not been asked.
        confirmed && self.make_sure(&view).await && self.peers.view().epoch == view.epoch
    }

    /// Slots that this node took over without a quorum may have been changed with the cluster's word, before or after that:
    /// before it speaks for them it takes in what each member has of them. By now they know that they are this node's.
    async fn make_sure(self: &Arc<Self>, view: &View) -> bool {
        let by_term = {
            let mut inner = self.inner.lock();
            inner.provisional.retain(|slot| self.is_mine(*slot));
            self.by_term(inner.provisional.iter().copied())
        };
        if !view.quorum && !by_term.is_empty() {
            return false;
        }
        let others = view.members.iter().filter(|member| !member.is_me && !member.client);
        let others: Vec<String> = others.map(|member| member.node_id.clone()).collect();
        for (term, slots) in by_term {
            let asked = self.collect_copies(&others, &ranges_of(&slots)).await;
            if asked.is_none_or(|asked| asked.len() < others.len()) {
                return false;
            }
            self.settle(&slots, term, true).await;
            let mut inner = self.inner.lock();
            slots.iter().for_each(|slot| _ = inner.provisional.remove(slot));
            drop(inner);
            self.bring_bytes();
        }
        true
    }

    /// Tells everything to those who could not be told.
    pub(super) fn retell(self: &Arc<Self>) {
        let reachable: BTreeSet<String> = {
            let mut inner = self.inner.lock();
            let untold = std::mem::take(&mut inner.untold);
            let (reachable, later) = untold.into_iter().partition(|node_id| self.peers.is_up(node_id));
            inner.untold = later;
            reachable
        };
        reachable.iter().for_each(|node_id| self.link_up(node_id));
    }

    /// What we own and should not: its rightful owner is told, in case it believes to own it already. And what has no owner
    /// here for long: its rightful owner is asked what it owns. It may never have heard of the one that is gone, whose term
    /// was later than its own.
    pub(super) fn remind(self: &Arc<Self>) {
        let table = self.peers.table();
        let mut by_node: BTreeMap<(String, u64), Vec<u16>> = BTreeMap::new();
        let mut silent: BTreeSet<String> = BTreeSet::new();
        {
            let mut inner = self.inner.lock();
            if inner.reminded.elapsed() < REMIND_EVERY {
                return;
            }
            inner.reminded = Instant::now();
            for slot in (0..SLOTS as u16).filter(|slot| !Self::is_for_me(&inner, *slot)) {
                let Some(wanted) = Self::wanted(&inner, slot) else { continue };
                if self.is_mine(slot) {
                    by_node.entry((wanted.to_string(), table.term(slot))).or_default().push(slot);
                } else if !self.has_owner(slot) && !silent.contains(wanted) {
                    silent.insert(wanted.to_string());
                }
            }
            let since = *inner.leaderless_since.get_or_insert_with(Instant::now);
            if silent.is_empty() {
                inner.leaderless_since = None;
            } else if since.elapsed() < LEADERLESS_MAX {
                silent.clear();
            } else {
                inner.leaderless_since = Some(Instant::now());
            }
        }
        for ((node_id, term), slots) in by_node {
            self.announce(&node_id, &ranges_of(&slots), term);
        }
        silent.iter().for_each(|node_id| self.announce(node_id, &[], 0));
    }

    /// `peer` owns the slots since `term`. With no slots it asks what this node owns.
    pub fn take_announcement(self: &Arc<Self>, peer: &Peer, ranges: &[SlotRange], term: u64) -> Response {
        let Some(index) = self.peers.index_of_life(peer) else {
            return Response::Error("not in the view yet: tell me later".to_string());
        };
        if ranges.is_empty() {
            self.tell_back(&peer.node_id);
        }
        let table = self.peers.table();
        let (mut superseded, mut contested, mut takes_over) = (Vec::new(), Vec::new(), false);
        for slot in ranges.iter().flat_map(slots_of) {
            let (mine, before) = (self.holds(slot), table.owner(slot));
            if mine && Self::is_for_me(&self.inner.lock(), slot) {
                // Both own it, after a split: we should, so we claim it with a higher term.
                self.inner.lock().contested.insert(slot);
                contested.push(slot);
            } else if self.peers.learn_owner(slot, index, term) {
                takes_over |= before != Owner::Member(index);
                if mine {
                    superseded.push(slot);
                }
            } else if table.owner(slot) != Owner::Member(index) || term < table.term(slot) {
                // By another's word, or by its own from before it was killed: copies of that term would outrank it.
                contested.push(slot);
            }
        }
        if takes_over {
            self.peers.has_taken_over(&peer.node_id);
        }
        if contested.iter().any(|slot| self.is_mine(*slot)) {
            // It may not know of us.
            self.tell_back(&peer.node_id);
        }
        if !superseded.is_empty() {
            // We did not know that we had been replaced: what we counted meanwhile goes home.
            tracing::warn!(peer = %peer.node_id, slots = superseded.len(), "another node took over slots of ours");
            let ownership = self.clone();
            tokio::spawn(async move {
                let origin = ownership.store.segment().origin();
                let mark = |copy: &Copy| {
                    if has_share_of(copy, origin) {
                        ownership.store.mark_pending(copy.key.as_key());
                    }
                };
                ownership.visit(&superseded, mark).await;
            });
        }
        self.inner.lock().stale = true;
        self.peers.changed.notify_waiters();
        Response::Announced { contested: ranges_of(&contested) }
    }
}

fn has_share_of(copy: &Copy, origin: u64) -> bool {
    matches!(&copy.state.body, Body::Counter(shares) if shares.iter().any(|share| share.origin == origin && !share.is_fold()))
}
