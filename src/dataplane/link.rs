//! The calling side: one lasting connection to one peer.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::age::{Ages, Stamper};
use super::io::{Broken, Stream, poll_read, poll_write, read_hello, tune, write_all};
use super::{Limits, Peer, random};
use crate::clock::Clock;
use crate::wire::hello::{HelloRefused, LocalHello, RefusalCode, decode_answer, encode_hello};
use crate::wire::message::{Request, Response};
use crate::wire::{decode_frame, decode_response, encode_request};

/// How long a TCP connection may take to come up, and then its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Waits between two attempts, doubling from the first to the second, each shortened at random by up to half.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTarget {
    /// The address that the peer advertises.
    pub address: SocketAddr,
    /// Who must answer there; `None`: anybody of the cluster.
    pub expected_node_id: Option<String>,
}

/// What happens to a [`Link`], in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Connected, on a new stream.
    Up {
        /// Who answered.
        peer: Peer,
    },
    /// The connection was lost, or an attempt failed. Another attempt follows.
    Down {
        /// For the log.
        reason: String,
        /// A connection was lost.
        was_up: bool,
    },
    /// The peer (or this side) refuses to talk. Another attempt follows within a second.
    Refused {
        /// Why, as a number.
        code: RefusalCode,
        /// Why, for the operator.
        reason: String,
    },
}

/// The request was not sent and will not be: nothing was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// There is no connection.
    #[error("not connected")]
    Down,
    /// Too many requests are unanswered, or too many bytes unsent.
    #[error("too many requests are unanswered")]
    Full,
    /// The request is longer than a frame may be.
    #[error("the request is longer than a frame may be")]
    TooLarge,
}

/// The connection was lost before the answer came: whether the request was applied is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the connection was lost before the answer")]
pub struct LinkLost;

/// A request under way. Dropping it does not take the request back.
#[derive(Debug)]
pub struct InFlight {
    /// The stream it was sent on: with `id` its name in a [`Request::Resolve`].
    pub stream: u64,
    /// Its id.
    pub id: u64,
    /// Its answer. That the sender is dropped means the same as [`LinkLost`].
    pub reply: oneshot::Receiver<Result<Response, LinkLost>>,
}

impl InFlight {
    /// Waits for the answer.
    pub async fn answer(self) -> Result<Response, LinkLost> {
        self.reply.await.unwrap_or(Err(LinkLost))
    }
}

/// A lasting connection to one peer, as callers see it.
pub trait PeerLink: Send + Sync {
    /// See [`Link::call`].
    fn call(&self, request: &Request) -> Result<InFlight, NotSent>;

    /// Whether there is a connection.
    fn is_up(&self) -> bool;
}

/// Makes a node's connections.
pub trait Dialer: Send + Sync {
    /// Starts connecting to `target`, on the current runtime, until the link is dropped. `events` is told what happens.
    fn dial(&self, target: LinkTarget, events: mpsc::UnboundedSender<LinkEvent>) -> Arc<dyn PeerLink>;
}

/// Over TCP.
pub struct TcpDialer {
    /// What this node says of itself.
    pub hello: Arc<LocalHello>,
    /// Of each connection.
    pub limits: Limits,
}

impl Dialer for TcpDialer {
    fn dial(&self, target: LinkTarget, events: mpsc::UnboundedSender<LinkEvent>) -> Arc<dyn PeerLink> {
        Arc::new(Link::spawn(target, self.hello.clone(), self.limits, events))
    }
}

impl PeerLink for Link {
    fn call(&self, request: &Request) -> Result<InFlight, NotSent> {
        Link::call(self, request)
    }

    fn is_up(&self) -> bool {
        Link::is_up(self)
    }
}

type Reply = oneshot::Sender<Result<Response, LinkLost>>;

