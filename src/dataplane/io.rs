//! Reading and writing of buffers, shared by both sides of a connection.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use crate::wire::hello::HELLO_LEN_MAX;
use crate::wire::{Frame, WireError, decode_frame};

/// Room made for one read.
const READ_CHUNK: usize = 32 << 10;

/// A buffer that a large frame has grown beyond this is given back when it is empty.
const KEEP_MAX: usize = 1 << 20;

/// Bytes sent but not acknowledged for this long end a connection. The kernel alone would back off for minutes, and
/// find out only that much later that a cut network is whole again. A peer that leaves its receive buffer full counts
/// as silent too.
const UNACKNOWLEDGED_MAX_MS: u32 = 3_000;

/// A socket, or (later) a sealed one.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// By the other side, in order.
    #[error("closed by the peer")]
    Closed,
    /// By the network.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came makes no sense.
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// Sets what every TCP connection has: no waiting for full packets, and an end when the peer's host is gone.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MAX_MS)?;
    Ok(())
}

/// Reads once, to the end of `buffer`. The number is at least 1.
pub(super) fn poll_read<S: Stream>(
    stream: &mut S,
    buffer: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<Result<usize, Broken>> {
    if buffer.is_empty() && buffer.capacity() > KEEP_MAX {
        *buffer = BytesMut::new();
    }
    if buffer.capacity() - buffer.len() < READ_CHUNK / 8 {
        buffer.reserve(READ_CHUNK);
    }
    // The future holds no state between two polls, so a new one each time loses nothing.
    match ready!(pin!(stream.read_buf(buffer)).poll(cx))? {
        0 => Poll::Ready(Err(Broken::Closed)),
        count => Poll::Ready(Ok(count)),
    }
}

/// Writes until `buffer` is empty.
pub(super) fn poll_write<S: Stream>(
    stream: &mut S,
    buffer: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Broken>> {
    while !buffer.is_empty() {
        match ready!(Pin::new(&mut *stream).poll_write(cx, buffer))? {
            0 => return Poll::Ready(Err(Broken::Closed)),
            count => buffer.advance(count),
        }
    }
    if buffer.capacity() > KEEP_MAX {
        *buffer = BytesMut::new();
    }
    Poll::Ready(Ok(()))
}

/// The next frame of a handshake.
pub(super) async fn read_hello<S: Stream>(stream: &mut S, buffer: &mut BytesMut) -> Result<Frame, Broken> {
    loop {
        if let Some(frame) = decode_frame(buffer, HELLO_LEN_MAX)? {
            return Ok(frame);
        }
        std::future::poll_fn(|cx| poll_read(stream, buffer, cx)).await?;
    }
}

/// Writes all of `buffer`.
pub(super) async fn write_all<S: Stream>(stream: &mut S, buffer: &mut BytesMut) -> Result<(), Broken> {
    std::future::poll_fn(|cx| poll_write(stream, buffer, cx)).await
}
