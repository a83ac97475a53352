//! Owner to copies: the latest state of each changed key, in numbered and acknowledged batches.
//!
//! A batch is a cut: it holds the states and the ids of the requests whose effect they show. A receiver that sees a
//! gap in a sender's numbers pulls the sender's keys anew, so a lost batch costs time, never truth.

mod catchup;
mod digest;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dataplane::Peer;
use crate::peers::Peers;
use crate::placement;
use crate::plant::{Fault, Plant};
use crate::quiet::Quiet;
use crate::record::{Body, Copy, KeyBuf};
use crate::segment::table::Owner;
use crate::store::{Applied, Drained, Joined, Store};
use crate::wire::message::{AppliedIds, Batch, Request, Response, SlotRange};

/// Most entries taken from the store at a time.
const DRAIN_MAX: usize = 1_024;

/// Most bytes of keys and values in a batch or page (a single larger value travels alone).
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// Batches on their way to one peer; more, and the peer is left behind to pull later.
const UNACKED_MAX: usize = 64;

/// Deadline of a page of a pull.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two attempts to pull.
const PULL_RETRY: Duration = Duration::from_millis(100);

/// Time between two attempts to pull into a segment that was full.
const NO_ROOM_RETRY: Duration = Duration::from_secs(2);

/// What a pull came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Every page was taken.
    All,
    /// The peer stopped answering.
    Interrupted,
    /// Every page came, but not everything found room.
    NoRoom,
}

/// Sends this host's changes to its peers and takes theirs.
pub struct Replicator {
    store: Store,
    peers: Arc<Peers>,
    plant: Plant,
    inner: Mutex<Inner>,
    acked: Notify,
    /// Pages are refused: this host may have to drop its copies.
    closed: AtomicBool,
    comparing: Mutex<digest::Comparing>,
}

#[derive(Default)]
struct Inner {
    position: u64,
    receivers: BTreeMap<String, Receiver>,
    senders: BTreeMap<String, Sender>,
    full_told: Quiet,
    no_room_told: Quiet,
}

/// A peer that takes our batches.
#[derive(Default)]
struct Receiver {
    unacked: VecDeque<(u64, Instant)>,
    /// It missed a batch, or may have: it is told our number so that it sees the gap.
    behind: bool,
    /// Every batch after this position was sent to it.
    complete_since: u64,
}

/// A peer whose batches we take.
struct Sender {
    generation: u64,
    next: u64,
    synced: bool,
    pulling: bool,
    /// A gap was seen since the pull under way began.
    gap: bool,
    /// Since when gossip has told of batches that have not come.
    ahead_since: Option<Instant>,
}

impl Replicator {
    /// Over this host's store and its peers.
    pub fn new(store: Store, peers: Arc<Peers>) -> Self {
        Self {
            store,
            peers,
            plant: Plant::from_environment(),
            inner: Mutex::default(),
            acked: Notify::new(),
            closed: AtomicBool::new(false),
            comparing: Mutex::default(),
        }
    }

    /// Forgets peers that left the view.
    pub fn set_view(&self) {
        let view = self.peers.view();
        let mut inner = self.inner.lock();
        inner.receivers.retain(|node_id, _| view.member(node_id).is_some());
        inner.senders.retain(|node_id, _| view.member(node_id).is_some());
        drop(inner);
        self.acked.notify_waiters();
    }

    /// A connection to `node_id` stands: what was sent on the one before may be lost. Or one from it: it may have
    /// taken this node into its view only now, and forgotten what it knew of our batches before.
    pub fn connected(&self, node_id: &str) {
        if self.peers.view().member(node_id).is_some() {
            let mut inner = self.inner.lock();
            let receiver = inner.receivers.entry(node_id.to_string()).or_default();
            receiver.behind = true;
        }
    }

    /// Sends some of what changed; returns the entries that are not this host's to replicate (its shares of others'
    /// keys), and whether there is more.
    pub fn tick(self: &Arc<Self>) -> (Vec<Copy>, bool) {
        let mut foreign = Vec::new();
        let mut drained = Drained::default();
        self.store.drain(DRAIN_MAX, &mut drained);
        let mut more = drained.copies.len() >= DRAIN_MAX;
        if !drained.copies.is_empty() || !drained.applied.is_empty() {
            let mut own = Vec::with_capacity(drained.copies.len());
            for item in drained.copies {
                let slot = placement::slot(item.copy.key.as_key().name);
                if !self.owns(slot) {
                    foreign.push(item.copy);
                    continue;
                }
                if (item.pending || item.copy.state.diverged.is_some()) && self.speaks() {
                    // Changed, or counted, while this owner did not speak for the cluster: that counts from now on.
                    more |= self.store.settle_own(item.copy.key.as_key(), self.peers.table().term(slot), true);
                }
                own.push(item.copy);
            }
            self.send(own, drained.applied);
        }
        self.nudge();
        self.publish_lag();
        (foreign, more)
    }

