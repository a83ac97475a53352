//! One simulated host: its segment, which PHP threads work on, and its node, which can be stopped, killed and started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use super::dial::{SimulatedDialer, State, Time, address_of};
use super::gossip::{Gossips, SimulatedVoice};
use super::network::{Arrival, At, ConnId, Life, Network, Packet, Place, Way};
use super::plant::{Plant, Planted};
use crate::clock::Clock;
use crate::cluster::{Me, Phase, Sighting};
use crate::config::Config;
use crate::dataplane::age::{Ages, Stamper, aged};
use crate::dataplane::{Answer, Limits, Peer};
use crate::node::leave::{find_owners, leave};
use crate::node::parts::Node;
use crate::node::serve::{PeerHandler, deadline_of};
use crate::node::{forget_predecessor, timers};
use crate::segment::Segment;
use crate::segment::table::NodeState;
use crate::store::{Store, StoreOptions};
use crate::wire::hello::PROTOCOL;
use crate::wire::message::{Call, Reply, Request, Response};
use crate::wire::{decode_frame, decode_request, encode_response, frame_cap};

/// Memory of a simulated segment.
const MEMORY: u64 = 4 << 20;

/// Rounds of gossip in which the others hear of a departure.
const ROUNDS_TO_SAY_GOODBYE: u64 = 2;

/// A machine: it lives until it is killed as a whole.
pub struct Machine {
    pub segment: Arc<Segment>,
    /// What PHP threads work on.
    pub store: Store,
    hand: Arc<AtomicU64>,
    /// What the machine's clock shows at the simulation's zero.
    base_ms: u64,
}

/// An answered call: its number and the reply.
pub type Answers = Arc<Mutex<Vec<(u64, Option<Reply>)>>>;

/// What the network and the owner log are to a node.
#[derive(Clone)]
pub struct World {
    pub network: Arc<Mutex<Network>>,
    pub config: Config,
    pub plant: Plant,
    pub log: Arc<Mutex<super::history::OwnerLog>>,
}

/// A running node.
pub struct Process {
    pub life: Life,
    pub node: Arc<Node>,
    voice: Arc<SimulatedVoice>,
    handler: Planted,
    time: Time,
    dialled: Arc<Mutex<BTreeMap<ConnId, Arc<State>>>>,
    served: BTreeMap<ConnId, Served>,
    /// Calls of PHP threads that the node has not read yet.
    pub inbox: Vec<(u64, Call)>,
    pub answers: Answers,
    /// It does not run until then.
    pub stopped_until: Option<u64>,
    leaving: Option<JoinHandle<bool>>,
    left_at: Option<u64>,
    /// Last, so that everything above goes while it is there.
    runtime: Runtime,
}

/// A connection that somebody began.
struct Served {
    peer: Peer,
    later: Vec<AbortHandle>,
    ages: Ages,
    stamper: Arc<Mutex<Stamper>>,
}

/// A host and what has become of it.
pub struct Host {
    pub place: Place,
    pub node_id: String,
    pub client: bool,
    pub machine: Option<Machine>,
    pub process: Option<Process>,
}

impl Machine {
    /// A new one with an empty segment.
    pub fn new(identity: &[u8; 32], base_ms: u64, now: u64) -> Self {
        let segment = Segment::create_as(MEMORY, identity).expect("a segment");
        let (clock, hand) = Clock::manual(base_ms + now);
        let options = StoreOptions { clustered: true, value_max: 1 << 20 };
        let store = Store::open(segment.clone(), clock, options);
        Self { segment, store, hand, base_ms }
    }

    /// Its coarse clock.
    pub fn set_time(&self, now: u64) {
        self.hand.store(self.base_ms + now, Ordering::Relaxed);
    }

    /// What its clock shows.
    pub fn now_ms(&self) -> u64 {
        self.hand.load(Ordering::Relaxed)
    }
}

impl Host {
    /// Nothing yet.
    pub fn new(place: Place, client: bool) -> Self {
        Self { place, node_id: format!("n{place}"), client, machine: None, process: None }
    }

    /// Whether its node runs now.
    pub fn is_awake(&self, now: u64) -> bool {
        self.process.as_ref().is_some_and(|process| process.stopped_until.is_none_or(|until| now >= until))
    }