#[derive(Default)]
struct State {
    /// The peer while connected.
    peer: Option<Peer>,
    /// Closed for good.
    closed: bool,
    /// Frames that the task has not taken yet, in order of their ids.
    out: BytesMut,
    id_last: u64,
    stamper: Stamper,
    pending: HashMap<u64, Reply>,
    /// The task, while it waits for something to send.
    waker: Option<Waker>,
}

struct Shared {
    state: Mutex<State>,
    limits: Limits,
}

impl Shared {
    /// Forgets the connection; every unanswered request learns that it is lost.
    fn down(&self) {
        let mut state = self.state.lock();
        state.peer = None;
        state.out.clear();
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for reply in pending.into_values() {
            let _ = reply.send(Err(LinkLost));
        }
    }
}

/// A connection to one peer that is made anew whenever it is lost. Calls may come from any thread. Dropping it closes
/// it.
pub struct Link {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Link {
    /// Starts connecting, on the current runtime. `events` gets at most a few messages a second; that its receiver is
    /// gone does no harm.
    pub fn spawn(
        target: LinkTarget,
        hello: Arc<LocalHello>,
        limits: Limits,
        events: mpsc::UnboundedSender<LinkEvent>,
    ) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), limits });
        let task = tokio::spawn(run(target, hello, shared.clone(), events)).abort_handle();
        Self { shared, task }
    }

    /// Sends a request. Requests of one link reach the peer in the order of these calls, with rising ids.
    ///
    /// A request that gets no answer ([`super::Answer::Nothing`]) counts as unanswered until the connection ends.
    pub fn call(&self, request: &Request) -> Result<InFlight, NotSent> {
        let limits = &self.shared.limits;
        let mut state = self.shared.state.lock();
        let Some(stream) = state.peer.as_ref().map(|peer| peer.stream) else {
            return Err(NotSent::Down);
        };
        if state.pending.len() >= limits.pending_max || state.out.len() >= limits.write_buffer_max {
            return Err(NotSent::Full);
        }
        let id = state.id_last + 1;
        let State { out, stamper, .. } = &mut *state;
        stamper.stamp(Clock::System.since_boot_ms(), out);
        let start = out.len();
        encode_request(id, request, out);
        if out.len() - start - 4 > limits.frame_max {
            state.out.truncate(start);
            return Err(NotSent::TooLarge);
        }
        state.id_last = id;
        let (sender, reply) = oneshot::channel();
        state.pending.insert(id, sender);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(InFlight { stream, id, reply })
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        self.shared.state.lock().peer.is_some()
    }

    /// The peer, while connected.
    pub fn peer(&self) -> Option<Peer> {
        self.shared.state.lock().peer.clone()
    }

    /// Closes for good: unanswered requests are lost, no event follows.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.down();
        self.task.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes the link down however its task ends.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.down();
    }
}

enum Failed {
    Refused(HelloRefused),
    Broken(Broken),
}

impl<E: Into<Broken>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

async fn run(
    target: LinkTarget,
    hello: Arc<LocalHello>,
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<LinkEvent>,
) {
    let guard = Guard(shared.clone());
    let mut wait = BACKOFF.0;
    loop {
        match connect(&target, &hello).await {
            Ok((mut stream, mut read, peer)) => {
                {
                    let mut state = shared.state.lock();
                    if state.closed {
                        return;
                    }
                    (state.id_last, state.stamper) = (0, Stamper::default());
                    state.peer = Some(peer.clone());
                }
                let _ = events.send(LinkEvent::Up { peer });
                let (mut write, mut ages, since) = (BytesMut::new(), Ages::default(), Instant::now());
                let broken = poll_fn(|cx| poll(&mut stream, &mut read, &mut write, &mut ages, &shared, cx)).await;
                // Down before the event, so that whoever hears of it finds it so.
                guard.0.down();
                let _ = events.send(LinkEvent::Down { reason: broken.to_string(), was_up: true });
                // A peer that accepts and hangs up again is no better than one that does not accept.
                if since.elapsed() >= BACKOFF.1 {
                    wait = BACKOFF.0;
                }
            }
            Err(Failed::Refused(HelloRefused { code, reason })) => {
                let _ = events.send(LinkEvent::Refused { code, reason });
                wait = BACKOFF.1;
            }
            Err(Failed::Broken(broken)) => {
                let _ = events.send(LinkEvent::Down { reason: broken.to_string(), was_up: false });
            }
        }
        sleep(wait.mul_f64(0.5 + (random() % 1_024) as f64 / 2_048.0)).await;
        wait = (wait * 2).min(BACKOFF.1);
    }
}