    /// Sends everything that had changed before; processes that go on changing things do not keep it for ever.
    async fn drain_all(self: &Arc<Self>) -> Vec<Copy> {
        let (mut foreign, mut more) = self.tick();
        // At worst one pass over the entries is under way; the next one sees all.
        let mut rounds = 2 * (self.store.stats().entries as usize / DRAIN_MAX) + 4;
        while more && rounds > 0 {
            tokio::task::yield_now().await;
            let (some, again) = self.tick();
            foreign.extend(some);
            (more, rounds) = (again, rounds - 1);
        }
        foreign
    }

    fn speaks(&self) -> bool {
        self.peers.table().lease_holds(self.store.clock().now_ms())
    }

    fn owns(&self, slot: u16) -> bool {
        let table = self.peers.table();
        match table.owner(slot) {
            // Only this node freezes slots of this table, and only its own.
            Owner::Frozen => true,
            Owner::Member(index) => Some(index) == table.self_index(),
            Owner::Nobody => false,
        }
    }

    fn send(self: &Arc<Self>, mut copies: Vec<Copy>, applied: Vec<(u64, u64)>) {
        if copies.is_empty() && !applied.is_empty() {
            self.send_batch(Vec::new(), by_stream(&applied));
        }
        while !copies.is_empty() {
            let mut bytes = 0;
            let fits = copies
                .iter()
                .take_while(|copy| {
                    let first = bytes == 0;
                    bytes += weight(copy);
                    first || bytes <= BATCH_BYTES_MAX
                })
                .count();
            let rest = copies.split_off(fits);
            let batch = std::mem::replace(&mut copies, rest);
            // The ids go with the last batch: never before a state that shows their effect.
            let ids = if copies.is_empty() { by_stream(&applied) } else { Vec::new() };
            self.send_batch(batch, ids);
        }
    }

    fn send_batch(self: &Arc<Self>, copies: Vec<Copy>, applied: Vec<AppliedIds>) {
        let view = self.peers.view();
        let mut inner = self.inner.lock();
        inner.position += 1;
        let position = inner.position;
        for member in view.members.iter().filter(|member| !member.is_me) {
            let fresh = || Receiver { complete_since: position - 1, ..Receiver::default() };
            let receiver = inner.receivers.entry(member.node_id.clone()).or_insert_with(fresh);
            if receiver.behind || receiver.unacked.len() >= UNACKED_MAX {
                receiver.behind = true;
                continue;
            }
            let batch = Batch { position, after: position - 1, copies: copies.clone(), applied: applied.clone() };
            self.post(receiver, &member.node_id, batch);
        }
    }

    /// Tells peers that may have missed something where we are.
    fn nudge(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        let position = inner.position;
        for (node_id, receiver) in inner.receivers.iter_mut() {
            if receiver.behind && receiver.unacked.is_empty() && self.peers.is_up(node_id) {
                receiver.behind = false;
                receiver.complete_since = position;
                self.post(
                    receiver,
                    node_id,
                    Batch { position, after: position, copies: Vec::new(), applied: Vec::new() },
                );
            }
        }
    }

    fn post(self: &Arc<Self>, receiver: &mut Receiver, node_id: &str, batch: Batch) {
        let position = batch.position;
        let Ok(in_flight) = self.peers.send(node_id, Request::Replicate(batch)) else {
            receiver.behind = true;
            return;
        };
        receiver.unacked.push_back((position, Instant::now()));
        let (replicator, node_id) = (self.clone(), node_id.to_string());
        tokio::spawn(async move {
            let acked = match in_flight.reply.await {
                Ok(Ok(Response::Acked { full, .. })) => {
                    let mut inner = replicator.inner.lock();
                    if !full.is_empty() && inner.full_told.due() {
                        tracing::warn!(peer = %node_id, copies = full.len(), "peer has no room for copies (ephpm_kv.memory)");
                    }
                    true
                }
                _ => false,
            };
            let mut inner = replicator.inner.lock();
            if let Some(receiver) = inner.receivers.get_mut(&node_id) {
                receiver.unacked.retain(|(sent, _)| *sent != position);
                receiver.behind |= !acked;
            }
            drop(inner);
            replicator.acked.notify_waiters();
        });
    }

    fn publish_lag(&self) {
        let inner = self.inner.lock();
        let oldest = inner.receivers.values().filter_map(|receiver| receiver.unacked.front()).map(|(_, at)| at).min();
        let lag_ms = oldest.map_or(0, |at| at.elapsed().as_millis() as u64);
        self.peers.table().replication_lag_ms.store(lag_ms, Ordering::Relaxed);
    }

