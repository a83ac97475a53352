//! Who answers an operation: this host, the owner, or this host without the owner (degraded).
//!
//! A call that reached the router is decided here and nowhere else: it is applied by the owner, or counted in this
//! host's share, or (unresolved and nobody can tell) counted as lost. Never two of these.

mod combine;
mod confirm;
mod estimate;
mod place;
mod read;
mod serve;
mod unresolved;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::dataplane::link::LinkLost;
use crate::error::Refusal;
use crate::metrics::{Lost, OpKind, Path};
use crate::peers::Peers;
use crate::placement;
use crate::plant::Plant;
use crate::record::{Body, Copy, State};
use crate::replicator::{Keeps, Replicator};
use crate::segment::table::Owner;
use crate::store::{Standing, Store};
use crate::wire::message::{Call, Op, Outcome, Reply, Request, Response};

pub use estimate::estimate;
pub use place::{Look, Place, has_moved, place, place_read, standing_of_write, still_speaks};
pub use serve::local_outcome;
pub use unresolved::amount;

/// Redirections that one call follows before it degrades.
const REDIRECTS_MAX: u32 = 3;

/// How long a call waits before it looks again for an owner that is being established.
const OWNER_POLL: Duration = Duration::from_millis(2);

/// Routes calls whose key this host does not own inline.
pub struct Router {
    store: Store,
    peers: Arc<Peers>,
    replicator: Arc<Replicator>,
    combine: combine::Combiner,
    plant: Plant,
    /// How long a caller waits.
    patience: Duration,
    /// Calls that are being decided.
    open: AtomicU64,
    /// The node ends: what is unresolved has been booked as lost.
    gave_up: AtomicBool,
}

/// Who should get a call next.
enum Target {
    Here(u64),
    Peer(u16),
    NobodyYet,
    Unreachable,
}

/// What one attempt at the owner came to.
enum Attempt {
    Answered(Reply),
    /// Not applied and never will be: the caller may count it itself.
    NotApplied,
    /// Sent; whether it was applied is not known (yet).
    Unresolved(Pending),
    /// Not applied: another node owns the key, by news that this host had not.
    Redirected,
    /// Not applied: the slot is changing hands.
    Moving,
}

/// A request whose fate is open.
struct Pending {
    node_id: String,
    origin: u64,
    stream: u64,
    id: u64,
    /// Still connected: the late reply may come.
    reply: Option<oneshot::Receiver<Result<Response, LinkLost>>>,
}

impl Router {
    /// A router over this host's store, its peers and what is copied between them. Callers wait for `patience`.
    pub fn new(store: Store, peers: Arc<Peers>, replicator: Arc<Replicator>, patience: Duration) -> Self {
        Self {
            store,
            peers,
            replicator,
            combine: combine::Combiner::default(),
            plant: Plant::from_environment(),
            patience,
            open: AtomicU64::new(0),
            gave_up: AtomicBool::new(false),
        }
    }

    /// Whether no call is being decided.
    pub fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    /// The node ends: nobody will ask any more what became of the calls that are unresolved.
    pub fn give_up(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
        let amount = self.peers.table().unresolved.swap(0, Ordering::Relaxed);
        self.store.segment().metrics().lose(Lost::Unresolved, amount);
    }

