//! Who lacks what: positions that gossip tells of, receivers that are behind, and starting over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Replicator;

/// How long a sender's position may be ahead of what has come from it before it is pulled.
const AHEAD_FOR: Duration = Duration::from_secs(1);

/// How long a batch may wait for its acknowledgement before its receiver counts as behind.
const BEHIND_AFTER: Duration = Duration::from_secs(10);

impl Replicator {
    /// Number of the last batch: published, so that receivers see what they lack.
    pub fn position(&self) -> u64 {
        self.inner.lock().position
    }

    /// Gossip says that this life of `node_id` has sent batches up to `position`. When that stays ahead of what has
    /// come while the link stands, batches were lost that the sender believes to have delivered: it is pulled.
    pub fn heard_position(self: &Arc<Self>, node_id: &str, generation: u64, position: u64) {
        let mut inner = self.inner.lock();
        let Some(sender) = inner.senders.get_mut(node_id).filter(|sender| sender.generation == generation) else {
            return;
        };
        if position < sender.next || sender.pulling || !self.peers.is_up(node_id) {
            sender.ahead_since = None;
        } else if sender.ahead_since.get_or_insert_with(Instant::now).elapsed() >= AHEAD_FOR {
            sender.ahead_since = None;
            // What the pull brings is at least as new as that.
            sender.next = position + 1;
            tracing::debug!(peer = %node_id, position, "batches are missing");
            self.begin_pull(node_id, sender);
        }
    }

    /// Whether a member may lack changes that were sent, or were to be sent, some time ago.
    pub fn is_anyone_behind(&self) -> bool {
        let inner = self.inner.lock();
        let late = |at: &Instant| at.elapsed() >= BEHIND_AFTER;
        inner
            .receivers
            .values()
            .any(|receiver| receiver.behind || receiver.unacked.front().is_some_and(|(_, at)| late(at)))
    }

    /// Nobody may pull from this host until [`Replicator::open`]: its copies may have to be dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Its copies are good again.
    pub fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// This host has dropped its copies: everything is pulled anew.
    pub fn start_over(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        let node_ids: Vec<String> = inner.senders.keys().cloned().collect();
        for node_id in node_ids {
            if let Some(sender) = inner.senders.get_mut(&node_id) {
                self.begin_pull(&node_id, sender);
            }
        }
    }
}
