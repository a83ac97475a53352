//! The calling side for a PHP process that runs no runtime: one blocking connection to its host's node.
//!
//! Waiting is ppoll's: its timer is exact where a socket's own timeout is rounded up to the kernel's tick. The
//! connection is one thread's and one process's: a forked child drops it and opens its own (dropping only closes the
//! child's descriptor).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::{UnixAddr, random};
use crate::wire::hello::{HELLO_LEN_MAX, HelloRefused, LocalHello, decode_answer, encode_hello};
use crate::wire::message::{Request, Response};
use crate::wire::{Frame, WireError, decode_frame, decode_response, encode_request};

/// No connection was made; nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody serves there, or not in time, or as another user.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The node refused.
    #[error("{0}")]
    Refused(#[from] HelloRefused),
    /// What answered is no node.
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// Not sent, or not read to its end: nothing was applied. Unless it was too long the connection is over when
    /// [`Blocking::is_lost`] says so.
    #[error("not sent: {0}")]
    NotSent(io::Error),
    /// Sent, but not answered in time: perhaps applied. The connection stays usable.
    #[error("sent, but not answered in time")]
    TimedOut,
    /// Sent, then the connection was lost: perhaps applied.
    #[error("sent, but the connection was lost: {0}")]
    Lost(io::Error),
}

/// A connection to the node of this host.
#[derive(Debug)]
pub struct Blocking {
    socket: OwnedFd,
    stream: u64,
    id_last: u64,
    frame_max: usize,
    lost: bool,
    read: BytesMut,
    write: BytesMut,
    scratch: Box<[u8]>,
}

enum Waited {
    Frame(Frame),
    TimedOut,
    Lost(io::Error),
}

impl Blocking {
    /// Connects to the process `node_pid` and shakes hands, within `timeout`. `hello.token` must be the segment's: it
    /// is shown to that process only. `frame_max` as in [`super::Limits`].
    pub fn connect(
        address: &UnixAddr,
        node_pid: u32,
        hello: &LocalHello,
        frame_max: usize,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + timeout;
        let address = address.to_rustix()?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let mut blocking = Self {
            socket: socket.map_err(io::Error::from)?,
            stream: random(),
            id_last: 0,
            frame_max,
            lost: false,
            read: BytesMut::new(),
            write: BytesMut::new(),
            scratch: vec![0; 16 << 10].into(),
        };
        blocking.open(&address, deadline)?;
        blocking.check_process(node_pid)?;
        encode_hello(&hello.hello(blocking.stream, true), &mut blocking.write);
        blocking.send(deadline)?;
        let frame = match blocking.receive(HELLO_LEN_MAX, deadline)? {
            Waited::Frame(frame) => frame,
            Waited::TimedOut => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            Waited::Lost(error) => return Err(error.into()),
        };
        decode_answer(frame)??;
        Ok(blocking)
    }

    /// Names the ids of this connection's requests.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// Id of the last request that was sent, 0 before the first: with the stream its name in a [`Request::Resolve`].
    pub fn id_last(&self) -> u64 {
        self.id_last
    }

