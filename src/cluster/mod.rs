//! Membership: who the nodes of the cluster are, which of them live, and whether this side speaks for the cluster.
//!
//! [`gossip`] runs chitchat over UDP and reports what it sees as a [`Snapshot`]; [`membership`] turns snapshots and
//! the results of TCP pings into the [`View`] that placement and quorum are computed from. The latter is pure.

pub mod gossip;
pub mod membership;
mod quorum;
mod seeds;
mod sighting;
mod transport;
mod voice;

pub use gossip::{Gossip, GossipConfig};
pub use membership::{Me, Member, Membership, Suspect, View};
pub use quorum::Voters;
pub use seeds::names_others;
pub use sighting::{Phase, Sighting, Snapshot};
pub use transport::{GossipStats, bind};
pub use voice::Voice;
