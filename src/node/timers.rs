//! What the node does by itself, again and again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::absence::{self, Absence};
use super::numbers::{Told, hear_positions, is_apart};
use super::parts::Node;
use crate::cluster::{Member, Phase, View, Voice};
use crate::config::Config;
use crate::handoff::slots::LEASE_MS;
use crate::peers::{NoAnswer, PeerEvent};
use crate::placement;
use crate::replicator::Synced;
use crate::segment::table::{NodeState, Owner, SLOTS};
use crate::wire::hello::{protocol, speaks_with};
use crate::wire::message::Request;

/// Deadline of the ping that confirms or refutes a death.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// A member that has answered nothing for this long is pinged.
const SILENCE_TO_PING: Duration = Duration::from_millis(250);

/// How long seeds may be silent before a line says so, in milliseconds.
const SILENCE_TO_WARN_MS: u64 = 2_000;

/// How long a node that has become a member waits for slots to move before it calls itself ready, in milliseconds.
const MOVES_PATIENCE_MS: u64 = 2_000;

/// Time between two looks for members that were given up, in milliseconds.
const LOOK_FOR_LOST_MS: u64 = 1_000;

/// Entries visited by one step of the sweeper, at the least.
const SWEEP_STEP_MIN: usize = 512;

/// Steps of the sweeper a second.
const SWEEPS_PER_SECOND: u64 = 10;

/// How often things happen.
struct Tempo {
    replicate: Duration,
    membership: Duration,
    settle_ms: u64,
    founding_ms: u64,
    sweep_interval_s: u64,
}

impl Tempo {
    fn of(config: &Config) -> Self {
        let gossip = config.gossip_interval_ms;
        Self {
            replicate: Duration::from_millis(config.replicate_ms),
            membership: Duration::from_millis((gossip / 2).clamp(10, 100)),
            settle_ms: 2 * gossip,
            founding_ms: 10 * gossip,
            sweep_interval_s: config.sweep_interval_s,
        }
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Starts all of it.
pub(super) fn start(
    node: &Arc<Node>,
    news: mpsc::UnboundedReceiver<(String, PeerEvent)>,
    gossip: Arc<dyn Voice>,
) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(follow_links(node.clone(), news)),
        tokio::spawn(follow_membership(node.clone(), gossip)),
        tokio::spawn(replicate(node.clone())),
        tokio::spawn(keep_slots(node.clone())),
        tokio::spawn(housekeep(node.clone())),
        tokio::spawn(ping_members(node.clone())),
        tokio::spawn(node.replicator.clone().compare_forever(node.config.small_value_max)),
    ]
}

/// Passes on what happens to links.
async fn follow_links(node: Arc<Node>, mut news: mpsc::UnboundedReceiver<(String, PeerEvent)>) {
    while let Some((node_id, event)) = news.recv().await {
        let node = node.clone();
        tokio::spawn(async move { node.link_news(node_id, event).await });
    }
}

/// Sends what changed, every `replicate_ms`, and when somebody waits for it.
async fn replicate(node: Arc<Node>) {
    let mut tick = every(Tempo::of(&node.config).replicate);
    loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {}
            () = node.replicator.urgent() => {}
        }
        // Before the cluster is joined nothing has anywhere to go: it stays marked in the store.
        if node.segment.table().state() == NodeState::Joining && node.peers.view().me().phase == Phase::Joining {
            continue;
        }
        node.homeward.take(node.replicator.hurry_along().await);
        loop {
            let (foreign, more) = node.replicator.tick();
            node.homeward.take(foreign);
            if !more {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Brings slots where they belong, and shares home.
async fn keep_slots(node: Arc<Node>) {
    let mut tick = every(Duration::from_millis(20));
    loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {}
            () = node.peers.changed.notified() => {}
        }
        if !*node.leaving.borrow() && node.peers.view().me().phase == Phase::Ready {
            node.ownership.tick().await;
        }
        node.homeward.retry();
    }
}

/// Sweeps the store, and finds what a killed process left unmarked.
async fn housekeep(node: Arc<Node>) {
    let mut tick = every(Duration::from_millis(1_000 / SWEEPS_PER_SECOND));
    let steps = Tempo::of(&node.config).sweep_interval_s.max(1) * SWEEPS_PER_SECOND;
    let mut round: u64 = 0;
    loop {
        tick.tick().await;
        round += 1;
        let entries = node.store.stats().entries;
        // Twice the average, so that a round ends within the interval while entries come and go.
        node.store.sweep(SWEEP_STEP_MIN.max((2 * entries / steps) as usize));
        if round.is_multiple_of(5 * SWEEPS_PER_SECOND) {
            rescan(&node);
            node.ownership.bring_bytes();
        }
    }
}

