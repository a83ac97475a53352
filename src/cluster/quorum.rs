//! Who counts when it is asked whether this side may speak for the cluster, and how many of them it takes.

use std::collections::BTreeMap;

/// Node ids of the members of which a quorum is needed, whether they are in the view or not; and of each whether its answer
/// counts. That of a newcomer does not (see [`Membership::add_voter`](super::Membership::add_voter)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voters(BTreeMap<String, bool>);

impl FromIterator<(String, bool)> for Voters {
    fn from_iter<I: IntoIterator<Item = (String, bool)>>(voters: I) -> Self {
        Self(voters.into_iter().collect())
    }
}

impl Voters {
    /// The largest value that a quorum has reached: more than half of the voters, or half of them with the lowest node id
    /// among them. `None`: no quorum has any.
    pub fn reached<T: Ord + Copy>(&self, by: impl Fn(&str) -> Option<T>) -> Option<T> {
        let of_each = |(node_id, votes): (&String, &bool)| if *votes { by(node_id) } else { None };
        let mut values: Vec<Option<T>> = self.0.iter().map(of_each).collect();
        let lowest = values.first().copied().flatten();
        values.sort_unstable_by(|a, b| b.cmp(a));
        let half = values.len() / 2;
        let by_more = values.get(half).copied().flatten();
        let by_half = (values.len() == 2 * half && half > 0).then(|| values[half - 1].min(lowest)).flatten();
        by_more.max(by_half)
    }

    /// Whether `pick` picks any of them.
    pub fn any(&self, pick: impl Fn(&str) -> bool) -> bool {
        self.0.keys().any(|node_id| pick(node_id))
    }

    /// All but this one.
    pub fn without(&self, node_id: &str) -> Self {
        self.iter().filter(|(other, _)| *other != node_id).map(|(other, votes)| (other.to_owned(), votes)).collect()
    }

    /// Whether those that `pick` picks are a quorum.
    pub fn is_quorum(&self, pick: impl Fn(&str) -> bool) -> bool {
        self.reached(|node_id| pick(node_id).then_some(())).is_some()
    }

    /// Each, and whether its answer counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|(node_id, votes)| (node_id.as_str(), *votes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those in capitals are newcomers.
    fn voters(node_ids: &str) -> Voters {
        node_ids.chars().map(|c| (c.to_ascii_lowercase().to_string(), c.is_lowercase())).collect()
    }

    #[test]
    fn more_than_half_or_half_with_the_lowest() {
        let quorum = |all: &str, some: &str| voters(all).is_quorum(|node_id| some.contains(node_id));
        for (all, some, expected) in [
            ("", "", false),
            ("a", "a", true),
            ("a", "", false),
            ("ab", "a", true),
            ("ab", "b", false),
            ("abc", "ab", true),
            ("abc", "c", false),
            ("abcd", "ad", true),
            ("abcd", "bcd", true),
            ("abcd", "bc", false),
            ("abC", "ac", false),
            ("abC", "ab", true),
            ("abCD", "abcd", true),
            ("Ab", "ab", false),
        ] {
            assert_eq!(quorum(all, some), expected, "{some} of {all}");
        }
    }

    #[test]
    fn the_value_that_a_quorum_has_reached() {
        let at = |a, b, c| {
            move |node_id: &str| match node_id {
                "a" => a,
                "b" => b,
                _ => c,
            }
        };
        assert_eq!(voters("abc").reached(at(Some(500), Some(900), Some(700))), Some(700));
        assert_eq!(voters("abc").reached(at(Some(500), Some(900), None)), Some(500));
        assert_eq!(voters("abc").reached(at(None, Some(900), None)), None);
        assert_eq!(voters("ab").reached(at(Some(500), Some(900), None)), Some(500));
        assert_eq!(voters("abcd").reached(at(Some(100), Some(900), None)), Some(100), "a and b, a since 100");
        assert_eq!(voters("abcd").reached(at(None, Some(900), Some(500))), Some(500), "b, c and d");
    }
}
