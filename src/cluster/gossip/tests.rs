//! chitchat for real: several nodes in one process, over UDP on loopback.

use std::future::Future;
use std::io;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::clock::generation;
use crate::cluster::{Me, Membership, Sighting};

const INTERVAL_MS: u64 = 100;
/// For what must happen, but not at a certain time.
const PATIENCE: Duration = Duration::from_secs(10);

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn config(node_id: &str, socket: &UdpSocket, seeds: &[SocketAddr]) -> GossipConfig {
    let address = socket.local_addr().unwrap();
    GossipConfig {
        cluster_id: "test".into(),
        node_id: node_id.into(),
        generation: generation(),
        listen: address,
        advertise: address,
        seeds: seeds.iter().map(|seed| HostPort { host: seed.ip().to_string(), port: seed.port() }).collect(),
        interval_ms: INTERVAL_MS,
        origin: u64::from(address.port()),
        client: false,
        protocol: 1,
    }
}

async fn start(node_id: &str, seeds: &[SocketAddr]) -> Gossip {
    let socket = socket();
    Gossip::start(config(node_id, &socket, seeds), Some(socket)).await.unwrap()
}

/// Nodes n0, n1, ... that all see each other; the first is the seed of the others.
async fn cluster(size: usize) -> Vec<Gossip> {
    let mut nodes = vec![start("n0", &[]).await];
    for index in 1..size {
        nodes.push(start(&format!("n{index}"), &[nodes[0].advertise()]).await);
    }
    for node in &nodes {
        wait(node, "everybody is live", |snapshot| live(snapshot).len() == size - 1).await;
    }
    nodes
}

fn live(snapshot: &Snapshot) -> Vec<&Sighting> {
    snapshot.sightings.iter().filter(|sighting| sighting.live).collect()
}

fn sees(snapshot: &Snapshot, node_id: &str) -> bool {
    live(snapshot).iter().any(|sighting| sighting.node_id == node_id)
}

/// Waits until a node knows something; the snapshot and how long it took.
async fn wait(node: &Gossip, what: &str, holds: impl Fn(&Snapshot) -> bool) -> (Arc<Snapshot>, Duration) {
    let start = Instant::now();
    let mut snapshots = node.watch();
    let found = tokio::time::timeout(PATIENCE, snapshots.wait_for(|snapshot| holds(snapshot)))
        .await
        .map(|found| found.expect("the gossip runs").clone());
    match found {
        Ok(snapshot) => (snapshot, start.elapsed()),
        Err(_) => panic!("not within {PATIENCE:?}: {what}; last: {:#?}", node.watch().borrow()),
    }
}

