//! Reads of what this host does not have, or not whole: from the owner, or from whoever else has it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Attempt, REDIRECTS_MAX, Router, Target};
use crate::placement;
use crate::record::{Body, Copy, KeyBuf, State};
use crate::replicator::Keeps;
use crate::wire::message::{Call, Op, Outcome, Reply, Request, Response};

/// What the owner leaves of the time for asking others: one part in so many.
const PART_FOR_OTHERS: u32 = 4;

/// Most members that are asked for a key's bytes one after the other.
const ASKED_MAX: usize = 8;

/// Whether the operation needs the bytes of a value that is there.
pub(super) fn needs_bytes(op: &Op) -> bool {
    matches!(op, Op::Get { bytes: true } | Op::Append { .. } | Op::Cas { expected: Some(_), .. })
}

/// The answer to a read that found this.
pub(super) fn read_reply(state: Option<State>, degraded: bool) -> Reply {
    let there = matches!(&state, Some(state) if !matches!(state.body, Body::Tombstone(_)));
    Reply { outcome: Outcome::Done(there), state, degraded }
}

fn is_stub(state: &Option<State>) -> bool {
    matches!(state, Some(State { body: Body::Elsewhere { .. }, .. }))
}

impl Router {
    /// Decides a read.
    pub(super) async fn read(self: &Arc<Self>, call: Call, deadline: Instant) -> Reply {
        let slot = placement::slot(call.key.as_key().name);
        let time = deadline.saturating_duration_since(Instant::now());
        let for_owner = deadline - time / PART_FOR_OTHERS;
        let mut redirects = 0;
        loop {
            match self.target(slot) {
                Target::Here(_) => {
                    if needs_bytes(&call.op) {
                        self.complete(&call.key, slot, deadline).await;
                    }
                    let state = self.look_here(&call);
                    if is_stub(&state) && needs_bytes(&call.op) {
                        return read_reply(None, true);
                    }
                    let speaks = self.peers.table().lease_holds(self.store.clock().now_ms());
                    return read_reply(state, !speaks);
                }
                Target::Peer(index) => match self.attempt(index, slot, &call, for_owner).await {
                    Attempt::Answered(reply) => return reply,
                    Attempt::Redirected if redirects < REDIRECTS_MAX => redirects += 1,
                    Attempt::Moving if self.owner_may_come(for_owner).await => {}
                    _ => return self.read_without_owner(&call, slot, deadline).await,
                },
                Target::NobodyYet if self.owner_may_come(for_owner).await => {}
                Target::NobodyYet | Target::Unreachable => {
                    return self.read_without_owner(&call, slot, deadline).await;
                }
            }
        }
    }

    /// What this host has.
    pub(super) fn look_here(&self, call: &Call) -> Option<State> {
        let whole_max = if needs_bytes(&call.op) { u32::MAX } else { 0 };
        self.store.state_up_to(call.key.as_key(), whole_max)
    }

    /// Whether this host has a stub of a value whose bytes the operation needs.
    pub(super) fn lacks_bytes(&self, call: &Call) -> bool {
        needs_bytes(&call.op) && self.store.held(call.key.as_key()).is_some_and(|held| !held.whole)
    }

    /// This host's copy where it keeps one, or that of a replica.
    async fn read_without_owner(&self, call: &Call, slot: u16, deadline: Instant) -> Reply {
        let here = self.look_here(call);
        let kept = self.replicator.keeps(slot, None) != Keeps::Nothing;
        let enough = here.is_some() && (!is_stub(&here) || !needs_bytes(&call.op));
        if kept && (enough || self.peers.table().is_complete() && here.is_none()) {
            return read_reply(here, true);
        }
        let (mut best, stub) = if enough { (here, None) } else { (None, here) };
        for node_id in self.replicator.may_have(slot).into_iter().take(ASKED_MAX) {
            let Some(copy) = self.fetch(&node_id, &call.key, deadline).await else { continue };
            // A value before the one whose bytes are wanted.
            let wanted = |stub: &State| stub.has_same_bytes(&copy.state) || copy.state.comes_after(stub);
            if !stub.as_ref().is_none_or(wanted) {
                continue;
            }
            if best.as_ref().is_none_or(|best| copy.state.comes_after(best)) {
                best = Some(copy.state);
            }
            if kept || !matches!(best.as_ref().map(|state| &state.body), Some(Body::Counter(_))) {
                break;
            }
        }
        read_reply(best, true)
    }

    /// This host owns the key: it gets the bytes of a stub from whoever has them.
    pub(super) async fn complete(&self, key: &KeyBuf, slot: u16, deadline: Instant) {
        if self.store.held(key.as_key()).is_none_or(|held| held.whole) {
            return;
        }
        for node_id in self.replicator.may_have(slot).into_iter().take(ASKED_MAX) {
            let Some(copy) = self.fetch(&node_id, key, deadline).await else { continue };
            // What has ended meanwhile must not begin anew.
            if self.store.held(key.as_key()).is_some_and(|held| !held.whole) {
                self.store.apply_copy(&copy, false);
            }
            if self.store.held(key.as_key()).is_none_or(|held| held.whole) {
                return;
            }
        }
    }

    async fn fetch(&self, node_id: &str, key: &KeyBuf, deadline: Instant) -> Option<Copy> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(1) || !self.peers.is_reachable(node_id) {
            return None;
        }
        let request = Request::Fetch { keys: vec![key.clone()], older: false };
        match self.peers.ask(node_id, request, left).await {
            Ok(Response::Page { copies, .. }) => copies.into_iter().next(),
            _ => None,
        }
    }
}
