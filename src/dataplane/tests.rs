//! Real sockets on ports that the system chooses. What is waited for is waited for with a deadline, never for a while.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::link::{Link, LinkEvent, LinkTarget};
use super::*;
use crate::record::{Body, Copy, KeyBuf, State, Window};
use crate::wire::hello::{Hello, HelloAnswer, LocalHello, Settings, decode_answer, encode_hello};
use crate::wire::message::{Call, Op, Outcome, Reply};
use crate::wire::{decode_frame, decode_response, encode_request};

mod blocking;
mod link;
mod server;

/// Longer than anything may take, shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(20);

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("took too long")
}

async fn until(mut true_now: impl FnMut() -> bool) {
    in_time(async {
        while !true_now() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

fn limits() -> Limits {
    Limits::new(1 << 20)
}

fn local(node_id: &str) -> LocalHello {
    LocalHello {
        cluster_id: "test".into(),
        node_id: node_id.into(),
        generation: 7,
        origin: 8,
        address: Some("127.0.0.1:1".parse().unwrap()),
        client: false,
        settings: Settings { replicas: 2, copy_all_max: 16, slots: 16_384 },
        token: [9; 16],
    }
}

fn call(name: &str, op: Op) -> Request {
    Request::Call(Call { key: KeyBuf::from_parts(Bytes::copy_from_slice(name.as_bytes()), 0).unwrap(), op })
}

fn get(name: &str) -> Request {
    call(name, Op::Get { bytes: true })
}

fn incr(delta: i64) -> Request {
    call("hits", Op::Incr { deltas: vec![delta], ttl_ms: None })
}

fn value(value: i64) -> Response {
    Response::Reply(Reply { outcome: Outcome::Values(vec![Ok(value)]), state: None, degraded: false })
}

/// Sets its flag when it is dropped.
struct Dropped(Arc<Mutex<u32>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

/// Counts; answers a get of any key when [`Counter::release`] says so, one of "nothing" never.
#[derive(Default)]
struct Counter {
    total: Mutex<i64>,
    peers: Mutex<Vec<Peer>>,
    gone: Mutex<Vec<Peer>>,
    refuse: Mutex<Option<String>>,
    ids: Mutex<HashMap<u64, Vec<u64>>>,
    gates: Mutex<HashMap<String, oneshot::Sender<Response>>>,
    dropped: Arc<Mutex<u32>>,
}

impl Counter {
    fn release(&self, name: &str, response: Response) {
        self.gates.lock().remove(name).expect("nobody waits").send(response).expect("the waiter is gone");
    }

    fn waiting(&self) -> usize {
        self.gates.lock().len()
    }
}

impl Handler for Counter {
    fn connected(&self, peer: &Peer) -> Result<(), String> {
        if let Some(reason) = self.refuse.lock().clone() {
            return Err(reason);
        }
        self.peers.lock().push(peer.clone());
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        self.gone.lock().push(peer.clone());
    }

    fn handle(&self, peer: &Peer, id: u64, request: Request) -> Answer {
        self.ids.lock().entry(peer.stream).or_default().push(id);
        match request {
            Request::Ping => Answer::Now(Response::Pong { vouches: true }),
            Request::Call(Call { op: Op::Incr { deltas, .. }, .. }) => {
                let mut total = self.total.lock();
                *total += deltas.iter().sum::<i64>();
                Answer::Now(value(*total))
            }
            Request::Call(Call { op: Op::Set { value: bytes, .. }, .. }) => Answer::Now(value(bytes.len() as i64)),
            Request::Call(Call { key, op: Op::Get { bytes: true } }) if key.as_bytes() == b"nothing" => Answer::Nothing,
            Request::Call(Call { key, op: Op::Get { bytes: true } }) => {
                let (gate, opened) = oneshot::channel();
                self.gates.lock().insert(String::from_utf8(key.as_bytes().to_vec()).unwrap(), gate);
                let dropped = Dropped(self.dropped.clone());
                Answer::Later(Box::pin(async move {
                    let response = opened.await.unwrap_or(Response::Voided);
                    drop(dropped);
                    response
                }))
            }
            // A page with as many bytes as the cursor says.
            Request::Sync { cursor, .. } => {
                let body = Body::Bytes(vec![7; cursor as usize].into());
                let state = State { term: 0, stamp: 0, window: Window::default(), ttl_ms: None, diverged: None, body };
                let key = KeyBuf::from_parts(Bytes::from_static(b"k"), 0).unwrap();
                Answer::Now(Response::Page { copies: vec![Copy { key, state }], next: None })
            }
            _ => Answer::Now(Response::Done),
        }
    }
}

/// A node that serves until it is dropped.
struct Node {
    address: SocketAddr,
    handler: Arc<Counter>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Node {
    async fn start(node_id: &str, limits: Limits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), node_id, limits).await
    }

    async fn start_at(address: SocketAddr, node_id: &str, limits: Limits) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = Arc::new(Counter::default());
        let (stop, stopped) = watch::channel(false);
        let task =
            tokio::spawn(super::server::serve(listener, Arc::new(local(node_id)), limits, handler.clone(), stopped));
        Self { address, handler, stop, task }
    }

    async fn stop(mut self) -> Arc<Counter> {
        self.stop.send(true).unwrap();
        in_time(&mut self.task).await.unwrap();
        self.handler.clone()
    }

    fn link(&self) -> (Link, mpsc::UnboundedReceiver<LinkEvent>) {
        self.link_as(local("caller"), limits(), None)
    }

    fn link_as(
        &self,
        hello: LocalHello,
        limits: Limits,
        expected: Option<&str>,
    ) -> (Link, mpsc::UnboundedReceiver<LinkEvent>) {
        let (events, received) = mpsc::unbounded_channel();
        let target = LinkTarget { address: self.address, expected_node_id: expected.map(str::to_owned) };
        (Link::spawn(target, Arc::new(hello), limits, events), received)
    }

    /// A link that is up.
    async fn linked(&self) -> Link {
        let (link, mut events) = self.link();
        up(&mut events).await;
        link
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The next event, which must be Up.
async fn up(events: &mut mpsc::UnboundedReceiver<LinkEvent>) -> Peer {
    match in_time(events.recv()).await {
        Some(LinkEvent::Up { peer }) => peer,
        other => panic!("{other:?}"),
    }
}

async fn ask(link: &Link, request: Request) -> Response {
    in_time(link.call(&request).expect("not sent").answer()).await.expect("lost")
}

/// A caller that is free to misbehave.
struct Raw {
    socket: TcpStream,
    read: BytesMut,
}

impl Raw {
    async fn connect(node: &Node) -> Self {
        Self { socket: TcpStream::connect(node.address).await.unwrap(), read: BytesMut::new() }
    }

    /// Connected, and past the handshake.
    async fn greeted(node: &Node) -> Self {
        let mut raw = Self::connect(node).await;
        let answer = raw.greet(&local("raw").hello(5, false)).await;
        assert_eq!(answer.expect("refused").node_id, "node");
        raw
    }

    async fn greet(&mut self, hello: &Hello) -> HelloAnswer {
        let mut out = BytesMut::new();
        encode_hello(hello, &mut out);
        self.send(&out).await;
        let frame = self.frame().await.expect("closed");
        decode_answer(frame).unwrap()
    }

    async fn send(&mut self, bytes: &[u8]) {
        in_time(self.socket.write_all(bytes)).await.unwrap();
    }

    async fn frame(&mut self) -> Option<crate::wire::Frame> {
        in_time(async {
            loop {
                match decode_frame(&mut self.read, 64 << 20).unwrap() {
                    // What the other side's clock shows goes between the frames.
                    Some(frame) if crate::wire::frame::time_of(&frame).is_some() => continue,
                    Some(frame) => return Some(frame),
                    None => {}
                }
                match self.socket.read_buf(&mut self.read).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
    }

    /// The next response; `None` when the connection is closed.
    async fn response(&mut self) -> Option<(u64, Response)> {
        self.frame().await.map(|frame| decode_response(frame).unwrap())
    }
}

fn frames(requests: impl IntoIterator<Item = (u64, Request)>) -> BytesMut {
    let mut out = BytesMut::new();
    for (id, request) in requests {
        encode_request(id, &request, &mut out);
    }
    out
}
