//! Pure placement: key to slot, slot to its order of members.
//!
//! Every byte that goes into a hash is fixed here, because all members of a cluster, of this release and of the next,
//! must come to the same answer:
//!
//! - slot of a key = `xxh3_64(name or its tag) % 16384` (seed 0); the namespace is no part of it.
//! - weight of a member for a slot = `mix(xxh3_64(node id) ^ mix(slot + 1))`, with splitmix64's finalizer as `mix`.
//!   The node id is hashed once per member and the rest is arithmetic, so that 16,384 slots of 256 members take
//!   milliseconds. The member with the largest weight comes first (rendezvous hashing); ties go to the smaller node id.

use std::cmp::Reverse;

use xxhash_rust::xxh3::xxh3_64;

/// Number of slots.
pub const SLOTS: usize = 16_384;

/// The slot of a key's name (namespace excluded). A name with a non-empty `{tag}`, the first `{` and the first `}`
/// after it, is placed by the bytes between them.
pub fn slot(name: &[u8]) -> u16 {
    (xxh3_64(tag(name).unwrap_or(name)) % SLOTS as u64) as u16
}

fn tag(name: &[u8]) -> Option<&[u8]> {
    let after = &name[name.iter().position(|byte| *byte == b'{')? + 1..];
    let tag = &after[..after.iter().position(|byte| *byte == b'}')?];
    (!tag.is_empty()).then_some(tag)
}

/// splitmix64's finalizer: a bijection in which each input bit flips each output bit with probability one half.
fn mix(mut word: u64) -> u64 {
    word ^= word >> 30;
    word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^= word >> 27;
    word = word.wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn weight(slot_mix: u64, node_hash: u64) -> u64 {
    mix(node_hash ^ slot_mix)
}

fn slot_mix(slot: u16) -> u64 {
    mix(u64::from(slot) + 1)
}

/// The order of `members` (node ids) for `slot`, as indices into `members`: the first should own it, the next are its
/// replicas. The answer does not depend on how `members` is sorted. Node ids are unique; a repeated one appears again.
pub fn order(slot: u16, members: &[&str]) -> Vec<usize> {
    let mix = slot_mix(slot);
    let mut order: Vec<_> = members
        .iter()
        .enumerate()
        .map(|(index, id)| (Reverse(weight(mix, xxh3_64(id.as_bytes()))), *id, index))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, index)| index).collect()
}

/// The up to `n` members after the owner in [`order`], as indices into `members`.
pub fn replicas(slot: u16, members: &[&str], n: usize) -> Vec<usize> {
    order(slot, members).into_iter().skip(1).take(n).collect()
}

/// The order of a set of members for any slot, worked out when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Node ids with their hashes, as given.
    members: Vec<(String, u64)>,
}

impl Order {
    /// Of these node ids, which are unique.
    pub fn new<S: AsRef<str>>(members: &[S]) -> Self {
        let hashed = |id: &S| (id.as_ref().to_owned(), xxh3_64(id.as_ref().as_bytes()));
        Self { members: members.iter().map(hashed).collect() }
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The first `n` members in [`order`] for `slot`, the one that should own it among them. A few ns a member.
    pub fn first(&self, slot: u16, n: usize) -> Vec<&str> {
        let mix = slot_mix(slot);
        let mut first: Vec<(Reverse<u64>, &str)> = Vec::with_capacity(n + 1);
        for (id, hash) in &self.members {
            let place = (Reverse(weight(mix, *hash)), id.as_str());
            if first.len() < n || first.last().is_some_and(|last| place < *last) {
                first.insert(first.partition_point(|other| *other < place), place);
                first.truncate(n);
            }
        }
        first.into_iter().map(|(_, id)| id).collect()
    }
}

/// Who should own each slot, for one set of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Node id and its hash, as given to [`Placement::compute`].
    members: Vec<(String, u64)>,
    /// Index into `members` for each slot; empty when there are none.
    owners: Vec<u16>,
}

