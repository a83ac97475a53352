//! A node's links over the simulated network: what `dataplane::link` does over TCP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::network::{ConnId, Life, Network, Packet, Place, Way};
use crate::dataplane::Peer;
use crate::dataplane::age::{Ages, Stamper};
use crate::dataplane::link::{Dialer, InFlight, LinkEvent, LinkLost, LinkTarget, NotSent, PeerLink};
use crate::wire::message::{Request, Response};
use crate::wire::{decode_frame, decode_response, encode_request, frame_cap};

/// As the real link's.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Port of the first place; the others' follow.
const PORT: u16 = 7_000;

/// The address of a place.
pub fn address_of(place: Place) -> std::net::SocketAddr {
    ([10, 0, 0, 1], PORT + place as u16).into()
}

fn place_of(address: std::net::SocketAddr) -> Place {
    usize::from(address.port() - PORT)
}

/// The time of a node's run: tokio's, which follows the simulation's.
#[derive(Clone, Copy)]
pub struct Time {
    /// When the node was started.
    pub started: Instant,
    /// The same, by the simulation.
    pub started_ms: u64,
    /// What the host's clock shows at the simulation's zero.
    pub base_ms: u64,
}

impl Time {
    /// Now, by the simulation. To be called on the node's runtime.
    pub fn now_ms(&self) -> u64 {
        self.started_ms + self.started.elapsed().as_millis() as u64
    }

    /// Now, by the host's clock.
    pub fn clock_ms(&self) -> u64 {
        self.base_ms + self.now_ms()
    }

    /// A moment of the simulation for tokio.
    pub fn at(&self, ms: u64) -> Instant {
        self.started + Duration::from_millis(ms - self.started_ms)
    }
}

/// Makes the links of one life of a node.
pub struct SimulatedDialer {
    /// Who dials.
    pub me: (Place, Life),
    /// Its introduction; the stream is drawn for each connection.
    pub hello: Peer,
    pub network: Arc<Mutex<Network>>,
    pub time: Time,
    /// Connections that this node began.
    pub dialled: Arc<Mutex<BTreeMap<ConnId, Arc<State>>>>,
}

/// A link's side of its connections.
#[derive(Default)]
pub struct State(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    conn: Option<ConnId>,
    stream: u64,
    id_last: u64,
    stamper: Stamper,
    ages: Ages,
    pending: BTreeMap<u64, oneshot::Sender<Result<Response, LinkLost>>>,
    /// Told what became of the attempt under way.
    answered: Option<oneshot::Sender<Option<Peer>>>,
    /// Dropped when the connection is gone.
    lost: Option<oneshot::Sender<()>>,
}

struct SimulatedLink {
    me: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    state: Arc<State>,
    network: Arc<Mutex<Network>>,
    time: Time,
}

impl Dialer for SimulatedDialer {
    fn dial(&self, target: LinkTarget, events: mpsc::UnboundedSender<LinkEvent>) -> Arc<dyn PeerLink> {
        let shared = Arc::new(Shared { state: Arc::default(), network: self.network.clone(), time: self.time });
        let run = Run {
            shared: shared.clone(),
            target,
            me: self.me,
            hello: self.hello.clone(),
            dialled: self.dialled.clone(),
            events,
        };
        Arc::new(SimulatedLink { me: shared, task: tokio::spawn(run.run()).abort_handle() })
    }
}

impl PeerLink for SimulatedLink {
    fn call(&self, request: &Request) -> Result<InFlight, NotSent> {
        let mut inner = self.me.state.0.lock();
        let Some(conn) = inner.conn else { return Err(NotSent::Down) };
        inner.id_last += 1;
        let (stream, id) = (inner.stream, inner.id_last);
        let mut bytes = BytesMut::new();
        inner.stamper.stamp(self.me.time.clock_ms(), &mut bytes);
        encode_request(id, request, &mut bytes);
        let (sender, reply) = oneshot::channel();
        inner.pending.insert(id, sender);
        self.me.network.lock().send(conn, Way::There, Packet::Bytes(bytes), self.me.time.now_ms());
        Ok(InFlight { stream, id, reply })
    }

    fn is_up(&self) -> bool {
        self.me.state.0.lock().conn.is_some()
    }
}

