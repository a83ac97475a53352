//! Starting the node: at the first request that needs it, as a thread of the process that wins the claim in the
//! segment, or as a process of its own.

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::channel::Channel;
use super::fork::{OfProcess, pid, with_signals_blocked};
use super::process;
use super::sapi::Sapi;
use crate::config::{Config, Role, Runtime};
use crate::dataplane::is_served;
use crate::node::{self, Home, Job, LogSink, Place, Start, host_address};
use crate::segment::Segment;

/// Time between two looks at whether the segment's node is gone.
const LOOK_EVERY_MS: u64 = 100;

/// Time between two starts of a segment's node: a pile of requests that find it gone starts one.
const START_PAUSE_MS: u64 = 500;

/// How much longer than `leave_timeout_ms` the end of PHP may take.
const LEAVE_SLACK: Duration = Duration::from_millis(500);

/// The node, where this process runs it.
pub(super) struct Starter {
    config: Config,
    runtime: Runtime,
    cli: bool,
    segment: Arc<Segment>,
    log: LogSink,
    /// Hash of what the node is started with.
    stamp: u64,
    /// A request has begun: not before that.
    armed: AtomicBool,
    /// The host's place is another segment's: a node of this one is a guest.
    guest: AtomicBool,
    running: Mutex<Option<OfProcess<Running>>>,
    next_look_ms: AtomicU64,
}

struct Running {
    channel: Arc<Channel>,
    thread: JoinHandle<()>,
}

impl Starter {
    /// Starts nothing.
    pub(super) fn new(config: Config, sapi: &Sapi, segment: Arc<Segment>, log: LogSink) -> Self {
        Self {
            runtime: sapi.runtime(config.runtime),
            cli: sapi.is_cli(),
            stamp: stamp(&config),
            config,
            segment,
            log,
            armed: AtomicBool::new(false),
            guest: AtomicBool::new(false),
            running: Mutex::new(None),
            next_look_ms: AtomicU64::new(0),
        }
    }

    /// From now on a node may be started.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    /// The settings or the module may have changed: a node that was started with others makes room.
    pub(super) fn renew(&self) {
        self.segment.table().wanted_stamp.store(self.stamp, Ordering::Release);
    }

    /// Another segment has the host's place and is not for this process, because `why`.
    pub(super) fn be_guest(&self, why: &str) {
        if !self.guest.swap(true, Ordering::Relaxed) && !self.is_script() {
            let _here = self.log.install();
            tracing::warn!(
                "this host's node serves other processes than this one, which takes part as a client: {why}"
            );
        }
    }

    /// The queue to the node, if it is a thread of this process.
    pub(super) fn channel(&self) -> Option<Arc<Channel>> {
        let running = self.running.lock();
        // A thread that ended (it lost the claim to another process, say) answers nothing: the socket does.
        let alive = running.as_ref()?.get().filter(|running| !running.thread.is_finished())?;
        Some(alive.channel.clone())
    }

    /// Starts the node unless some process of the segment runs it. Cheap when called often.
    pub(super) fn ensure(&self, now_ms: u64) {
        if self.is_missing(now_ms) {
            self.start(now_ms);
        }
    }

    /// Whether the segment has no node and this process may start one. Looks now and then only.
    pub(super) fn is_missing(&self, now_ms: u64) -> bool {
        let looked = now_ms < self.next_look_ms.load(Ordering::Relaxed);
        let seems_there = self.segment.table().node_pid.load(Ordering::Relaxed) != 0;
        if looked && seems_there || !self.armed.load(Ordering::Relaxed) {
            return false;
        }
        self.next_look_ms.store(now_ms + LOOK_EVERY_MS, Ordering::Relaxed);
        // Held only to look: the node takes it for good.
        self.segment.claim().try_lock().is_some()
    }

    /// Starts the node.
    pub(super) fn start(&self, now_ms: u64) {
        let table = self.segment.table();
        if table.is_retired() || !table.may_start(now_ms, START_PAUSE_MS) {
            return;
        }
        if self.guest.load(Ordering::Relaxed) && !host_address(&self.config).is_some_and(|host| is_served(&host)) {
            // The host's place has become free: it is this segment's.
            self.guest.store(false, Ordering::Relaxed);
        }
        match self.runtime {
            Runtime::Process => self.start_process(),
            Runtime::Thread | Runtime::Auto => self.start_thread(),
        }
    }