    /// Starts the node on the machine's segment.
    pub fn start(&mut self, life: Life, world: &World, gossips: &mut Gossips, now: u64) {
        let Some(machine) = &self.machine else { return };
        machine.set_time(now);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets");
        let segment = machine.segment.clone();
        forget_predecessor(&segment);
        let store = Store::open(segment.clone(), machine.store.clock().clone(), machine.store.options());
        store.rescan_dirty();
        let generation = machine.now_ms() * 1_000_000 + u64::from(life);
        segment.table().generation.store(generation, Ordering::Release);
        let (origin, address) = (segment.origin(), address_of(self.place));
        let me =
            Me { node_id: self.node_id.clone(), generation, address, client: self.client, origin, protocol: PROTOCOL };
        let sighting = Sighting {
            node_id: self.node_id.clone(),
            generation,
            address,
            phase: Phase::Joining,
            client: self.client,
            origin,
            protocol: PROTOCOL,
            live: true,
            numbers: BTreeMap::new(),
        };
        let voice = gossips.begin(self.place, life, sighting, now);
        let hello = Peer {
            node_id: self.node_id.clone(),
            generation,
            origin,
            stream: 0,
            address: Some(address),
            client: self.client,
            local: false,
            version: PROTOCOL,
        };
        let dialled = Arc::default();
        let (node, time) = runtime.block_on(async {
            let time = Time { started: Instant::now(), started_ms: now, base_ms: machine.base_ms };
            let dialer = Arc::new(SimulatedDialer {
                me: (self.place, life),
                hello,
                network: world.network.clone(),
                time,
                dialled: Arc::clone(&dialled),
            });
            let (node, news) = Node::over(world.config.clone(), store, me, dialer, true);
            segment.table().set_state(NodeState::Joining, "looking for the cluster");
            segment.table().node_pid.store(life, Ordering::Release);
            timers::start(&node, news, voice.clone());
            (node, time)
        });
        world.network.lock().put(self.place, At::Node(life), now);
        let handler = Planted::new(PeerHandler(node.clone()), self.place, world.plant, world.log.clone());
        self.process = Some(Process {
            life,
            node,
            voice,
            handler,
            time,
            dialled,
            served: BTreeMap::new(),
            inbox: Vec::new(),
            answers: Arc::default(),
            stopped_until: None,
            leaving: None,
            left_at: None,
            runtime,
        });
    }

    /// Ends the node at once, and the machine with it if wanted.
    pub fn kill(&mut self, machine_too: bool, world: &World, gossips: &mut Gossips, now: u64) {
        if let Some(process) = self.process.take() {
            world.network.lock().put(self.place, if machine_too { At::Nothing } else { At::Machine }, now);
            gossips.end(self.place, process.life);
            if let Some(machine) = &self.machine {
                machine.segment.table().node_pid.store(0, Ordering::Release);
            }
        } else if machine_too {
            world.network.lock().put(self.place, At::Nothing, now);
        }
        if machine_too {
            self.machine = None;
        }
    }

    /// Runs the node from `now` to `end`, with what has arrived.
    pub fn run(&mut self, now: u64, end: u64, arrivals: Vec<Arrival>, world: &World) {
        if let Some(machine) = &self.machine {
            machine.set_time(now);
        }
        if let Some(process) = &mut self.process {
            process.stopped_until = None;
            process.run(now, end, arrivals, world);
        }
    }

    /// Begins to leave in order.
    pub fn leave(&mut self, world: &World) {
        if let Some(process) = &mut self.process {
            process.leave(Duration::from_millis(world.config.leave_timeout_ms));
        }
    }

    /// Whether it has left, and whether it kept nothing.
    pub fn has_left(&mut self, now: u64, world: &World) -> Option<bool> {
        let process = self.process.as_mut()?;
        if !process.leaving.as_ref()?.is_finished() {
            return None;
        }
        let left_at = *process.left_at.get_or_insert(now);
        if now < left_at + ROUNDS_TO_SAY_GOODBYE * world.config.gossip_interval_ms {
            return None;
        }
        let leaving = process.leaving.take()?;
        let kept_nothing = process.runtime.block_on(leaving).unwrap_or(false);
        // A thread that was stopped in the middle may have counted while the node said goodbye.
        Some(kept_nothing && process.node.homeward.all_home())
    }
}

