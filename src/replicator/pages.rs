//! What this host hands out when it is asked, and what it keeps of others' keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::receivers::BATCH_BYTES_MAX;
use super::scope::{SlotSet, Wanted};
use super::{DROPPED_RETRY, Replicator, weight};
use crate::cluster::Phase;
use crate::placement;
use crate::record::{Body, Copy, KeyBuf};
use crate::store::Held;
use crate::wire::message::{Response, SlotRange, Wants};

/// How long bytes are kept that their owner does not count on any more: the hosts it counts on may not have them yet.
const KEEP_FOR: Duration = Duration::from_secs(2);

/// Most keys with such bytes that are remembered; beyond that the bytes stay until the key changes.
const UNNEEDED_MAX: usize = 10_000;

/// Bytes to be let go, and when.
#[derive(Default)]
pub(super) struct Unneeded(BTreeMap<KeyBuf, (Instant, Held)>);

/// What of a key's bytes this host keeps as a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All of them.
    Whole,
    /// That they exist.
    Stub,
    /// Nothing.
    Nothing,
}

impl Replicator {
    /// One page for `node_id`, which pulls: of `slots` (empty: all), those that this host owns or all that it has in
    /// them. What the peer says it wants goes for the batches from now on.
    pub fn page(
        self: &Arc<Self>,
        node_id: &str,
        cursor: u64,
        slots: &[SlotRange],
        owned: bool,
        wants: Option<Wants>,
    ) -> Response {
        if self.closed.load(Ordering::Acquire) {
            return Response::Error("away for too long: nothing to pull here".into());
        }
        let (scope, no_room, whole) = {
            let mut inner = self.inner.lock();
            if let Some(wants) = wants
                && self.peers.view().member(node_id).is_some()
            {
                let position = inner.position;
                inner.receiver(node_id, position).wants = Some(Wanted::from_wire(&wants));
            }
            let whole = matches!(
                inner.receivers.get(node_id).and_then(|receiver| receiver.wants.as_ref()),
                Some(Wanted::Slots(_))
            );
            (inner.scope.clone(), inner.without_room(), whole)
        };
        // What this host owns no more is missing for another reason than that it has ended.
        if owned && !whole && slots.iter().flat_map(super::slots_of).any(|slot| !self.owns(slot)) {
            return Response::Error("slots are changing hands".into());
        }
        let me = self.peers.view().me().node_id.clone();
        let wanted = (!slots.is_empty()).then(|| SlotSet::of(slots));
        let whole_max = |slot: u16| match owned {
            true if whole || scope.keepers(slot, &me, &no_room).contains(&node_id) => u32::MAX,
            // Whoever collects copies fetches the bytes that it lacks, once.
            _ => scope.small_value_max(),
        };
        let (copies, next) = self.store.scan_up_to(cursor, BATCH_BYTES_MAX, &|key| {
            let slot = placement::slot(key.name);
            let asked = wanted.as_ref().is_none_or(|wanted| wanted.contains(slot)) && (!owned || self.owns(slot));
            asked.then(|| whole_max(slot))
        });
        if next.is_none() {
            self.owe_marks(node_id);
        }
        Response::Page { copies, next }
    }

    /// The bytes of `keys` that this host has, as many as fit; with `older`, of a stub those that it has replaced here.
    pub fn fetch(&self, keys: &[KeyBuf], older: bool) -> Response {
        let (mut copies, mut bytes) = (Vec::new(), 0);
        for (looked_at, key) in keys.iter().enumerate() {
            if bytes >= BATCH_BYTES_MAX {
                return Response::Page { copies, next: Some(looked_at as u64) };
            }
            let copy = self.store.state(key.as_key()).and_then(|state| match state.body {
                Body::Elsewhere { .. } if older => self.store.replaced(key.as_key()),
                Body::Elsewhere { .. } => None,
                _ => Some(Copy { key: key.clone(), state }),
            });
            if let Some(copy) = copy {
                bytes += weight(&copy);
                copies.push(copy);
            }
        }
        Response::Page { copies, next: None }
    }