/// Finds what a killed process left unmarked, and shares that are still to go home. A host apart owns most of what it
/// has counted; that need not be sent again and again.
fn rescan(node: &Node) {
    let table = node.segment.table();
    if !table.is_apart() {
        node.store.rescan_dirty();
    } else {
        let mine = |slot| matches!(table.owner(slot), Owner::Member(index) if Some(index) == table.self_index());
        node.store.rescan(&|key| !mine(placement::slot(key.name)));
    }
}

/// Pings members whose breaker is open, since an answer in time closes it, and those that have not answered anything for
/// a while, since this node speaks for the cluster only as long as a quorum answers.
async fn ping_members(node: Arc<Node>) {
    let mut tick = every(Duration::from_millis(20));
    // One ping at a time to each.
    let asking = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        tick.tick().await;
        for member in node.peers.view().members.iter().filter(|member| !member.is_me) {
            let node_id = &member.node_id;
            let open = !node.peers.is_reachable(node_id);
            let silent = || node.peers.answered_ago(node_id).is_none_or(|ago| ago >= SILENCE_TO_PING);
            let due = node.peers.is_up(node_id) && (open || !member.client && silent());
            if due && asking.lock().insert(node_id.clone()) {
                let (node, asking, node_id) = (node.clone(), asking.clone(), node_id.clone());
                tokio::spawn(async move {
                    if open {
                        node.peers.ping(&node_id, node.patience()).await;
                    } else if let Err(NoAnswer::TimedOut) = node.peers.ask(&node_id, Request::Ping, PING_TIMEOUT).await
                        && let Some(index) = node.peers.index_of(&node_id)
                    {
                        // Nothing may be on its way to it but this: what it has written meanwhile is not here.
                        node.peers.timed_out(index);
                    }
                    asking.lock().remove(&node_id);
                });
            }
        }
    }
}

/// Follows gossip, confirms deaths, publishes views, becomes ready, renews the lease.
async fn follow_membership(node: Arc<Node>, gossip: Arc<dyn Voice>) {
    let mut snapshots = gossip.watch();
    let tempo = Tempo::of(&node.config);
    let mut tick = every(tempo.membership);
    let mut before = node.peers.view();
    let started = node.now_ms();
    let mut settled_since = started;
    let mut warned = false;
    let mut member_since = started;
    let mut look_for_lost_at = 0;
    let mut absence = Absence::new(before.me().client, started, node.store.clock().since_boot_ms());
    let mut told = Told::default();
    // Suspects with a ping under way.
    let asking = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {}
            _ = snapshots.changed() => {}
        }
        let now = node.now_ms();
        let snapshot = snapshots.borrow_and_update().clone();
        let (mut view, suspects, anyone_away) = {
            let in_sync = in_sync_as_of(&node, now);
            let mut membership = node.membership.lock();
            membership.set_in_sync(in_sync);
            membership.observe(&snapshot, now);
            let suspects = membership.suspects();
            (membership.view(now), suspects, membership.anyone_away(now))
        };
        let table = node.segment.table();
        let anyone_away = anyone_away || node.replicator.is_anyone_behind();
        table.tombstone_grace_ms.store(absence.grace_ms(anyone_away, now), Ordering::Relaxed);
        let since_boot_ms = node.store.clock().since_boot_ms();
        let strangers = absence.look(table, &view, since_boot_ms);
        if !*node.leaving.borrow() && (!strangers.is_empty() || absence.keeps_still()) {
            absence::meet(&node, gossip.as_ref(), &mut absence, strangers).await;
            view = node.membership.lock().view(now);
            (before, settled_since) = (node.peers.view(), now);
        }
        // A namesake is judged by gossip alone: it would refuse the connection of a node with its own id.
        for suspect in suspects.into_iter().filter(|suspect| !view.is_me(&suspect.node_id)) {
            if !asking.lock().insert(suspect.node_id.clone()) {
                continue;
            }
            let (node, asking) = (node.clone(), asking.clone());
            tokio::spawn(async move {
                let alive = node.peers.ping(&suspect.node_id, PING_TIMEOUT).await;
                asking.lock().remove(&suspect.node_id);
                node.membership.lock().ping(&suspect.node_id, alive, node.now_ms());
            });
        }
        if now >= look_for_lost_at {
            look_for_lost_at = now + LOOK_FOR_LOST_MS;
            look_for_lost(&node);
            node.replicator.remember(node.membership.lock().origins());
        }
        if view.epoch != before.epoch {
            if names(&view) != names(&before) {
                settled_since = now;
            }
            node.peers.set_view(view.clone());
            node.replicator.set_view();
            node.ownership.set_view(&before, &view);
            tracing::info!(epoch = view.epoch, members = view.members.len(), joined = view.joined, "new view");
            before = view.clone();
            node.peers.changed.notify_waiters();
        }
        if *node.leaving.borrow() {
            // Until its slots have moved it speaks for them; one that never spoke for the cluster does not begin to.
            if !node.closing.load(Ordering::Relaxed) && view.quorum && node.segment.table().lease_holds(now) {
                node.segment.table().lease_until_ms.store(may_lease_until(&node, now), Ordering::Release);
            }
            continue;
        }
        if view.me().phase == Phase::Joining
            && view.refused.is_none()
            && !absence.keeps_still()
            && may_be_ready(&node, &view, snapshot.seeds_silent, now - settled_since)
        {
            absence::confirm(&node, &mut absence).await;
            absence.joined(table, &view, is_apart(&snapshot, &view));
            node.membership.lock().set_phase(Phase::Ready);
            gossip.set_phase(Phase::Ready).await;
        }
        told.tell(&node, gossip.as_ref()).await;
        hear_positions(&node, &view, &snapshot);
        if view.me().phase != Phase::Ready {
            member_since = now;
        }
        if !view.joined && view.refused.is_none() && now - started >= SILENCE_TO_WARN_MS && !warned {
            warned = true;
            let seeds: Vec<String> = node.config.join.iter().map(ToString::to_string).collect();
            tracing::warn!(join = seeds.join(","), "no node of ephpm_kv.join answers: counting alone (degraded)");
        }
        warned &= !view.joined;
        if publish(&node, &view, now, now - member_since) {
            absence.together(table, &view, since_boot_ms);
        }
    }
}

