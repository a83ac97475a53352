//! Where an operation of a PHP thread runs, as the host's table says. No lock, no call.

use crate::segment::table::{NodeState, Owner, Table};
use crate::store::Standing;

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this thread; the flag says whether the answer is the cluster's.
    Here(Standing, bool),
    /// Wherever the node finds the owner.
    Node,
}

/// Where an operation on a key of `slot` runs at `now_ms`, on a host with a cluster.
#[inline]
pub fn place(table: &Table, slot: u16, now_ms: u64) -> Place {
    let (owner, term) = table.ownership(slot);
    match owner {
        Owner::Member(index) if Some(index) == table.self_index() => {
            Place::Here(Standing::Owner { term }, table.lease_holds(now_ms))
        }
        Owner::Member(index) => {
            if table.member(index).takes_calls() && !table.node_is_silent(now_ms) {
                Place::Node
            } else {
                Place::Here(Standing::Degraded, false)
            }
        }
        // An owner is being established: the node waits for it. Before the cluster is joined there is none.
        Owner::Nobody | Owner::Frozen if table.state() == NodeState::Ready => Place::Node,
        Owner::Nobody | Owner::Frozen => Place::Here(Standing::Degraded, false),
    }
}

/// Whether the slot changed hands since an operation was placed with `standing`.
pub fn has_moved(table: &Table, slot: u16, standing: Standing) -> bool {
    let Standing::Owner { term } = standing else { return false };
    table.ownership(slot) != (table.self_index().map_or(Owner::Nobody, Owner::Member), term)
}

/// As whom a set, delete or new deadline is made: an owner that does not speak for the cluster makes it as a change to be
/// replayed. (An increment needs nothing of that: its share counts whoever owns the key.)
pub fn standing_of_write(standing: Standing, speaks: bool) -> Standing {
    if speaks { standing } else { Standing::Degraded }
}
