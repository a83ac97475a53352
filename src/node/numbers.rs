//! The small numbers that nodes publish in gossip.

use super::parts::Node;
use crate::cluster::{Sighting, Snapshot, View, Voice};

/// Time between two positions that this node publishes, in milliseconds.
const TELL_POSITION_MS: u64 = 1_000;

/// Name of the gossiped number of the last batch.
const POSITION: &str = "position";

/// Name of the number that is 1 while a host is apart.
pub(super) const APART: &str = "apart";

/// What gossip says that `node_id`, as the view knows it, publishes under `name`.
fn number_of(snapshot: &Snapshot, view: &View, node_id: &str, name: &str) -> Option<u64> {
    let member = view.member(node_id)?;
    let same = |s: &&Sighting| s.node_id == node_id && s.generation == member.generation;
    snapshot.sightings.iter().find(same)?.numbers.get(name).copied()
}

/// The numbers that this node has published.
#[derive(Default)]
pub(super) struct Told {
    position: u64,
    apart: bool,
    at_ms: u64,
}

impl Told {
    /// Publishes what has changed; the position once a second at the most.
    pub(super) async fn tell(&mut self, node: &Node, gossip: &dyn Voice) {
        let apart = node.segment.table().is_apart();
        if apart != self.apart {
            self.apart = apart;
            gossip.set_number(APART, apart.into()).await;
        }
        let (position, now) = (node.replicator.position(), node.now_ms());
        if position != self.position && now >= self.at_ms + TELL_POSITION_MS {
            (self.position, self.at_ms) = (position, now);
            gossip.set_number(POSITION, position).await;
        }
    }
}

/// Tells the replicator how far the others say that they are.
pub(super) fn hear_positions(node: &Node, view: &View, snapshot: &Snapshot) {
    for member in view.members.iter().filter(|member| !member.is_me) {
        if let Some(position) = number_of(snapshot, view, &member.node_id, POSITION) {
            node.replicator.heard_position(&member.node_id, member.generation, position);
        }
    }
}

/// Tells of a member's node id whether that is apart.
pub(super) fn is_apart<'a>(snapshot: &'a Snapshot, view: &'a View) -> impl Fn(&str) -> bool + 'a {
    move |node_id| number_of(snapshot, view, node_id, APART) == Some(1)
}
