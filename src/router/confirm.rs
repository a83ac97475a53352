//! Operations that must have one outcome for the whole cluster: an owner that is being cut off may decide one and be
//! superseded before anybody has heard of it. So their answer waits until a successor cannot miss what was decided, and
//! what nobody may hear of in time is taken back.

use super::Router;
use crate::placement;
use crate::record::Body;
use crate::segment::table::Owner;
use crate::store::Standing;
use crate::wire::message::{Call, Op, Outcome, Reply};

/// A conditional operation, before it is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    term: u64,
    /// Position of the replicator.
    position: u64,
    /// Remaining time of the value that is there.
    ttl_ms: Option<u64>,
}

impl Router {
    /// To be called before the owner of `term` decides `call`.
    pub(super) fn begin(&self, call: &Call, term: u64) -> Begun {
        // Only a replaced value loses its deadline.
        let replaces = matches!(call.op, Op::Cas { expected: Some(_), .. });
        let before = if replaces { self.store.state(call.key.as_key()) } else { None };
        Begun { term, position: self.replicator.position(), ttl_ms: before.and_then(|state| state.ttl_ms) }
    }

    /// The answer to `call`, which was decided with `reply`, once its effect cannot be lost; if that is not so in time the
    /// effect is taken back.
    pub(super) async fn confirm(&self, call: &Call, begun: Begun, reply: Reply) -> Reply {
        if !changes(&reply.outcome) {
            return reply;
        }
        let slot = placement::slot(call.key.as_key().name);
        let stamp = self.stamp_of(call);
        // So that the caller, who waits a little longer, hears of a refusal.
        let committed = self.replicator.commit(call.key.as_key(), begun.position, self.patience * 3 / 4).await;
        if !self.owns(slot, begun.term) {
            // What has changed hands since may have done so with the effect or without.
            return super::refused(call);
        }
        if committed {
            return reply;
        }
        tracing::debug!(slot, "not confirmed by a quorum in time");
        if self.peers.table().lease_holds(self.store.clock().now_ms()) {
            // What was written since, even if it is the same, is somebody else's.
            if self.stamp_of(call) == stamp {
                self.take_back(call, &begun, &reply.outcome);
            }
        }
        super::refused(call)
    }

    fn stamp_of(&self, call: &Call) -> Option<u64> {
        self.store.state_up_to(call.key.as_key(), 0).map(|state| state.stamp)
    }

    fn owns(&self, slot: u16, term: u64) -> bool {
        let table = self.peers.table();
        match table.ownership(slot) {
            (Owner::Member(index), now) => Some(index) == table.self_index() && now == term,
            (Owner::Frozen, now) => now == term,
            (Owner::Nobody, _) => false,
        }
    }

    /// Undoes the effect, unless it has been changed since.
    fn take_back(&self, call: &Call, begun: &Begun, outcome: &Outcome) {
        let (key, standing) = (call.key.as_key(), Standing::Owner { term: begun.term });
        let swap = |from: Option<&[u8]>, to: Option<&[u8]>, ttl_ms| self.store.cas(key, from, to, ttl_ms, standing);
        // What finds no room for the old value, or a value that is on its way, stays: the caller was not told that it is
        // not so.
        let _ = match &call.op {
            Op::SetNx { value, .. } => swap(Some(value), None, None),
            Op::Cas { expected, new, .. } => swap(new.as_deref(), expected.as_deref(), begun.ttl_ms),
            Op::Append { value } => {
                let Some(state) = self.store.state(key) else { return };
                let text = match &state.body {
                    Body::Bytes(bytes) => bytes.to_vec(),
                    _ => crate::store::counter_value(&state)
                        .map(|value| value.to_string().into_bytes())
                        .unwrap_or_default(),
                };
                let is_last = matches!(outcome, Outcome::Values(values) if values[..] == [Ok(text.len() as i64)]);
                match text.strip_suffix(&value[..]) {
                    Some(before) if is_last => {
                        swap(Some(&text), Some(before).filter(|before| !before.is_empty()), state.ttl_ms)
                    }
                    _ => return,
                }
            }
            _ => return,
        };
    }
}

/// Whether a conditional operation has changed anything.
fn changes(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Done(done) => *done,
        Outcome::Values(values) => values.iter().any(Result::is_ok),
        Outcome::Refused(_) => false,
    }
}
