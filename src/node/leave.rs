//! The orderly end of a node: what it owns and what it counted goes to others first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::parts::Node;
use crate::cluster::{Phase, Voice};
use crate::segment::table::NodeState;

/// How long a node that has handed everything over waits for the last answers.
const TELL_PATIENCE: Duration = Duration::from_millis(200);

/// A script may count and end before its node has found the cluster: what it counted has nowhere to go until then. Waits
/// for that, but not in a node that has been looking for longer.
pub(super) async fn find_owners(node: &Arc<Node>, until: Instant) {
    while Instant::now() < until {
        let (foreign, _) = node.replicator.tick();
        node.homeward.take(foreign);
        let view = node.peers.view();
        if node.homeward.all_home() || view.joined && nobody_will_come(node, !view.quorum) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether another member may own what this one does.
fn has_heirs(node: &Node) -> bool {
    node.peers.view().owners_eligible().iter().any(|member| !member.is_me)
}

/// Whether there is nobody who may take what this node has, nor will be: to a side without a quorum (`apart`) the members
/// that it remembers are only cut off, and may be there again in a moment.
fn nobody_will_come(node: &Node, apart: bool) -> bool {
    let view = node.peers.view();
    let is_away = |node_id: &str| view.member(node_id).is_none();
    !(has_heirs(node) || apart && view.voters.any(is_away))
}

/// Hands slots and shares over, tells the cluster, and waits until it knows. That it has gone it says only if others know
/// all that it would be asked after: then what they know nothing of was not applied.
pub(super) async fn leave(node: &Arc<Node>, gossip: &dyn Voice, deadline: Instant) {
    let table = node.segment.table();
    tracing::info!("leaving the cluster");
    let mut apart = false;
    table.set_state(NodeState::Leaving, "");
    node.leaving.send_replace(true);
    node.membership.lock().set_phase(Phase::Leaving);
    gossip.set_phase(Phase::Leaving).await;
    loop {
        // What others did not answer in time is this host's to count, if they say that it is not in their count.
        let resolved = table.unresolved.load(Ordering::Relaxed) == 0;
        let (foreign, _) = node.replicator.tick();
        node.homeward.take(foreign);
        // Also when it finds that out only now.
        apart |= !node.peers.view().quorum;
        let nothing_held = !node.ownership.holds_any() && node.homeward.all_home() && resolved;
        if nothing_held || nobody_will_come(node, apart) || Instant::now() >= deadline {
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
    node.ownership.close();
    // Last changes that came in while slots moved.
    for node_id in node.peers.up() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (_, foreign) = node.replicator.flush_to(&node_id, u64::MAX, left.min(Duration::from_millis(100))).await;
        node.homeward.take(foreign);
    }
    // What was sent last is still being answered, and a thread that was stopped in the middle may count only now.
    let told_by = Instant::now() + TELL_PATIENCE;
    loop {
        apart |= !node.peers.view().quorum;
        let at_home = node.homeward.all_home() || nobody_will_come(node, apart);
        if at_home && all_is_told(node) {
            break;
        }
        if Instant::now() >= if at_home { told_by } else { told_by.max(deadline) } {
            return;
        }
        let (foreign, _) = node.replicator.tick();
        node.homeward.take(foreign);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gossip.set_phase(Phase::Gone).await;
}

/// Whether whoever asks after a request of this node's will hear of it: a quorum of the others knows what it applied, and
/// whoever asks has a quorum of them to ask. So do those in the view that do not count yet.
fn all_is_told(node: &Node) -> bool {
    let (view, told) = (node.peers.view(), |node_id: &str| node.replicator.has_told(node_id));
    let others = view.voters.without(&view.me().node_id);
    let counts = |node_id: &str| others.any(|voter| voter == node_id);
    let mut newcomers =
        view.members.iter().filter(|member| !member.is_me && !member.client && !counts(&member.node_id));
    (!others.any(|_| true) || others.is_quorum(told)) && newcomers.all(|member| told(&member.node_id))
}
