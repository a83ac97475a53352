//! Owner to copies: the latest state of each changed key, in numbered and acknowledged batches.
//!
//! A batch is a cut: it holds the states and the ids of the requests whose effect they show. A receiver that sees a
//! gap in a sender's numbers pulls the sender's keys anew, so a lost batch costs time, never truth.

mod catchup;
mod commit;
mod digest;
mod marks;
mod pages;
mod receivers;
pub mod scope;
mod turns;

use std::collections::BTreeMap;
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
use crate::record::{Body, Copy};
use crate::segment::table::Owner;
use crate::store::{Applied, Drained, Joined, Store};
use crate::wire::message::{Batch, Request, Response, SlotRange, Wants};
use receivers::Receiver;
use scope::{Rules, Scope, Wanted};

pub use pages::Keeps;
pub use receivers::BATCH_BYTES_MAX;

/// Most entries taken from the store at a time.
const DRAIN_MAX: usize = 1_024;

/// Deadline of a page of a pull.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two attempts to pull.
const PULL_RETRY: Duration = Duration::from_millis(100);

/// Times between attempts to pull into a segment that was full: the first, and the longest.
const NO_ROOM_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// Cursor of a page that is behind all others: for a pull that only says what is wanted.
const BEYOND_ALL: u64 = u64::MAX;

/// Time between two pulls of what was dropped to make room.
const DROPPED_RETRY: Duration = Duration::from_secs(60);

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

/// How far this host is with what a peer owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// It has all that it wants.
    Yes,
    /// It is pulling, or was never told of anything.
    NotYet,
    /// There was no room for it.
    NoRoom,
}

/// Sends this host's changes to its peers and takes theirs.
pub struct Replicator {
    store: Store,
    peers: Arc<Peers>,
    rules: Rules,
    plant: Plant,
    inner: Mutex<Inner>,
    acked: Notify,
    commits: commit::Commits,
    /// Pages are refused: this host may have to drop its copies.
    closed: AtomicBool,
    comparing: Mutex<digest::Comparing>,
    hurry: digest::Hurry,
}

struct Inner {
    /// Who should have what by the view in force.
    scope: Arc<Scope>,
    /// What this host wants by it.
    wanted: Wanted,
    position: u64,
    /// Position since which the same members keep the bytes of large values.
    keepers_since: u64,
    /// Counts the ticks, for whose turn it is.
    tick: usize,
    /// The last tick handed out everything that had changed before it.
    all_drained: bool,
    receivers: BTreeMap<String, Receiver>,
    senders: BTreeMap<String, Sender>,
    /// Bytes that their owners do not count on any more.
    unneeded: pages::Unneeded,
    full_told: Quiet,
    no_room_told: Quiet,
}

/// A peer whose batches we take.
struct Sender {
    generation: u64,
    next: u64,
    /// What of it has been pulled whole, with no gap since.
    have: Option<Wanted>,
    pulling: bool,
    /// The last pull found no room.
    no_room: bool,
    /// A gap was seen since the pull under way began.
    gap: bool,
    /// Since when gossip has told of batches that have not come.
    ahead_since: Option<Instant>,
    /// Copies dropped to make room up to the last pull that began, and when that was.
    dropped: u32,
    pulled_at: Instant,
}

impl Sender {
    fn new(generation: u64) -> Self {
        Self {
            generation,
            next: 1,
            have: None,
            pulling: false,
            no_room: false,
            gap: false,
            ahead_since: None,
            dropped: 0,
            pulled_at: Instant::now(),
        }
    }
}

/// What one look at the store came to.
struct Step {
    /// Entries that are not this host's to replicate.
    foreign: Vec<Copy>,
    /// See [`Drained`].
    ended: bool,
    resumed: bool,
    missed: bool,
    /// Some of what was found is to be sent once more.
    settled: bool,
}

/// What became of a copy here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It is here, or was not news.
    Whole,
    /// There was room for a stub only.
    AsStub,
    /// There was no room.
    NoRoom,
}

