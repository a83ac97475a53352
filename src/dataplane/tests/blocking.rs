use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as StdUnixAddr, UnixListener as StdUnixListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::dataplane::UnixAddr;
use crate::dataplane::client_blocking::{Blocking, BlockingError, ConnectError};
use crate::wire::hello::RefusalCode;

/// A node on a Unix socket, in a thread with a runtime of its own.
struct Host {
    address: UnixAddr,
    handler: Arc<Counter>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Host {
    fn start() -> Self {
        let name = format!("ephpm_kv-test-{}-{:016x}", std::process::id(), random()).into_bytes();
        let listener = StdUnixListener::bind_addr(&StdUnixAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::serve(UnixAddr::Abstract(name), listener)
    }

    fn serve(address: UnixAddr, listener: StdUnixListener) -> Self {
        listener.set_nonblocking(true).unwrap();
        let handler = Arc::new(Counter::default());
        let (stop, stopped) = watch::channel(false);
        let served = handler.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                crate::dataplane::server::serve_unix(listener, Arc::new(local("node")), limits(), served, stopped)
                    .await;
            });
        });
        Self { address, handler, stop, thread: Some(thread) }
    }

    fn connect(&self) -> Blocking {
        Blocking::connect(&self.address, std::process::id(), &local("node"), limits().frame_max, PATIENCE).unwrap()
    }

    /// Opens the gate of `name` once somebody waits there, after `delay` and from another thread.
    fn release_after(&self, delay: Duration, name: &'static str, response: Response) -> std::thread::JoinHandle<()> {
        let handler = self.handler.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let deadline = Instant::now() + PATIENCE;
            while !handler.gates.lock().contains_key(name) {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
            handler.release(name, response);
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

#[test]
fn a_process_of_the_host_calls_its_node() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let listener = StdUnixListener::bind(&path).unwrap();
    for host in [Host::start(), Host::serve(UnixAddr::Path(path), listener)] {
        let mut blocking = host.connect();
        for id in 1..=100 {
            assert_eq!(blocking.call(&incr(1), soon()).unwrap(), value(id));
            assert_eq!(blocking.id_last(), id as u64);
        }
        // More than the socket's buffers hold: sent in parts.
        let large = call("k", Op::Set { value: vec![7; 1 << 20].into(), ttl_ms: None });
        assert_eq!(blocking.call(&large, soon()).unwrap(), value(1 << 20));
        let Response::Page { copies, .. } =
            blocking.call(&Request::Sync { cursor: 1 << 20, slots: vec![], owned: true, wants: None }, soon()).unwrap()
        else {
            panic!("no page")
        };
        assert_eq!(copies.len(), 1);
        let peer = host.handler.peers.lock()[0].clone();
        assert_eq!((peer.local, peer.stream, peer.node_id.as_str()), (true, blocking.stream(), "node"));
    }
}

#[test]
fn the_wrong_token_is_refused() {
    let host = Host::start();
    let stranger = LocalHello { token: [1; 16], ..local("node") };
    match Blocking::connect(&host.address, std::process::id(), &stranger, limits().frame_max, PATIENCE) {
        Err(ConnectError::Refused(refused)) => assert_eq!(refused.code, RefusalCode::Token),
        other => panic!("{other:?}"),
    }
    assert!(host.handler.peers.lock().is_empty());
    // A process is no node of another cluster: only the token counts.
    let process = LocalHello { cluster_id: "other".into(), ..local("node") };
    Blocking::connect(&host.address, std::process::id(), &process, limits().frame_max, PATIENCE).unwrap();
}

#[test]
fn another_user_of_the_segment_is_served() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root to become somebody else");
    }
    let host = Host::start();
    let address = host.address.clone();
    let outcome = std::thread::spawn(move || {
        // SAFETY: the system call itself, unlike libc's function, changes the user of this thread alone, which ends.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        Blocking::connect(&address, std::process::id(), &local("node"), limits().frame_max, PATIENCE).map(|_| ())
    })
    .join()
    .unwrap();
    assert!(outcome.is_ok(), "{outcome:?}");
}

