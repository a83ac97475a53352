//! What gossip knows of other nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How far a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Catching up; owns nothing yet.
    Joining,
    /// Owns slots, if it is not a client.
    Ready,
    /// On its way out; owns nothing any more.
    Leaving,
    /// Has left in order, and others know all that was asked of it.
    Gone,
}

impl Phase {
    /// The word that is published.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Leaving => "leaving",
            Self::Gone => "gone",
        }
    }

    /// Whether it is on its way out, or has gone.
    pub fn leaves(self) -> bool {
        matches!(self, Self::Leaving | Self::Gone)
    }

    /// The phase a published word stands for; `None` for an unknown word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Joining, Self::Ready, Self::Leaving, Self::Gone].into_iter().find(|phase| phase.as_str() == word)
    }
}

/// What gossip knows of one other node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Its stable identity.
    pub node_id: String,
    /// Its boot time in nanoseconds: new at each start of the node, not at a restart of its gossip alone.
    pub generation: u64,
    /// Where peers dial it (UDP and TCP).
    pub address: SocketAddr,
    /// How far it is.
    pub phase: Phase,
    /// It owns nothing, whatever its phase.
    pub client: bool,
    /// The origin of its segment.
    pub origin: u64,
    /// The protocol version it speaks.
    pub protocol: u16,
    /// Whether the failure detector takes it for alive.
    pub live: bool,
    /// The small numbers it publishes, by name.
    pub numbers: BTreeMap<String, u64>,
}

/// All that gossip knows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The other nodes, sorted by node id and then newest generation first. One node id appears once per address:
    /// of several generations at one address the newest live one is shown, or the newest when none lives.
    pub sightings: Vec<Sighting>,
    /// Whether any other node is live.
    pub heard_anyone: bool,
    /// Live nodes with this node's own id but another address or another generation.
    pub namesakes: Vec<Sighting>,
    /// Whether every seed is known to be this node itself (also: there is no seed).
    pub seeds_are_me: bool,
    /// Whether some seed is not heard: its name is not known (yet), or nobody lives at its address.
    pub seeds_silent: bool,
}