impl Drop for SimulatedLink {
    fn drop(&mut self) {
        self.task.abort();
        let conn = self.me.state.0.lock().conn.take();
        if let Some(conn) = conn {
            // Outside of its runtime the node is dead, and the network knows.
            if tokio::runtime::Handle::try_current().is_ok() {
                self.me.network.lock().close(conn, Way::There, self.me.time.now_ms());
            }
        }
        self.me.state.down();
    }
}

impl State {
    fn down(&self) {
        let (pending, _lost) = {
            let mut inner = self.0.lock();
            inner.conn = None;
            (std::mem::take(&mut inner.pending), inner.lost.take())
        };
        for reply in pending.into_values() {
            let _ = reply.send(Err(LinkLost));
        }
    }

    /// What arrived on a connection that this link began.
    pub fn take(&self, conn: ConnId, packet: Packet, clock_ms: u64) {
        match packet {
            Packet::Answer(peer) => {
                let mut inner = self.0.lock();
                let Some(answered) = inner.answered.take() else { return };
                if let Some(peer) = &peer {
                    (inner.conn, inner.stream, inner.id_last) = (Some(conn), peer.stream, 0);
                    (inner.stamper, inner.ages) = Default::default();
                }
                let _ = answered.send(peer);
            }
            Packet::Bytes(mut bytes) => {
                while let Ok(Some(frame)) = decode_frame(&mut bytes, frame_cap(1 << 20)) {
                    if self.0.lock().ages.take(&frame, clock_ms) {
                        continue;
                    }
                    let (id, mut response) = decode_response(frame).expect("a response that was encoded");
                    response.grow_old(self.0.lock().ages.late_ms(clock_ms));
                    if let Some(reply) = self.0.lock().pending.remove(&id) {
                        let _ = reply.send(Ok(response));
                    }
                }
            }
            Packet::Closed | Packet::Hello(_) => {
                let inner = self.0.lock();
                let current = inner.conn == Some(conn);
                drop(inner);
                if current {
                    self.down();
                } else {
                    self.0.lock().answered.take();
                }
            }
        }
    }
}

/// What keeps a link up.
struct Run {
    shared: Arc<Shared>,
    target: LinkTarget,
    me: (Place, Life),
    hello: Peer,
    dialled: Arc<Mutex<BTreeMap<ConnId, Arc<State>>>>,
    events: mpsc::UnboundedSender<LinkEvent>,
}

impl Run {
    async fn run(self) {
        let mut wait = BACKOFF.0;
        loop {
            let (lost, gone) = oneshot::channel::<()>();
            let conn = self.begin(lost);
            match timeout(CONNECT_MAX, self.outcome()).await {
                Ok(Some(peer)) => {
                    let _ = self.events.send(LinkEvent::Up { peer });
                    let since = Instant::now();
                    let _ = gone.await;
                    let _ = self.events.send(LinkEvent::Down { reason: "lost".to_owned(), was_up: true });
                    if since.elapsed() >= BACKOFF.1 {
                        wait = BACKOFF.0;
                    }
                }
                not_up => {
                    if not_up.is_err() {
                        self.shared.state.0.lock().answered = None;
                        self.shared.network.lock().close(conn, Way::There, self.shared.time.now_ms());
                    }
                    let _ = self.events.send(LinkEvent::Down { reason: "no connection".to_owned(), was_up: false });
                }
            }
            self.dialled.lock().remove(&conn);
            let part = self.shared.network.lock().random().below(1_024) as f64;
            sleep(wait.mul_f64(0.5 + part / 2_048.0)).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    fn begin(&self, lost: oneshot::Sender<()>) -> ConnId {
        let mut network = self.shared.network.lock();
        let hello = Peer { stream: network.random().next() | 1, ..self.hello.clone() };
        let conn = network.dial(self.me, place_of(self.target.address), hello, self.shared.time.now_ms());
        self.shared.state.0.lock().lost = Some(lost);
        self.dialled.lock().insert(conn, self.shared.state.clone());
        conn
    }

    async fn outcome(&self) -> Option<Peer> {
        let (sender, answered) = oneshot::channel();
        self.shared.state.0.lock().answered = Some(sender);
        let peer = answered.await.ok().flatten()?;
        let expected = self.target.expected_node_id.as_ref().is_none_or(|expected| *expected == peer.node_id);
        expected.then_some(peer)
    }
}
