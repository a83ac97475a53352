//! What a node answers to peers, as the simulation sees it: owners' changes are noted, and faults can be planted.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::history::{Counted, OwnerLog};
use super::network::Place;
use crate::dataplane::{Answer, Handler, Peer};
use crate::node::parts::Node;
use crate::node::serve::PeerHandler;
use crate::placement;
use crate::record::{Body, Copy, KeyBuf};
use crate::segment::table::Owner;
use crate::store::Standing;
use crate::wire::message::{Batch, Homecoming, Op, Outcome, Reply, Request, Response};

/// A fault planted on purpose, for the checker to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// None.
    Nothing,
    /// A share that came home is acknowledged and forgotten.
    DropShare,
    /// A share that came home is counted twice.
    RepeatShare,
    /// A copy that is older than what is there replaces it.
    StaleCopy,
    /// A delete is undone by a copy made before it.
    Resurrect,
    /// What a thread counts as the owner after the slot was handed over is not noticed.
    SlipPastFreeze,
}

/// The real handler behind the notes and the fault.
pub struct Planted {
    inner: PeerHandler,
    place: Place,
    plant: Plant,
    log: Arc<Mutex<OwnerLog>>,
    /// What a plant keeps: a former copy of each key.
    former: Mutex<BTreeMap<KeyBuf, Copy>>,
}

impl Planted {
    pub fn new(inner: PeerHandler, place: Place, plant: Plant, log: Arc<Mutex<OwnerLog>>) -> Self {
        Self { inner, place, plant, log, former: Mutex::default() }
    }

    pub fn node(&self) -> &Arc<Node> {
        &self.inner.0
    }

    pub fn connected(&self, peer: &Peer) -> Result<(), String> {
        self.inner.connected(peer)
    }

    pub fn disconnected(&self, peer: &Peer) {
        self.inner.disconnected(peer);
    }

    /// As the real one does, and what an owner did is noted.
    pub fn handle(&self, peer: &Peer, id: u64, request: Request) -> Answer {
        let call = if let Request::Call(call) = &request { Some(call.clone()) } else { None };
        let request = match self.tamper(request) {
            Ok(request) => request,
            Err(response) => return Answer::Now(*response),
        };
        let answer = self.inner.handle(peer, id, request);
        if let (Some(call), Answer::Now(Response::Reply(reply))) = (call, &answer) {
            self.note(call.key.as_key().name, &call.op, reply);
        }
        answer
    }

    fn note(&self, name: &[u8], op: &Op, reply: &Reply) {
        let table = self.node().segment.table();
        let term = table.term(placement::slot(name));
        let mut log = self.log.lock();
        let (Some(key), at) = (log.keys.get(name).copied(), log.now) else { return };
        if let (Op::Incr { deltas, .. }, Outcome::Values(values), Some(state)) = (op, &reply.outcome, &reply.state) {
            let (place, origin, window) = (self.place, self.node().segment.origin(), state.window);
            for (delta, value) in deltas.iter().zip(values) {
                let Ok(value) = *value else { continue };
                log.counted.push(Counted { at, place, origin, key, term, window, delta: *delta, value });
            }
        }
    }

    /// Plays the planted fault, if this request gives an occasion. `Err`: the answer.
    fn tamper(&self, request: Request) -> Result<Request, Box<Response>> {
        match (self.plant, request) {
            (Plant::DropShare, Request::Share(copies)) => {
                self.played();
                let merged = copies.into_iter().map(|copy| Homecoming::Merged(copy.state)).collect();
                Err(Box::new(Response::Shares(merged)))
            }
            (Plant::RepeatShare, Request::Share(copies)) => {
                copies.iter().for_each(|copy| self.repeat(copy));
                Ok(Request::Share(copies))
            }
            (Plant::StaleCopy | Plant::Resurrect, Request::Replicate(batch)) => {
                Ok(Request::Replicate(self.exchange(batch)))
            }
            (_, request) => Ok(request),
        }
    }

    fn repeat(&self, copy: &Copy) {
        let node = self.node();
        let table = node.segment.table();
        let (owner, term) = table.ownership(placement::slot(copy.key.as_key().name));
        let is_mine = matches!(owner, Owner::Member(index) if Some(index) == table.self_index());
        if let (true, Body::Counter(shares)) = (is_mine, &copy.state.body) {
            self.played();
            let by = shares.iter().map(|share| share.amount).find(|amount| *amount != 0).unwrap_or(1);
            let _ = node.store.incr(copy.key.as_key(), by, None, Standing::Owner { term });
        }
    }

    /// Puts the copy that came before into the place of one that comes now, as if it were newer.
    fn exchange(&self, mut batch: Batch) -> Batch {
        let mut former = self.former.lock();
        for copy in &mut batch.copies {
            let now = copy.clone();
            let before = former.insert(copy.key.clone(), now);
            let Some(before) = before else { continue };
            let deleted = matches!(copy.state.body, Body::Tombstone(_));
            let fits = match self.plant {
                Plant::Resurrect => deleted && !matches!(before.state.body, Body::Tombstone(_)),
                _ => !deleted && matches!(before.state.body, Body::Bytes(_)) && before.state != copy.state,
            };
            if fits {
                self.log.lock().planted += 1;
                let (term, stamp) = (copy.state.term, copy.state.stamp);
                copy.state = before.state;
                (copy.state.term, copy.state.stamp) = (term, stamp + 1);
            }
        }
        batch
    }

    fn played(&self) {
        self.log.lock().planted += 1;
    }
}
