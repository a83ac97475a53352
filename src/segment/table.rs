//! The part of the host segment that the node publishes and PHP threads read without a lock: members, who owns which
//! slot, the lease, the breakers and the node's state.
//!
//! Every field is an atomic and zero is its initial value, so a fresh (zeroed) mapping is a valid table.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Number of placement slots.
pub const SLOTS: usize = 16_384;

/// Most members that a table holds.
pub const MEMBERS_MAX: usize = 256;

/// Longest node id in bytes.
pub const NODE_ID_LEN_MAX: usize = 64;

/// Most users whose processes may share a segment.
const USERS_MAX: usize = 64;

/// A wanted stamp that no node has.
const RETIRED: u64 = u64::MAX;

/// This host speaks for its cluster.
const HEARD: u32 = 0;

/// It does not at the moment: what it counts as an owner is not home before it has met the others.
const UNHEARD: u32 = 1;

/// It has not for so long that members may have forgotten it and what was deleted since.
const APART: u32 = 2;

/// Who owns a slot, as this host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody that this host knows of.
    Nobody,
    /// Being handed over: inline operations must take the long way.
    Frozen,
    /// The member at this index of the table.
    Member(u16),
}

const NOBODY: u16 = 0;
const FROZEN: u16 = u16::MAX;

impl Owner {
    fn encode(self) -> u16 {
        match self {
            Self::Nobody => NOBODY,
            Self::Frozen => FROZEN,
            Self::Member(index) => index + 1,
        }
    }

    fn decode(word: u16) -> Self {
        match word {
            NOBODY => Self::Nobody,
            FROZEN => Self::Frozen,
            word => Self::Member(word - 1),
        }
    }
}

/// What the node of this host is doing; `ephpm_kv_info()['state']`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NodeState {
    /// No cluster, or none could be started (the reason says why).
    Alone = 0,
    /// Looking for the cluster, or catching up.
    Joining = 1,
    /// A member (or client) of the cluster.
    Ready = 2,
    /// Leaving in order.
    Leaving = 3,
}

impl NodeState {
    fn decode(word: u32) -> Self {
        match word {
            1 => Self::Joining,
            2 => Self::Ready,
            3 => Self::Leaving,
            _ => Self::Alone,
        }
    }
}