impl Replicator {
    /// Over this host's store and its peers.
    pub fn new(store: Store, peers: Arc<Peers>, rules: Rules) -> Self {
        let scope = Arc::new(Scope::of(&peers.view(), rules));
        let inner = Inner {
            wanted: scope.wanted(),
            scope,
            position: 0,
            keepers_since: 0,
            tick: 0,
            all_drained: false,
            receivers: BTreeMap::new(),
            senders: BTreeMap::new(),
            unneeded: pages::Unneeded::default(),
            full_told: Quiet::default(),
            no_room_told: Quiet::default(),
        };
        Self {
            store,
            peers,
            rules,
            plant: Plant::from_environment(),
            inner: Mutex::new(inner),
            acked: Notify::new(),
            commits: commit::Commits::default(),
            closed: AtomicBool::new(false),
            comparing: Mutex::default(),
            hurry: digest::Hurry::default(),
        }
    }

    /// Forgets peers that left the view; what others are to be sent, and this host wants, follows it.
    pub fn set_view(self: &Arc<Self>) {
        let view = self.peers.view();
        let mut inner = self.inner.lock();
        let scope = Arc::new(Scope::of(&view, self.rules));
        let before = std::mem::replace(&mut inner.scope, scope.clone());
        if !scope.same_members(&before) {
            inner.keepers_since = inner.position;
            let wanted = scope.wanted();
            if inner.wanted != wanted {
                inner.wanted = wanted;
                inner.senders.iter_mut().for_each(|(node_id, sender)| self.keep_pulling(node_id, sender));
            }
            tokio::spawn(self.clone().keepers_changed(before, scope));
        }
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
            let position = inner.position;
            inner.receiver(node_id, position).behind = true;
            drop(inner);
            self.hurry.begin();
        }
    }

    /// Sends some of what changed; returns the entries that are not this host's to replicate (its shares of others'
    /// keys), and whether there is more.
    pub fn tick(self: &Arc<Self>) -> (Vec<Copy>, bool) {
        let step = self.step();
        (step.foreign, !step.ended || step.resumed || step.settled)
    }

    fn step(self: &Arc<Self>) -> Step {
        let marks = self.owed_marks();
        let mut drained = Drained::default();
        self.store.drain(DRAIN_MAX, &mut drained);
        let Drained { copies, applied, ended, resumed, missed } = drained;
        let mut step = Step { foreign: Vec::new(), ended, resumed, missed, settled: false };
        if !copies.is_empty() || !applied.is_empty() {
            let mut own = Vec::with_capacity(copies.len());
            for item in copies {
                let slot = placement::slot(item.copy.key.as_key().name);
                if !self.owns(slot) {
                    step.foreign.push(item.copy);
                    continue;
                }
                if (item.pending || item.copy.state.diverged.is_some()) && self.speaks() {
                    // Changed, or counted, while this owner did not speak for the cluster: that counts from now on.
                    step.settled |= self.store.settle_own(item.copy.key.as_key(), self.peers.table().term(slot), true);
                }
                own.push(item.copy);
            }
            self.send(own, applied);
        }
        let all_drained = step.ended && !step.resumed && !step.missed;
        self.inner.lock().all_drained = all_drained;
        if let Some(marks) = marks.filter(|_| all_drained) {
            self.tell_marks(marks);
        }
        self.take_turns();
        self.nudge();
        self.publish_lag();
        self.let_go();
        step
    }

    /// Sends everything that had changed before; processes that go on changing things do not keep it for ever. Returns what
    /// [`Replicator::tick`] does, and whether that is all.
    async fn drain_all(self: &Arc<Self>) -> (Vec<Copy>, bool) {
        let (mut foreign, mut begun) = (Vec::new(), false);
        for _ in 0..2 * (self.store.stats().entries as usize / DRAIN_MAX) + 6 {
            let mut step = self.step();
            foreign.append(&mut step.foreign);
            // A pass that had begun before has not seen what changed behind it.
            begun |= !step.resumed;
            if begun && step.ended && !step.settled {
                return (foreign, !step.missed);
            }
            tokio::task::yield_now().await;
        }
        (foreign, false)
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

    /// A batch from `peer`.
    pub fn take_batch(self: &Arc<Self>, peer: &Peer, batch: Batch) -> Response {
        if !self.peers.is_member(peer) {
            return Response::Error("not in the view: tell me later".to_string());
        }
        if self.is_overtaken(peer, &batch) {
            // What it tells has changed, or ended, and left nothing here to compare with.
            for ids in &batch.applied {
                self.store.merge_applied(ids.stream, &ids.ids);
            }
            return Response::Acked { position: batch.position, full: Vec::new(), vouches: false };
        }
        let (mut full, mut no_room) = (Vec::new(), false);
        for (place, copy) in (0..).zip(&batch.copies) {
            let lost = self.plant.strikes(Fault::Lose);
            let taken = if lost { Taken::Whole } else { self.take_copy(copy, true) };
            self.note_unneeded(copy);
            if taken != Taken::Whole {
                full.push(place);
            }
            no_room |= taken == Taken::NoRoom;
        }
        for ids in &batch.applied {
            self.store.merge_applied(ids.stream, &ids.ids);
        }
        let vouches = self.vouches_for(peer, &batch);
        let mut inner = self.inner.lock();
        let known = inner.senders.get(&peer.node_id).is_some_and(|sender| sender.generation == peer.generation);
        if !known {
            inner.senders.insert(peer.node_id.clone(), Sender::new(peer.generation));
        }
        let Some(sender) = inner.senders.get_mut(&peer.node_id) else {
            return Response::Error("no such sender".into());
        };
        // What a sender holds when it is first met came by no batch.
        // A copy that found no room is as good as missed.
        let gap = !known || batch.after != sender.next.saturating_sub(1) || no_room;
        sender.next = batch.position + 1;
        if gap {
            self.begin_pull(&peer.node_id, sender);
        }
        Response::Acked { position: batch.position, full, vouches }
    }

    /// Whether a later batch of this life of the sender was here before, on another connection: then there was a gap, and
    /// the pull that it began brings all that this batch has.
    fn is_overtaken(&self, peer: &Peer, batch: &Batch) -> bool {
        let inner = self.inner.lock();
        let sender = inner.senders.get(&peer.node_id).filter(|sender| sender.generation == peer.generation);
        // A batch without content repeats the position of the last one.
        let repeats = batch.copies.is_empty() && batch.applied.is_empty();
        sender.is_some_and(|sender| batch.position + u64::from(repeats) < sender.next)
    }

    /// Applies one copy; bytes that find no room leave a stub.
    fn take_copy(&self, copy: &Copy, sender_owns: bool) -> Taken {
        let slot = placement::slot(copy.key.as_key().name);
        if sender_owns && self.owns(slot) {
            let term = self.peers.table().term(slot);
            if copy.state.term <= term {
                // From one who does not know yet that we own it: its shares come home, the rest is ours.
                let full = matches!(copy.state.body, Body::Counter(_))
                    && matches!(self.store.join_home(copy, term), Joined::Full);
                return if full { Taken::NoRoom } else { Taken::Whole };
            }
        }
        let spoiled = self.plant.spoil_bytes(copy);
        let copy = spoiled.as_ref().unwrap_or(copy);
        if self.store.apply_copy(copy, sender_owns) != Applied::Full {
            return Taken::Whole;
        }
        self.store.segment().metrics().memory_full.fetch_add(1, Ordering::Relaxed);
        let is_value = matches!(copy.state.body, Body::Bytes(_));
        if is_value && self.store.apply_copy(&receivers::as_stub(copy), sender_owns) != Applied::Full {
            return Taken::AsStub;
        }
        Taken::NoRoom
    }

    fn begin_pull(self: &Arc<Self>, node_id: &str, sender: &mut Sender) {
        sender.have = None;
        sender.gap = true;
        self.hurry.begin();
        self.peers.table().set_complete(false, self.peers.table().copies_dropped());
        self.keep_pulling(node_id, sender);
    }

    /// Pulls until this host has what it wants of `node_id`.
    fn keep_pulling(self: &Arc<Self>, node_id: &str, sender: &mut Sender) {
        if !std::mem::replace(&mut sender.pulling, true) {
            let (replicator, node_id, generation) = (self.clone(), node_id.to_string(), sender.generation);
            tokio::spawn(async move { replicator.pull_until_synced(node_id, generation).await });
        }
    }

    async fn pull_until_synced(self: Arc<Self>, node_id: String, generation: u64) {
        let mut no_room_for = NO_ROOM_RETRY.0;
        loop {
            let Some((wanted, cursor, slots)) = self.plan_pull(&node_id, generation) else { return };
            let pulled = self.pull_from(&node_id, cursor, slots, true, Some(wanted.to_wire())).await;
            if pulled == Pulled::NoRoom && self.inner.lock().no_room_told.due() {
                tracing::error!(peer = %node_id, "no room for what peer owns: ephpm_kv.memory is smaller than on others");
            }
            match self.pulled(&node_id, generation, wanted, pulled) {
                Some(true) => {
                    tracing::info!(peer = %node_id, "caught up with peer");
                    return self.peers.changed.notify_waiters();
                }
                Some(false) if pulled == Pulled::NoRoom => {
                    tokio::time::sleep(no_room_for).await;
                    no_room_for = (no_room_for * 2).min(NO_ROOM_RETRY.1);
                }
                Some(false) => tokio::time::sleep(PULL_RETRY).await,
                None => return,
            }
        }
    }

    /// What to pull of this life of `node_id`: what this host wants, and from which cursor of which slots it comes.
    /// `None`: that sender is gone.
    fn plan_pull(&self, node_id: &str, generation: u64) -> Option<(Wanted, u64, Vec<SlotRange>)> {
        let dropped = self.peers.table().copies_dropped();
        let mut inner = self.inner.lock();
        let wanted = inner.wanted.clone();
        let sender = inner.senders.get_mut(node_id).filter(|sender| sender.generation == generation)?;
        (sender.gap, sender.dropped, sender.pulled_at) = (false, dropped, Instant::now());
        let lacking = match (&sender.have, &wanted) {
            (_, Wanted::All) => return Some((wanted, 0, Vec::new())),
            (Some(Wanted::Slots(have)), Wanted::Slots(set)) => set.minus(have),
            // Of all, large values are stubs.
            (Some(Wanted::All) | None, Wanted::Slots(set)) => set.clone(),
        };
        let cursor = if lacking.is_empty() { BEYOND_ALL } else { 0 };
        Some((wanted, cursor, ranges_of(&lacking.iter().collect::<Vec<u16>>())))
    }

    /// Whether a pull that ended brought all that is wanted; `None`: that sender is gone.
    fn pulled(&self, node_id: &str, generation: u64, wanted: Wanted, pulled: Pulled) -> Option<bool> {
        let mut inner = self.inner.lock();
        let still_wanted = inner.wanted == wanted;
        let sender = inner.senders.get_mut(node_id).filter(|sender| sender.generation == generation)?;
        sender.no_room = pulled == Pulled::NoRoom;
        if pulled == Pulled::All && !sender.gap {
            sender.have = Some(wanted);
        }
        let synced = sender.have.is_some() && still_wanted && !sender.gap && pulled == Pulled::All;
        sender.pulling &= !synced;
        Some(synced)
    }

    /// Pulls all pages of what `node_id` has in `slots`, whoever owns them; large values come as stubs.
    pub async fn pull(&self, node_id: &str, slots: Vec<SlotRange>) -> Pulled {
        self.pull_from(node_id, 0, slots, false, None).await
    }

    async fn pull_from(
        &self,
        node_id: &str,
        mut cursor: u64,
        slots: Vec<SlotRange>,
        sender_owns: bool,
        mut wants: Option<Wants>,
    ) -> Pulled {
        let mut room = true;
        loop {
            let request = Request::Sync { cursor, slots: slots.clone(), owned: sender_owns, wants: wants.take() };
            let Ok(Response::Page { copies, next }) = self.peers.ask(node_id, request, PAGE_TIMEOUT).await else {
                return Pulled::Interrupted;
            };
            for copy in &copies {
                room &= self.take_copy(copy, sender_owns) != Taken::NoRoom;
            }
            if !room && sender_owns {
                // Looking for room for all the others would take long and find none.
                return Pulled::NoRoom;
            }
            match next {
                Some(next) => cursor = next,
                None => return if room { Pulled::All } else { Pulled::NoRoom },
            }
        }
    }

    /// Position up to which everything that this life of `node_id` owned has reached this host; `None`: not all has.
    /// Of what it owns in `slots`.
    pub fn synced_to(&self, node_id: &str, generation: u64, slots: &[SlotRange]) -> Option<u64> {
        let inner = self.inner.lock();
        let sender = inner.senders.get(node_id).filter(|sender| sender.generation == generation)?;
        sender.have.as_ref().is_some_and(|have| have.covers(slots)).then_some(sender.next - 1)
    }

    /// Whether this host has what it wants of this life of `node_id`.
    pub fn synced(&self, node_id: &str, generation: u64) -> Synced {
        let inner = self.inner.lock();
        match inner.senders.get(node_id).filter(|sender| sender.generation == generation) {
            Some(sender) if sender.have.as_ref() == Some(&inner.wanted) => Synced::Yes,
            Some(sender) if sender.no_room => Synced::NoRoom,
            Some(_) | None => Synced::NotYet,
        }
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