    /// Sends everything that changed and waits until `node_id` has acknowledged it; `false`: not within `timeout`, or
    /// it lacks batches after `synced_to`, up to which it says to have everything. The second part of the answer is
    /// what [`Replicator::tick`] returns.
    pub async fn flush_to(self: &Arc<Self>, node_id: &str, synced_to: u64, timeout: Duration) -> (bool, Vec<Copy>) {
        let foreign = self.drain_all().await;
        let deadline = Instant::now() + timeout;
        let done = async {
            loop {
                let acked = self.acked.notified();
                let state = {
                    let inner = self.inner.lock();
                    inner.receivers.get(node_id).map(|receiver| {
                        (receiver.behind || synced_to < receiver.complete_since, receiver.unacked.is_empty())
                    })
                };
                match state {
                    Some((false, true)) => return true,
                    // It has to pull first.
                    Some((true, _)) | None => return false,
                    Some(_) => acked.await,
                }
            }
        };
        (tokio::time::timeout_at(deadline, done).await.unwrap_or(false), foreign)
    }

    /// A batch from `peer`.
    pub fn take_batch(self: &Arc<Self>, peer: &Peer, batch: Batch) -> Response {
        let full: Vec<u32> = (0..)
            .zip(&batch.copies)
            .filter(|(_, copy)| !self.plant.strikes(Fault::Lose) && !self.take_copy(copy, true))
            .map(|(place, _)| place)
            .collect();
        for ids in &batch.applied {
            self.store.merge_applied(ids.stream, &ids.ids);
        }
        let mut inner = self.inner.lock();
        let known = inner.senders.get(&peer.node_id).is_some_and(|sender| sender.generation == peer.generation);
        if !known {
            let fresh = Sender {
                generation: peer.generation,
                next: 1,
                synced: false,
                pulling: false,
                gap: false,
                ahead_since: None,
            };
            inner.senders.insert(peer.node_id.clone(), fresh);
        }
        let Some(sender) = inner.senders.get_mut(&peer.node_id) else {
            return Response::Error("no such sender".into());
        };
        // What a sender holds when it is first met came by no batch.
        // A copy that found no room is as good as missed.
        let gap = !known || batch.after != sender.next.saturating_sub(1) || !full.is_empty();
        sender.next = batch.position + 1;
        if gap {
            self.begin_pull(&peer.node_id, sender);
        }
        Response::Acked { position: batch.position, full }
    }

    /// Applies one copy; `false`: no room.
    fn take_copy(&self, copy: &Copy, sender_owns: bool) -> bool {
        let slot = placement::slot(copy.key.as_key().name);
        if self.owns(slot) {
            let term = self.peers.table().term(slot);
            if copy.state.term <= term {
                // From one who does not know yet that we own it: its shares come home, the rest is ours.
                return !matches!(copy.state.body, Body::Counter(_))
                    || !matches!(self.store.join_home(copy, term), Joined::Full);
            }
        }
        let spoiled = self.plant.spoil_bytes(copy);
        let stored = !matches!(self.store.apply_copy(spoiled.as_ref().unwrap_or(copy), sender_owns), Applied::Full);
        if !stored {
            self.store.segment().metrics().memory_full.fetch_add(1, Ordering::Relaxed);
        }
        stored
    }

    fn begin_pull(self: &Arc<Self>, node_id: &str, sender: &mut Sender) {
        sender.synced = false;
        sender.gap = true;
        if !std::mem::replace(&mut sender.pulling, true) {
            let (replicator, node_id, generation) = (self.clone(), node_id.to_string(), sender.generation);
            tokio::spawn(async move { replicator.pull_until_synced(node_id, generation).await });
        }
    }

    async fn pull_until_synced(self: Arc<Self>, node_id: String, generation: u64) {
        loop {
            if let Some(sender) = self.inner.lock().senders.get_mut(&node_id).filter(|s| s.generation == generation) {
                sender.gap = false;
            }
            let pulled = self.pull(&node_id, Vec::new(), true).await;
            if pulled == Pulled::NoRoom && self.inner.lock().no_room_told.due() {
                tracing::error!(peer = %node_id, "no room for what peer owns: ephpm_kv.memory is smaller than on others");
            }
            match self.pulled(&node_id, generation, pulled == Pulled::All) {
                Some(true) => {
                    tracing::info!(peer = %node_id, "caught up with peer");
                    return self.peers.changed.notify_waiters();
                }
                Some(false) => {
                    tokio::time::sleep(if pulled == Pulled::NoRoom { NO_ROOM_RETRY } else { PULL_RETRY }).await
                }
                None => return,
            }
        }
    }

