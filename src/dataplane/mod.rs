//! Connections that carry requests and responses: between hosts over TCP, and between a PHP process and its host's
//! node over a Unix socket.
//!
//! - [`server`] accepts and answers through a [`Handler`];
//! - [`link`] keeps one connection to a peer, for callers on any thread;
//! - [`client_blocking`] is for a PHP process that runs no runtime;
//! - [`attach`] hands a host's segment to further processes of the host.
//!
//! One task owns one connection and does its reading and writing: a reply takes one wake-up, and all that waits goes
//! out in one write.

pub mod age;
pub mod attach;
pub mod client_blocking;
mod connection;
mod io;
pub mod link;
pub mod server;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use crate::placement;
use crate::segment::table;
use crate::wire::frame_cap;
use crate::wire::hello::Hello;
use crate::wire::message::{Request, Response};

const _: () = assert!(placement::SLOTS == table::SLOTS);

/// Bounds of connections, their queues and their patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest frame, as its length says, in bytes.
    pub frame_max: usize,
    /// Most connections of one listener, half-open ones included; further ones are closed at once.
    pub connections_max: usize,
    /// Most connections whose handshake is not done; further ones are closed at once.
    pub half_open_max: usize,
    /// Most unanswered requests of one connection.
    pub pending_max: usize,
    /// Most bytes that wait to be written to one connection.
    pub write_buffer_max: usize,
    /// How long a handshake may take.
    pub handshake_max: Duration,
    /// How long a peer may leave bytes unread that were written to it.
    pub stall_max: Duration,
    /// Calls that were on the way for longer, beyond the usual, are refused: their callers wait no more.
    pub late_max: Duration,
}

impl Limits {
    /// The same for callers that wait `timeout_ms`.
    pub fn with_timeout(self, timeout_ms: u64) -> Self {
        Self { late_max: Duration::from_millis(2 * timeout_ms + 100), ..self }
    }

    /// The limits of a cluster whose values have at most `value_max` bytes.
    pub fn new(value_max: u32) -> Self {
        let frame_max = frame_cap(value_max);
        Self {
            frame_max,
            connections_max: 1_024,
            half_open_max: 64,
            pending_max: 4_000,
            write_buffer_max: (8 << 20) + 2 * frame_max,
            handshake_max: Duration::from_secs(2),
            stall_max: Duration::from_secs(5),
            late_max: Duration::from_millis(500),
        }
    }
}

/// Where a Unix socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnixAddr {
    /// In Linux's abstract namespace, by its name without the leading NUL.
    Abstract(Vec<u8>),
    /// In the file system.
    Path(PathBuf),
}

impl UnixAddr {
    fn to_rustix(&self) -> std::io::Result<rustix::net::SocketAddrUnix> {
        Ok(match self {
            Self::Abstract(name) => rustix::net::SocketAddrUnix::new_abstract_name(name),
            Self::Path(path) => rustix::net::SocketAddrUnix::new(path),
        }?)
    }
}

impl std::fmt::Display for UnixAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // As /proc/net/unix and ss show it.
            Self::Abstract(name) => write!(f, "@{}", String::from_utf8_lossy(name)),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The other side of a connection, as its handshake named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its node id; on the Unix socket that of its host's node.
    pub node_id: String,
    /// Its boot time in nanoseconds.
    pub generation: u64,
    /// Its segment.
    pub origin: u64,
    /// Names the request ids of this connection: random, chosen by the side that opened it.
    pub stream: u64,
    /// Where to dial it, if it can be dialled.
    pub address: Option<SocketAddr>,
    /// It owns no slots.
    pub client: bool,
    /// It called on the Unix socket: a process of this host segment.
    pub local: bool,
    /// The protocol version spoken with it.
    pub version: u16,
}

impl Peer {
    fn new(hello: Hello, version: u16, local: bool) -> Self {
        Self {
            node_id: hello.node_id,
            generation: hello.generation,
            origin: hello.origin,
            stream: hello.stream,
            address: hello.address,
            client: hello.client,
            local,
            version,
        }
    }
}

/// What a [`Handler`] makes of a request.
pub enum Answer {
    /// Known at once: written with all other answers of the same read.
    Now(Response),
    /// Known later; any number of these (up to [`Limits::pending_max`]) run at once, each as a task, and are answered
    /// in the order in which they end. Dropped, wherever it waits, when the connection goes.
    Later(Pin<Box<dyn Future<Output = Response> + Send>>),
    /// None. The caller goes on waiting until its deadline.
    Nothing,
}

/// What stands behind a listener. Called on the runtime's thread: it must not block.
pub trait Handler: Send + Sync + 'static {
    /// A handshake has succeeded. An `Err` refuses the peer and tells it the reason.
    fn connected(&self, peer: &Peer) -> Result<(), String>;

    /// The connection of a peer that was not refused is gone. Called exactly once for each.
    fn disconnected(&self, peer: &Peer);

    /// A request with its id, which is unique within `peer.stream` and rises from 1. Requests of one connection come
    /// in the order in which they were sent.
    fn handle(&self, peer: &Peer, id: u64, request: Request) -> Answer;
}

/// Whether somebody listens at `address`: connects without waiting, and says nothing.
pub fn is_served(address: &UnixAddr) -> bool {
    address.to_rustix().and_then(connect_without_waiting).is_ok()
}

fn connect_without_waiting(address: rustix::net::SocketAddrUnix) -> std::io::Result<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        // A full backlog is somebody's, too.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// The process at the other end of a Unix socket (the one that connected, or that called `listen`), in this process's
/// numbers; 0: it is in another pid namespace. (rustix's type for credentials cannot hold that 0.)
fn peer_pid(socket: std::os::fd::BorrowedFd<'_>) -> std::io::Result<i32> {
    use std::os::fd::AsRawFd;
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut credentials).cast();
    // SAFETY: `credentials` and `len` are valid to write to, and `len` is the size of the former.
    let code = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut len) };
    if code == 0 { Ok(credentials.pid) } else { Err(std::io::Error::last_os_error()) }
}

/// A random number other than 0: the name of a stream.
fn random() -> u64 {
    let mut bytes = [0; 8];
    loop {
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        let number = u64::from_ne_bytes(bytes);
        // Every supported kernel has the call; what can happen is a signal.
        if filled == Ok(bytes.len()) && number != 0 {
            return number;
        }
    }
}

#[cfg(test)]
mod tests;
