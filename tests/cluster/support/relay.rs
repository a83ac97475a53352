//! A relay in front of a host, which advertises the relay's address: TCP and UDP pass through it, late or not at all.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);

/// What the relay does to the traffic; changed at any time.
#[derive(Default)]
pub struct Faults {
    /// Answers of the host arrive this much later, in ms (TCP).
    pub answer_delay_ms: AtomicU64,
    /// Requests to the host arrive this much later, in ms (TCP).
    pub request_delay_ms: AtomicU64,
    /// No datagram from these ports passes; ports are those that hosts bind.
    pub deaf_to: Mutex<Vec<u16>>,
    stop: AtomicBool,
}

/// The relay; it ends with the value.
pub struct Relay {
    /// What it does wrong.
    pub faults: Arc<Faults>,
}

impl Relay {
    /// Listens on `port` for the host that binds `target`.
    pub fn start(port: u16, target: u16) -> Self {
        let faults = Arc::new(Faults::default());
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the relay's TCP port");
        let socket = UdpSocket::bind(("127.0.0.1", port)).expect("the relay's UDP port");
        let target = SocketAddr::from(([127, 0, 0, 1], target));
        let shared = faults.clone();
        std::thread::spawn(move || accept(&listener, target, &shared));
        let shared = faults.clone();
        std::thread::spawn(move || datagrams(&socket, target, &shared));
        Self { faults }
    }

    /// Stops or passes datagrams from the host that binds this port.
    pub fn deafen(&self, port: u16, deaf: bool) {
        let mut ports = self.faults.deaf_to.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|present| *present != port);
        if deaf {
            ports.push(port);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.faults.stop.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, faults: &Arc<Faults>) {
    listener.set_nonblocking(true).expect("a non-blocking listener");
    while !faults.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((caller, _)) => {
                // A host that is down looks as it would without a relay: the connection closes at once.
                let Ok(host) = TcpStream::connect(target) else { continue };
                connect(caller, host, faults);
            }
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn connect(caller: TcpStream, host: TcpStream, faults: &Arc<Faults>) {
    for stream in [&caller, &host] {
        stream.set_nonblocking(false).expect("a blocking stream");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(TICK)).expect("a read timeout");
    }
    let (caller_too, host_too) = (caller.try_clone().expect("a clone"), host.try_clone().expect("a clone"));
    let shared = faults.clone();
    pump(caller, host, faults.clone(), move || shared.request_delay_ms.load(Ordering::Relaxed));
    let shared = faults.clone();
    pump(host_too, caller_too, faults.clone(), move || shared.answer_delay_ms.load(Ordering::Relaxed));
}

/// Copies one direction, each piece as late as `delay_ms` said when it arrived.
fn pump(mut from: TcpStream, mut to: TcpStream, faults: Arc<Faults>, delay_ms: impl Fn() -> u64 + Send + 'static) {
    let (sender, pieces) = channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, piece) in pieces {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while !faults.stop.load(Ordering::Relaxed) {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let due = Instant::now() + Duration::from_millis(delay_ms());
                    if sender.send((due, buffer[..length].to_vec())).is_err() {
                        break;
                    }
                }
                Err(error) if would_block(&error) => {}
                Err(_) => break,
            }
        }
        let _ = from.shutdown(Shutdown::Both);
    });
}

fn would_block(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Passes datagrams to the host, and the host's answers back to whoever asked: one socket per sender, as a NAT does.
fn datagrams(socket: &UdpSocket, target: SocketAddr, faults: &Arc<Faults>) {
    socket.set_read_timeout(Some(TICK)).expect("a read timeout");
    let mut sides: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while !faults.stop.load(Ordering::Relaxed) {
        let Ok((length, sender)) = socket.recv_from(&mut buffer) else { continue };
        if faults.is_deaf_to(sender.port()) {
            continue;
        }
        let side = sides.entry(sender).or_insert_with(|| {
            let side = UdpSocket::bind("127.0.0.1:0").expect("a UDP port");
            side.connect(target).expect("a target");
            side.set_read_timeout(Some(TICK)).expect("a read timeout");
            let back = (side.try_clone().expect("a clone"), socket.try_clone().expect("a clone"));
            let faults = faults.clone();
            std::thread::spawn(move || answers(&back.0, &back.1, sender, &faults));
            side
        });
        let _ = side.send(&buffer[..length]);
    }
}

fn answers(side: &UdpSocket, socket: &UdpSocket, sender: SocketAddr, faults: &Faults) {
    let mut buffer = vec![0; 65_536];
    while !faults.stop.load(Ordering::Relaxed) {
        let length = match side.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if would_block(&error) => continue,
            // The host is down: refused, once per datagram sent to it.
            Err(_) => {
                std::thread::sleep(TICK);
                continue;
            }
        };
        if !faults.is_deaf_to(sender.port()) {
            let _ = socket.send_to(&buffer[..length], sender);
        }
    }
}

impl Faults {
    fn is_deaf_to(&self, port: u16) -> bool {
        self.deaf_to.lock().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}
