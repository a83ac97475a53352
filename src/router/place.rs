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

/// Where a read runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// In this thread: what is not here is not there. A stub's bytes are the node's to find.
    Here {
        /// Whether the answer is the cluster's.
        speaks: bool,
    },
    /// Wherever the node finds the key.
    Node,
}

/// Where a read of a key of `slot` runs at `now_ms`, on a host with a cluster.
#[inline]
pub fn place_read(table: &Table, slot: u16, now_ms: u64) -> Look {
    let (lease, silent) = (table.lease_holds(now_ms), table.node_is_silent(now_ms));
    let local = table.is_complete() || silent;
    match table.owner(slot) {
        Owner::Member(index) if Some(index) == table.self_index() => Look::Here { speaks: lease },
        Owner::Member(index) if local => Look::Here { speaks: lease && table.member(index).takes_calls() },
        Owner::Member(_) => Look::Node,
        Owner::Nobody | Owner::Frozen if local || table.state() != NodeState::Ready => Look::Here { speaks: lease },
        Owner::Nobody | Owner::Frozen => Look::Node,
    }
}

/// Whether the slot changed hands since an operation was placed with `standing`.
pub fn has_moved(table: &Table, slot: u16, standing: Standing) -> bool {
    let Standing::Owner { term } = standing else { return false };
    table.ownership(slot) != (table.self_index().map_or(Owner::Nobody, Owner::Member), term)
}

/// Whether this host spoke for `slot` all the time since an operation was placed with `standing`. If not, another owner's
/// state may win over what was changed here, or it has given out values that this one does not follow.
pub fn still_speaks(table: &Table, slot: u16, standing: Standing, now_ms: u64) -> bool {
    !has_moved(table, slot, standing) && table.lease_holds(now_ms)
}

/// As whom a set, delete or new deadline is made: an owner that does not speak for the cluster makes it as a change to be
/// replayed. (An increment needs nothing of that: its share counts whoever owns the key.)
pub fn standing_of_write(standing: Standing, speaks: bool) -> Standing {
    if speaks { standing } else { Standing::Degraded }
}