#[tokio::test]
async fn three_nodes_find_each_other_within_a_second() {
    let first = start("n0", &[]).await;
    let seed = [first.advertise()];
    let begin = Instant::now();
    let (second, third) = (start("n1", &seed).await, start("n2", &seed).await);
    for node in [&first, &second, &third] {
        wait(node, "two others", |snapshot| live(snapshot).len() == 2).await;
    }
    let took = begin.elapsed();
    println!("joined after {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    let snapshot = first.watch().borrow().clone();
    assert!(snapshot.heard_anyone && snapshot.seeds_are_me && snapshot.namesakes.is_empty());
    let sighting = &snapshot.sightings[0];
    assert_eq!((sighting.node_id.as_str(), sighting.address), ("n1", second.advertise()));
    assert_eq!((sighting.phase, sighting.client, sighting.protocol), (Phase::Joining, false, 1));
    assert_eq!(sighting.origin, u64::from(second.advertise().port()));
    assert!(!second.watch().borrow().seeds_are_me);
}

#[tokio::test]
async fn a_seed_that_does_not_answer_is_said_to_be_silent_and_greeted_by_who_joins() {
    let absent = socket();
    let first = start("n0", &[absent.local_addr().unwrap()]).await;
    let second = start("n1", &[first.advertise(), absent.local_addr().unwrap()]).await;
    wait(&second, "n0", |snapshot| sees(snapshot, "n0")).await;
    assert!(second.watch().borrow().seeds_silent, "it has heard one of two");
    let third = Gossip::start(config("n2", &absent, &[]), Some(absent)).await.unwrap();
    let (_, took) = wait(&second, "every seed", |snapshot| !snapshot.seeds_silent).await;
    println!("heard {took:?} after it was there");
    assert!(!third.watch().borrow().seeds_silent, "it has none");
}

#[tokio::test]
async fn what_a_node_publishes_reaches_the_others() {
    let nodes = cluster(3).await;
    nodes[1].set_phase(Phase::Ready).await;
    nodes[1].set_number("position", 42).await;
    nodes[1].set_number("", 1).await;
    nodes[1].set_number("\u{e9}", 1).await;
    for index in [0, 2] {
        let (snapshot, took) = wait(&nodes[index], "ready, 42", |snapshot| {
            let n1 = snapshot.sightings.iter().find(|s| s.node_id == "n1").unwrap();
            n1.phase == Phase::Ready && !n1.numbers.is_empty()
        })
        .await;
        println!("published after {took:?}");
        let n1 = snapshot.sightings.iter().find(|s| s.node_id == "n1").unwrap();
        assert_eq!(n1.numbers, BTreeMap::from([("position".to_owned(), 42)]));
    }
}

#[tokio::test]
async fn a_client_says_so() {
    let first = start("n0", &[]).await;
    let socket = socket();
    let cfg = GossipConfig { client: true, ..config("cli", &socket, &[first.advertise()]) };
    let _client = Gossip::start(cfg, Some(socket)).await.unwrap();
    wait(&first, "a client", |snapshot| live(snapshot).iter().any(|s| s.client)).await;
}

#[tokio::test]
async fn a_killed_node_is_seen_dead_within_one_and_a_half_seconds() {
    let mut nodes = cluster(3).await;
    // Let the detectors see ordinary intervals first.
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(nodes.remove(1));
    let begin = Instant::now();
    for node in &nodes {
        wait(node, "n1 is dead", |snapshot| !sees(snapshot, "n1")).await;
        let took = begin.elapsed();
        println!("seen dead after {took:?}");
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert!(took > Duration::from_millis(500), "{took:?}");
        assert!(sees(&node.watch().borrow(), if node.advertise() == nodes[0].advertise() { "n2" } else { "n0" }));
    }
}

#[tokio::test]
async fn a_leaving_node_is_known_to_leave_before_it_is_gone() {
    let mut nodes = cluster(3).await;
    let last = nodes.pop().unwrap();
    let address = last.advertise();
    last.set_phase(Phase::Leaving).await;
    last.shutdown(2).await;
    UdpSocket::bind(address).expect("the port is free");
    for node in &nodes {
        let (snapshot, _) = wait(node, "n2 is dead", |snapshot| !sees(snapshot, "n2")).await;
        let n2 = snapshot.sightings.iter().find(|s| s.node_id == "n2").unwrap();
        assert_eq!(n2.phase, Phase::Leaving);
    }
}

#[tokio::test]
async fn a_restart_under_the_same_id_and_address_replaces_the_old_life() {
    let mut nodes = cluster(2).await;
    let old = nodes.remove(1);
    let address = old.advertise();
    drop(old);
    let rebound = async {
        loop {
            match UdpSocket::bind(address) {
                Ok(socket) => return socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    let socket = tokio::time::timeout(PATIENCE, rebound).await.unwrap();
    let cfg = config("n1", &socket, &[nodes[0].advertise()]);
    let newest = cfg.generation;
    let restarted = Gossip::start(cfg, Some(socket)).await.unwrap();
    let (snapshot, took) =
        wait(&nodes[0], "the new life", |snapshot| live(snapshot).iter().any(|sighting| sighting.generation == newest))
            .await;
    println!("restart seen after {took:?}");
    assert_eq!(snapshot.sightings.len(), 1, "{snapshot:#?}");
    // What the restarted node hears of its own past is nobody else.
    let (snapshot, _) = wait(&restarted, "n0", |snapshot| sees(snapshot, "n0")).await;
    assert_eq!(snapshot.sightings.len(), 1, "{snapshot:#?}");
    assert!(snapshot.namesakes.iter().all(|namesake| namesake.address == address));
}

#[tokio::test]
async fn a_second_node_with_the_same_id_is_refused_and_the_first_goes_on() {
    let nodes = cluster(2).await;
    for node in &nodes {
        node.set_phase(Phase::Ready).await;
    }
    let intruder = start("n1", &[nodes[0].advertise()]).await;
    wait(&intruder, "its namesake", |snapshot| snapshot.namesakes.iter().any(|s| s.address == nodes[1].advertise()))
        .await;
    wait(&nodes[1], "its namesake", |snapshot| snapshot.namesakes.iter().any(|s| s.address == intruder.advertise()))
        .await;
    let judge = |gossip: &Gossip, node_id: &str, phase: Phase| {
        let me = Me {
            node_id: node_id.into(),
            generation: generation(),
            address: gossip.advertise(),
            client: false,
            origin: u64::from(gossip.advertise().port()),
            protocol: 1,
        };
        let mut membership = Membership::new(me, true);
        membership.set_phase(phase);
        let snapshot = gossip.watch().borrow().clone();
        membership.observe(&snapshot, 0);
        membership.observe(&snapshot, 3_000);
        membership.view(3_000)
    };
    let why = judge(&intruder, "n1", Phase::Joining).refused.clone().unwrap();
    assert!(why.contains(&nodes[1].advertise().to_string()), "{why}");
    assert_eq!(judge(&nodes[1], "n1", Phase::Ready).refused, None);
    let (_, _) = wait(&nodes[0], "both", |snapshot| live(snapshot).len() == 2).await;
    assert_eq!(judge(&nodes[0], "n0", Phase::Ready).member("n1").unwrap().address, nodes[1].advertise());
}

#[tokio::test]
async fn nodes_of_another_cluster_are_ignored() {
    let nodes = cluster(2).await;
    let socket = socket();
    let cfg = GossipConfig { cluster_id: "other".into(), ..config("x", &socket, &[nodes[0].advertise()]) };
    let stranger = Gossip::start(cfg, Some(socket)).await.unwrap();
    let rejected = |node: &Gossip| node.stats().foreign.load(Ordering::Relaxed) >= 5;
    let both = async {
        while !(rejected(&nodes[0]) && rejected(&stranger)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("both sides notice");
    assert!(!stranger.watch().borrow().heard_anyone);
    assert!(nodes.iter().all(|node| !sees(&node.watch().borrow(), "x")));
    assert!(sees(&nodes[0].watch().borrow(), "n1"));
}

#[tokio::test]
async fn a_seed_name_that_does_not_resolve_yet_delays_nothing_and_works_once_it_does() {
    let first = start("n0", &[]).await;
    let target = first.advertise();
    let known = Arc::new(AtomicBool::new(false));
    let lookup: Lookup = {
        let known = known.clone();
        Arc::new(move |seed| {
            assert_eq!(seed.host, "n0.example");
            let answer = if known.load(Ordering::Relaxed) { Ok(vec![target]) } else { Err(io::Error::other("no")) };
            Box::pin(async move { answer })
        })
    };
    let socket = socket();
    let seeds = vec![HostPort { host: "n0.example".into(), port: target.port() }];
    let cfg = GossipConfig { seeds, ..config("n1", &socket, &[]) };
    let begin = Instant::now();
    let second = Gossip::start_with(cfg, Some(socket), lookup, Duration::from_millis(200)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!second.watch().borrow().heard_anyone);
    known.store(true, Ordering::Relaxed);
    let (_, took) = wait(&second, "n0", |snapshot| sees(snapshot, "n0")).await;
    println!("joined {took:?} after the name appeared");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn the_real_resolver_fails_in_the_background() {
    let socket = socket();
    // RFC 6761: never resolves.
    let seeds = vec![HostPort { host: "seed.invalid".into(), port: 1 }];
    let begin = Instant::now();
    let node = Gossip::start(GossipConfig { seeds, ..config("n0", &socket, &[]) }, Some(socket)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert!(!node.watch().borrow().seeds_are_me);
}

#[tokio::test]
async fn random_datagrams_end_nothing() {
    let nodes = cluster(2).await;
    let target = nodes[0].advertise();
    let noise = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut state = generation() | 1;
    println!("seed {state}");
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for index in 0..10_000_u32 {
        let len = (random() % 300) as usize;
        let mut datagram: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        // Half of them get past the magic number, the version and the message type.
        if index % 2 == 0 && len >= 4 {
            datagram[..3].copy_from_slice(&[0x53, 0xb0, 0]);
            datagram[3] %= 3;
        }
        noise.send_to(&datagram, target).await.unwrap();
    }
    let dropped = || nodes[0].stats().undecodable.load(Ordering::Relaxed);
    let noticed = async {
        while dropped() < 9_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed).await.unwrap_or_else(|_| panic!("dropped {}", dropped()));
    assert_eq!(nodes[0].stats().restarts.load(Ordering::Relaxed), 0);
    let joins = start("n2", &[target]).await;
    wait(&joins, "n0 and n1", |snapshot| live(snapshot).len() == 2).await;
}

#[tokio::test]
async fn the_end_of_its_task_is_a_short_gap_for_nobody() {
    let nodes = cluster(3).await;
    nodes[1].set_phase(Phase::Ready).await;
    nodes[1].set_number("position", 7).await;
    let (before, _) = wait(&nodes[0], "n1 ready", |snapshot| {
        snapshot.sightings[0].phase == Phase::Ready && snapshot.sightings[0].numbers.contains_key("position")
    })
    .await;
    nodes[1].end_task();
    let begin = Instant::now();
    let mut snapshots = (nodes[0].watch(), nodes[1].watch());
    // Well past the time after which the dead task would be noticed.
    while begin.elapsed() < Duration::from_secs(3) {
        tokio::select! {
            _ = snapshots.0.changed() => {
                let seen = snapshots.0.borrow_and_update();
                assert_eq!(seen.sightings[0], before.sightings[0], "after {:?}", begin.elapsed());
            }
            _ = snapshots.1.changed() => {
                let seen = snapshots.1.borrow_and_update();
                assert_eq!(live(&seen).len(), 2, "after {:?}: {seen:#?}", begin.elapsed());
                assert!(seen.namesakes.is_empty());
            }
        }
    }
    assert_eq!(nodes[1].stats().restarts.load(Ordering::Relaxed), 1);
    nodes[1].set_phase(Phase::Leaving).await;
    wait(&nodes[0], "n1 leaves", |snapshot| snapshot.sightings[0].phase == Phase::Leaving).await;
}

#[tokio::test]
async fn a_gossip_that_dies_again_and_again_is_started_again_and_again() {
    let nodes = cluster(2).await;
    for count in 1..=3 {
        nodes[1].end_task();
        let restarted = async {
            while nodes[1].stats().restarts.load(Ordering::Relaxed) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, restarted).await.unwrap();
    }
    wait(&nodes[0], "n1", |snapshot| sees(snapshot, "n1")).await;
    wait(&nodes[1], "n0", |snapshot| sees(snapshot, "n0")).await;
}

#[tokio::test]
async fn without_a_socket_it_binds_and_a_port_in_use_is_an_error() {
    let probe = socket();
    let any = "127.0.0.1:0".parse().unwrap();
    let cfg = GossipConfig { listen: any, advertise: any, ..config("n0", &probe, &[]) };
    let node = Gossip::start(cfg, None).await.unwrap();
    assert_ne!(node.advertise().port(), 0);
    let cfg = GossipConfig { listen: node.advertise(), ..config("n1", &probe, &[]) };
    let error = Gossip::start(cfg, None).await.err().unwrap();
    assert!(error.to_string().contains(&node.advertise().to_string()), "{error}");
}

/// A node on a thread of its own, which can be made to stand still.
struct Stallable {
    stalls: mpsc::UnboundedSender<Duration>,
    address: SocketAddr,
    thread: Option<thread::JoinHandle<()>>,
}

impl Stallable {
    fn start(node_id: &'static str, seed: SocketAddr) -> Self {
        let (stalls, mut orders) = mpsc::unbounded_channel();
        let socket = socket();
        let address = socket.local_addr().unwrap();
        let thread = thread::spawn(move || {
            run(async move {
                let cfg = config(node_id, &socket, &[seed]);
                let _gossip = Gossip::start(cfg, Some(socket)).await.unwrap();
                while let Some(stall) = orders.recv().await {
                    thread::sleep(stall);
                }
            });
        });
        Self { stalls, address, thread: Some(thread) }
    }
}

impl Drop for Stallable {
    fn drop(&mut self) {
        self.stalls = mpsc::unbounded_channel().0;
        let _ = self.thread.take().unwrap().join();
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[tokio::test]
async fn a_stall_of_half_a_second_is_no_death() {
    let nodes = cluster(2).await;
    let stallable = Stallable::start("n2", nodes[0].advertise());
    for node in &nodes {
        wait(node, "n2", |snapshot| sees(snapshot, "n2")).await;
    }
    let mut deaths = 0;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        stallable.stalls.send(Duration::from_millis(500)).unwrap();
        let until = Instant::now() + Duration::from_millis(900);
        let mut snapshots = nodes[0].watch();
        let mut alive = true;
        while let Ok(Ok(())) = tokio::time::timeout_at(until, snapshots.changed()).await {
            alive &= sees(&snapshots.borrow_and_update(), "n2");
        }
        deaths += u32::from(!alive);
    }
    println!("{} taken for dead {deaths} times of 4", stallable.address);
    // The rest is caught by the ping that confirms a death.
    assert!(deaths <= 1, "{deaths} of 4");
}

/// Figures for the choice of the failure detector's settings.
#[tokio::test]
#[ignore = "a measurement of a minute"]
async fn measure_detection() {
    for size in [2, 3, 10] {
        let mut nodes = cluster(size).await;
        let seed = [nodes[0].advertise()];
        let (mut took, mut joins) = (Vec::new(), Vec::new());
        for round in 0..12 {
            tokio::time::sleep(Duration::from_millis(800 + 37 * round)).await;
            drop(nodes.pop());
            let begin = Instant::now();
            let victim = format!("n{}", size - 1);
            for node in &nodes {
                wait(node, "the victim is dead", |snapshot| !sees(snapshot, &victim)).await;
                took.push(begin.elapsed().as_millis());
            }
            let begin = Instant::now();
            nodes.push(start(&victim, &seed).await);
            for node in &nodes {
                wait(node, "all are live", |snapshot| live(snapshot).len() >= size - 1).await;
            }
            joins.push(begin.elapsed().as_millis());
        }
        took.sort_unstable();
        joins.sort_unstable();
        let middle = |list: &[u128]| (list[0], list[list.len() / 2], list[list.len() - 1]);
        println!(
            "{size} nodes: seen dead after (min, p50, max) {:?} ms; joined {:?} ms",
            middle(&took),
            middle(&joins)
        );
    }
}

/// How often stalls are taken for deaths by gossip alone.
#[tokio::test]
#[ignore = "a measurement of a minute"]
async fn measure_stalls() {
    let nodes = cluster(2).await;
    let stallable = Stallable::start("n2", nodes[0].advertise());
    wait(&nodes[0], "n2", |snapshot| sees(snapshot, "n2")).await;
    for stall_ms in [500, 600, 700, 1000] {
        let mut deaths = 0;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            stallable.stalls.send(Duration::from_millis(stall_ms)).unwrap();
            let until = Instant::now() + Duration::from_millis(stall_ms + 400);
            let mut snapshots = nodes[0].watch();
            let mut alive = true;
            while let Ok(Ok(())) = tokio::time::timeout_at(until, snapshots.changed()).await {
                alive &= sees(&snapshots.borrow_and_update(), "n2");
            }
            deaths += u32::from(!alive);
        }
        println!("a stall of {stall_ms} ms is taken for a death {deaths} times of 8");
    }
}
