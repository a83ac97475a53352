//! A network of the test's own: one namespace per host, and a switch in user space between them.
//!
//! Each namespace has one TUN device, whose other end this process holds. So every packet between two hosts passes
//! through here and can be dropped, delayed or overtaken, by direction and protocol, without a bridge, a firewall or
//! a traffic shaper in the kernel. Namespaces and devices have no name outside: the kernel removes them with the last
//! descriptor and process, however this process ends.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Error, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Port that every host binds, UDP and TCP.
pub const PORT: u16 = 7400;

/// Name of the device in every namespace.
const DEVICE: &str = "kvchaos0";

/// How often a thread that waits for packets looks whether it is to end.
const TICK_MS: i32 = 50;

/// Packets on their way; more are dropped, as a queue in a switch would.
const QUEUED_MAX: usize = 20_000;

/// What happens to packets in one direction between two hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// No datagram passes.
    pub no_udp: bool,
    /// No segment of a stream passes.
    pub no_tcp: bool,
    /// Each packet is this much later.
    pub delay_ms: u64,
    /// And up to this much more, at random: packets overtake each other.
    pub jitter_ms: u64,
}

/// One host's network.
pub struct Namespace {
    file: Arc<File>,
    inode: u64,
    device: Arc<File>,
}

/// The namespaces and the switch; everything in them ends with the value.
pub struct Net {
    namespaces: Vec<Namespace>,
    switch: Arc<Switch>,
    threads: Vec<JoinHandle<()>>,
}

struct Switch {
    ways: Mutex<Vec<Vec<Way>>>,
    devices: Vec<Arc<File>>,
    late: Mutex<BinaryHeap<Late>>,
    news: Condvar,
    stop: AtomicBool,
}

/// A packet on its way, ordered so that the heap gives the one that is due first.
#[derive(PartialEq, Eq)]
struct Late {
    due: Instant,
    number: u64,
    to: usize,
    packet: Vec<u8>,
}

impl Ord for Late {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a host.
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

impl Net {
    /// Networks for `count` hosts, all connected; the error says what this process may not do.
    pub fn new(count: usize, seed: u64) -> Result<Self, String> {
        let namespaces: Vec<Namespace> = (0..count).map(Namespace::new).collect::<Result<_, _>>()?;
        let switch = Arc::new(Switch {
            ways: Mutex::new(vec![vec![Way::default(); count]; count]),
            devices: namespaces.iter().map(|namespace| namespace.device.clone()).collect(),
            late: Mutex::default(),
            news: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let mut threads: Vec<JoinHandle<()>> = (0..count)
            .map(|from| {
                let switch = switch.clone();
                std::thread::spawn(move || switch.receive(from, seed.wrapping_mul(31).wrapping_add(from as u64) | 1))
            })
            .collect();
        let shared = switch.clone();
        threads.push(std::thread::spawn(move || shared.deliver()));
        Ok(Self { namespaces, switch, threads })
    }

    /// One host's network.
    pub fn namespace(&self, host: usize) -> &Namespace {
        &self.namespaces[host]
    }

    /// Changes what happens between hosts: `change` gets from, to and what happens now.
    pub fn change(&self, mut change: impl FnMut(usize, usize, &mut Way)) {
        for (from, ways) in lock(&self.switch.ways).iter_mut().enumerate() {
            for (to, way) in ways.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                change(from, to, way);
            }
        }
    }

    /// Everything passes at once again.
    pub fn heal(&self) {
        self.change(|_, _, way| *way = Way::default());
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            namespace.kill_all();
        }
        self.switch.stop.store(true, Ordering::Relaxed);
        self.switch.news.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Namespace {
    fn new(host: usize) -> Result<Self, String> {
        let address = address(host);
        // A thread enters the new namespace and ends; this one stays where it is.
        let made = std::thread::spawn(move || make(address)).join().map_err(|_| "a thread panicked".to_owned())?;
        let (file, device) = made?;
        let inode = file.metadata().map_err(|error| error.to_string())?.ino();
        Ok(Self { file: Arc::new(file), inode, device: Arc::new(device) })
    }

    /// Makes `command` run in this namespace.
    pub fn enter(&self, command: &mut Command) {
        let file = self.file.clone();
        let enter = move || {
            // SAFETY: the descriptor is open, and the child, which has one thread, may change its own namespace.
            let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
            if entered == 0 { Ok(()) } else { Err(Error::last_os_error()) }
        };
        // SAFETY: one system call, no allocation and no lock between fork and exec.
        unsafe { command.pre_exec(enter) };
    }

    /// Every process that runs in this namespace now: all of them were started by this test.
    pub fn processes(&self) -> Vec<i32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
        pids.filter(|pid| self.holds(*pid)).collect()
    }

    /// Whether this process runs in this namespace.
    pub fn holds(&self, pid: i32) -> bool {
        std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|metadata| metadata.ino() == self.inode)
    }

