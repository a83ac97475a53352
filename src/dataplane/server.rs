//! Listeners: accept, shake hands, serve.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, End};
use super::io::{Broken, Stream, read_hello, tune};
use super::{Handler, Limits, Peer, UnixAddr};
use crate::wire::encode_response;
use crate::wire::hello::{Hello, HelloRefused, LocalHello, RefusalCode, decode_hello, encode_answer};
use crate::wire::message::Response;

/// Pauses after a failed accept (out of descriptors, say), doubling from the first to the second.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A peer's misbehaviour is logged once in this time.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// Peers whose last complaint is remembered.
const COMPLAINTS_MAX: usize = 1_024;

/// Where peers call.
pub type PeerListener = TcpListener;

/// Where the host's own processes call.
pub type HostListener = UnixListener;

/// Listens for peers. Errors: the address is in use, or not this host's.
pub async fn bind(address: SocketAddr) -> io::Result<PeerListener> {
    TcpListener::bind(address).await
}

/// Listens for the host's own processes. A socket file that nobody listens on any more is replaced. Errors: somebody
/// listens there (`AddrInUse`), or the file system refuses.
pub fn bind_unix(address: &UnixAddr) -> io::Result<HostListener> {
    use std::os::unix::net::UnixListener as Listener;
    let listener = match address {
        UnixAddr::Abstract(name) => {
            use std::os::linux::net::SocketAddrExt;
            Listener::bind_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?
        }
        UnixAddr::Path(path) => {
            let listener = match Listener::bind(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                    std::fs::remove_file(path)?;
                    Listener::bind(path)?
                }
                result => result?,
            };
            // Who may do what is decided by what the kernel says of the caller, whatever the umask was.
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
            listener
        }
    };
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// A socket file that its last owner left behind.
fn is_stale(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused)
}

/// Serves peers over TCP until `stop` is true (or its sender gone); all connections are closed when it returns.
pub async fn serve(
    listener: TcpListener,
    hello: Arc<LocalHello>,
    limits: Limits,
    handler: Arc<dyn Handler>,
    stop: watch::Receiver<bool>,
) {
    accept_all(listener, Shared::new(hello, limits, handler), stop).await;
}

/// The same for the processes of this host on its Unix socket: the caller must know the segment's token.
pub async fn serve_unix(
    listener: UnixListener,
    hello: Arc<LocalHello>,
    limits: Limits,
    handler: Arc<dyn Handler>,
    stop: watch::Receiver<bool>,
) {
    accept_all(listener, Shared::new(hello, limits, handler), stop).await;
}

/// Who is calling, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Caller {
    Remote(IpAddr),
    Local,
}

trait Listener: Send + 'static {
    type Stream: Stream + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Caller)>> + Send;

    /// What the kernel says about the caller, before a byte is read.
    fn admit(stream: &Self::Stream) -> io::Result<()>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Caller)> {
        let (stream, address) = TcpListener::accept(self).await?;
        Ok((stream, Caller::Remote(address.ip())))
    }

    fn admit(stream: &TcpStream) -> io::Result<()> {
        tune(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Caller)> {
        let (stream, _) = UnixListener::accept(self).await?;
        Ok((stream, Caller::Local))
    }

    fn admit(_: &UnixStream) -> io::Result<()> {
        // Pools of several users share a segment, and so its token.
        Ok(())
    }
}

struct Shared {
    hello: Arc<LocalHello>,
    limits: Limits,
    handler: Arc<dyn Handler>,
    half_open: AtomicUsize,
    complaints: Mutex<HashMap<Caller, Instant>>,
}

impl Shared {
    fn new(hello: Arc<LocalHello>, limits: Limits, handler: Arc<dyn Handler>) -> Arc<Self> {
        Arc::new(Self { hello, limits, handler, half_open: AtomicUsize::new(0), complaints: Mutex::default() })
    }

    fn complain(&self, caller: Caller, what: &dyn std::fmt::Display) {
        let now = Instant::now();
        let mut complaints = self.complaints.lock();
        if complaints.get(&caller).is_some_and(|last| now - *last < COMPLAINT_INTERVAL) {
            return;
        }
        if complaints.len() >= COMPLAINTS_MAX {
            complaints.clear();
        }
        complaints.insert(caller, now);
        drop(complaints);
        match caller {
            Caller::Remote(address) => tracing::warn!("connection from {address}: {what}"),
            Caller::Local => tracing::warn!("connection on the host's socket: {what}"),
        }
    }
}

/// One half-open connection, counted while this lives.
struct HalfOpen<'a>(&'a AtomicUsize);

impl Drop for HalfOpen<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells the handler that a peer is gone, whatever ended its connection.
struct Connected<'a> {
    handler: &'a dyn Handler,
    peer: &'a Peer,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.handler.disconnected(self.peer);
    }
}