    fn start_process(&self) {
        self.renew();
        let descriptors = self.segment.descriptors();
        let keep = [descriptors.memory.as_raw_fd(), descriptors.hangup.as_raw_fd(), self.log.descriptor()];
        let start = self.plan(Home::Process);
        let title = format!("ephpm_kv: node {}", start.node_id);
        if let Err(error) = process::detach(&title, &keep, || node::run(start)) {
            let reason = format!("the node process cannot be started, counting alone (degraded): {error}");
            let _here = self.log.install();
            tracing::error!("{reason}");
            self.segment.table().reason.set(&reason);
        }
    }

    fn start_thread(&self) {
        let mut running = self.running.lock();
        if let Some(previous) = running.take().and_then(OfProcess::into_inner) {
            if !previous.thread.is_finished() {
                // Started a moment ago and about to take the claim.
                *running = Some(OfProcess::new(previous));
                return;
            }
            let _ = previous.thread.join();
        }
        let Ok((channel, jobs)) = Channel::new() else { return };
        let channel = Arc::new(channel);
        let start = self.plan(Home::Thread { jobs, bell: channel.bell() });
        let builder = std::thread::Builder::new().name("ephpm_kv".to_string());
        // A thread inherits the mask: PHP's signals must be PHP's.
        let spawned = with_signals_blocked(|| builder.spawn(move || node::run(start)));
        if let Ok(thread) = spawned {
            *running = Some(OfProcess::new(Running { channel, thread }));
        }
    }

    fn plan(&self, home: Home) -> Start {
        let script = self.is_script();
        let guest = script || self.guest.load(Ordering::Relaxed);
        Start {
            node_id: if guest { self.guest_id() } else { self.host_id() },
            guest_id: self.guest_id(),
            client: guest || self.config.role == Role::Client,
            place: match (script, guest) {
                (true, _) => Place::Script,
                (false, true) => Place::Guest,
                (false, false) => Place::Host,
            },
            config: self.config.clone(),
            segment: self.segment.clone(),
            home,
            stamp: self.stamp,
            log: if script { self.log.clone().errors_only() } else { self.log.clone() },
        }
    }

    /// A CLI script whose node is for itself alone.
    fn is_script(&self) -> bool {
        self.cli && self.config.role == Role::Auto
    }

    /// The node id that a node started here has.
    pub(super) fn node_id(&self) -> String {
        if self.is_script() || self.guest.load(Ordering::Relaxed) { self.guest_id() } else { self.host_id() }
    }

    /// `ephpm_kv.node_id`, or host name and port.
    fn host_id(&self) -> String {
        if !self.config.node_id.is_empty() {
            return self.config.node_id.clone();
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let port = self.config.bind.map_or(0, |bind| bind.port());
        let host: String = host.chars().take(48).collect();
        format!("{host}:{port}")
    }

    /// The same with this process's id.
    fn guest_id(&self) -> String {
        let (mut node_id, suffix) = (self.host_id(), format!("#{}", pid()));
        node_id.truncate(crate::segment::table::NODE_ID_LEN_MAX - suffix.len());
        node_id.push_str(&suffix);
        node_id
    }

    /// Ends the node if it is this process's, in order.
    pub(super) fn stop(&self) {
        let Some(running) = self.running.lock().take().and_then(OfProcess::into_inner) else { return };
        let timeout = Duration::from_millis(self.config.leave_timeout_ms);
        let deadline = Instant::now() + timeout + LEAVE_SLACK;
        while !running.channel.post(Job::Stop { timeout }) {
            if running.thread.is_finished() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        while !running.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if running.thread.is_finished() {
            let _ = running.thread.join();
        } else {
            // It touches only what outlives it (the module stays mapped): the process may end under it. Its bell
            // must not be closed under it.
            std::mem::forget(running);
        }
    }
}

/// Hash of everything that a node is started with: its settings, and which file the module is.
fn stamp(config: &Config) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is one of this module's functions, `info` is valid to write to (and was zeroed).
    let info = unsafe {
        libc::dladdr(stamp as *const libc::c_void, info.as_mut_ptr());
        info.assume_init()
    };
    let file = (!info.dli_fname.is_null()).then(|| {
        // SAFETY: the loader's own name of the module.
        let path = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
        std::fs::metadata(std::ffi::OsStr::from_bytes(path.to_bytes()))
    });
    let file =
        file.and_then(Result::ok).map(|file| (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()));
    xxhash_rust::xxh3::xxh3_64(format!("{config:?} {file:?}").as_bytes())
}