/// Members that gossip and ping gave up come back when they answer again, even if gossip cannot reach them.
fn look_for_lost(node: &Arc<Node>) {
    let lost = node.membership.lock().lost();
    for suspect in lost.into_iter().filter(|suspect| !node.peers.view().is_me(&suspect.node_id)) {
        let node = node.clone();
        tokio::spawn(async move {
            if node.peers.still_there(&suspect, PING_TIMEOUT).await {
                node.membership.lock().ping(&suspect.node_id, true, node.now_ms());
            }
        });
    }
}

/// Who may own slots. Clients come and go as scripts do, which must not keep a node from becoming ready.
fn names(view: &View) -> Vec<(&str, u64)> {
    let owners = view.members.iter().filter(|member| !member.client);
    owners.map(|member| (member.node_id.as_str(), member.generation)).collect()
}

/// Names the members that a joining node waits for.
fn behind(node: &Node, view: &View) -> String {
    let no_room = |member: &&Member| node.replicator.synced(&member.node_id, member.generation) == Synced::NoRoom;
    if let Some(member) = awaited(node, view).find(no_room) {
        return format!(": no room for what {} owns, raise ephpm_kv.memory", member.node_id);
    }
    let waits_for: Vec<&str> = awaited(node, view).map(|member| member.node_id.as_str()).collect();
    if waits_for.is_empty() { String::new() } else { format!(": waiting for {}", waits_for.join(", ")) }
}

/// The ready members whose entries this node does not have yet, or that it cannot call.
fn awaited<'v>(node: &Node, view: &'v View) -> impl Iterator<Item = &'v Member> {
    let lacks = |member: &&Member| {
        node.replicator.synced(&member.node_id, member.generation) != Synced::Yes
            || !node.peers.is_reachable(&member.node_id)
    };
    ready_others(view).filter(lacks)
}

/// The other members that may own slots and do not leave.
fn ready_others(view: &View) -> impl Iterator<Item = &Member> {
    view.members.iter().filter(|member| !member.is_me && member.phase == Phase::Ready && !member.client)
}

/// As of when this node has what all ready members own; `None`: it lacks something.
fn in_sync_as_of(node: &Node, now: u64) -> Option<u64> {
    let view = node.peers.view();
    if awaited(node, &view).next().is_some() {
        return None;
    }
    let mut answered_ago = ready_others(&view).map(|member| node.peers.answered_ago(&member.node_id));
    let longest = answered_ago.try_fold(Duration::ZERO, |longest, ago| Some(longest.max(ago?)))?;
    Some(now.saturating_sub(longest.as_millis() as u64))
}