impl Placement {
    /// Computes the owner of every slot. Indices in all answers are into `members` as given here, of which at most
    /// the first 65,535 are used.
    pub fn compute<S: AsRef<str>>(members: &[S]) -> Self {
        let members: Vec<(String, u64)> = members
            .iter()
            .take(usize::from(u16::MAX))
            .map(|id| (id.as_ref().to_owned(), xxh3_64(id.as_ref().as_bytes())))
            .collect();
        let owners = match members.len() {
            0 => Vec::new(),
            _ => (0..SLOTS as u16).map(|slot| Self::first(slot, &members)).collect(),
        };
        Self { members, owners }
    }

    fn first(slot: u16, members: &[(String, u64)]) -> u16 {
        let mix = slot_mix(slot);
        let (mut best, mut best_weight) = (0, weight(mix, members[0].1));
        for (index, (id, hash)) in members.iter().enumerate().skip(1) {
            let weight = weight(mix, *hash);
            if weight > best_weight || (weight == best_weight && *id < members[best].0) {
                (best, best_weight) = (index, weight);
            }
        }
        best as u16
    }

    /// Index of the member that should own `slot`; `None` when there are no members.
    pub fn owner(&self, slot: u16) -> Option<u16> {
        self.owners.get(usize::from(slot)).copied()
    }

    /// Node id of the member that should own `slot`; `None` when there are no members.
    pub fn owner_id(&self, slot: u16) -> Option<&str> {
        self.owner(slot).map(|index| self.members[usize::from(index)].0.as_str())
    }