#[test]
fn a_process_that_is_not_the_node_is_not_shown_the_token() {
    let host = Host::start();
    let another = std::process::id() + 1;
    match Blocking::connect(&host.address, another, &local("node"), limits().frame_max, PATIENCE) {
        Err(ConnectError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        other => panic!("{other:?}"),
    }
    assert!(host.handler.peers.lock().is_empty());
}

#[test]
fn nobody_there_and_nobody_answering() {
    let nobody = UnixAddr::Abstract(format!("ephpm_kv-nobody-{:x}", random()).into_bytes());
    let connect =
        |address, timeout| Blocking::connect(address, std::process::id(), &local("node"), limits().frame_max, timeout);
    match connect(&nobody, PATIENCE) {
        Err(ConnectError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused),
        other => panic!("{other:?}"),
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("silent.sock");
    let _silent = StdUnixListener::bind(&path).unwrap();
    let start = Instant::now();
    match connect(&UnixAddr::Path(path), Duration::from_millis(50)) {
        Err(ConnectError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn after_a_timeout_the_next_call_gets_its_own_answer() {
    let host = Host::start();
    let mut blocking = host.connect();
    let (start, timeout) = (Instant::now(), Duration::from_millis(40));
    let outcome = blocking.call(&get("slow"), start + timeout);
    assert!(matches!(outcome, Err(BlockingError::TimedOut)), "{outcome:?}");
    assert!(start.elapsed() >= timeout);
    assert_eq!(blocking.id_last(), 1);
    // Before the late answer is there, and after it.
    assert_eq!(blocking.call(&incr(5), soon()).unwrap(), value(5));
    host.release_after(Duration::ZERO, "slow", value(-1)).join().unwrap();
    for _ in 0..50 {
        let Response::Reply(_) = blocking.call(&Request::Ping, soon()).map(|_| value(0)).unwrap() else {
            unreachable!()
        };
    }
    assert_eq!(blocking.call(&incr(5), soon()).unwrap(), value(10));
    assert_eq!(blocking.id_last(), 53);
    assert!(!blocking.is_lost());
}

#[test]
fn a_deadline_that_has_passed_sends_nothing() {
    let host = Host::start();
    let mut blocking = host.connect();
    let outcome = blocking.call(&incr(1), Instant::now());
    assert!(matches!(outcome, Err(BlockingError::NotSent(_))), "{outcome:?}");
    let large = call("k", Op::Set { value: vec![7; 3 << 20].into(), ttl_ms: None });
    assert!(matches!(blocking.call(&large, soon()), Err(BlockingError::NotSent(_))));
    assert!(!blocking.is_lost());
    assert_eq!(blocking.call(&incr(1), soon()).unwrap(), value(1));
    assert_eq!(blocking.id_last(), 1);
}

#[test]
fn what_a_node_that_ends_has_not_read_counts_as_not_sent() {
    for _ in 0..20 {
        let host = Host::start();
        let mut blocking = host.connect();
        let stop = host.stop.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            stop.send(true).unwrap();
        });
        let mut answered = 0;
        let end = loop {
            match blocking.call(&incr(1), soon()) {
                Ok(response) => {
                    answered += 1;
                    assert_eq!(response, value(answered));
                }
                Err(error) => break error,
            }
        };
        stopper.join().unwrap();
        assert!(matches!(end, BlockingError::NotSent(_)), "{end:?}");
        assert_eq!(*host.handler.total.lock(), answered);
    }
}

#[test]
fn a_lost_connection_is_told_from_one_that_never_sent() {
    let host = Host::start();
    let mut blocking = host.connect();
    let stop = host.stop.clone();
    let handler = host.handler.clone();
    let stopper = std::thread::spawn(move || {
        let deadline = Instant::now() + PATIENCE;
        while handler.waiting() == 0 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.send(true).unwrap();
    });
    let outcome = blocking.call(&get("never"), soon());
    assert!(matches!(outcome, Err(BlockingError::Lost(_))), "{outcome:?}");
    stopper.join().unwrap();
    assert!(blocking.is_lost());
    assert!(matches!(blocking.call(&incr(1), soon()), Err(BlockingError::NotSent(_))));

    // Gone between two calls: a write to it fails (and raises no SIGPIPE), so nothing can have been applied.
    let host = Host::start();
    let mut blocking = host.connect();
    blocking.call(&incr(1), soon()).unwrap();
    drop(host);
    let outcome = blocking.call(&incr(1), soon());
    assert!(matches!(outcome, Err(BlockingError::NotSent(_))), "{outcome:?}");
    assert!(blocking.is_lost());
}

/// Does nothing; that it is called is what interrupts the system call.
extern "C" fn ignore(_: libc::c_int) {}

#[test]
fn signals_do_not_end_the_wait_nor_make_it_longer() {
    // SAFETY: the handler does nothing, and a zeroed sigaction has an empty mask and no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let host = Host::start();
    let mut blocking = host.connect();
    // SAFETY: always succeeds.
    let this_thread = unsafe { libc::pthread_self() };
    let done = Arc::new(AtomicBool::new(false));
    let pest = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the thread is alive: it joins this one.
                unsafe { libc::pthread_kill(this_thread, libc::SIGUSR1) };
                sent += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
            sent
        }
    });
    let release = host.release_after(Duration::from_millis(100), "slow", value(7));
    let answered = blocking.call(&get("slow"), soon());
    let (start, timeout) = (Instant::now(), Duration::from_millis(60));
    let timed_out = blocking.call(&get("never"), start + timeout);
    let took = start.elapsed();
    done.store(true, Ordering::Relaxed);
    let sent = pest.join().unwrap();
    release.join().unwrap();
    assert_eq!(answered.unwrap(), value(7));
    assert!(matches!(timed_out, Err(BlockingError::TimedOut)), "{timed_out:?}");
    assert!(took >= timeout && took < timeout * 10, "{took:?}");
    assert!(sent > 20, "only {sent} signals");
}

#[test]
fn a_child_inherits_no_socket() {
    let host = Host::start();
    let mut blocking = host.connect();
    let child = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let descriptors = String::from_utf8(child.stdout).unwrap();
    assert!(descriptors.contains("pipe:"), "{descriptors}");
    assert!(!descriptors.contains("socket:"), "{descriptors}");
    assert_eq!(blocking.call(&Request::Ping, soon()).unwrap(), Response::Pong { vouches: true });
}

/// Run by hand in release: `cargo test --release -- --ignored --nocapture round_trips`.
#[test]
#[ignore = "a measurement"]
fn round_trips() {
    const CALLS: usize = 50_000;
    let host = Host::start();
    let mut blocking = host.connect();
    let mut times: Vec<Duration> = (0..CALLS)
        .map(|n| {
            let start = Instant::now();
            assert_eq!(blocking.call(&incr(1), soon()).unwrap(), value(n as i64 + 1));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!(
        "one blocking call: p50 {:?}, p99 {:?}, max {:?}",
        times[CALLS / 2],
        times[CALLS * 99 / 100],
        times[CALLS - 1]
    );
}
