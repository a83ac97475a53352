//! What the node needs of its gossip, whatever carries it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Gossip, Phase, Snapshot};

/// Says how this node is, and shows what is heard of the others.
#[async_trait]
pub trait Voice: Send + Sync {
    /// What is known, refreshed on every change and now and then.
    fn watch(&self) -> watch::Receiver<Arc<Snapshot>>;

    /// Publishes this node's phase. Returns when it is on its way.
    async fn set_phase(&self, phase: Phase);

    /// Publishes a number under a name. Returns when it is on its way.
    async fn set_number(&self, name: &str, value: u64);
}

#[async_trait]
impl Voice for Gossip {
    fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        Gossip::watch(self)
    }

    async fn set_phase(&self, phase: Phase) {
        Gossip::set_phase(self, phase).await;
    }

    async fn set_number(&self, name: &str, value: u64) {
        Gossip::set_number(self, name, value).await;
    }
}
