//! Who is away, and whether this host itself was: how long tombstones are kept, and when a node starts clean.
//!
//! Members remember who is gone, and keep tombstones for it, for a while. A host that was away from the side that speaks
//! for the cluster for nearly that long is *apart*: what it holds may have been deleted since, and nobody knows any
//! more. When it meets members it keeps still and asks them. If one has been with the cluster all along, the host
//! starts clean. If none has, as after the sleep of a whole cluster, nobody has deleted anything meanwhile that the
//! others do not know of, and they go on together. Members that were with it all along, and those that join it anew,
//! are *companions*, which need not be asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::numbers::APART;
use super::parts::Node;
use crate::cluster::membership::remember_ms;
use crate::cluster::{Member, Phase, View, Voice};
use crate::config::testing_number;
use crate::segment::table::{NodeState, Owner, SLOTS, Table};
use crate::store::{TOMBSTONE_GRACE_MS, TOMBSTONE_GRACE_SHORT_MS};
use crate::wire::message::{Request, Response};

/// How long a member may take to say whether it was away.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);

/// See the module's description.
pub(super) struct Absence {
    grace_short_ms: u64,
    grace_long_ms: u64,
    /// Away for this long: apart.
    away_max_ms: u64,
    /// When somebody was last away (coarse monotonic milliseconds).
    somebody_away_ms: u64,
    /// When this was last looked at (milliseconds since boot).
    looked_ms: u64,
    companions: BTreeSet<String>,
    /// Members that could own slots when this host was last together with them, and the view they were in.
    settled: BTreeSet<String>,
    epoch: u64,
    /// It has met others and asks them.
    still: bool,
    /// What was kept over a clean start is still to be confirmed.
    confirming: bool,
}

impl Absence {
    /// Of a node that starts now.
    pub(super) fn new(client: bool, now_ms: u64, since_boot_ms: u64) -> Self {
        let grace_short_ms = testing_number("EPHPM_KV_TEST_GRACE_MS").unwrap_or(TOMBSTONE_GRACE_SHORT_MS);
        let remember_ms = remember_ms();
        Self {
            grace_short_ms,
            grace_long_ms: remember_ms.clamp(grace_short_ms, TOMBSTONE_GRACE_MS),
            away_max_ms: away_max_ms(client),
            somebody_away_ms: now_ms,
            looked_ms: since_boot_ms,
            companions: BTreeSet::new(),
            settled: BTreeSet::new(),
            epoch: 0,
            still: false,
            confirming: false,
        }
    }

    /// How long tombstones are to be kept. One who has just come back is given time to take them.
    pub(super) fn grace_ms(&mut self, anyone_away: bool, now_ms: u64) -> u64 {
        if anyone_away {
            self.somebody_away_ms = now_ms;
        }
        let quiet_ms = now_ms.saturating_sub(self.somebody_away_ms);
        if quiet_ms < self.grace_short_ms { self.grace_long_ms } else { self.grace_short_ms }
    }

    /// Looks at the others: those to be asked whether they have been with the cluster all along, before anything is
    /// exchanged with them.
    pub(super) fn look(&mut self, table: &Table, view: &View, since_boot_ms: u64) -> Vec<String> {
        let stood_still = since_boot_ms.saturating_sub(self.looked_ms) >= self.away_max_ms / 2;
        self.looked_ms = since_boot_ms;
        let others = || view.members.iter().filter(|member| !member.is_me && !member.client);
        if is_away(table, self.away_max_ms, since_boot_ms) && table.set_apart(true) && !stood_still {
            self.companions = others().map(|member| member.node_id.clone()).collect();
        }
        if !table.is_apart() {
            return Vec::new();
        }
        if !self.still {
            let joining = others().filter(|member| member.phase == Phase::Joining);
            self.companions.extend(joining.map(|member| member.node_id.clone()));
        }
        self.companions.retain(|node_id| view.member(node_id).is_some());
        let strangers = others().filter(|member| self.is_stranger(member));
        strangers.map(|member| member.node_id.clone()).collect()
    }

    /// Nobody is to be asked (any more). A host that keeps still has met only members that were apart, too. When these
    /// are more than half of those it was last together with, no other side can have lived on.
    fn go_on(&mut self, table: &Table, view: &View, since_boot_ms: u64) {
        let here = self.settled.iter().filter(|node_id| view.member(node_id).is_some()).count();
        if here * 2 > self.settled.len() {
            table.together_ms.store(since_boot_ms, Ordering::Release);
            table.set_apart(false);
        }
        self.still = false;
    }

    /// Whether this node may not become ready yet.
    pub(super) fn keeps_still(&self) -> bool {
        self.still
    }

    fn is_stranger(&self, member: &Member) -> bool {
        (member.phase == Phase::Ready || self.still) && !self.companions.contains(&member.node_id)
    }

    /// This host speaks for its cluster.
    pub(super) fn together(&mut self, table: &Table, view: &View, since_boot_ms: u64) {
        if !table.is_apart() {
            table.together_ms.store(since_boot_ms, Ordering::Release);
            if self.epoch != view.epoch {
                self.epoch = view.epoch;
                self.settled = view.owners_eligible().iter().map(|member| member.node_id.clone()).collect();
            }
        }
    }

