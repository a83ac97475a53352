//! Who should have what: everyone everything or replicas their slots, and who keeps the bytes of a large value.

use std::collections::BTreeSet;

use crate::cluster::{Phase, View};
use crate::config::Config;
use crate::placement::{Order, SLOTS};
use crate::wire::message::{SlotRange, Wants};

/// The settings that say who gets copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Hosts other than the owner that keep the bytes of a large value.
    pub replicas: usize,
    /// Up to this many members everyone has every key.
    pub copy_all_max: usize,
    /// Longest value that is not large, in bytes.
    pub small_value_max: u32,
}

impl Rules {
    /// As configured.
    pub fn of(config: &Config) -> Self {
        Self {
            replicas: config.replicas as usize,
            copy_all_max: config.copy_all_max as usize,
            small_value_max: config.small_value_max,
        }
    }
}

/// A set of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSet(Vec<u64>);

impl SlotSet {
    /// Without any.
    pub fn new() -> Self {
        Self(vec![0; SLOTS / 64])
    }

    /// Those in `ranges`; slots that do not exist are left out.
    pub fn of(ranges: &[SlotRange]) -> Self {
        let mut set = Self::new();
        let slots = ranges.iter().flat_map(|range| (0..range.count).map(|offset| range.first.saturating_add(offset)));
        slots.filter(|slot| usize::from(*slot) < SLOTS).for_each(|slot| set.insert(slot));
        set
    }

    /// Adds one.
    pub fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64] |= 1 << (slot % 64);
    }

    /// Whether it is there.
    pub fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot) / 64] & 1 << (slot % 64) != 0
    }

    /// Those of this set that are not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(mine, theirs)| mine & !theirs).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..SLOTS as u16).filter(|slot| self.contains(*slot))
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::new()
    }
}

/// What a host wants of the owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Every key; large values that it does not back up as stubs.
    All,
    /// What is in these slots, whole.
    Slots(SlotSet),
}

impl Wanted {
    /// As it is asked for.
    pub fn to_wire(&self) -> Wants {
        match self {
            Self::All => Wants::All,
            Self::Slots(set) => Wants::Slots(super::ranges_of(&set.iter().collect::<Vec<u16>>())),
        }
    }

    /// The reverse.
    pub fn from_wire(wants: &Wants) -> Self {
        match wants {
            Wants::All => Self::All,
            Wants::Slots(ranges) => Self::Slots(SlotSet::of(ranges)),
        }
    }

    /// Whether it has all of these slots.
    pub fn covers(&self, ranges: &[SlotRange]) -> bool {
        match self {
            Self::All => true,
            Self::Slots(set) => SlotSet::of(ranges).minus(set).is_empty(),
        }
    }
}

/// Who should have what by one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    rules: Rules,
    order: Order,
    /// This node, unless it is a client.
    member: Option<String>,
}

impl Scope {
    /// By `view`. A node that is joining counts itself as the member that it is about to be.
    pub fn of(view: &View, rules: Rules) -> Self {
        let me = view.me();
        let mut members: Vec<&str> = view.owners_eligible().into_iter().map(|member| member.node_id.as_str()).collect();
        if me.phase == Phase::Joining && !me.client && view.refused.is_none() {
            members.push(&me.node_id);
        }
        let member = (!me.client).then(|| me.node_id.clone());
        Self { rules, order: Order::new(&members), member }
    }

    /// Whether every host has every key.
    pub fn copies_all(&self) -> bool {
        self.order.len() <= self.rules.copy_all_max
    }

    /// Whether a value of so many bytes is kept by replicas only.
    pub fn is_large(&self, len: usize) -> bool {
        len > self.rules.small_value_max as usize
    }

    /// Longest value that is not large.
    pub fn small_value_max(&self) -> u32 {
        self.rules.small_value_max
    }

    /// The members that keep the bytes of `slot`'s large values next to `owner`: its replicas, those in `no_room` left
    /// out for the next ones, and the one that should own it if `owner` should not.
    pub fn keepers(&self, slot: u16, owner: &str, no_room: &BTreeSet<String>) -> Vec<&str> {
        let first = self.order.first(slot, (self.rules.replicas + 1).max(1) + no_room.len());
        let may = |id: &&&str| **id != owner && !no_room.contains(**id);
        let mut keepers: Vec<&str> = first.iter().filter(may).take(self.rules.replicas).copied().collect();
        if let Some(heir) = first.first().filter(may)
            && !keepers.contains(heir)
        {
            keepers.push(heir);
        }
        keepers
    }

