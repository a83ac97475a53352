//! Who counts when it is asked whether this side may speak for the cluster, and how many of them it takes.

use std::collections::BTreeSet;

/// Node ids of the settled members; whether they are in the view or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voters(BTreeSet<String>);

impl FromIterator<String> for Voters {
    fn from_iter<I: IntoIterator<Item = String>>(node_ids: I) -> Self {
        Self(node_ids.into_iter().collect())
    }
}

impl Voters {
    /// The largest value that a quorum has reached: more than half of the voters, or half of them with the lowest node id
    /// among them. `None`: no quorum has any.
    pub fn reached<T: Ord + Copy>(&self, by: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut values: Vec<Option<T>> = self.0.iter().map(|node_id| by(node_id)).collect();
        let lowest = values.first().copied().flatten();
        values.sort_unstable_by(|a, b| b.cmp(a));
        let half = values.len() / 2;
        let by_more = values.get(half).copied().flatten();
        let by_half = (values.len() == 2 * half && half > 0).then(|| values[half - 1].min(lowest)).flatten();
        by_more.max(by_half)
    }

    /// Whether `pick` picks any of them.
    pub fn any(&self, pick: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|node_id| pick(node_id))
    }

    /// All but this one.
    pub fn without(&self, node_id: &str) -> Self {
        self.0.iter().filter(|other| *other != node_id).cloned().collect()
    }

    /// Whether those that `pick` picks are a quorum.
    pub fn is_quorum(&self, pick: impl Fn(&str) -> bool) -> bool {
        self.reached(|node_id| pick(node_id).then_some(())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters(node_ids: &str) -> Voters {
        node_ids.chars().map(String::from).collect()
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