    /// Indices of the owner of each slot; 16,384 of them, or none without members.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// The up to `n` members after the owner of `slot`, in order. About 20 ns a member.
    pub fn replicas(&self, slot: u16, n: usize) -> Vec<u16> {
        let mix = slot_mix(slot);
        let mut order: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(index, (id, hash))| (Reverse(weight(mix, *hash)), id.as_str(), index as u16))
            .collect();
        order.sort_unstable();
        order.into_iter().skip(1).take(n).map(|(_, _, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change here moves every key of every running cluster: it needs a new protocol version.
    #[test]
    fn golden_slots() {
        let golden: [(&[u8], u16); 12] = [
            (b"hits", 8944),
            (b"user:1", 5377),
            (b"user:{1}", 12632),
            (b"1", 12632),
            (b"{}{1}", 14204),
            (b"{{1}}", 12958),
            (b"{1", 12958),
            (b"}{1}{2}", 12632),
            (b"a\0b", 4945),
            (b"a\0c", 10470),
            (b"\xff\xfe{\x80}", 2369),
            (b"\x80", 2369),
        ];
        let actual: Vec<_> = golden.iter().map(|(name, _)| (*name, slot(name))).collect();
        assert_eq!(actual, golden);
    }

    #[test]
    fn tags_follow_the_rule() {
        for (name, tag_of) in [
            ("user:{1}", Some("1")),
            ("{a}{b}", Some("a")),
            ("{{1}}", Some("{1")),
            ("}{1}", Some("1")),
            ("{}{1}", None),
            ("{1", None),
            ("1}", None),
            ("", None),
        ] {
            assert_eq!(tag(name.as_bytes()), tag_of.map(str::as_bytes), "{name}");
        }
        assert_eq!(slot(b"cart:{7}:total"), slot(b"{7}"));
        assert_eq!(slot(b"cart:{7}:total"), slot(b"7"));
    }

    #[test]
    fn golden_owners() {
        let members = ["host1:7946", "host2:7946", "host3:7946", "web-a", "web-b"];
        let golden: [(u16, [usize; 5]); 6] = [
            (0, [4, 1, 3, 0, 2]),
            (1, [1, 4, 0, 2, 3]),
            (2, [4, 0, 1, 2, 3]),
            (4_096, [3, 1, 0, 4, 2]),
            (9_999, [1, 2, 3, 4, 0]),
            (16_383, [1, 0, 2, 3, 4]),
        ];
        let actual = golden.map(|(slot, _)| (slot, <[usize; 5]>::try_from(order(slot, &members)).unwrap()));
        assert_eq!(actual, golden);
    }

    #[test]
    fn the_table_agrees_with_the_order() {
        let members = ["c", "a", "d", "b"];
        let placement = Placement::compute(&members);
        for slot in 0..SLOTS as u16 {
            let order = order(slot, &members);
            assert_eq!(placement.owner(slot).map(usize::from), Some(order[0]));
            let after: Vec<usize> = placement.replicas(slot, 2).into_iter().map(usize::from).collect();
            assert_eq!(after, replicas(slot, &members, 2));
            assert_eq!(after, order[1..3]);
        }
        assert_eq!(placement.owners().len(), SLOTS);
    }

    #[test]
    fn the_first_of_an_order_are_the_first_of_it() {
        let ids: Vec<String> = (0..20).map(|n| format!("10.0.0.{n}:7946")).collect();
        let members: Vec<&str> = ids.iter().map(String::as_str).collect();
        let lazily = Order::new(&members);
        for slot in (0..SLOTS as u16).step_by(61) {
            let all: Vec<&str> = order(slot, &members).into_iter().map(|index| members[index]).collect();
            for n in [0, 1, 3, 20, 25] {
                assert_eq!(lazily.first(slot, n), all[..n.min(20)]);
            }
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let (one, other) = (Placement::compute(&["a", "b", "c"]), Placement::compute(&["c", "a", "b"]));
        for slot in 0..SLOTS as u16 {
            assert_eq!(one.owner_id(slot), other.owner_id(slot));
        }
    }

    #[test]
    fn no_members_own_nothing_and_one_owns_all() {
        let nobody = Placement::compute::<&str>(&[]);
        assert_eq!((nobody.owner(5), nobody.owner_id(5), nobody.replicas(5, 2)), (None, None, vec![]));
        let alone = Placement::compute(&["a"]);
        assert!((0..SLOTS as u16).all(|slot| alone.owner_id(slot) == Some("a")));
        assert!(alone.replicas(3, 2).is_empty());
        assert!(replicas(3, &["a"], 2).is_empty());
    }

    #[test]
    fn adding_a_member_moves_only_what_it_must() {
        for members in [2_usize, 3, 9, 63] {
            let mut ids: Vec<String> = (0..members).map(|n| format!("10.0.0.{n}:7946")).collect();
            let before = Placement::compute(&ids);
            ids.insert(1, "newcomer:7946".to_owned());
            let after = Placement::compute(&ids);
            let mut moved = 0;
            for slot in 0..SLOTS as u16 {
                if before.owner_id(slot) != after.owner_id(slot) {
                    assert_eq!(after.owner_id(slot), Some("newcomer:7946"));
                    // The slot's former owner is the newcomer's first replica: if it goes again, the slot goes back.
                    let successor = &ids[usize::from(after.replicas(slot, 1)[0])];
                    assert_eq!(Some(successor.as_str()), before.owner_id(slot));
                    moved += 1;
                }
            }
            let fair = SLOTS as f64 / (members + 1) as f64;
            assert!(
                (f64::from(moved) - fair).abs() < 4.5 * fair.sqrt(),
                "{members} members: {moved} moved, fair {fair}"
            );
        }
    }

    #[test]
    fn slots_and_keys_spread_evenly() {
        let ids: Vec<String> = (1..=8).map(|n| format!("host{n}")).collect();
        let placement = Placement::compute(&ids);
        let (mut owned, mut backed) = ([0_u32; 8], [0_u32; 8]);
        for slot in 0..SLOTS as u16 {
            owned[usize::from(placement.owner(slot).unwrap())] += 1;
            backed[usize::from(placement.replicas(slot, 1)[0])] += 1;
        }
        let fair = SLOTS as f64 / 8.0;
        for count in owned.into_iter().chain(backed) {
            assert!((f64::from(count) - fair).abs() < 0.08 * fair, "{owned:?} {backed:?}");
        }
        let mut hits = vec![0_u32; SLOTS];
        for n in 0..SLOTS * 20 {
            hits[usize::from(slot(format!("user:{n}").as_bytes()))] += 1;
        }
        assert!(hits.iter().all(|count| *count > 0 && *count < 60));
    }
}
