//! Handing a segment to another process of the host: whoever connects to the host's socket is sent the segment's
//! descriptors, or the reason why not, and nothing is asked of it but what the kernel knows. So no caller can keep the
//! node waiting.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};

use super::UnixAddr;
use super::server::HostListener;
use crate::segment::descriptors::Descriptors;

/// Begins every answer; the last byte is the version of what follows.
const MAGIC: [u8; 8] = *b"EPKVATT\x01";

/// Longest answer in bytes: the magic, and a reason.
const ANSWER_MAX: usize = 512;

/// Pause after a failed accept (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who asks for the segment, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its process, in this one's numbers; 0: not one of this pid namespace.
    pub pid: i32,
}

/// What came of asking.
#[derive(Debug)]
pub enum Attached {
    /// The host has a node, and this is its segment.
    Segment(Descriptors),
    /// Nobody serves there.
    Nobody,
    /// Somebody serves there and will not, or cannot, share; in words for an operator.
    Refused(String),
}

/// Answers everybody who connects to `listener` with what `hand_out` decides. Runs until it is dropped.
pub async fn serve(listener: HostListener, hand_out: impl Fn(Caller) -> Result<Descriptors, String>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(credentials) = stream.peer_cred() else { continue };
        let caller = Caller { uid: credentials.uid(), pid: credentials.pid().unwrap_or(0) };
        let answer = hand_out(caller);
        if let Err(reason) = &answer {
            tracing::info!(user = caller.uid, pid = caller.pid, "a process is not attached: {reason}");
        }
        // A fresh socket's buffer takes this at once; who has gone away needs no answer.
        let _ = send(stream.as_fd(), &answer);
    }
}

fn send(socket: std::os::fd::BorrowedFd<'_>, answer: &Result<Descriptors, String>) -> io::Result<()> {
    let (text, descriptors) = match answer {
        Ok(all) => ("", vec![all.memory.as_fd(), all.hangup.as_fd(), all.alive.as_fd()]),
        Err(reason) => (reason.as_str(), Vec::new()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let text = &text.as_bytes()[..text.len().min(ANSWER_MAX - MAGIC.len())];
    let parts = [IoSlice::new(&MAGIC), IoSlice::new(text)];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Asks whoever serves at `address` for its segment, for at most twice `timeout`.
pub fn attach(address: &UnixAddr, timeout: Duration) -> Attached {
    match ask(address, timeout) {
        Ok(attached) => attached,
        Err(error) => match error.kind() {
            // A file that may not be opened is no node's: those let everybody connect. What it is, the node says that
            // would listen there.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                Attached::Nobody
            }
            _ => Attached::Refused(format!("{address}: {error}")),
        },
    }
}

fn ask(address: &UnixAddr, timeout: Duration) -> io::Result<Attached> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // While the backlog is full, connecting waits as long as a send may.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    rustix::net::connect(&socket, &address.to_rustix()?)?;
    let mut bytes = [0; ANSWER_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
            result => break result?,
        }
    };
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let Some(text) = bytes[..received.bytes].strip_prefix(&MAGIC) else {
        return Ok(Attached::Refused(format!("what serves at {address} is no node of this kind")));
    };
    // Robust locks name their holders by numbers of the pid namespace.
    if super::peer_pid(socket.as_fd())? == 0 {
        return Ok(Attached::Refused(format!("the node at {address} is in another pid namespace")));
    }
    Ok(match <[OwnedFd; 3]>::try_from(descriptors) {
        Ok([memory, hangup, alive]) => Attached::Segment(Descriptors { memory, hangup, alive }),
        Err(_) => Attached::Refused(format!("the node at {address}: {}", String::from_utf8_lossy(text))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::server::bind_unix;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    fn ask(address: &UnixAddr) -> Attached {
        attach(address, Duration::from_secs(5))
    }

    #[test]
    fn a_segment_travels_or_the_reason_why_not() {
        let runtime = runtime();
        let address = UnixAddr::Abstract(format!("ephpm_kv/attach-{}", super::super::random()).into_bytes());
        assert!(matches!(ask(&address), Attached::Nobody));
        let made = Descriptors::create(1 << 16).unwrap();
        let name = made.describe().unwrap();
        let me = Caller { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() as i32 };
        let refuse = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let refuses = refuse.clone();
        let listener = runtime.block_on(async { bind_unix(&address).unwrap() });
        runtime.spawn(serve(listener, move |caller| {
            assert_eq!(caller, me);
            if refuses.load(std::sync::atomic::Ordering::Relaxed) {
                return Err("not today".to_string());
            }
            made.duplicate().map_err(|error| error.to_string())
        }));
        let Attached::Segment(got) = ask(&address) else { panic!("no segment") };
        let inode = |text: &str| text.rsplit(':').next().map(str::to_owned);
        assert_eq!(inode(&got.describe().unwrap()), inode(&name), "the same memory");
        refuse.store(true, std::sync::atomic::Ordering::Relaxed);
        let Attached::Refused(reason) = ask(&address) else { panic!("not refused") };
        assert!(reason.contains("not today"), "{reason}");
    }

    #[test]
    fn a_socket_file_left_behind_is_replaced_and_one_in_use_is_not() {
        let runtime = runtime();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = UnixAddr::Path(path.clone());
        assert!(matches!(ask(&address), Attached::Nobody));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(matches!(ask(&address), Attached::Nobody), "a stale file is nobody");
        let first = runtime.block_on(async { bind_unix(&address) }).unwrap();
        let second = runtime.block_on(async { bind_unix(&address) });
        assert_eq!(second.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        drop(first);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file of somebody's").unwrap();
        assert!(runtime.block_on(async { bind_unix(&address) }).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file of somebody's");
    }

    #[test]
    fn something_else_that_listens_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let other = std::thread::spawn(move || {
            use std::io::Write;
            listener.accept().unwrap().0.write_all(b"HTTP/1.0 200 OK\r\n").unwrap();
        });
        assert!(matches!(ask(&UnixAddr::Path(path)), Attached::Refused(_)));
        other.join().unwrap();
    }
}
