//! The serving side of one connection, after its handshake.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use super::age::{Ages, Stamper, aged};
use super::io::{Broken, Stream, poll_read, poll_write, write_all};
use super::{Answer, Handler, Limits, Peer};
use crate::clock::Clock;
use crate::wire::message::{Request, Response};
use crate::wire::{WireError, decode_frame, decode_request, encode_response};

/// How long the last answers and the other side's last bytes are waited for when a connection is closed.
const LINGER: Duration = Duration::from_millis(200);

/// Most of the other side's last bytes that are read and thrown away.
const LINGER_BYTES_MAX: usize = 256 << 10;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The connection is gone, or what came on it makes no sense.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// The peer does not read its answers.
    #[error("cut off: the peer does not read what is written to it")]
    SlowReader,
    /// A later answer panicked; which request's it was is lost.
    #[error("a request's task panicked")]
    Panicked,
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        Self::Broken(error.into())
    }
}

pub(super) struct Connection<S> {
    stream: S,
    read: BytesMut,
    write: BytesMut,
    later: JoinSet<(u64, Response)>,
    ages: Ages,
    stamper: Stamper,
    /// Peers are; a process of the host would not know what to do with it.
    tells_time: bool,
    /// Runs while the peer leaves unread what was written to it.
    stalled: Option<Pin<Box<Sleep>>>,
    limits: Limits,
}

impl<S: Stream> Connection<S> {
    /// Takes over after the handshake; `read` holds what came behind it.
    pub(super) fn new(stream: S, read: BytesMut, limits: Limits) -> Self {
        let (ages, stamper) = (Ages::default(), Stamper::default());
        Self {
            stream,
            read,
            write: BytesMut::new(),
            later: JoinSet::new(),
            ages,
            stamper,
            tells_time: false,
            stalled: None,
            limits,
        }
    }

    /// Queues bytes that go out before all answers.
    pub(super) fn queue(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.write);
    }

    /// Serves until the connection ends. May be dropped at any point and [`Connection::close`]d then.
    pub(super) async fn serve(&mut self, peer: &Peer, handler: &dyn Handler) -> End {
        self.tells_time = !peer.local;
        poll_fn(|cx| self.poll(peer, handler, cx)).await
    }

    fn poll(&mut self, peer: &Peer, handler: &dyn Handler, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let more = match self.answer_frames(peer, handler) {
                Ok(more) => more,
                Err(error) => return Poll::Ready(error.into()),
            };
            // After the frames: a set that was empty when it was last polled would not wake this task.
            while let Poll::Ready(Some(ended)) = self.later.poll_join_next(cx) {
                match ended {
                    Ok((id, response)) => self.respond(id, &response),
                    Err(_) => return Poll::Ready(End::Panicked),
                }
            }
            if let Err(end) = self.poll_flush(cx) {
                return Poll::Ready(end);
            }
            match (more, self.paused()) {
                (true, false) => continue,
                (_, true) => return Poll::Pending,
                (false, false) => {}
            }
            match poll_read(&mut self.stream, &mut self.read, cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(broken)) => return Poll::Ready(broken.into()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Whether requests must wait: the peer sends more than it reads, or more than may be under way.
    fn paused(&self) -> bool {
        self.write.len() >= self.limits.write_buffer_max / 2 || self.later.len() >= self.limits.pending_max
    }

    /// Answers every complete frame that was read; whether it stopped before, for a pause.
    fn answer_frames(&mut self, peer: &Peer, handler: &dyn Handler) -> Result<bool, WireError> {
        while !self.paused() {
            let Some(frame) = decode_frame(&mut self.read, self.limits.frame_max).inspect_err(|error| {
                encode_response(0, &Response::Error(error.to_string()), &mut self.write);
            })?
            else {
                return Ok(false);
            };
            let now_ms = Clock::System.since_boot_ms();
            if self.ages.take(&frame, now_ms) {
                continue;
            }
            let (id, late_ms) = (frame.id, self.ages.late_ms(now_ms));
            match decode_request(frame) {
                Ok((id, request)) => match self.handle(peer, id, request, late_ms, handler) {
                    Answer::Now(response) => self.respond(id, &response),
                    Answer::Later(response) => {
                        self.later.spawn(async move { (id, response.await) });
                    }
                    Answer::Nothing => {}
                },
                // A later release's request: the frame was sound, so the next can be read.
                Err(error @ WireError::UnknownType(_)) => self.respond(id, &Response::Error(error.to_string())),
                Err(error) => {
                    self.respond(id, &Response::Error(error.to_string()));
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    fn handle(&self, peer: &Peer, id: u64, request: Request, late_ms: u64, handler: &dyn Handler) -> Answer {
        match aged(request, late_ms, self.limits.late_max) {
            Some(request) => handler.handle(peer, id, request),
            None => Answer::Now(Response::Voided),
        }
    }

    fn respond(&mut self, id: u64, response: &Response) {
        if self.tells_time {
            self.stamper.stamp(Clock::System.since_boot_ms(), &mut self.write);
        }
        let start = self.write.len();
        encode_response(id, response, &mut self.write);
        let len = self.write.len() - start - 4;
        if len > self.limits.frame_max {
            self.write.truncate(start);
            tracing::error!(len, cap = self.limits.frame_max, "a response is longer than a frame may be");
            let text = format!("the response of {len} bytes is longer than a frame may be");
            encode_response(id, &Response::Error(text), &mut self.write);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let before = self.write.len();
        if before == 0 {
            return Ok(());
        }
        match poll_write(&mut self.stream, &mut self.write, cx) {
            Poll::Ready(Ok(())) => {
                self.stalled = None;
                Ok(())
            }
            Poll::Ready(Err(broken)) => Err(broken.into()),
            Poll::Pending if self.write.len() > self.limits.write_buffer_max => Err(End::SlowReader),
            Poll::Pending => {
                if self.write.len() < before {
                    self.stalled = None;
                }
                let stall_max = self.limits.stall_max;
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall_max)));
                match stalled.as_mut().poll(cx) {
                    Poll::Ready(()) => Err(End::SlowReader),
                    Poll::Pending => Ok(()),
                }
            }
        }
    }

    /// Drops the requests whose answers are still to come.
    pub(super) fn abandon(&mut self) {
        self.later.abort_all();
    }

    /// Writes what is left and closes, and reads nothing more.
    pub(super) async fn hang_up(mut self) {
        let _ = timeout(LINGER, write_all(&mut self.stream, &mut self.write)).await;
    }

    /// Writes what is left and closes, so that the peer gets to read it: closing with unread input would reset the
    /// connection and take the last answers with it. Takes at most twice [`LINGER`].
    pub(super) async fn close(mut self) {
        if !matches!(timeout(LINGER, write_all(&mut self.stream, &mut self.write)).await, Ok(Ok(()))) {
            return;
        }
        let drain = async {
            let mut scratch = vec![0; 8 << 10];
            let mut left = LINGER_BYTES_MAX;
            self.stream.shutdown().await?;
            while left > 0 {
                match self.stream.read(&mut scratch).await? {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
            std::io::Result::Ok(())
        };
        let _ = timeout(LINGER, drain).await;
    }
}