/// A short text behind a sequence lock: one writer at a time, any number of readers in other processes.
#[repr(C)]
pub struct Text<const N: usize> {
    sequence: AtomicU32,
    len: AtomicU32,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    /// Replaces the text; what does not fit is cut at a character boundary.
    pub fn set(&self, text: &str) {
        let mut len = text.len().min(N);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        self.len.store(len as u32, Ordering::Relaxed);
        for (cell, byte) in self.bytes.iter().zip(&text.as_bytes()[..len]) {
            cell.store(*byte, Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Reads the text; empty when a writer died half-way through or keeps writing.
    pub fn get(&self) -> String {
        for _ in 0..1_000 {
            let before = self.sequence.load(Ordering::Acquire);
            let len = (self.len.load(Ordering::Relaxed) as usize).min(N);
            let bytes: Vec<u8> = self.bytes[..len].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
            std::sync::atomic::fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return String::from_utf8(bytes).unwrap_or_default();
            }
            std::hint::spin_loop();
        }
        String::new()
    }
}

/// One member of the table. An index stays a node id's for the life of the segment or until the table needs it anew.
#[repr(C)]
pub struct MemberCell {
    /// 0: free. 1: in the view. 2: known, not in the view.
    pub presence: AtomicU32,
    /// 1 while the breaker is open: calls for this member are answered degraded at once.
    pub breaker_open: AtomicU32,
    /// Timeouts in a row; the third opens the breaker.
    pub timeouts_in_a_row: AtomicU32,
    /// 1 when this is a client, which owns nothing.
    pub client: AtomicU32,
    /// Its segment.
    pub origin: AtomicU64,
    /// Its boot time in nanoseconds.
    pub generation: AtomicU64,
    /// Its node id.
    pub node_id: Text<NODE_ID_LEN_MAX>,
    /// The address peers dial, `ip:port`.
    pub address: Text<56>,
}

/// What the node publishes to the PHP threads of its host. See the module's description.
#[repr(C)]
pub struct Table {
    /// Coarse monotonic milliseconds until which inline operations are the cluster's; renewed by the node.
    pub lease_until_ms: AtomicU64,
    /// [`HEARD`], [`UNHEARD`] or [`APART`].
    standing: AtomicU32,
    /// Number of the view that the slots were computed from.
    pub epoch: AtomicU64,
    /// This node's generation (boot time in nanoseconds); 0 before the first start.
    pub generation: AtomicU64,
    /// Process that runs the node; 0 when none does.
    pub node_pid: AtomicU32,
    state: AtomicU32,
    /// Index of this node in `members`, plus one; 0 while unknown.
    self_index: AtomicU32,
    /// Hash of the settings and the module's file that the last process family to be started (anew) has: a node that
    /// was started with another makes room.
    pub wanted_stamp: AtomicU64,
    /// Coarse monotonic milliseconds before which no process starts a node again.
    next_start_ms: AtomicU64,
    /// Users (plus one) of the segment's PHP processes; 0: free.
    users: [AtomicU32; USERS_MAX],
    /// Live members in the view, this node included.
    pub members_live: AtomicU32,
    /// Shares of this host that no owner has acknowledged.
    pub shares_pending: AtomicU64,
    /// Sum of the deltas (signs apart) of calls whose fate is being asked after.
    pub unresolved: AtomicU64,
    /// Age in milliseconds of the oldest change that not every peer has acknowledged.
    pub replication_lag_ms: AtomicU64,
    /// 1 while this host has every key of the cluster, large values at least as stubs: what it does not find is not
    /// there.
    complete: AtomicU32,
    /// How often a copy was dropped to make room.
    copies_dropped: AtomicU32,
    /// How long tombstones are kept, in milliseconds; 0: as long as they may be. See `store::TOMBSTONE_GRACE_MS`.
    pub tombstone_grace_ms: AtomicU64,
    /// Milliseconds since boot when this host was last seen to be on the side that speaks for its cluster; 0: never.
    pub together_ms: AtomicU64,
    /// Why the node is in its state; empty when there is nothing to say.
    pub reason: Text<240>,
    /// The members.
    pub members: [MemberCell; MEMBERS_MAX],
    owners: [AtomicU16; SLOTS],
    terms: [AtomicU64; SLOTS],
}

impl MemberCell {
    /// In the view.
    pub fn is_present(&self) -> bool {
        self.presence.load(Ordering::Acquire) == 1
    }

    /// Whether calls to it are sent: it is in the view and its breaker is closed.
    pub fn takes_calls(&self) -> bool {
        self.is_present() && self.breaker_open.load(Ordering::Relaxed) == 0
    }
}

impl Table {
    /// The node's state.
    pub fn state(&self) -> NodeState {
        NodeState::decode(self.state.load(Ordering::Acquire))
    }

    /// Publishes the node's state with its reason.
    pub fn set_state(&self, state: NodeState, reason: &str) {
        self.reason.set(reason);
        self.state.store(state as u32, Ordering::Release);
    }

    /// Whether this host has every key of the cluster, large values at least as stubs.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire) != 0
    }

    /// Publishes whether this host has every key, given how many copies had been dropped when that was found.
    pub fn set_complete(&self, complete: bool, dropped: u32) {
        self.complete.store(u32::from(complete), Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.copies_dropped() != dropped {
            self.complete.store(0, Ordering::Release);
        }
    }

    /// How often a copy was dropped to make room, so far.
    pub fn copies_dropped(&self) -> u32 {
        self.copies_dropped.load(Ordering::Acquire)
    }

    /// A copy was dropped to make room.
    pub fn dropped_copy(&self) {
        self.copies_dropped.fetch_add(1, Ordering::AcqRel);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.complete.store(0, Ordering::Release);
    }

    /// The segment gets no node any more, unless a later family wants one; its node leaves.
    pub fn retire(&self) {
        self.wanted_stamp.store(RETIRED, Ordering::Release);
    }

    /// Whether the segment is to have no node.
    pub fn is_retired(&self) -> bool {
        self.wanted_stamp.load(Ordering::Acquire) == RETIRED
    }

    /// Whether the caller is the one to start a node now: then nobody else is for `pause_ms`.
    pub fn may_start(&self, now_ms: u64, pause_ms: u64) -> bool {
        let next = self.next_start_ms.load(Ordering::Relaxed);
        let begin =
            |next| self.next_start_ms.compare_exchange(next, now_ms + pause_ms, Ordering::AcqRel, Ordering::Relaxed);
        now_ms >= next && begin(next).is_ok()
    }

    /// A PHP process of this user has the segment. Beyond 64 users the others' new processes are refused.
    pub fn add_user(&self, uid: u32) {
        let word = uid.wrapping_add(1);
        for user in &self.users {
            let free = user.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
            if free.is_ok() || free == Err(word) {
                return;
            }
        }
    }

    /// Whether PHP processes of this user have had the segment.
    pub fn has_user(&self, uid: u32) -> bool {
        self.users.iter().any(|user| user.load(Ordering::Acquire) == uid.wrapping_add(1))
    }

    /// Whether the segment has ever had a node that got its port. One that has not is nobody's but its family's.
    pub fn has_had_node(&self) -> bool {
        self.generation.load(Ordering::Acquire) != 0
    }

    /// Index of this host's node among the members, once it has one.
    #[inline]
    pub fn self_index(&self) -> Option<u16> {
        (self.self_index.load(Ordering::Acquire) as u16).checked_sub(1)
    }

    /// Publishes this node's index.
    pub fn set_self_index(&self, index: Option<u16>) {
        self.self_index.store(index.map_or(0, |index| u32::from(index) + 1), Ordering::Release);
    }

    /// Who owns `slot`, as this host knows it.
    #[inline]
    pub fn owner(&self, slot: u16) -> Owner {
        Owner::decode(self.owners[slot as usize].load(Ordering::Acquire))
    }

    /// The term that goes with [`Table::owner`].
    #[inline]
    pub fn term(&self, slot: u16) -> u64 {
        self.terms[slot as usize].load(Ordering::Acquire)
    }

    /// Publishes who owns `slot` since which term. Meanwhile nobody is seen to own it, so that no reader takes one
    /// owner's term for another's.
    pub fn set_owner(&self, slot: u16, owner: Owner, term: u64) {
        if self.term(slot) != term {
            self.owners[slot as usize].store(FROZEN, Ordering::Release);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        self.terms[slot as usize].store(term, Ordering::Release);
        self.owners[slot as usize].store(owner.encode(), Ordering::Release);
    }

    /// Whether an inline operation at `now_ms` speaks for the cluster.
    #[inline]
    pub fn lease_holds(&self, now_ms: u64) -> bool {
        now_ms < self.lease_until_ms.load(Ordering::Acquire)
    }

    /// Whether the node has stopped renewing its lease without taking it back: it is stuck, or dead.
    #[inline]
    pub fn node_is_silent(&self, now_ms: u64) -> bool {
        let until = self.lease_until_ms.load(Ordering::Acquire);
        until != 0 && now_ms >= until
    }

    /// Whether this host has been away from the side that speaks for its cluster for so long that members may have
    /// forgotten it and what was deleted since.
    pub fn is_apart(&self) -> bool {
        self.standing.load(Ordering::Acquire) == APART
    }

    /// Publishes that; whether it is news.
    pub fn set_apart(&self, apart: bool) -> bool {
        let standing = if apart { APART } else { UNHEARD };
        self.standing.swap(standing, Ordering::AcqRel) != standing
    }

    /// Whether what this host counts as an owner is the cluster's count: it speaks for it.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.standing.load(Ordering::Relaxed) == HEARD
    }

    /// Publishes that, unless the host is apart.
    pub fn set_heard(&self, heard: bool) {
        let (from, to) = if heard { (UNHEARD, HEARD) } else { (HEARD, UNHEARD) };
        let _ = self.standing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The member at `index`.
    pub fn member(&self, index: u16) -> &MemberCell {
        &self.members[index as usize]
    }

    /// Who owns `slot`, with the term that goes with it: the two are read as they were at one moment.
    #[inline]
    pub fn ownership(&self, slot: u16) -> (Owner, u64) {
        loop {
            let owner = self.owner(slot);
            let term = self.term(slot);
            std::sync::atomic::fence(Ordering::Acquire);
            if self.owner(slot) == owner {
                return (owner, term);
            }
        }
    }

    /// A cell for a member that has none: one never used, else one of a node that is gone and that no slot names.
    pub fn free_cell(&self) -> Option<u16> {
        let with = |presence: u32| {
            let cells = self.members.iter().enumerate();
            cells
                .filter(move |(_, cell)| cell.presence.load(Ordering::Acquire) == presence)
                .map(|(index, _)| index as u16)
        };
        if let Some(index) = with(0).next() {
            return Some(index);
        }
        let mut named = [false; MEMBERS_MAX];
        for slot in 0..SLOTS as u16 {
            if let Owner::Member(index) = self.owner(slot) {
                named[index as usize] = true;
            }
        }
        with(2).find(|index| !named[*index as usize])
    }

    /// The index of `node_id`, if the table has it.
    pub fn index_of(&self, node_id: &str) -> Option<u16> {
        self.members
            .iter()
            .position(|cell| cell.presence.load(Ordering::Acquire) != 0 && cell.node_id.get() == node_id)
            .map(|index| index as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> Box<Table> {
        // SAFETY: every field is an atomic integer, for which all-zero is valid.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[test]
    fn a_zeroed_table_is_an_empty_one() {
        let table = zeroed();
        assert_eq!(table.state(), NodeState::Alone);
        assert_eq!(table.self_index(), None);
        assert_eq!(table.owner(16_383), Owner::Nobody);
        assert!(!table.lease_holds(0));
        assert_eq!(table.index_of(""), None);
    }

    #[test]
    fn one_of_many_starts_a_node_and_then_nobody_for_a_while() {
        let table = zeroed();
        assert!(table.may_start(1_000, 500));
        assert!(!table.may_start(1_000, 500) && !table.may_start(1_499, 500));
        assert!(table.may_start(1_500, 500));
    }

    #[test]
    fn users_are_remembered() {
        let table = zeroed();
        assert!(!table.has_user(0));
        for uid in [0, 33, 33, 1_000] {
            table.add_user(uid);
        }
        assert!(table.has_user(0) && table.has_user(33) && table.has_user(1_000) && !table.has_user(1));
        (2_000..2_100).for_each(|uid| table.add_user(uid));
        assert!(table.has_user(2_000) && !table.has_user(2_099));
    }

    #[test]
    fn a_cell_that_a_slot_names_is_not_given_away() {
        let table = zeroed();
        for cell in &table.members {
            cell.presence.store(2, Ordering::Release);
        }
        table.members[5].presence.store(1, Ordering::Release);
        table.set_owner(9, Owner::Member(0), 1);
        assert_eq!(table.free_cell(), Some(1));
        table.members[200].presence.store(0, Ordering::Release);
        assert_eq!(table.free_cell(), Some(200), "one never used comes first");
    }

    #[test]
    fn what_is_published_reads_back() {
        let table = zeroed();
        table.set_owner(7, Owner::Member(0), 3);
        table.set_owner(8, Owner::Frozen, 4);
        table.members[0].node_id.set("a");
        table.members[0].presence.store(1, Ordering::Release);
        table.set_state(NodeState::Joining, &"é".repeat(200));
        assert_eq!((table.owner(7), table.term(7)), (Owner::Member(0), 3));
        assert_eq!(table.owner(8), Owner::Frozen);
        assert_eq!(table.index_of("a"), Some(0));
        assert_eq!(table.reason.get(), "é".repeat(120));
    }
}
