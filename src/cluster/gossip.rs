//! The gossip: chitchat over our own UDP transport, supervised.
//!
//! chitchat carries what is small and changes slowly (who is there, phase, role, a few numbers), never keys or values.
//! Its task can end by a panic while the process lives; then it is started again under a new chitchat generation on the
//! same socket. What peers see as the node's generation is a published value that stays the same, so that a restart of
//! the gossip alone is not taken for a restart of the node.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::seeds::{Lookup, RETRY, Seeds, system_lookup};
use super::sighting::{Phase, Snapshot};
use super::transport::{GossipStats, bind, prepare};
use crate::config::HostPort;
use crate::error::SetupError;

mod life;

use life::{Life, Seen};

/// Names of numbers are this long at most, in bytes, and ASCII.
pub const NUMBER_NAME_MAX: usize = 32;
/// A node publishes this many numbers at most.
pub const NUMBERS_MAX: usize = 40;

/// A gossip that has lived this long was healthy: its end is answered at once.
const HEALTHY: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Seeds addressed in one tick while nobody is heard, or this node joins.
const SEEDS_PER_TICK: usize = 16;
/// While somebody is heard, a silent seed is addressed each so many ticks, so that halves find each other again.
const SEED_TICKS: usize = 10;

/// What the gossip needs to know.
#[derive(Clone, Debug)]
pub struct GossipConfig {
    /// Nodes of other clusters are ignored.
    pub cluster_id: String,
    /// This node's stable identity.
    pub node_id: String,
    /// Its boot time in nanoseconds, see [`clock::generation`](crate::clock::generation).
    pub generation: u64,
    /// UDP address to bind, if no bound socket is handed in. With port 0 the system chooses one.
    pub listen: SocketAddr,
    /// Address that peers use. With port 0 the port that was bound.
    pub advertise: SocketAddr,
    /// Nodes to join through; this node's own address among them is ignored.
    pub seeds: Vec<HostPort>,
    /// Time between two rounds, in milliseconds. All failure detection scales with it.
    pub interval_ms: u64,
    /// The origin of this node's segment.
    pub origin: u64,
    /// This node owns nothing.
    pub client: bool,
    /// The protocol version it speaks.
    pub protocol: u16,
}

enum Command {
    Phase(Phase, oneshot::Sender<()>),
    Number(String, u64, oneshot::Sender<()>),
    Shutdown {
        rounds: u32,
    },
    #[cfg(any(test, feature = "testing"))]
    EndTask,
}

/// A running gossip. Dropping it ends it without a word to the others.
pub struct Gossip {
    commands: mpsc::UnboundedSender<Command>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stats: Arc<GossipStats>,
    advertise: SocketAddr,
    supervisor: JoinHandle<()>,
}

impl Gossip {
    /// Starts to gossip, in [`Phase::Joining`]. To be called inside a tokio runtime. `socket` is a bound UDP socket to
    /// use instead of binding `cfg.listen`. Fails when the address cannot be bound; names that do not resolve and seeds
    /// that do not answer are tried again in the background.
    pub async fn start(cfg: GossipConfig, socket: Option<UdpSocket>) -> Result<Self, SetupError> {
        Self::start_with(cfg, socket, system_lookup(), RETRY).await
    }

    async fn start_with(
        mut cfg: GossipConfig,
        socket: Option<UdpSocket>,
        lookup: Lookup,
        retry: Duration,
    ) -> Result<Self, SetupError> {
        let socket = match socket {
            Some(socket) => socket,
            None => bind(cfg.listen)?,
        };
        let unusable = |error| SetupError::new(format!("the gossip socket on UDP {}", cfg.listen), error);
        prepare(&socket).map_err(unusable)?;
        cfg.listen = socket.local_addr().map_err(unusable)?;
        if cfg.advertise.port() == 0 {
            cfg.advertise.set_port(cfg.listen.port());
        }
        let advertise = cfg.advertise;
        let stats = Arc::new(GossipStats::default());
        let seeds = Seeds::start(&cfg.seeds, cfg.listen, advertise, &lookup, retry);
        let seeds_are_me = seeds.are_me();
        let first = Snapshot { seeds_are_me, seeds_silent: !seeds_are_me, ..Snapshot::default() };
        let (publish, snapshots) = watch::channel(Arc::new(first));
        let (commands, receiver) = mpsc::unbounded_channel();
        let supervisor = Supervisor {
            words: Words { phase: Phase::Joining, numbers: BTreeMap::new() },
            life_id: cfg.generation,
            cfg,
            socket,
            stats: stats.clone(),
            seeds,
            publish,
            commands: receiver,
            seen: Vec::new(),
            carried: Vec::new(),
            carried_until: Instant::now(),
            ticks: 0,
        };
        let life = supervisor.begin().await.map_err(|error| SetupError::new("gossip", error))?;
        let supervisor = tokio::spawn(supervisor.run(life));
        Ok(Self { commands, snapshots, stats, advertise, supervisor })
    }

