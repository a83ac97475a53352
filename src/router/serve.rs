//! This host as the owner: calls applied to the store, for its own threads and for peers.

use super::Router;
use super::confirm::Begun;
use crate::dataplane::Peer;
use crate::error::Refusal;
use crate::placement;
use crate::plant::{Fault, Plant};
use crate::record::{Body, Copy};
use crate::segment::table::Owner;
use crate::store::{self, Called, RequestId, Standing, Store};
use crate::wire::message::{Call, Op, Outcome, Reply, Response};

/// What this host has done as the owner of a key.
pub struct Served {
    /// The answer.
    pub response: Response,
    /// A conditional operation's, if it was decided: it must be confirmed.
    begun: Option<Begun>,
}

impl From<Response> for Served {
    fn from(response: Response) -> Self {
        Self { response, begun: None }
    }
}

impl Router {
    /// A peer believes that this host owns the key.
    pub fn serve(&self, peer: &Peer, id: u64, call: &Call) -> Served {
        let slot = placement::slot(call.key.as_key().name);
        let table = self.peers.table();
        let term = match table.ownership(slot) {
            (Owner::Member(index), term) if Some(index) == table.self_index() => term,
            (Owner::Member(index), term) => {
                return Response::NotOwner { owner: Some(table.member(index).node_id.get()), term }.into();
            }
            (owner @ (Owner::Nobody | Owner::Frozen), term) => {
                let slipped = planted(&self.plant, &self.store, call, true).filter(|_| owner == Owner::Frozen);
                return slipped.map_or(Response::NotOwner { owner: None, term }, Response::Reply).into();
            }
        };
        if let Some(reply) = planted(&self.plant, &self.store, call, false) {
            return Response::Reply(reply).into();
        }
        let dead = raise_dead(&self.plant, &self.store, call);
        let request = RequestId { stream: peer.stream, id };
        let degraded = !table.lease_holds(self.store.clock().now_ms());
        if self.lacks_bytes(call) {
            // They are on their way here.
            return Response::NotOwner { owner: None, term }.into();
        }
        let Some(op) = store_op(&call.op) else {
            return Response::Reply(super::read::read_reply(self.look_here(call), degraded)).into();
        };
        let conditional = super::is_conditional(&call.op);
        if degraded && conditional {
            return Response::Reply(super::refused(call)).into();
        }
        let begun = conditional.then(|| self.begin(call, term));
        let standing = super::standing_of(&call.op, term, !degraded);
        match self.store.call(call.key.as_key(), op, standing, request) {
            Called::Done { outcome, state } => {
                if let (Some(mut dead), Some(now)) = (dead, self.store.state(call.key.as_key())) {
                    (dead.state.term, dead.state.stamp) = (now.term, now.stamp + 1);
                    self.store.apply_copy(&dead, false);
                }
                // This process may have been stopped meanwhile; what is conditional is confirmed, or refused, anyway.
                let late = begun.is_none() && !self.still_speaks(slot, term);
                Served { response: Response::Reply(Reply { outcome, state, degraded: degraded || late }), begun }
            }
            Called::AlreadyHandled => Response::Voided.into(),
        }
    }

    /// The answer to a conditional operation, when it may be given.
    pub async fn confirm_served(&self, call: &Call, served: Served) -> Response {
        match (served.response, served.begun) {
            (Response::Reply(reply), Some(begun)) => Response::Reply(self.confirm(call, begun, reply).await),
            (response, _) => response,
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

/// The answer of an owner that counts wrongly on purpose: as if counted, or the value as it stands.
fn planted(plant: &Plant, store: &Store, call: &Call, frozen: bool) -> Option<Reply> {
    let Op::Incr { deltas, .. } = &call.op else { return None };
    let as_if_counted = if frozen { plant.strikes(Fault::Slip) } else { plant.strikes(Fault::Drop) };
    if !as_if_counted && (frozen || !plant.strikes(Fault::Repeat)) {
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
            value += if as_if_counted { *delta } else { 0 };
            Ok(value)
        })
        .collect();
    Some(Reply { outcome: Outcome::Values(values), state: None, degraded: false })
}

/// What is deleted comes back as newer than its delete: only where that is planted.
fn raise_dead(plant: &Plant, store: &Store, call: &Call) -> Option<Copy> {
    let doomed = matches!(call.op, Op::Del) && plant.strikes(Fault::Resurrect);
    let state = doomed.then(|| store.state(call.key.as_key())).flatten();
    let state = state.filter(|state| !matches!(state.body, Body::Tombstone(_)))?;
    Some(Copy { key: call.key.clone(), state })
}