impl Process {
    fn run(&mut self, now: u64, end: u64, arrivals: Vec<Arrival>, world: &World) {
        let Self { runtime, time, node, handler, dialled, served, inbox, answers, .. } = self;
        let (time, calls) = (*time, std::mem::take(inbox));
        runtime.block_on(async {
            let behind = time.at(now).saturating_duration_since(Instant::now());
            if !behind.is_zero() {
                // It was stopped: everything that was due meanwhile is due now.
                tokio::time::advance(behind).await;
            }
            for arrival in arrivals {
                receive(arrival, dialled, served, handler, world, time);
            }
            for (number, call) in calls {
                submit(node, number, call, answers);
            }
            tokio::time::sleep_until(time.at(end)).await;
        });
    }

    fn leave(&mut self, timeout: Duration) {
        let (node, voice) = (self.node.clone(), self.voice.clone());
        self.leaving = Some(self.runtime.spawn(async move {
            let begun = Instant::now();
            find_owners(&node, begun + timeout).await;
            leave(&node, voice.as_ref(), begun + timeout).await;
            !node.ownership.holds_any() && node.homeward.all_home()
        }));
    }

    /// Whether it leaves, or has left.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some() || self.left_at.is_some()
    }
}

/// What the host's socket does with a call.
fn submit(node: &Arc<Node>, number: u64, call: Call, answers: &Answers) {
    let answers = answers.clone();
    if node.closing.load(Ordering::Relaxed) {
        return answers.lock().push((number, None));
    }
    let deadline = Instant::now() + deadline_of(node.config.timeout_ms);
    let done = move |reply| answers.lock().push((number, Some(reply)));
    node.router.submit(call, deadline, Box::new(done));
}

fn receive(
    Arrival { conn, way, packet }: Arrival,
    dialled: &Arc<Mutex<BTreeMap<ConnId, Arc<State>>>>,
    served: &mut BTreeMap<ConnId, Served>,
    handler: &Planted,
    world: &World,
    time: Time,
) {
    if way == Way::Back {
        let state = dialled.lock().get(&conn).cloned();
        match state {
            Some(state) => state.take(conn, packet, time.clock_ms()),
            None => world.network.lock().close(conn, Way::There, time.now_ms()),
        }
        return;
    }
    match packet {
        Packet::Hello(peer) => {
            let answer = handler.connected(&peer).ok().map(|()| {
                let node = handler.node();
                let view = node.peers.view();
                let me = view.me();
                Peer {
                    node_id: me.node_id.clone(),
                    generation: me.generation,
                    origin: me.origin,
                    stream: peer.stream,
                    address: Some(me.address),
                    client: me.client,
                    local: false,
                    version: PROTOCOL,
                }
            });
            world.network.lock().send(conn, Way::Back, Packet::Answer(answer), time.now_ms());
            served.insert(conn, Served { peer, later: Vec::new(), ages: Ages::default(), stamper: Arc::default() });
        }
        Packet::Bytes(mut bytes) => {
            let Some(served) = served.get_mut(&conn) else { return };
            while let Ok(Some(frame)) = decode_frame(&mut bytes, frame_cap(1 << 20)) {
                if served.ages.take(&frame, time.clock_ms()) {
                    continue;
                }
                let (id, request) = decode_request(frame).expect("a request that was encoded");
                serve(conn, served, id, request, handler, world, time);
            }
        }
        Packet::Closed | Packet::Answer(_) => {
            if let Some(served) = served.remove(&conn) {
                served.later.iter().for_each(AbortHandle::abort);
                handler.disconnected(&served.peer);
            }
        }
    }
}

fn serve(conn: ConnId, served: &mut Served, id: u64, request: Request, handler: &Planted, world: &World, time: Time) {
    let (network, stamper) = (world.network.clone(), served.stamper.clone());
    let respond = move |response: &Response| {
        let mut bytes = BytesMut::new();
        stamper.lock().stamp(time.clock_ms(), &mut bytes);
        encode_response(id, response, &mut bytes);
        network.lock().send(conn, Way::Back, Packet::Bytes(bytes), time.now_ms());
    };
    let late_max = Limits::new(1 << 20).with_timeout(world.config.timeout_ms).late_max;
    let request = aged(request, served.ages.late_ms(time.clock_ms()), late_max);
    let voided = Answer::Now(Response::Voided);
    match request.map_or(voided, |request| handler.handle(&served.peer, id, request)) {
        Answer::Now(response) => respond(&response),
        Answer::Later(response) => {
            served.later.retain(|task| !task.is_finished());
            served.later.push(tokio::spawn(async move { respond(&response.await) }).abort_handle());
        }
        Answer::Nothing => {}
    }
}