    /// What is known, refreshed on every change and at least once per interval.
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    /// Counters of the socket and the supervisor.
    pub fn stats(&self) -> &GossipStats {
        &self.stats
    }

    /// The address peers use.
    pub fn advertise(&self) -> SocketAddr {
        self.advertise
    }

    /// Publishes a phase and tells all live nodes at once. Returns when it is on its way.
    pub async fn set_phase(&self, phase: Phase) {
        let (done, sent) = oneshot::channel();
        if self.commands.send(Command::Phase(phase, done)).is_ok() {
            let _ = sent.await;
        }
    }

    /// Publishes a number under a name of 1 to [`NUMBER_NAME_MAX`] ASCII bytes; it travels with the next round. A name
    /// beyond that, or one more than [`NUMBERS_MAX`] names, is not published (and logged): everything published is
    /// copied between all nodes.
    pub async fn set_number(&self, name: &str, value: u64) {
        let (done, sent) = oneshot::channel();
        if self.commands.send(Command::Number(name.to_owned(), value, done)).is_ok() {
            let _ = sent.await;
        }
    }

    /// Tells the last phase to all live nodes, goes on for `rounds` intervals and ends. The port is free afterwards.
    pub async fn shutdown(mut self, rounds: u32) {
        let _ = self.commands.send(Command::Shutdown { rounds });
        let _ = (&mut self.supervisor).await;
    }