    /// Whether the connection is over: every further call is [`BlockingError::NotSent`].
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Sends a request and waits for its answer until `deadline`. Answers that earlier calls did not wait for
    /// are skipped. A signal does not end the wait.
    pub fn call(&mut self, request: &Request, deadline: Instant) -> Result<Response, BlockingError> {
        if self.lost {
            return Err(BlockingError::NotSent(io::ErrorKind::NotConnected.into()));
        }
        left(deadline).map_err(BlockingError::NotSent)?;
        let id = self.id_last + 1;
        self.write.clear();
        encode_request(id, request, &mut self.write);
        if self.write.len() - 4 > self.frame_max {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the request is longer than a frame may be");
            return Err(BlockingError::NotSent(error));
        }
        self.send(deadline).map_err(BlockingError::NotSent)?;
        self.id_last = id;
        loop {
            let lost = |error: WireError| BlockingError::Lost(io::Error::new(io::ErrorKind::InvalidData, error));
            let frame = match self.receive(self.frame_max, deadline) {
                Ok(Waited::Frame(frame)) => frame,
                Ok(Waited::TimedOut) => return Err(BlockingError::TimedOut),
                // What a Unix socket reports when the other side has gone and left something unread: that is this
                // request, the last that was sent.
                Ok(Waited::Lost(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(BlockingError::NotSent(error));
                }
                Ok(Waited::Lost(error)) => return Err(BlockingError::Lost(error)),
                Err(error) => return Err(lost(error)),
            };
            // Older ones were given up. One that was never asked for (0: a complaint) means that the two sides no
            // longer agree on where a frame begins.
            if (1..id).contains(&frame.id) {
                continue;
            }
            let known = frame.id == id;
            match decode_response(frame) {
                Ok((_, response)) if known => return Ok(response),
                answer => {
                    self.lost = true;
                    return Err(match answer {
                        Ok(other) => BlockingError::Lost(io::Error::other(format!("unasked: {other:?}"))),
                        Err(error) => lost(error),
                    });
                }
            }
        }
    }

    fn open(&self, address: &SocketAddrUnix, deadline: Instant) -> io::Result<()> {
        loop {
            // While the node's backlog is full a Unix socket's connect waits as long as a send may take; there is
            // nothing to poll for.
            sockopt::set_socket_timeout(&self.socket, Timeout::Send, Some(left(deadline)?))?;
            match rustix::net::connect(&self.socket, address) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                other => return Ok(other?),
            }
        }
    }

    /// Anybody can listen under a name that is free, as any user, so what counts is the process. The kernel knows which
    /// one it was that listened.
    fn check_process(&self, node_pid: u32) -> io::Result<()> {
        let listens = super::peer_pid(self.socket.as_fd())?;
        if u32::try_from(listens) == Ok(node_pid) {
            return Ok(());
        }
        let text = format!("process {listens} listens there, not the node (process {node_pid})");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// Waits until the socket can be read (or written) without blocking. Error: `deadline` has passed.
    fn wait(&self, events: libc::c_short, deadline: Instant) -> io::Result<()> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
        loop {
            let left = left(deadline)?;
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: one pollfd and one timespec that live through the call; no signal mask is passed.
            match unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) } {
                0 => return Err(io::ErrorKind::TimedOut.into()),
                1.. => return Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Sends all of `write`. After an error nothing of it will be understood: half a frame is no request, and the
    /// connection is over then.
    fn send(&mut self, deadline: Instant) -> io::Result<()> {
        let mut sent = 0;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let result = loop {
            if sent == self.write.len() {
                break Ok(());
            }
            match rustix::net::send(&self.socket, &self.write[sent..], flags) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Err(error) = self.wait(libc::POLLOUT, deadline) {
                        break Err(error);
                    }
                }
                Err(error) => {
                    self.lost = true;
                    break Err(error.into());
                }
            }
        };
        if result.is_err() && sent > 0 {
            self.lost = true;
        }
        self.write.clear();
        result
    }

    fn receive(&mut self, cap: usize, deadline: Instant) -> Result<Waited, WireError> {
        loop {
            match decode_frame(&mut self.read, cap) {
                Ok(Some(frame)) => return Ok(Waited::Frame(frame)),
                Ok(None) => {}
                Err(error) => {
                    self.lost = true;
                    return Err(error);
                }
            }
            // Waiting comes first: an answer that is there before its call has waited is rare.
            if let Err(error) = self.wait(libc::POLLIN, deadline) {
                if error.kind() == io::ErrorKind::TimedOut {
                    return Ok(Waited::TimedOut);
                }
                self.lost = true;
                return Ok(Waited::Lost(error));
            }
            match rustix::net::recv(&self.socket, &mut self.scratch[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.lost = true;
                    return Ok(Waited::Lost(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok((count, _)) => self.read.extend_from_slice(&self.scratch[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => {
                    self.lost = true;
                    return Ok(Waited::Lost(error.into()));
                }
            }
        }
    }
}

/// The time left. Error: none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The kernel takes less than a microsecond for "for ever" where it counts in those.
    if left < Duration::from_micros(1) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