async fn connect(target: &LinkTarget, hello: &LocalHello) -> Result<(TcpStream, BytesMut, Peer), Failed> {
    let in_time = |what: &'static str| std::io::Error::new(std::io::ErrorKind::TimedOut, what);
    let connecting = timeout(CONNECT_MAX, TcpStream::connect(target.address)).await;
    let mut stream = connecting.map_err(|_| in_time("connecting took too long"))??;
    tune(&stream)?;
    let mut read = BytesMut::new();
    let shaking = timeout(CONNECT_MAX, shake_hands(&mut stream, &mut read, target, hello)).await;
    let peer = shaking.map_err(|_| in_time("the handshake took too long"))??;
    Ok((stream, read, peer))
}

async fn shake_hands<S: Stream>(
    stream: &mut S,
    read: &mut BytesMut,
    target: &LinkTarget,
    hello: &LocalHello,
) -> Result<Peer, Failed> {
    let name = random();
    let mut write = BytesMut::new();
    encode_hello(&hello.hello(name, false), &mut write);
    write_all(stream, &mut write).await?;
    let mut answer = decode_answer(read_hello(stream, read).await?)?.map_err(Failed::Refused)?;
    if target.expected_node_id.as_ref().is_some_and(|expected| *expected != answer.node_id) {
        let reason = format!("{} is at {}", answer.node_id, target.address);
        return Err(Failed::Refused(HelloRefused { code: RefusalCode::OtherNode, reason }));
    }
    let version = hello.judge(&answer).map_err(Failed::Refused)?;
    // Whatever the answer repeats: the name is this side's to give.
    answer.stream = name;
    Ok(Peer::new(answer, version, false))
}

fn poll<S: Stream>(
    stream: &mut S,
    read: &mut BytesMut,
    write: &mut BytesMut,
    ages: &mut Ages,
    shared: &Shared,
    cx: &mut Context<'_>,
) -> Poll<Broken> {
    loop {
        loop {
            if write.is_empty() {
                let mut state = shared.state.lock();
                if state.out.is_empty() {
                    state.waker = Some(cx.waker().clone());
                    break;
                }
                std::mem::swap(&mut state.out, write);
            }
            match poll_write(stream, write, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(broken)) => return Poll::Ready(broken),
                Poll::Pending => break,
            }
        }
        match poll_read(stream, read, cx) {
            Poll::Ready(Ok(_)) => {
                if let Err(broken) = deliver(read, ages, shared) {
                    return Poll::Ready(broken);
                }
            }
            Poll::Ready(Err(broken)) => return Poll::Ready(broken),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Hands every complete response to its caller.
fn deliver(read: &mut BytesMut, ages: &mut Ages, shared: &Shared) -> Result<(), Broken> {
    while let Some(frame) = decode_frame(read, shared.limits.frame_max)? {
        let now_ms = Clock::System.since_boot_ms();
        if ages.take(&frame, now_ms) {
            continue;
        }
        let (id, mut response) = decode_response(frame)?;
        response.grow_old(ages.late_ms(now_ms));
        let reply = shared.state.lock().pending.remove(&id);
        match (reply, response) {
            // The caller may have given up; its request is answered all the same.
            (Some(reply), response) => drop(reply.send(Ok(response))),
            (None, Response::Error(text)) => tracing::warn!("the peer could not read what was sent to it: {text}"),
            (None, _) => tracing::debug!(id, "a response to no request"),
        }
    }
    Ok(())
}
