//! One life of chitchat's task, and what is read from its state.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, spawn_chitchat};
use tokio::sync::watch;

use super::{GossipConfig, Words};
use crate::cluster::sighting::{Phase, Sighting, Snapshot};
use crate::cluster::transport::{GossipStats, UdpTransport};

const PHASE: &str = "phase";
const ROLE: &str = "role";
const ORIGIN: &str = "origin";
const PROTOCOL: &str = "protocol";
const GENERATION: &str = "generation";
/// Before the name of a number.
const NUMBER: &str = "n.";
const CLIENT: &str = "client";
const MEMBER: &str = "member";

/// A dead node's state is kept this long, so that it is not taken for a new one while others still mention it.
const DEAD_NODE_GRACE: Duration = Duration::from_secs(10 * 60);
const DELETED_KEY_GRACE: Duration = Duration::from_secs(60 * 60);
/// chitchat's task ends at the next command; only a runtime that stands still takes longer.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Silence that counts as death, in mean intervals between heartbeats.
const PHI: f64 = 8.0;

/// When a node counts as dead.
///
/// chitchat's detector compares the silence with the mean of the last intervals between heartbeats, smoothed by five
/// prior intervals. Heartbeats also come through third nodes, so that the mean, and with it the time to detection,
/// would depend on the number of nodes. With a window of one sample the prior rules: the silence allowed is
/// `8 * (5 * interval + sample) / 6`, where samples above one and a half intervals are left out (or one stall would
/// make the detector patient): 0.67 to 0.87 s at an interval of 100 ms. Measured there: a killed node is seen dead
/// after 0.6 to 0.9 s (median 0.66) by 2 others and 0.6 to 1.1 s (0.96) by 9 others, since its last heartbeats still
/// go round for a while; stalls of 0.6 s are not taken for deaths, stalls of 0.7 s are.
fn failure_detector(interval: Duration) -> FailureDetectorConfig {
    FailureDetectorConfig::new(PHI, 1, interval * 3 / 2, interval, DEAD_NODE_GRACE)
}

/// A sighting and the chitchat generation it belongs to.
#[derive(Clone)]
pub(super) struct Seen {
    pub sighting: Sighting,
    life_id: u64,
}

/// One life of chitchat's task; it ends when this is dropped.
pub(super) struct Life {
    handle: ChitchatHandle,
}

impl Life {
    pub async fn begin(
        cfg: &GossipConfig,
        words: &Words,
        life_id: u64,
        socket: UdpSocket,
        stats: Arc<GossipStats>,
    ) -> anyhow::Result<Self> {
        let interval = Duration::from_millis(cfg.interval_ms.max(1));
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(cfg.node_id.as_str(), life_id, cfg.advertise),
            cluster_id: cfg.cluster_id.clone(),
            gossip_interval: interval,
            listen_addr: cfg.listen,
            // Greeted by the supervisor instead, see `seeds`.
            seed_nodes: Vec::new(),
            failure_detector_config: failure_detector(interval),
            marked_for_deletion_grace_period: DELETED_KEY_GRACE,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let role = if cfg.client { CLIENT } else { MEMBER };
        let mut state = vec![
            (ROLE.to_owned(), role.to_owned()),
            (ORIGIN.to_owned(), format!("{:x}", cfg.origin)),
            (PROTOCOL.to_owned(), cfg.protocol.to_string()),
            (GENERATION.to_owned(), cfg.generation.to_string()),
        ];
        state.extend(words.numbers.iter().map(|(name, value)| (format!("{NUMBER}{name}"), value.to_string())));
        // Last, since keys travel in this order: who has seen the phase has seen all.
        state.push((PHASE.to_owned(), words.phase.as_str().to_owned()));
        let transport = UdpTransport::new(socket, cfg.cluster_id.clone(), stats);
        Ok(Self { handle: spawn_chitchat(config, state, &transport).await? })
    }

    /// Completes with the reason when the task has ended.
    pub fn ended(&self) -> impl Future<Output = String> + use<> {
        let ended = self.handle.termination_watcher();
        async move {
            match ended.await {
                Ok(()) => "its task ended".to_owned(),
                Err(error) => error.to_string(),
            }
        }
    }

    /// Changes when a node comes, goes or publishes something.
    pub async fn changes(&self) -> watch::Receiver<BTreeMap<ChitchatId, NodeState>> {
        self.handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await
    }

    /// Starts an exchange with the node at `address` now.
    pub fn greet(&self, address: SocketAddr) {
        let _ = self.handle.gossip(address);
    }

    pub async fn publish_phase(&self, phase: Phase) {
        self.handle.with_chitchat(|chitchat| chitchat.self_node_state().set(PHASE, phase.as_str())).await;
    }

    pub async fn publish_number(&self, name: &str, value: u64) {
        let key = format!("{NUMBER}{name}");
        self.handle.with_chitchat(|chitchat| chitchat.self_node_state().set(&key, value)).await;
    }

