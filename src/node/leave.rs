//! The orderly end of a node: what it owns and what it counted goes to others first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::parts::Node;
use crate::cluster::{Phase, Voice};
use crate::segment::table::NodeState;

/// A script may count and end before its node has found the cluster: what it counted has nowhere to go until then. Waits
/// for that, but not in a node that has been looking for longer.
pub(super) async fn find_owners(node: &Arc<Node>, until: Instant) {
    while Instant::now() < until {
        let (foreign, _) = node.replicator.tick();
        node.homeward.take(foreign);
        let nobody_to_find = node.peers.view().joined && !has_heirs(node);
        if node.homeward.all_home() || nobody_to_find {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether another member may own what this one does.
fn has_heirs(node: &Node) -> bool {
    node.peers.view().owners_eligible().iter().any(|member| !member.is_me)
}

/// Hands slots and shares over, tells the cluster, and waits until it knows.
pub(super) async fn leave(node: &Arc<Node>, gossip: &dyn Voice, deadline: Instant) {
    let table = node.segment.table();
    tracing::info!("leaving the cluster");
    table.set_state(NodeState::Leaving, "");
    node.leaving.send_replace(true);
    node.membership.lock().set_phase(Phase::Leaving);
    gossip.set_phase(Phase::Leaving).await;
    loop {
        let (foreign, _) = node.replicator.tick();
        node.homeward.take(foreign);
        let nothing_held = node.ownership.owned() == 0 && node.homeward.all_home();
        if nothing_held || !has_heirs(node) || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    table.lease_until_ms.store(0, Ordering::Release);
    // Calls that have begun are decided; new ones of other processes are theirs to count.
    node.closing.store(true, Ordering::Relaxed);
    let patience = Instant::now() + Duration::from_millis(2 * node.config.timeout_ms);
    while !node.router.is_idle() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.router.give_up();
    // Last changes that came in while slots moved.
    for node_id in node.peers.up() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (_, foreign) = node.replicator.flush_to(&node_id, u64::MAX, left.min(Duration::from_millis(100))).await;
        node.homeward.take(foreign);
    }
    while has_heirs(node) && !node.homeward.all_home() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
