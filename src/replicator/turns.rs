//! Whose turn it is: with few peers, each gets a batch at every tick; with more, they take turns.
//!
//! What a batch costs is mostly that it wakes two processes, however little is in it. So what has changed waits for a
//! receiver's turn and travels as one batch, the latest state of each key. The turns are spread so that every change
//! is with some member one tick after it was made: a successor asks all members, so what a killed owner had
//! acknowledged is lost no sooner than if all had got it at once. What only some keep (large values, and everything
//! in a cluster in which not everyone gets everything) goes to them at once.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::receivers::{BATCH_BYTES_MAX, Receiver, is_large};
use super::scope::Scope;
use super::{Replicator, weight};
use crate::cluster::View;
use crate::record::KeyBuf;
use crate::wire::message::Batch;

/// Peers that get a batch at each tick; more where otherwise not all would have had their turn in time.
const PEERS_PER_TICK: usize = 2;

/// Each peer has its turn at the latest after so many ticks.
const TICKS_MAX: usize = 5;

/// What waits for a receiver's turn: batches, and since when each waits.
#[derive(Default)]
pub(super) struct Waiting {
    batches: Vec<(Instant, Batch)>,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, batch: Batch, bytes: usize) {
        self.batches.push((Instant::now(), batch));
        self.bytes += bytes;
    }

    /// When the oldest of it began to wait.
    pub(super) fn since(&self) -> Option<Instant> {
        self.batches.first().map(|(since, _)| *since)
    }

    /// Whether nothing of it has a position up to `position`.
    pub(super) fn begins_after(&self, position: u64) -> bool {
        self.batches.first().is_none_or(|(_, batch)| batch.position > position)
    }

    /// All of it as one batch, with the latest copy of each key; the time a copy has waited is taken off its TTL.
    fn into_batch(self, now: Instant) -> Option<Batch> {
        let mut batches = self.batches.into_iter().map(|(since, mut batch)| {
            let waited = now.saturating_duration_since(since).as_millis() as u64;
            for ttl_ms in batch.copies.iter_mut().filter_map(|copy| copy.state.ttl_ms.as_mut()) {
                *ttl_ms = ttl_ms.saturating_sub(waited).max(1);
            }
            batch
        });
        let mut all = batches.next()?;
        for mut next in batches {
            all.position = next.position;
            all.copies.append(&mut next.copies);
            all.applied.append(&mut next.applied);
        }
        let mut seen: HashSet<KeyBuf> = HashSet::with_capacity(all.copies.len());
        all.copies.reverse();
        all.copies.retain(|copy| seen.insert(copy.key.clone()));
        all.copies.reverse();
        Some(all)
    }
}

/// The peers whose turn it is at a tick: one group of the members and one of the clients, so that the members, which
/// may have to succeed this node, are spread evenly.
fn due(view: &View, tick: usize) -> impl Iterator<Item = &str> {
    let peers = view.members.len().saturating_sub(1);
    let group = |client: bool| {
        let of_kind = view.members.iter().filter(move |member| !member.is_me && member.client == client);
        let groups = if client { groups(peers) } else { groups(of_kind.clone().count()) };
        of_kind.enumerate().filter(move |(index, _)| index % groups == tick % groups)
    };
    group(false).chain(group(true)).map(|(_, member)| member.node_id.as_str())
}

fn groups(peers: usize) -> usize {
    peers.div_ceil(PEERS_PER_TICK).clamp(1, TICKS_MAX)
}

impl Replicator {
    /// Keeps a batch for the receiver's turn, if it may wait.
    pub(super) fn put_off(self: &Arc<Self>, scope: &Scope, receiver: &mut Receiver, node_id: &str, batch: Batch) {
        let bytes = batch.copies.iter().map(weight).sum();
        let at_once = !scope.copies_all() || batch.copies.iter().any(|copy| is_large(scope, copy));
        if receiver.waiting.bytes + bytes > BATCH_BYTES_MAX {
            self.post_waiting(scope, receiver, node_id);
        }
        receiver.last = batch.position;
        receiver.waiting.add(batch, bytes);
        if at_once {
            self.post_waiting(scope, receiver, node_id);
        }
    }

    /// Sends what waits for one receiver, whoever's turn it is.
    pub(super) fn post_waiting(self: &Arc<Self>, scope: &Scope, receiver: &mut Receiver, node_id: &str) {
        if let Some(batch) = std::mem::take(&mut receiver.waiting).into_batch(Instant::now()) {
            self.post(scope, receiver, node_id, batch);
        }
    }

    /// Sends what waits for those whose turn it is.
    pub(super) fn take_turns(self: &Arc<Self>) {
        let view = self.peers.view();
        let mut inner = self.inner.lock();
        inner.tick = inner.tick.wrapping_add(1);
        let (tick, scope) = (inner.tick, inner.scope.clone());
        for node_id in due(&view, tick) {
            if let Some(receiver) = inner.receivers.get_mut(node_id) {
                self.post_waiting(&scope, receiver, node_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::{Body, Copy, State, Window};
    use crate::wire::message::AppliedIds;

    fn copy(name: &'static str, stamp: u64, ttl_ms: Option<u64>) -> Copy {
        let window = Window { stamp: 1, origin: 1 };
        let state = State { term: 1, stamp, window, ttl_ms, diverged: None, body: Body::Bytes(b"v"[..].into()) };
        Copy { key: KeyBuf::from_parts(name.as_bytes().into(), 0).expect("a key"), state }
    }

    fn batch(position: u64, after: u64, copies: Vec<Copy>) -> Batch {
        Batch { position, after, copies, applied: vec![AppliedIds { stream: 7, ids: vec![position] }] }
    }

    #[test]
    fn few_peers_have_their_turn_at_every_tick_and_many_within_five() {
        assert_eq!([0, 1, 2, 3, 4, 6, 9, 11, 49].map(groups), [1, 1, 1, 2, 2, 3, 5, 5, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_goes_as_one_batch_with_the_latest_of_each_key() {
        let mut waiting = Waiting::default();
        assert!(waiting.since().is_none());
        waiting.add(batch(5, 3, vec![copy("a", 1, None), copy("b", 1, Some(1_000))]), 2);
        tokio::time::advance(Duration::from_millis(10)).await;
        waiting.add(batch(6, 5, vec![copy("c", 1, Some(15)), copy("a", 2, None)]), 2);
        tokio::time::advance(Duration::from_millis(20)).await;
        let all = waiting.into_batch(Instant::now()).expect("a batch");
        assert_eq!((all.position, all.after), (6, 3));
        assert_eq!(all.copies, [copy("b", 1, Some(970)), copy("c", 1, Some(1)), copy("a", 2, None)]);
        assert_eq!(all.applied.iter().flat_map(|applied| applied.ids.clone()).collect::<Vec<_>>(), [5, 6]);
        assert!(Waiting::default().into_batch(Instant::now()).is_none());
    }
}