    /// A new host becomes a member: of a side that is apart, if all that it joins are.
    pub(super) fn joined(&mut self, table: &Table, view: &View, is_apart: impl Fn(&str) -> bool) {
        let ready = || view.members.iter().filter(|m| !m.is_me && !m.client && m.phase == Phase::Ready);
        let fresh = table.together_ms.load(Ordering::Acquire) == 0;
        if fresh && ready().next().is_some() && ready().all(|member| is_apart(&member.node_id)) {
            table.set_apart(true);
            self.companions = ready().map(|member| member.node_id.clone()).collect();
        }
    }
}

fn is_away(table: &Table, away_max_ms: u64, since_boot_ms: u64) -> bool {
    let together_ms = table.together_ms.load(Ordering::Acquire);
    together_ms != 0 && since_boot_ms.saturating_sub(together_ms) >= away_max_ms
}

/// Away for this long: apart. Nobody keeps tombstones for clients. With some time to spare, since others' clocks and
/// news are not ours.
fn away_max_ms(client: bool) -> u64 {
    let grace_short_ms = testing_number("EPHPM_KV_TEST_GRACE_MS").unwrap_or(TOMBSTONE_GRACE_SHORT_MS);
    let remember_ms = remember_ms();
    if client { grace_short_ms / 2 } else { remember_ms - remember_ms / 10 }
}

/// The answer to one who asks: whether this host has been with its cluster all along.
pub(super) fn was_together(node: &Node) -> bool {
    let (table, since_boot_ms) = (node.segment.table(), node.store.clock().since_boot_ms());
    let client = node.peers.view().me().client;
    !table.is_apart()
        && table.together_ms.load(Ordering::Acquire) != 0
        && !is_away(table, away_max_ms(client), since_boot_ms)
}

/// A host that is apart and has met `strangers`: asks them, and starts clean if one of them has lived on.
pub(super) async fn meet(node: &Arc<Node>, gossip: &dyn Voice, absence: &mut Absence, strangers: Vec<String>) {
    if !std::mem::replace(&mut absence.still, true) {
        keep_still(node, gossip).await;
    }
    let mut asked = tokio::task::JoinSet::new();
    for node_id in strangers {
        let node = node.clone();
        asked.spawn(async move {
            let answer = node.peers.ask(&node_id, Request::Standing, ASK_TIMEOUT).await;
            (node_id, answer)
        });
    }
    let mut all_apart = true;
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((_, Ok(Response::Standing { together: true }))) => return start_clean(node, gossip, absence).await,
            Ok((node_id, Ok(Response::Standing { together: false }))) => {
                absence.companions.insert(node_id);
            }
            _ => all_apart = false,
        }
    }
    if all_apart {
        tracing::info!("away for long, and so were the others: going on together");
        absence.go_on(node.segment.table(), &node.peers.view(), node.store.clock().since_boot_ms());
        node.replicator.open();
    }
}

/// Becomes a joining node again that owns nothing, and that nobody can pull from.
async fn keep_still(node: &Arc<Node>, gossip: &dyn Voice) {
    let table = node.segment.table();
    table.lease_until_ms.store(0, Ordering::Release);
    let view = {
        let mut membership = node.membership.lock();
        membership.set_phase(Phase::Joining);
        membership.view(node.now_ms())
    };
    table.set_state(NodeState::Joining, "back after a long absence: asking the others");
    let before = node.peers.view();
    node.replicator.close();
    // Reads of others' keys are theirs to answer until everything has been pulled again.
    table.dropped_copy();
    node.ownership.set_view(&before, &view);
    for slot in 0..SLOTS as u16 {
        table.set_owner(slot, Owner::Nobody, table.term(slot));
    }
    node.peers.set_view(view);
    node.replicator.set_view();
    gossip.set_phase(Phase::Joining).await;
}

/// Drops what others may have deleted and forgotten, and catches up with them as if this node had just joined.
async fn start_clean(node: &Arc<Node>, gossip: &dyn Voice, absence: &mut Absence) {
    let table = node.segment.table();
    tracing::warn!("away for so long that deletes were missed: dropping all copies, catching up anew");
    let mut page = Some(0);
    while let Some(from) = page {
        page = node.store.forget_copies(from);
        tokio::task::yield_now().await;
    }
    node.replicator.start_over();
    node.replicator.open();
    absence.companions.clear();
    (absence.still, absence.confirming) = (false, true);
    table.together_ms.store(node.store.clock().since_boot_ms(), Ordering::Release);
    table.set_apart(false);
    gossip.set_number(APART, 0).await;
}