    pub async fn end(self) {
        let _ = tokio::time::timeout(END_PATIENCE, self.handle.shutdown()).await;
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// All other nodes and lives that have introduced themselves.
    pub async fn see(&self) -> Vec<Seen> {
        self.handle
            .with_chitchat(|chitchat| {
                let live: HashSet<&ChitchatId> = chitchat.live_nodes().collect();
                chitchat
                    .node_states()
                    .iter()
                    .filter(|(id, _)| *id != chitchat.self_chitchat_id())
                    .filter_map(|(id, state)| read(id, state, live.contains(id)))
                    .collect()
            })
            .await
    }
}

/// `None` while a node's introduction is incomplete, or when it is not one of ours.
fn read(id: &ChitchatId, state: &NodeState, live: bool) -> Option<Seen> {
    let sighting = Sighting {
        node_id: id.node_id.to_string(),
        generation: state.get(GENERATION)?.parse().ok()?,
        address: id.gossip_advertise_addr,
        phase: Phase::parse(state.get(PHASE)?)?,
        client: state.get(ROLE)? == CLIENT,
        origin: u64::from_str_radix(state.get(ORIGIN)?, 16).ok()?,
        protocol: state.get(PROTOCOL)?.parse().ok()?,
        live,
        numbers: state
            .iter_prefix(NUMBER)
            .filter_map(|(key, value)| Some((key.strip_prefix(NUMBER)?.to_owned(), value.value.parse().ok()?)))
            .collect(),
    };
    Some(Seen { sighting, life_id: id.generation_id })
}

/// The snapshot that follows from what was seen; nothing in it of seeds that are silent.
pub(super) fn snapshot(cfg: &GossipConfig, seen: &[Seen], seeds_are_me: bool) -> Snapshot {
    // A dead newer life does not hide a live older one: a clock that was set back makes a restart look older.
    let better = |a: &Seen, b: &Seen| (a.sighting.live, a.life_id) > (b.sighting.live, b.life_id);
    let mut best: BTreeMap<(&str, SocketAddr), &Seen> = BTreeMap::new();
    for one in seen {
        let known = best.entry((&one.sighting.node_id, one.sighting.address)).or_insert(one);
        if better(one, known) {
            *known = one;
        }
    }
    let (own, mut others): (Vec<&Seen>, Vec<&Seen>) =
        best.into_values().partition(|seen| seen.sighting.node_id == cfg.node_id);
    others.sort_by(|a, b| a.sighting.node_id.cmp(&b.sighting.node_id).then(b.life_id.cmp(&a.life_id)));
    let is_me = |s: &Sighting| s.address == cfg.advertise && s.generation == cfg.generation;
    Snapshot {
        heard_anyone: others.iter().any(|seen| seen.sighting.live),
        sightings: others.into_iter().map(|seen| seen.sighting.clone()).collect(),
        namesakes: own
            .into_iter()
            .map(|seen| &seen.sighting)
            .filter(|sighting| sighting.live && !is_me(sighting))
            .cloned()
            .collect(),
        seeds_are_me,
        seeds_silent: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(node_id: &str, life_id: u64, port: u16, live: bool) -> Seen {
        let sighting = Sighting {
            node_id: node_id.into(),
            generation: life_id,
            address: ([127, 0, 0, 1], port).into(),
            phase: Phase::Ready,
            client: false,
            origin: 1,
            protocol: 1,
            live,
            numbers: BTreeMap::new(),
        };
        Seen { sighting, life_id }
    }

    fn config() -> GossipConfig {
        GossipConfig {
            cluster_id: "c".into(),
            node_id: "me".into(),
            generation: 5,
            listen: ([127, 0, 0, 1], 1).into(),
            advertise: ([127, 0, 0, 1], 1).into(),
            seeds: vec![],
            interval_ms: 100,
            origin: 1,
            client: false,
            protocol: 1,
        }
    }

    fn shown(snapshot: &Snapshot) -> Vec<(&str, u64, u16)> {
        snapshot.sightings.iter().map(|s| (s.node_id.as_str(), s.generation, s.address.port())).collect()
    }

    #[test]
    fn the_newest_live_generation_is_shown_once_per_address() {
        let all = [seen("b", 1, 3, true), seen("a", 1, 2, true), seen("a", 2, 2, true), seen("a", 9, 2, false)];
        assert_eq!(shown(&snapshot(&config(), &all, false)), [("a", 2, 2), ("b", 1, 3)]);
        let dead = [seen("a", 1, 2, false), seen("a", 2, 2, false)];
        assert_eq!(shown(&snapshot(&config(), &dead, false)), [("a", 2, 2)]);
        let two_addresses = [seen("a", 1, 2, true), seen("a", 2, 3, true)];
        assert_eq!(shown(&snapshot(&config(), &two_addresses, false)), [("a", 2, 3), ("a", 1, 2)]);
    }

    #[test]
    fn namesakes_are_live_and_not_this_life() {
        let all = [seen("me", 5, 1, true), seen("me", 4, 2, true), seen("me", 6, 3, false)];
        let snapshot = snapshot(&config(), &all, true);
        assert!(snapshot.sightings.is_empty());
        assert!(!snapshot.heard_anyone);
        assert!(snapshot.seeds_are_me);
        assert_eq!(snapshot.namesakes.iter().map(|s| s.address.port()).collect::<Vec<_>>(), [2]);
    }
}
