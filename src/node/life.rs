//! From binding the ports to leaving the cluster.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::leave::{find_owners, leave};
use super::meet::{Meeting, calls_address, host_address};
use super::orders::Orders;
use super::parts::Node;
use super::serve::{HostHandler, PeerHandler};
use super::{Home, Job, Place, Start, timers};
use crate::cluster::{self, Gossip, GossipConfig, Me, names_others};
use crate::config::Config;
use crate::dataplane::link::TcpDialer;
use crate::dataplane::{Limits, is_served, server};
use crate::error::SetupError;
use crate::segment::Segment;
use crate::segment::table::NodeState;
use crate::store::{Store, StoreOptions};
use crate::wire::hello::{LocalHello, Settings, protocol};

/// Time between two attempts to bind a port that is in use.
const BIND_RETRY: Duration = Duration::from_millis(100);

/// How long a node of this segment that was killed may still hold its sockets: its claim is free a moment before.
const PREDECESSOR_PATIENCE: Duration = Duration::from_millis(100);

/// Attempts to find a port that is free on both protocols.
const PORT_TRIES: u32 = 16;

/// Gossip rounds in which the cluster hears of a departure.
const ROUNDS_TO_SAY_GOODBYE: u32 = 2;

/// The sockets of a node.
struct Ports {
    listen: SocketAddr,
    tcp: server::PeerListener,
    udp: std::net::UdpSocket,
}

/// Lives until its orders are to stop.
pub(super) async fn live(start: Start) {
    let Start { config, mut place, mut client, mut node_id, guest_id, segment, home, stamp, .. } = start;
    let own_process = matches!(home, Home::Process);
    let begun = Instant::now();
    let mut orders = match Orders::new(home, &segment, &config, stamp) {
        Ok(orders) => orders,
        Err(error) => return tracing::error!(%error, "no way to be told to stop"),
    };
    let mut meeting = None;
    if let Some(address) = host_address(&config) {
        if place == Place::Host {
            match after_predecessor(&segment, || Meeting::listen(&address)).await {
                Ok(listener) => {
                    meeting = Some(Meeting::begin(listener, &address, segment.clone(), own_process));
                }
                // Somebody was faster: this segment's processes move there.
                Err(_) if !segment.table().has_had_node() && is_served(&address) => return,
                Err(error) if is_served(&address) => {
                    tracing::warn!(%address, %error, "another segment of this host has its place: taking part as a client");
                    (place, client, node_id) = (Place::Guest, true, guest_id);
                }
                Err(error) => {
                    tracing::error!(%address, %error, "no socket (ephpm_kv.socket) for the host's other processes: they are not attached");
                }
            }
        }
        orders.end_without(address, place);
    }
    let options = StoreOptions { clustered: true, value_max: config.value_max };
    let store = match Store::try_open(segment.clone(), crate::clock::Clock::System, options) {
        Ok(store) => store,
        Err(error) => return tracing::error!("{error}"),
    };
    store.rescan_dirty();
    let ports = loop {
        match bind(&config, place).await {
            Ok(ports) => break ports,
            Err(error) => {
                let reason = format!("{error}; counting alone, trying again");
                if segment.table().reason.get() != reason {
                    tracing::error!("{reason}");
                }
                segment.table().set_state(NodeState::Alone, &reason);
                if wait_alone(&mut orders, BIND_RETRY).await {
                    return;
                }
            }
        }
    };
    let generation = crate::clock::generation();
    segment.table().generation.store(generation, Ordering::Release);
    let mut address = config.advertise.unwrap_or(ports.listen);
    if place != Place::Host {
        address.set_port(ports.listen.port());
    }
    let origin = segment.origin();
    let me = Me { node_id: node_id.clone(), generation, address, client, origin, protocol: protocol() };
    let hello = Arc::new(LocalHello {
        cluster_id: config.cluster_id.clone(),
        node_id: node_id.clone(),
        generation,
        origin,
        address: Some(address),
        client,
        settings: settings_of(&config),
        token: segment.token(),
    });
    let limits = Limits::new(config.value_max).with_timeout(config.timeout_ms);
    let dialer = Arc::new(TcpDialer { hello: hello.clone(), limits });
    let others = names_others(&config.join, ports.listen, address);
    let (node, news) = Node::over(config, store, me, dialer, others);
    let gossip = match start_gossip(&node, hello.as_ref(), ports.udp, ports.listen, address).await {
        Ok(gossip) => Arc::new(gossip),
        Err(error) => {
            tracing::error!("{error}");
            segment.table().set_state(NodeState::Alone, &error.to_string());
            while !wait_alone(&mut orders, Duration::from_secs(3_600)).await {}
            return;
        }
    };
    node.segment.table().set_state(NodeState::Joining, "looking for the cluster");
    let (stop_serving, stopped) = watch::channel(false);
    let peer_handler = Arc::new(PeerHandler(node.clone()));
    tokio::spawn(server::serve(ports.tcp, hello.clone(), limits, peer_handler, stopped.clone()));
    if let Some(listener) = calls_listener(&segment).await {
        tokio::spawn(server::serve_unix(listener, hello, limits, Arc::new(HostHandler(node.clone())), stopped));
    }
    let tasks = timers::start(&node, news, gossip.clone());
    let timeout = work(&node, &mut orders).await;
    // Whoever comes now is not part of what leaves.
    drop(meeting);
    let deadline = Instant::now() + timeout;
    find_owners(&node, begun + timeout).await;
    leave(&node, gossip.as_ref(), deadline).await;
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    if let Ok(gossip) = Arc::try_unwrap(gossip) {
        gossip.shutdown(ROUNDS_TO_SAY_GOODBYE).await;
    }
    let _ = stop_serving.send(true);
    tracing::info!("left the cluster");
}