    /// Whether a pull that ended brought everything; `None`: that sender is gone.
    fn pulled(&self, node_id: &str, generation: u64, complete: bool) -> Option<bool> {
        let mut inner = self.inner.lock();
        let sender = inner.senders.get_mut(node_id).filter(|sender| sender.generation == generation)?;
        let synced = complete && !sender.gap;
        sender.synced |= synced;
        sender.pulling &= !synced;
        Some(synced)
    }

    /// Pulls all pages of what `node_id` owns, or of `slots` whoever owns them.
    pub async fn pull(&self, node_id: &str, slots: Vec<SlotRange>, sender_owns: bool) -> Pulled {
        let (mut cursor, mut room) = (0, true);
        loop {
            let request = Request::Sync { cursor, slots: slots.clone(), owned: sender_owns, wants: None };
            let Ok(Response::Page { copies, next }) = self.peers.ask(node_id, request, PAGE_TIMEOUT).await else {
                return Pulled::Interrupted;
            };
            for copy in &copies {
                room &= self.take_copy(copy, sender_owns);
            }
            match next {
                Some(next) => cursor = next,
                None => return if room { Pulled::All } else { Pulled::NoRoom },
            }
        }
    }

    /// One page for a peer that pulls.
    pub fn page(&self, cursor: u64, slots: &[SlotRange], owned: bool) -> Response {
        if self.closed.load(Ordering::Acquire) {
            return Response::Error("away for too long: nothing to pull here".into());
        }
        let wanted: BTreeSet<u16> = slots.iter().flat_map(slots_of).collect();
        let (copies, next) = self.store.scan(cursor, BATCH_BYTES_MAX, &|key| {
            let slot = placement::slot(key.name);
            (wanted.is_empty() || wanted.contains(&slot)) && (!owned || self.owns(slot))
        });
        Response::Page { copies, next }
    }

    /// The bytes of `keys` that this host has, as many as fit.
    pub fn fetch(&self, keys: &[KeyBuf]) -> Response {
        let (mut copies, mut bytes) = (Vec::new(), 0);
        for (looked_at, key) in keys.iter().enumerate() {
            if bytes >= BATCH_BYTES_MAX {
                return Response::Page { copies, next: Some(looked_at as u64) };
            }
            if let Some(state) = self.store.state(key.as_key())
                && !matches!(state.body, Body::Elsewhere { .. })
            {
                let copy = Copy { key: key.clone(), state };
                bytes += weight(&copy);
                copies.push(copy);
            }
        }
        Response::Page { copies, next: None }
    }

    /// Position up to which everything that this life of `node_id` owned has reached this host; `None`: not all has.
    pub fn synced_to(&self, node_id: &str, generation: u64) -> Option<u64> {
        let inner = self.inner.lock();
        let sender = inner.senders.get(node_id)?;
        (sender.synced && sender.generation == generation).then_some(sender.next - 1)
    }
}

/// The slots of a range.
pub fn slots_of(range: &SlotRange) -> impl Iterator<Item = u16> + use<> {
    let first = range.first;
    (0..range.count).map(move |offset| first.wrapping_add(offset) % crate::segment::table::SLOTS as u16)
}

/// Ranges that cover exactly `slots`, which must be ascending.
pub fn ranges_of(slots: &[u16]) -> Vec<SlotRange> {
    let mut ranges: Vec<SlotRange> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(range) if range.first + range.count == *slot => range.count += 1,
            _ => ranges.push(SlotRange { first: *slot, count: 1 }),
        }
    }
    ranges
}

fn by_stream(applied: &[(u64, u64)]) -> Vec<AppliedIds> {
    let mut streams: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (stream, id) in applied {
        streams.entry(*stream).or_default().push(*id);
    }
    streams.into_iter().map(|(stream, ids)| AppliedIds { stream, ids }).collect()
}

/// About as many bytes as a copy takes on the wire.
pub fn weight(copy: &Copy) -> usize {
    let body = match &copy.state.body {
        Body::Bytes(bytes) => bytes.len(),
        Body::Elsewhere { .. } => 0,
        Body::Counter(shares) | Body::Tombstone(shares) => shares.len() * 40,
    };
    copy.key.as_bytes().len() + body + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_exactly_their_slots() {
        let slots = [0, 1, 2, 5, 16_382, 16_383];
        let ranges = ranges_of(&slots);
        assert_eq!(ranges.len(), 3);
        assert_eq!(ranges.iter().flat_map(slots_of).collect::<Vec<_>>(), slots);
        assert!(ranges_of(&[]).is_empty());
    }
}