    /// Whether this node keeps the bytes of `slot`'s values while `owner` owns it.
    pub fn keeps(&self, slot: u16, owner: &str) -> bool {
        self.member.as_deref().is_some_and(|me| self.keepers(slot, owner, &BTreeSet::new()).contains(&me))
    }

    /// What this node wants of the owners.
    pub fn wanted(&self) -> Wanted {
        if self.copies_all() {
            return Wanted::All;
        }
        let mut set = SlotSet::new();
        if let Some(me) = &self.member {
            let mine = |slot: &u16| self.order.first(*slot, self.rules.replicas + 1).contains(&me.as_str());
            (0..SLOTS as u16).filter(mine).for_each(|slot| set.insert(slot));
        }
        Wanted::Slots(set)
    }

    /// Whether the same members keep the same things in both.
    pub fn same_members(&self, other: &Self) -> bool {
        self.order == other.order && self.rules == other.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(members: &[&str], me: &str, replicas: usize, copy_all_max: usize) -> Scope {
        let rules = Rules { replicas, copy_all_max, small_value_max: 512 };
        Scope { rules, order: Order::new(members), member: Some(me.to_owned()) }
    }

    #[test]
    fn the_replicas_are_the_next_in_order_and_those_without_room_are_passed_over() {
        let members = ["a", "b", "c", "d", "e"];
        for slot in (0..SLOTS as u16).step_by(97) {
            let order = Order::new(&members);
            let order = order.first(slot, 5);
            let scope = scope(&members, "a", 2, 16);
            assert_eq!(scope.keepers(slot, order[0], &BTreeSet::new()), order[1..3]);
            assert_eq!(scope.keepers(slot, order[4], &BTreeSet::new()), order[..2], "it should not own the slot");
            let full = BTreeSet::from([order[1].to_owned()]);
            assert_eq!(scope.keepers(slot, order[0], &full), order[2..4]);
            assert_eq!(scope.keeps(slot, order[0]), order[1..3].contains(&"a"));
        }
    }

    #[test]
    fn more_replicas_than_members_are_everyone_and_none_still_leave_an_heir() {
        let many = scope(&["a", "b", "c"], "a", 10, 16);
        let none = scope(&["a", "b", "c"], "a", 0, 16);
        for slot in (0..SLOTS as u16).step_by(97) {
            let order = Order::new(&["a", "b", "c"]);
            let order = order.first(slot, 3);
            assert_eq!(many.keepers(slot, order[0], &BTreeSet::new()), order[1..]);
            assert!(none.keepers(slot, order[0], &BTreeSet::new()).is_empty());
            assert_eq!(none.keepers(slot, order[1], &BTreeSet::new()), order[..1]);
        }
        assert!(scope(&[], "a", 2, 16).keepers(3, "a", &BTreeSet::new()).is_empty());
    }

    #[test]
    fn above_the_limit_each_wants_what_it_owns_or_backs_up() {
        let members = ["a", "b", "c", "d"];
        assert_eq!(scope(&members, "a", 1, 4).wanted(), Wanted::All);
        let sets: Vec<SlotSet> = members
            .iter()
            .map(|me| match scope(&members, me, 1, 3).wanted() {
                Wanted::Slots(set) => set,
                Wanted::All => panic!("{me} wants all"),
            })
            .collect();
        for slot in 0..SLOTS as u16 {
            assert_eq!(sets.iter().filter(|set| set.contains(slot)).count(), 2);
        }
        let client = Scope { member: None, ..scope(&members, "a", 1, 3) };
        assert_eq!(client.wanted(), Wanted::Slots(SlotSet::new()));
    }

    #[test]
    fn what_is_wanted_survives_the_wire() {
        let mut set = SlotSet::new();
        [0, 1, 63, 64, 9_000, 16_383].into_iter().for_each(|slot| set.insert(slot));
        for wanted in [Wanted::All, Wanted::Slots(SlotSet::new()), Wanted::Slots(set.clone())] {
            assert_eq!(Wanted::from_wire(&wanted.to_wire()), wanted);
        }
        let wanted = Wanted::Slots(set);
        assert!(wanted.covers(&[SlotRange { first: 63, count: 2 }, SlotRange { first: 0, count: 2 }]));
        assert!(!wanted.covers(&[SlotRange { first: 0, count: 3 }]));
        let beyond = SlotSet::of(&[SlotRange { first: 16_383, count: 40_000 }]);
        assert_eq!(beyond.iter().collect::<Vec<_>>(), [16_383]);
    }
}