/// Takes jobs until told to stop; returns the time to leave in.
async fn work(node: &Arc<Node>, orders: &mut Orders) -> Duration {
    let take = &mut |job| match job {
        Job::Call { call, deadline, done } => node.router.submit(call, deadline.into(), done),
        Job::Flush { namespace, deadline, done } => {
            let node = node.clone();
            tokio::spawn(async move { done(node.flush_everywhere(namespace, deadline.into()).await) });
        }
        // The orders' own.
        Job::Stop { .. } => {}
    };
    orders.obey(take).await
}

/// Waits for `time` while no cluster can be had; calls are counted in this host's share. `true`: told to stop.
async fn wait_alone(orders: &mut Orders, time: Duration) -> bool {
    // A dropped `done` tells the caller that nothing was decided: it counts for itself.
    tokio::time::timeout(time, orders.obey(&mut drop)).await.is_ok()
}

async fn start_gossip(
    node: &Arc<Node>,
    hello: &LocalHello,
    udp: std::net::UdpSocket,
    listen: SocketAddr,
    advertise: SocketAddr,
) -> Result<Gossip, SetupError> {
    let config = GossipConfig {
        cluster_id: hello.cluster_id.clone(),
        node_id: hello.node_id.clone(),
        generation: hello.generation,
        listen,
        advertise,
        seeds: node.config.join.clone(),
        interval_ms: node.config.gossip_interval_ms,
        origin: hello.origin,
        client: hello.client,
        protocol: protocol(),
    };
    Gossip::start(config, Some(udp)).await
}

async fn bind(config: &Config, place: Place) -> Result<Ports, SetupError> {
    let Some(address) = config.bind else {
        return Err(SetupError::new("ephpm_kv.bind", "not set"));
    };
    let in_use = |error: std::io::Error| SetupError::new(format!("ephpm_kv.bind={address}"), error);
    if place == Place::Host {
        let tcp = server::bind(address).await.map_err(in_use)?;
        let udp = cluster::bind(address)?;
        return Ok(Ports { listen: address, tcp, udp });
    }
    // The host's port is its node's. What the system gives for one protocol may be taken for the other.
    let mut tries = 0;
    loop {
        let tcp = server::bind(SocketAddr::new(address.ip(), 0)).await.map_err(in_use)?;
        let listen = tcp.local_addr().map_err(in_use)?;
        match cluster::bind(listen) {
            Ok(udp) => return Ok(Ports { listen, tcp, udp }),
            Err(error) if tries >= PORT_TRIES => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

/// What must agree between the nodes of a cluster.
pub fn settings_of(config: &Config) -> Settings {
    let slots = crate::segment::table::SLOTS as u32;
    Settings { replicas: config.replicas, copy_all_max: config.copy_all_max, slots }
}

/// The socket where other processes of the segment reach this node.
async fn calls_listener(segment: &Segment) -> Option<server::HostListener> {
    match after_predecessor(segment, || server::bind_unix(&calls_address(segment))).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::error!(%error, "no socket for the host's other processes: they count in this host's share");
            None
        }
    }
}

/// Binds, and while the place is taken tries again for as long as that may be a killed node of this segment.
async fn after_predecessor<T>(segment: &Segment, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + PREDECESSOR_PATIENCE;
    let may_be_held = || segment.table().has_had_node();
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && may_be_held() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            result => return result,
        }
    }
}