/// A joining node is ready once it has met the cluster and holds what the ready members own. Where there is no cluster
/// yet, whoever founds it gives silent seeds some time: they may be founding one themselves, with others.
fn may_be_ready(node: &Node, view: &View, seeds_silent: bool, settled_for_ms: u64) -> bool {
    let tempo = Tempo::of(&node.config);
    let founding = !view.me().client && ready_others(view).next().is_none();
    let settle_ms = if founding && seeds_silent { tempo.founding_ms } else { tempo.settle_ms };
    view.joined && settled_for_ms >= settle_ms && awaited(node, view).next().is_none()
}

/// Why answers are degraded when a live member speaks no protocol that this node does: it may own what we ask for.
fn foreign(view: &View) -> Option<String> {
    let others = view.members.iter().filter(|member| !member.is_me && !member.client && !member.phase.leaves());
    let mut foreign = others.filter(|member| !speaks_with(member.protocol));
    foreign.next().map(|member| {
        let (node_id, theirs, ours) = (&member.node_id, member.protocol, protocol());
        format!("{node_id} is live and speaks protocol {theirs}, {ours} here: answers are degraded")
    })
}

/// Until when this host may speak for the cluster: as long after a quorum was there to answer as others wait before they
/// take over from one that is gone. So one that the others do not hear stops in time, whatever it hears of them.
fn may_lease_until(node: &Node, now: u64) -> u64 {
    node.peers.quorum_answered_ago().map_or(0, |ago| now.saturating_sub(ago.as_millis() as u64) + LEASE_MS)
}

/// Publishes the state and renews the lease; whether this host is with its cluster.
fn publish(node: &Node, view: &View, now: u64, member_for_ms: u64) -> bool {
    let table = node.segment.table();
    // Ready for callers once every slot has an owner to send them to, and the moves that this node's joining caused
    // are done (or take too long). From then on every slot always has an owner.
    let member = view.me().phase == Phase::Ready;
    let owned = || (0..SLOTS as u16).all(|slot| table.owner(slot) != Owner::Nobody);
    let moved = || node.ownership.is_settled() || member_for_ms >= MOVES_PATIENCE_MS;
    let settled = member && (table.state() == NodeState::Ready || (owned() && moved()));
    let held = table.lease_holds(now);
    let lease_until = may_lease_until(node, now);
    let heard = view.quorum && lease_until > now;
    let able = view.refused.is_none() && settled && view.joined && heard;
    let speaks = node.ownership.may_speak(able, held);
    // A node that could speak for the cluster is ready once it does.
    let ready = settled && (table.state() == NodeState::Ready || speaks || !view.quorum);
    let foreign = foreign(view);
    let (state, reason) = match (&view.refused, ready) {
        (Some(why), _) => (NodeState::Alone, why.clone()),
        (None, false) if !view.joined => {
            (NodeState::Joining, "no node of ephpm_kv.join has answered; counting alone (degraded)".to_string())
        }
        (None, false) if foreign.is_some() => (NodeState::Joining, foreign.clone().unwrap_or_default()),
        (None, false) => (NodeState::Joining, format!("catching up with the cluster{}", behind(node, view))),
        (None, true) if !heard => {
            (NodeState::Ready, "less than half of the members can be seen; answers are degraded".to_string())
        }
        (None, true) if foreign.is_some() => (NodeState::Ready, foreign.clone().unwrap_or_default()),
        (None, true) if !speaks => {
            (NodeState::Ready, "asking the members who owns what; answers are degraded until then".to_string())
        }
        (None, true) => (NodeState::Ready, String::new()),
    };
    let lease = if speaks && foreign.is_none() { lease_until } else { 0 };
    table.lease_until_ms.store(lease, Ordering::Release);
    if table.state() != state || table.reason.get() != reason {
        match state {
            NodeState::Ready if reason.is_empty() => tracing::info!("ready"),
            NodeState::Joining => tracing::info!("{reason}"),
            NodeState::Ready if able => tracing::info!("{reason}"),
            _ => tracing::warn!("{reason}"),
        }
        table.set_state(state, &reason);
    }
    node.replicator.publish_complete();
    table.set_heard(lease != 0);
    if lease != 0 && !held {
        // What was changed without an owner is settled, or replayed, now.
        node.store.rescan_dirty();
    }
    able
}