    /// Ends chitchat's task as a panic in it would.
    #[cfg(any(test, feature = "testing"))]
    pub fn end_task(&self) {
        let _ = self.commands.send(Command::EndTask);
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// What this node publishes and may change; outlives chitchat's task.
struct Words {
    phase: Phase,
    numbers: BTreeMap<String, u64>,
}

struct Supervisor {
    cfg: GossipConfig,
    words: Words,
    /// The chitchat generation of the current life.
    life_id: u64,
    socket: UdpSocket,
    stats: Arc<GossipStats>,
    seeds: Seeds,
    publish: watch::Sender<Arc<Snapshot>>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// What the current life last saw.
    seen: Vec<Seen>,
    /// What the life before saw live: taken for true until the new one has had the time to see for itself.
    carried: Vec<Seen>,
    carried_until: Instant,
    ticks: usize,
}

enum End {
    Shutdown,
    Died(String),
}

impl Supervisor {
    async fn run(mut self, mut life: Life) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let born = Instant::now();
            let reason = match self.attend(life).await {
                End::Shutdown => return,
                End::Died(reason) => reason,
            };
            backoff = if born.elapsed() >= HEALTHY { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            tracing::error!(reason, pause_ms = backoff.as_millis() as u64, "the gossip ended; starting it again");
            life = loop {
                if self.pause(backoff).await {
                    return;
                }
                // A clock that was set back must not bring an old generation again.
                self.life_id = crate::clock::generation().max(self.life_id + 1);
                match self.begin().await {
                    Ok(life) => break life,
                    Err(error) => tracing::error!(%error, "the gossip cannot be started again yet"),
                }
                backoff = (backoff * 2).min(BACKOFF_MAX);
            };
            self.stats.restarts.fetch_add(1, Ordering::Relaxed);
            // As long as the failure detector would have taken.
            self.carried = std::mem::take(&mut self.seen).into_iter().filter(|seen| seen.sighting.live).collect();
            self.carried_until = Instant::now() + self.interval() * 10;
            for seen in &self.carried {
                life.greet(seen.sighting.address);
            }
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.cfg.interval_ms.max(1))
    }

    async fn begin(&self) -> anyhow::Result<Life> {
        Life::begin(&self.cfg, &self.words, self.life_id, self.socket.try_clone()?, self.stats.clone()).await
    }

    /// Waits before the next start, obeying commands; true: shut down.
    async fn pause(&mut self, pause: Duration) -> bool {
        let deadline = Instant::now() + pause;
        loop {
            tokio::select! {
                _ = tokio::time::sleep_until(deadline) => return false,
                command = self.commands.recv() => match command {
                    None | Some(Command::Shutdown { .. }) => return true,
                    Some(command) => self.obey(command, None).await,
                },
            }
        }
    }

    /// Attends one life of chitchat to its end.
    async fn attend(&mut self, life: Life) -> End {
        let mut tick = tokio::time::interval(self.interval());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = Box::pin(life.ended());
        let mut changes = life.changes().await;
        loop {
            tokio::select! {
                reason = &mut ended => return End::Died(reason),
                command = self.commands.recv() => match command {
                    None => return End::Shutdown,
                    Some(Command::Shutdown { rounds }) => {
                        self.greet_all(&life);
                        tokio::time::sleep(self.interval() * rounds).await;
                        life.end().await;
                        return End::Shutdown;
                    }
                    Some(command) => self.obey(command, Some(&life)).await,
                },
                _ = tick.tick() => {
                    self.ticks = self.ticks.wrapping_add(1);
                    self.refresh(&life).await;
                    self.greet_seeds(&life);
                }
                Ok(()) = changes.changed() => self.refresh(&life).await,
            }
        }
    }

    async fn obey(&mut self, command: Command, life: Option<&Life>) {
        match command {
            Command::Phase(phase, done) => {
                self.words.phase = phase;
                if let Some(life) = life {
                    life.publish_phase(phase).await;
                    self.greet_all(life);
                }
                let _ = done.send(());
            }
            Command::Number(name, value, done) => {
                let fits = (1..=NUMBER_NAME_MAX).contains(&name.len()) && name.is_ascii();
                if fits && (self.words.numbers.len() < NUMBERS_MAX || self.words.numbers.contains_key(&name)) {
                    if let Some(life) = life {
                        life.publish_number(&name, value).await;
                    }
                    self.words.numbers.insert(name, value);
                } else {
                    tracing::error!(name, "a number does not fit what a node may publish");
                }
                let _ = done.send(());
            }
            #[cfg(any(test, feature = "testing"))]
            Command::EndTask => {
                if let Some(life) = life {
                    life.abort();
                }
            }
            Command::Shutdown { .. } => {}
        }
    }

    fn greet_all(&self, life: &Life) {
        for seen in self.seen.iter().filter(|seen| seen.sighting.live) {
            life.greet(seen.sighting.address);
        }
    }

    /// Whether a live node has this address.
    fn hears(&self, address: SocketAddr) -> bool {
        self.seen.iter().any(|seen| seen.sighting.live && seen.sighting.address == address)
    }

    /// Addresses seeds that are not heard: all at each tick while nobody is, or while this node joins (hosts that start
    /// together must not found several clusters), else one now and then.
    fn greet_seeds(&self, life: &Life) {
        let alone = !self.seen.iter().any(|seen| seen.sighting.live);
        let eager = alone || self.words.phase == Phase::Joining;
        if !eager && !self.ticks.is_multiple_of(SEED_TICKS) {
            return;
        }
        let silent: Vec<_> = self.seeds.others().into_iter().filter(|address| !self.hears(*address)).collect();
        let (turn, count) = if eager { (self.ticks, SEEDS_PER_TICK) } else { (self.ticks / SEED_TICKS, 1) };
        for offset in 0..count.min(silent.len()) {
            life.greet(silent[(turn + offset) % silent.len()]);
        }
    }

    async fn refresh(&mut self, life: &Life) {
        self.seen = life.see().await;
        if Instant::now() < self.carried_until {
            for old in &self.carried {
                let is_same = |s: &&Seen| {
                    s.sighting.node_id == old.sighting.node_id && s.sighting.address == old.sighting.address
                };
                if !self.seen.iter().filter(is_same).any(|seen| seen.sighting.live) {
                    self.seen.push(old.clone());
                }
            }
        }
        let snapshot = life::snapshot(&self.cfg, &self.seen, self.seeds.are_me());
        let seeds_silent = !self.seeds.are_heard(|address| self.hears(address));
        self.publish.send_replace(Arc::new(Snapshot { seeds_silent, ..snapshot }));
    }
}

#[cfg(test)]
mod tests;
