//! This host as the owner: calls applied to the store, for its own threads and for peers.

use super::Router;
use crate::dataplane::Peer;
use crate::error::Refusal;
use crate::placement;
use crate::record::Body;
use crate::segment::table::Owner;
use crate::store::{self, Called, RequestId, Standing, Store};
use crate::wire::message::{Call, Op, Outcome, Reply, Response};

impl Router {
    /// A peer believes that this host owns the key.
    pub fn serve(&self, peer: &Peer, id: u64, call: Call) -> Response {
        let slot = placement::slot(call.key.as_key().name);
        let table = self.peers.table();
        let term = match table.ownership(slot) {
            (Owner::Member(index), term) if Some(index) == table.self_index() => term,
            (Owner::Member(index), term) => {
                return Response::NotOwner { owner: Some(table.member(index).node_id.get()), term };
            }
            (Owner::Nobody | Owner::Frozen, term) => return Response::NotOwner { owner: None, term },
        };
        if let Some(reply) = self.plant.interfere(&self.store, &call) {
            return Response::Reply(reply);
        }
        let request = RequestId { stream: peer.stream, id };
        let degraded = !table.lease_holds(self.store.clock().now_ms());
        let Some(op) = store_op(&call.op) else {
            let whole_max = if matches!(call.op, Op::Get { bytes: true }) { u32::MAX } else { 0 };
            let state = self.store.state_up_to(call.key.as_key(), whole_max);
            let outcome = Outcome::Done(matches!(&state, Some(state) if !matches!(state.body, Body::Tombstone(_))));
            return Response::Reply(Reply { outcome, state, degraded });
        };
        if degraded && super::is_conditional(&call.op) {
            return Response::Reply(super::refused(&call));
        }
        let standing = super::standing_of(&call.op, term, !degraded);
        match self.store.call(call.key.as_key(), op, standing, request) {
            // The lease ran out meanwhile: another owner may have decided otherwise.
            Called::Done { .. }
                if super::is_conditional(&call.op) && !table.lease_holds(self.store.clock().now_ms()) =>
            {
                Response::Reply(super::refused(&call))
            }
            Called::Done { outcome, state } => Response::Reply(Reply { outcome, state, degraded }),
            Called::AlreadyHandled => Response::Voided,
        }
    }
}

/// The store's operation of a wire operation; `None`: a read, which changes nothing.
fn store_op(op: &Op) -> Option<store::Op<'_>> {
    Some(match op {
        Op::Incr { deltas, ttl_ms } => store::Op::Incr { deltas, ttl_ms: *ttl_ms },
        Op::Set { value, ttl_ms } => store::Op::Set { value, ttl_ms: *ttl_ms },
        Op::SetNx { value, ttl_ms } => store::Op::SetNx { value, ttl_ms: *ttl_ms },
        Op::Append { value } => store::Op::Append { value },
        Op::Cas { expected, new, ttl_ms } => {
            store::Op::Cas { expected: expected.as_deref(), new: new.as_deref(), ttl_ms: *ttl_ms }
        }
        Op::Del => store::Op::Del,
        Op::Expire { ttl_ms } => store::Op::Expire { ttl_ms: *ttl_ms },
        Op::Get { .. } => return None,
    })
}

/// Applies `call` to this host's store, one delta after the other.
pub fn local_outcome(store: &Store, call: &Call, standing: Standing) -> Outcome {
    let key = call.key.as_key();
    let done = |result: Result<bool, _>| result.map_or_else(Outcome::Refused, Outcome::Done);
    match &call.op {
        op if standing == Standing::Degraded && super::is_conditional(op) => Outcome::Refused(Refusal::NoOwner),
        Op::Incr { deltas, ttl_ms } => Outcome::Values(
            deltas
                .iter()
                .map(|delta| store.incr(key, *delta, *ttl_ms, standing).map(|counted| counted.value))
                .collect(),
        ),
        Op::Set { value, ttl_ms } => done(store.set(key, value, *ttl_ms, standing).map(|()| true)),
        Op::SetNx { value, ttl_ms } => done(store.set_nx(key, value, *ttl_ms, standing)),
        Op::Append { value } => store
            .append(key, value, standing)
            .map_or_else(Outcome::Refused, |len| Outcome::Values(vec![Ok(len as i64)])),
        Op::Cas { expected, new, ttl_ms } => {
            done(store.cas(key, expected.as_deref(), new.as_deref(), *ttl_ms, standing))
        }
        Op::Del => done(store.del(key, standing)),
        Op::Expire { ttl_ms } => done(store.expire(key, *ttl_ms, standing)),
        Op::Get { .. } => done(store.read(key, |_| ()).map(|held| held.is_some())),
    }
}

/// Faults planted on purpose, so that the checker can be seen to catch them. Inert without the `testing` feature.
pub(super) struct Plant {
    #[cfg(feature = "testing")]
    fault: Option<(Fault, u64)>,
    #[cfg(feature = "testing")]
    calls: std::sync::atomic::AtomicU64,
}

#[cfg(feature = "testing")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Answers as if counted.
    Drop,
    /// Answers with the value as it stands.
    Repeat,
}

#[cfg(not(feature = "testing"))]
impl Plant {
    pub(super) fn from_environment() -> Self {
        Self {}
    }

    fn interfere(&self, _: &Store, _: &Call) -> Option<Reply> {
        None
    }
}

#[cfg(feature = "testing")]
impl Plant {
    /// `EPHPM_KV_PLANT=drop:N` or `repeat:N`: one remote increment in N.
    pub(super) fn from_environment() -> Self {
        let fault = std::env::var("EPHPM_KV_PLANT").ok().and_then(|text| {
            let (name, every) = text.split_once(':')?;
            let fault = match name {
                "drop" => Fault::Drop,
                "repeat" => Fault::Repeat,
                _ => return None,
            };
            Some((fault, every.parse().ok().filter(|every| *every > 0)?))
        });
        Self { fault, calls: std::sync::atomic::AtomicU64::new(0) }
    }

    fn interfere(&self, store: &Store, call: &Call) -> Option<Reply> {
        let (fault, every) = self.fault?;
        let Op::Incr { deltas, .. } = &call.op else { return None };
        if !(self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1).is_multiple_of(every) {
            return None;
        }
        let held = store.read(call.key.as_key(), |value| match value {
            store::Value::Int(value) => value,
            store::Value::Bytes(_) | store::Value::Elsewhere(_) => 0,
        });
        let mut value = held.ok().flatten()?;
        let values = deltas
            .iter()
            .map(|delta| {
                if fault == Fault::Drop {
                    value += delta;
                }
                Ok(value)
            })
            .collect();
        Some(Reply { outcome: Outcome::Values(values), state: None, degraded: false })
    }
}