/// Before a node that started clean is ready: what it counted in windows that have ended meanwhile has ended, too.
pub(super) async fn confirm(node: &Arc<Node>, absence: &mut Absence) {
    let mut page = std::mem::take(&mut absence.confirming).then_some(0);
    while let Some(from) = page {
        page = node.store.end_unconfirmed(from);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Me, Membership, Sighting, Snapshot};
    use crate::segment::Segment;

    const AWAY: u64 = 600_000 - 60_000;

    fn sighting(node_id: &str, phase: Phase) -> Sighting {
        let origin = u64::from(node_id.as_bytes()[0]);
        let address = ([127, 0, 0, 1], origin as u16).into();
        let (node_id, numbers) = (node_id.to_string(), Default::default());
        Sighting { node_id, generation: 1, address, phase, client: false, origin, protocol: 1, live: true, numbers }
    }

    /// This node is "b".
    struct Host {
        segment: Arc<Segment>,
        membership: Membership,
        absence: Absence,
    }

    impl Host {
        fn new() -> Self {
            let Sighting { node_id, generation, address, client, origin, protocol, .. } = sighting("b", Phase::Ready);
            let me = Me { node_id, generation, address, client, origin, protocol };
            let mut membership = Membership::new(me, true);
            membership.set_phase(Phase::Ready);
            Self { segment: Segment::create(4 << 20).unwrap(), membership, absence: Absence::new(false, 0, 0) }
        }

        fn view(&mut self, others: &[(&str, Phase)], now: u64) -> Arc<View> {
            let sightings = others.iter().map(|(node_id, phase)| sighting(node_id, *phase)).collect();
            self.membership.observe(&Snapshot { sightings, heard_anyone: true, ..Snapshot::default() }, now);
            for suspect in self.membership.suspects() {
                self.membership.ping(&suspect.node_id, false, now);
            }
            self.membership.view(now)
        }

        fn look(&mut self, others: &[(&str, Phase)], now: u64) -> Vec<String> {
            let view = self.view(others, now);
            self.absence.look(self.segment.table(), &view, now)
        }

        fn together(&mut self, others: &[(&str, Phase)], now: u64) {
            let view = self.view(others, now);
            self.absence.together(self.segment.table(), &view, now);
        }

        fn is_apart(&self) -> bool {
            self.segment.table().is_apart()
        }
    }

    const A: (&str, Phase) = ("a", Phase::Ready);
    const C: (&str, Phase) = ("c", Phase::Ready);

    #[test]
    fn tombstones_are_kept_while_somebody_is_away_and_until_it_has_taken_them() {
        let mut absence = Absence::new(false, 0, 0);
        assert_eq!(absence.grace_ms(false, 0), TOMBSTONE_GRACE_MS, "others may be away that it has not met");
        assert_eq!(absence.grace_ms(false, TOMBSTONE_GRACE_SHORT_MS), TOMBSTONE_GRACE_SHORT_MS);
        assert_eq!(absence.grace_ms(true, 100_000), TOMBSTONE_GRACE_MS);
        assert_eq!(absence.grace_ms(false, 159_999), TOMBSTONE_GRACE_MS);
        assert_eq!(absence.grace_ms(false, 160_000), TOMBSTONE_GRACE_SHORT_MS);
    }

    #[test]
    fn a_short_absence_and_one_that_never_was_together_ask_nobody() {
        let mut host = Host::new();
        assert!(host.look(&[A, C], AWAY).is_empty(), "it has just started");
        host.together(&[A, C], AWAY);
        assert!(host.look(&[A, C], 2 * AWAY - 1).is_empty());
        assert!(!host.is_apart());
    }

    #[test]
    fn one_that_stood_still_asks_all_that_it_sees() {
        let mut host = Host::new();
        host.together(&[A, C], 1);
        assert_eq!(host.look(&[A, C], 1 + AWAY), ["a", "c"]);
        assert!(host.is_apart());
    }

    #[test]
    fn one_on_a_smaller_side_asks_those_that_it_has_not_seen_all_along() {
        let mut host = Host::new();
        host.together(&[A, C], 1);
        for second in 0..AWAY / 1_000 + 2 {
            assert!(host.look(&[C], second * 1_000).is_empty());
        }
        assert!(host.is_apart());
        assert!(host.look(&[C, ("d", Phase::Joining)], AWAY + 5_000).is_empty(), "it joins them anew");
        assert!(host.look(&[C, ("d", Phase::Ready)], AWAY + 6_000).is_empty());
        assert_eq!(host.look(&[A, C], AWAY + 7_000), ["a"]);
    }

    #[test]
    fn a_cluster_that_slept_goes_on_once_most_of_it_is_there() {
        let mut host = Host::new();
        host.together(&[A, C], 1);
        assert_eq!(host.look(&[A], 1 + AWAY), ["a"]);
        host.absence.still = true;
        // Those that keep still, too, have become joining ones.
        assert_eq!(host.look(&[("a", Phase::Joining)], 2 + AWAY), ["a"]);
        host.absence.companions.insert("a".to_string());
        assert!(host.look(&[("a", Phase::Joining)], 3 + AWAY).is_empty());
        let view = host.view(&[("a", Phase::Joining)], 3 + AWAY);
        host.absence.go_on(host.segment.table(), &view, 3 + AWAY);
        assert!(!host.is_apart() && !host.absence.keeps_still(), "two of three");
    }
}