    /// What this host keeps of a value of `len` bytes (`None`: a counter) of another owner's.
    pub fn keeps(&self, slot: u16, len: Option<usize>) -> Keeps {
        let inner = self.inner.lock();
        match &inner.wanted {
            Wanted::Slots(set) if set.contains(slot) => Keeps::Whole,
            Wanted::Slots(_) => Keeps::Nothing,
            Wanted::All if len.is_none_or(|len| !inner.scope.is_large(len)) => Keeps::Whole,
            Wanted::All => {
                let owner = self.peers.owner_of(slot).unwrap_or_default();
                if inner.scope.keeps(slot, &owner) { Keeps::Whole } else { Keeps::Stub }
            }
        }
    }

    /// Members that may have the bytes of `slot`'s values, the likeliest first; this node is none of them.
    pub fn may_have(&self, slot: u16) -> Vec<String> {
        let view = self.peers.view();
        let scope = self.inner.lock().scope.clone();
        let owner = self.peers.owner_of(slot).unwrap_or_default();
        let keepers = scope.keepers(slot, &owner, &BTreeSet::new());
        let mut all: Vec<String> = keepers.into_iter().map(str::to_owned).collect();
        all.retain(|node_id| !view.is_me(node_id));
        let others = view.members.iter().filter(|member| !member.is_me && !member.client);
        for member in others {
            if !all.contains(&member.node_id) {
                all.push(member.node_id.clone());
            }
        }
        all
    }

    /// A stub from an owner that has the bytes: those that are here will not be needed.
    pub(super) fn note_unneeded(&self, copy: &Copy) {
        let mut inner = self.inner.lock();
        if !matches!(copy.state.body, Body::Elsewhere { .. }) {
            inner.unneeded.0.remove(&copy.key);
        } else if inner.unneeded.0.len() < UNNEEDED_MAX
            && let Some(held) = self.store.held(copy.key.as_key()).filter(|held| held.whole)
            && held.window == copy.state.window
        {
            inner.unneeded.0.insert(copy.key.clone(), (Instant::now() + KEEP_FOR, held));
        }
    }

    /// Lets go of bytes whose time has come, unless this host owns them by now.
    pub(super) fn let_go(&self) {
        let due: Vec<Held> = {
            let mut inner = self.inner.lock();
            if inner.unneeded.0.is_empty() {
                return;
            }
            let now = Instant::now();
            let mut due = Vec::new();
            inner.unneeded.0.retain(|_, (at, held)| {
                let wait = *at > now;
                if !wait {
                    due.push(held.clone());
                }
                wait
            });
            due
        };
        for held in due.iter().filter(|held| !self.owns(placement::slot(held.key.as_key().name))) {
            self.store.let_go(held);
        }
    }

    /// Publishes whether this host has every key of the cluster: what it does not find then is not there. What it
    /// dropped for want of room it pulls again now and then.
    pub fn publish_complete(self: &Arc<Self>) {
        let table = self.peers.table();
        let (view, dropped) = (self.peers.view(), table.copies_dropped());
        let mut inner = self.inner.lock();
        let mut complete = view.joined && inner.wanted == Wanted::All;
        let owners = view.members.iter().filter(|member| !member.is_me && !member.client);
        for member in owners.filter(|member| member.phase != Phase::Joining) {
            let sender = inner.senders.get_mut(&member.node_id).filter(|s| s.generation == member.generation);
            let Some(sender) = sender else {
                complete = false;
                continue;
            };
            complete &= sender.have == Some(Wanted::All) && sender.dropped == dropped;
            if sender.dropped != dropped && sender.pulled_at.elapsed() >= DROPPED_RETRY {
                self.keep_pulling(&member.node_id, sender);
            }
        }
        table.set_complete(complete, dropped);
    }
}