    /// Decides `call` by `deadline` and hands the reply to `done`, exactly once. Must run on the node's runtime.
    pub fn submit(self: &Arc<Self>, call: Call, deadline: Instant, done: Done) {
        match combine::Group::of(&call) {
            Some(group) => self.submit_combined(group, call, deadline, done),
            None => {
                let router = self.clone();
                self.open.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    done(router.decide(call, deadline).await);
                    router.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    }

    /// Decides one call, which may carry several deltas.
    async fn decide(self: &Arc<Self>, call: Call, deadline: Instant) -> Reply {
        if matches!(call.op, Op::Get { .. }) {
            return self.read(call, deadline).await;
        }
        let slot = placement::slot(call.key.as_key().name);
        let mut redirects = 0;
        loop {
            match self.target(slot) {
                Target::Here(_) if self.lacks_bytes(&call) && Instant::now() < deadline => {
                    self.complete(&call.key, slot, deadline).await;
                    if self.lacks_bytes(&call) && !self.owner_may_come(deadline).await {
                        return self.degrade(&call, "the bytes of the value cannot be had");
                    }
                }
                Target::Here(term) if is_conditional(&call.op) => {
                    let begun = self.begin(&call, term);
                    let reply = self.apply_here(&call, term);
                    return self.confirm(&call, begun, reply).await;
                }
                Target::Here(term) => return self.apply_here(&call, term),
                Target::Peer(index) => match self.attempt(index, slot, &call, deadline).await {
                    Attempt::Answered(reply) => return reply,
                    Attempt::NotApplied => return self.degrade(&call, "the owner could not be asked"),
                    Attempt::Unresolved(pending) => return self.leave_unresolved(call, pending),
                    Attempt::Redirected if redirects < REDIRECTS_MAX => redirects += 1,
                    Attempt::Redirected => return self.degrade(&call, "too many redirections"),
                    Attempt::Moving if !self.owner_may_come(deadline).await => {
                        return self.degrade(&call, "the slot is changing hands");
                    }
                    Attempt::Moving => {}
                },
                Target::NobodyYet if !self.owner_may_come(deadline).await => {
                    return self.degrade(&call, "the slot has no owner yet");
                }
                Target::NobodyYet => {}
                Target::Unreachable => return self.degrade(&call, "the owner cannot be reached"),
            }
        }
    }

    /// Waits a moment for news of owners; `false`: no time is left for that.
    async fn owner_may_come(&self, deadline: Instant) -> bool {
        if Instant::now() + OWNER_POLL >= deadline {
            return false;
        }
        // Woken by a change of owners; the poll covers changes that nobody gave notice of.
        let _ = tokio::time::timeout(OWNER_POLL, self.peers.changed.notified()).await;
        true
    }

    fn target(&self, slot: u16) -> Target {
        let table = self.peers.table();
        match table.owner(slot) {
            Owner::Nobody | Owner::Frozen => Target::NobodyYet,
            Owner::Member(index) if Some(index) == table.self_index() => Target::Here(table.term(slot)),
            Owner::Member(index) => {
                if table.member(index).takes_calls() {
                    Target::Peer(index)
                } else {
                    Target::Unreachable
                }
            }
        }
    }

    /// One attempt at a peer.
    async fn attempt(self: &Arc<Self>, index: u16, slot: u16, call: &Call, deadline: Instant) -> Attempt {
        let Ok(in_flight) = self.peers.send_to(index, Request::Call(call.clone())) else {
            return Attempt::NotApplied;
        };
        let started = Instant::now();
        let (stream, id, mut reply) = (in_flight.stream, in_flight.id, in_flight.reply);
        let cell = self.peers.table().member(index);
        // As they are now: when the answer is overdue the cell may be another life's, or another node's.
        let (node_id, origin) = (cell.node_id.get(), cell.origin.load(Ordering::Acquire));
        let pending = |reply| Pending { node_id, origin, stream, id, reply };
        match tokio::time::timeout_at(deadline, &mut reply).await {
            Ok(Ok(Ok(response))) => {
                self.peers.answered(index);
                let attempt = self.understand(response, slot, call);
                if let Attempt::Answered(reply) = &attempt
                    && !reply.degraded
                {
                    self.store.segment().metrics().remote(started.elapsed().as_micros() as u64);
                }
                attempt
            }
            Ok(_) => Attempt::Unresolved(pending(None)),
            Err(_) => {
                self.peers.timed_out(index);
                Attempt::Unresolved(pending(Some(reply)))
            }
        }
    }

    /// What a peer's response to a call means.
    fn understand(&self, response: Response, slot: u16, call: &Call) -> Attempt {
        match response {
            Response::Reply(reply) => {
                self.keep_copy(call, &reply);
                Attempt::Answered(reply)
            }
            Response::NotOwner { owner, term } => {
                let index = owner.and_then(|owner| self.peers.index_of(&owner));
                let news = index.is_some_and(|index| self.peers.learn_owner(slot, index, term));
                if news { Attempt::Redirected } else { Attempt::Moving }
            }
            _ => Attempt::NotApplied,
        }
    }

    /// Read your writes: the caller's own copy is up to date before its call returns.
    fn keep_copy(&self, call: &Call, reply: &Reply) {
        let Some(state) = reply.state.as_ref().filter(|_| !matches!(call.op, Op::Get { .. })) else { return };
        let mut state = state.clone();
        let len = state.byte_len().map(|len| len as usize);
        match (self.replicator.keeps(placement::slot(call.key.as_key().name), len), len) {
            // A read changes nothing, and what is not replicated to this host would grow stale here.
            (Keeps::Nothing, _) => return,
            (Keeps::Stub, Some(len)) => state.body = Body::Elsewhere { len: len as u32 },
            (Keeps::Whole, Some(len)) => {
                if let (Op::Set { value, .. }, Body::Elsewhere { .. }) = (&call.op, &state.body)
                    && len == value.len()
                {
                    // The owner does not send back what it was sent.
                    state.body = Body::Bytes(value.clone());
                }
            }
            _ => {}
        }
        self.store.apply_copy(&Copy { key: call.key.clone(), state }, true);
    }

    /// This host owns the key (by now): the same as an inline operation.
    fn apply_here(&self, call: &Call, term: u64) -> Reply {
        let speaks = || self.peers.table().lease_holds(self.store.clock().now_ms());
        if !speaks() && is_conditional(&call.op) {
            return refused(call);
        }
        let outcome = local_outcome(&self.store, call, standing_of(&call.op, term, speaks()));
        let degraded = !self.still_speaks(placement::slot(call.key.as_key().name), term);
        Reply { outcome, state: window_state(&self.store, call), degraded }
    }

    /// Whether this host has spoken for the slot, as its owner of `term`, until now.
    fn still_speaks(&self, slot: u16, term: u64) -> bool {
        still_speaks(self.peers.table(), slot, Standing::Owner { term }, self.store.clock().now_ms())
    }

    /// No owner to be had: counted in this host's share.
    fn degrade(&self, call: &Call, why: &str) -> Reply {
        tracing::debug!(slot = placement::slot(call.key.as_key().name), why, "degraded");
        count_here(&self.store, call)
    }
}

/// The degraded answer of a host that counts for itself.
pub fn count_here(store: &Store, call: &Call) -> Reply {
    let outcome = local_outcome(store, call, Standing::Degraded);
    Reply { outcome, state: window_state(store, call), degraded: true }
}

/// Whether the effect depends on what is there: such an operation is decided by an owner that speaks for the cluster, or
/// not at all.
pub fn is_conditional(op: &Op) -> bool {
    matches!(op, Op::SetNx { .. } | Op::Append { .. } | Op::Cas { .. })
}

/// As whom the owner of `term` carries out an operation.
fn standing_of(op: &Op, term: u64, speaks: bool) -> Standing {
    let owner = Standing::Owner { term };
    if matches!(op, Op::Incr { .. }) { owner } else { standing_of_write(owner, speaks) }
}

/// The answer to a conditional operation that no owner has decided.
fn refused(call: &Call) -> Reply {
    debug_assert!(is_conditional(&call.op));
    Reply { outcome: Outcome::Refused(Refusal::NoOwner), state: None, degraded: true }
}

/// The state whose window the test build reports.
fn window_state(store: &Store, call: &Call) -> Option<State> {
    if cfg!(any(test, feature = "testing")) { store.state(call.key.as_key()) } else { None }
}

/// Receives the reply of a submitted call.
pub type Done = Box<dyn FnOnce(Reply) + Send>;

/// The metric an operation counts under.
pub fn op_kind(op: &Op) -> OpKind {
    match op {
        Op::Incr { .. } => OpKind::Incr,
        Op::Set { .. } => OpKind::Set,
        Op::Del => OpKind::Del,
        Op::Expire { .. } => OpKind::Expire,
        Op::Get { .. } => OpKind::Get,
        Op::SetNx { .. } => OpKind::SetNx,
        Op::Append { .. } => OpKind::Append,
        Op::Cas { .. } => OpKind::Cas,
    }
}

/// The metric's path of a reply.
pub fn path_of(reply: &Reply) -> Path {
    if reply.degraded { Path::Degraded } else { Path::Remote }
}
