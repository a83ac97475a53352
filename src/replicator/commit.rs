//! Making sure of a change before it is answered: when a quorum has it, every successor will find it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Replicator;
use super::receivers::Receiver;
use crate::dataplane::Peer;
use crate::placement;
use crate::record::{Copy, Key};
use crate::segment::table::Owner;
use crate::wire::message::Batch;

/// Passes that are asked for and made.
#[derive(Default)]
pub(super) struct Commits {
    asked: AtomicU64,
    made: AtomicU64,
    wanted: Notify,
}

impl Replicator {
    /// Waits until somebody cannot wait for the next tick.
    pub async fn urgent(&self) {
        self.commits.wanted.notified().await;
    }

    /// Sends everything that changed, to all and at once, if somebody waits for that. Returns what
    /// [`Replicator::tick`] does.
    pub async fn hurry_along(self: &Arc<Self>) -> Vec<Copy> {
        let asked = self.commits.asked.load(Ordering::Acquire);
        if asked == self.commits.made.load(Ordering::Acquire) {
            return Vec::new();
        }
        let (foreign, all) = self.drain_all().await;
        {
            let mut inner = self.inner.lock();
            let scope = inner.scope.clone();
            for (node_id, receiver) in &mut inner.receivers {
                self.post_waiting(&scope, receiver, node_id);
            }
        }
        if all {
            self.commits.made.fetch_max(asked, Ordering::AcqRel);
            self.acked.notify_waiters();
        }
        foreign
    }

    /// Waits until what this host has changed of `key` since its [position](Replicator::position) was `begun` cannot be
    /// missed by a successor: a quorum of the members has it, and of a large value one of its keepers; or where only some
    /// keep it, all of those. `false`: not within `timeout`.
    pub async fn commit(&self, key: Key<'_>, begun: u64, timeout: Duration) -> bool {
        let pass = self.commits.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.commits.wanted.notify_one();
        let mut end = None;
        let done = async {
            loop {
                let acked = self.acked.notified();
                tokio::pin!(acked);
                // From here on nothing is missed.
                acked.as_mut().enable();
                if end.is_none() && self.commits.made.load(Ordering::Acquire) >= pass {
                    end = Some(self.position());
                }
                if end.is_some_and(|end| self.is_safe(key, begun, end)) {
                    return;
                }
                acked.await;
            }
        };
        tokio::time::timeout_at(Instant::now() + timeout, done).await.is_ok()
    }

    /// Whether enough members have all batches after position `begun` up to `end`.
    fn is_safe(&self, key: Key<'_>, begun: u64, end: u64) -> bool {
        let (view, value) = (self.peers.view(), self.store.held(key));
        let inner = self.inner.lock();
        let has = |node_id: &str| {
            inner.receivers.get(node_id).is_some_and(|receiver: &Receiver| receiver.has_all(begun, end))
        };
        let keepers = || inner.scope.keepers(placement::slot(key.name), &view.me().node_id, &inner.without_room());
        if !inner.scope.copies_all() {
            return keepers().iter().all(|node_id| has(node_id));
        }
        // The others have a stub of it.
        let is_large = value.is_some_and(|value| inner.scope.is_large(value.len as usize));
        // Who keeps them by now may have been sent a stub.
        let same_keepers = inner.keepers_since <= begun;
        let is_kept = || keepers().is_empty() || same_keepers && keepers().iter().any(|node_id| has(node_id));
        view.voters.is_quorum(|node_id| view.is_me(node_id) || has(node_id)) && (!is_large || is_kept())
    }

    /// Whether this host may say to `peer` that it has the batch: as long as it would object to a takeover of what is in
    /// it.
    pub(super) fn vouches_for(&self, peer: &Peer, batch: &Batch) -> bool {
        let Some(index) = self.peers.index_of_life(peer).filter(|_| self.peers.vouches_for(peer)) else { return false };
        let table = self.peers.table();
        batch.copies.iter().all(|copy| {
            let (owner, term) = table.ownership(placement::slot(copy.key.as_key().name));
            owner == Owner::Member(index) || term <= copy.state.term
        })
    }
}

impl Receiver {
    /// Whether it has taken, and vouched for, every batch after position `begun` up to `end`.
    fn has_all(&self, begun: u64, end: u64) -> bool {
        !self.behind
            && self.complete_since <= begun
            && self.unvouched <= begun
            && self.waiting.begins_after(end)
            && self.unacked.iter().all(|(position, _)| *position > end)
    }
}