async fn accept_all<L: Listener>(listener: L, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut pause = ACCEPT_PAUSE.0;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, caller)) => {
                pause = ACCEPT_PAUSE.0;
                while connections.try_join_next().is_some() {}
                let half_open = shared.half_open.load(Ordering::Relaxed);
                if connections.len() >= shared.limits.connections_max || half_open >= shared.limits.half_open_max {
                    shared.complain(caller, &"closed at once: too many connections");
                    continue;
                }
                if let Err(error) = L::admit(&stream) {
                    shared.complain(caller, &error);
                    continue;
                }
                shared.half_open.fetch_add(1, Ordering::Relaxed);
                connections.spawn(attend(stream, caller, shared.clone(), stop.clone()));
            }
            Err(error) => {
                tracing::warn!("cannot accept connections: {error}");
                tokio::select! {
                    () = stopped(&mut stop) => break,
                    () = sleep(pause) => pause = (pause * 2).min(ACCEPT_PAUSE.1),
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Ends when `stop` is true or nobody is left to say so.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn attend<S: Stream>(mut stream: S, caller: Caller, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let half_open = HalfOpen(&shared.half_open);
    let mut read = BytesMut::new();
    let hello = tokio::select! {
        () = stopped(&mut stop) => return,
        hello = timeout(shared.limits.handshake_max, first(&mut stream, &mut read)) => hello,
    };
    drop(half_open);
    let mut connection = Connection::new(stream, read, shared.limits);
    let hello = match hello {
        Ok(Ok(hello)) => hello,
        Ok(Err(Broken::Wire(error))) => {
            shared.complain(caller, &format_args!("no handshake: {error}"));
            connection.queue(|out| encode_response(0, &Response::Error(error.to_string()), out));
            return connection.close().await;
        }
        // Health checks and port scans come and go like this.
        Ok(Err(error)) => return tracing::debug!("no handshake: {error}"),
        Err(_) => return tracing::debug!("no handshake in time"),
    };
    let stream_name = hello.stream;
    let local = caller == Caller::Local;
    let judged = match local {
        true => shared.hello.judge_local(&hello),
        false => shared.hello.judge(&hello),
    };
    let admitted = judged.and_then(|version| {
        let peer = Peer::new(hello, version, local);
        match shared.handler.connected(&peer) {
            Ok(()) => Ok(peer),
            Err(reason) => Err(HelloRefused { code: RefusalCode::NotAdmitted, reason }),
        }
    });
    let peer = match admitted {
        Ok(peer) => peer,
        Err(refused) => {
            shared.complain(caller, &refused);
            connection.queue(|out| encode_answer(&Err(refused), out));
            return connection.close().await;
        }
    };
    let connected = Connected { handler: &*shared.handler, peer: &peer };
    connection.queue(|out| encode_answer(&Ok(shared.hello.hello(stream_name, false)), out));
    let end = tokio::select! {
        biased;
        () = stopped(&mut stop) => None,
        end = connection.serve(&peer, &*shared.handler) => Some(end),
    };
    connection.abandon();
    drop(connected);
    match end {
        // A process of the host is told by the kernel that what it has just sent was not read.
        None if local => connection.hang_up().await,
        None | Some(End::Broken(Broken::Closed)) => connection.close().await,
        Some(end @ End::Broken(Broken::Wire(_))) => {
            shared.complain(caller, &format_args!("{}: {end}", peer.node_id));
            connection.close().await;
        }
        Some(End::Broken(Broken::Io(error))) => tracing::debug!("connection of {}: {error}", peer.node_id),
        Some(end) => shared.complain(caller, &format_args!("{}: {end}", peer.node_id)),
    }
}

async fn first<S: Stream>(stream: &mut S, read: &mut BytesMut) -> Result<Hello, Broken> {
    Ok(decode_hello(read_hello(stream, read).await?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Answer;
    use crate::wire::hello::{Settings, decode_answer, encode_hello};
    use crate::wire::message::Request;

    /// Out of descriptors three times, then well.
    struct Failing(TcpListener, AtomicUsize);

    impl Listener for Failing {
        type Stream = TcpStream;

        async fn accept(&self) -> io::Result<(TcpStream, Caller)> {
            match self.1.fetch_add(1, Ordering::Relaxed) {
                0..3 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => Listener::accept(&self.0).await,
            }
        }

        fn admit(stream: &TcpStream) -> io::Result<()> {
            tune(stream)
        }
    }

    struct Mute;

    impl Handler for Mute {
        fn connected(&self, _: &Peer) -> Result<(), String> {
            Ok(())
        }

        fn disconnected(&self, _: &Peer) {}

        fn handle(&self, _: &Peer, _: u64, _: Request) -> Answer {
            Answer::Nothing
        }
    }

    #[tokio::test]
    async fn running_out_of_descriptors_ends_no_listener() {
        let local = |node_id: &str| LocalHello {
            cluster_id: "test".into(),
            node_id: node_id.into(),
            generation: 1,
            origin: 1,
            address: None,
            client: false,
            settings: Settings { replicas: 2, copy_all_max: 16, slots: 16_384 },
            token: [0; 16],
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let shared = Shared::new(Arc::new(local("node")), Limits::new(1 << 20), Arc::new(Mute));
        let serving = tokio::spawn(accept_all(Failing(listener, AtomicUsize::new(0)), shared, stopped));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (mut write, mut read) = (BytesMut::new(), BytesMut::new());
        encode_hello(&local("caller").hello(1, false), &mut write);
        super::super::io::write_all(&mut stream, &mut write).await.unwrap();
        let answer = timeout(Duration::from_secs(20), read_hello(&mut stream, &mut read)).await.unwrap().unwrap();
        assert_eq!(decode_answer(answer).unwrap().unwrap().node_id, "node");
        // That the last one to say "stop" is gone is a stop too.
        drop(stop);
        timeout(Duration::from_secs(20), serving).await.unwrap().unwrap();
    }
}
