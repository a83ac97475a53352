//! What PHP calls: one [`Host`] per process, all hosts' processes over one segment.
//!
//! Operations on keys that this host owns, and all reads, run in the calling thread. The others go to the node: over
//! a queue when it is a thread of this process, over the host's socket when another process of the segment runs it.

mod channel;
mod family;
mod find;
mod fork;
mod host;
mod info;
mod process;
mod sapi;
mod socket;
mod starter;

pub use host::Host;
pub use info::{Info, MemberInfo};
pub use sapi::Sapi;