    /// Sends a signal to a process if it runs in this namespace, so never to another's that got its number.
    pub fn signal(&self, pid: i32, signal: i32) -> bool {
        // SAFETY: no memory is involved; the process is one of this test's.
        pid > 0 && self.holds(pid) && unsafe { libc::kill(pid, signal) } == 0
    }

    /// Sends a signal to every process in this namespace. To kill a host at one blow it stops them first: none sees
    /// another one end.
    pub fn signal_all(&self, signal: i32) -> usize {
        let pids = self.processes();
        if signal == libc::SIGKILL {
            pids.iter().for_each(|pid| _ = self.signal(*pid, libc::SIGSTOP));
        }
        pids.iter().filter(|pid| self.signal(**pid, signal)).count()
    }

    fn kill_all(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.signal_all(libc::SIGKILL) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A new namespace with a device in it. The calling thread stays in the namespace.
fn make(address: Ipv4Addr) -> Result<(File, File), String> {
    let fail = |what: &str, error: Error| format!("{what}: {error}");
    // SAFETY: changes the namespace of the calling thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(fail(
            "a network namespace cannot be had (root or CAP_SYS_ADMIN is needed)",
            Error::last_os_error(),
        ));
    }
    let file = File::open("/proc/thread-self/ns/net").map_err(|error| fail("the namespace", error))?;
    let device = tun().map_err(|error| fail("a TUN device cannot be had (/dev/net/tun and CAP_NET_ADMIN)", error))?;
    for arguments in [
        vec!["link", "set", "lo", "up"],
        vec!["addr", "add", &format!("{address}/24"), "dev", DEVICE],
        vec!["link", "set", DEVICE, "up"],
    ] {
        let status = Command::new("ip").args(&arguments).status().map_err(|error| fail("ip (iproute2)", error))?;
        if !status.success() {
            return Err(format!("ip {}: {status}", arguments.join(" ")));
        }
    }
    Ok((file, device))
}

/// A TUN device in the calling thread's namespace.
fn tun() -> Result<File, Error> {
    // SAFETY: the path is a C string; the descriptor is checked and owned below.
    let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: open() gave it to nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is a valid ifreq for the length of the call.
    if unsafe { libc::ioctl(fd, libc::TUNSETIFF, &mut request) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(file)
}

impl Switch {
    /// Takes what a host sends.
    fn receive(&self, from: usize, mut random: u64) {
        let mut buffer = vec![0; 65_536];
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let mut wait = libc::pollfd { fd: self.devices[from].as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd.
            if unsafe { libc::poll(&mut wait, 1, TICK_MS) } <= 0 {
                continue;
            }
            while let Ok(length @ 1..) = (&*self.devices[from]).read(&mut buffer) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                number += 1;
                self.pass(from, &buffer[..length], random, number);
            }
        }
    }

    /// Decides what becomes of one packet.
    fn pass(&self, from: usize, packet: &[u8], random: u64, number: u64) {
        // IPv4 with a destination in the hosts' network: 10.77.0.(host + 1).
        let Some((&[10, 77, 0, last], 4)) = packet.first_chunk::<20>().map(|header| {
            let destination: &[u8; 4] = header[16..20].try_into().expect("four bytes");
            (destination, header[0] >> 4)
        }) else {
            return;
        };
        let to = usize::from(last).wrapping_sub(1);
        if to >= self.devices.len() || to == from {
            return;
        }
        let way = lock(&self.ways)[from][to];
        let dropped = match i32::from(packet[9]) {
            libc::IPPROTO_UDP => way.no_udp,
            libc::IPPROTO_TCP => way.no_tcp,
            _ => way.no_udp && way.no_tcp,
        };
        if dropped {
            return;
        }
        let late_ms = way.delay_ms + if way.jitter_ms > 0 { random % (way.jitter_ms + 1) } else { 0 };
        if late_ms == 0 {
            // A device that takes no more loses the packet, as a full queue would.
            let _ = (&*self.devices[to]).write(packet);
            return;
        }
        let mut late = lock(&self.late);
        if late.len() < QUEUED_MAX {
            late.push(Late {
                due: Instant::now() + Duration::from_millis(late_ms),
                number,
                to,
                packet: packet.to_vec(),
            });
            self.news.notify_one();
        }
    }

    /// Delivers late packets when they are due.
    fn deliver(&self) {
        let mut late = lock(&self.late);
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            match late.peek() {
                Some(first) if first.due <= now => {
                    let Some(first) = late.pop() else { continue };
                    let _ = (&*self.devices[first.to]).write(&first.packet);
                }
                first => {
                    let wait = first.map_or(Duration::from_millis(100), |first| first.due - now);
                    late = self.news.wait_timeout(late, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}
