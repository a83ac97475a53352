//! Starting the node: at the first request that needs it, in the process that wins the claim in the segment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::channel::Channel;
use super::fork::{OfProcess, pid};
use crate::config::{Config, Role};
use crate::node::{self, Job, LogSink, Start};
use crate::segment::Segment;

/// Time between two looks at whether the segment's node is gone.
const LOOK_EVERY_MS: u64 = 100;

/// How much longer than `leave_timeout_ms` the end of PHP may take.
const LEAVE_SLACK: Duration = Duration::from_millis(500);

/// The node, where this process runs it.
pub(super) struct Starter {
    config: Config,
    cli: bool,
    segment: Arc<Segment>,
    log: LogSink,
    running: Mutex<Option<OfProcess<Running>>>,
    next_look_ms: AtomicU64,
}

struct Running {
    channel: Arc<Channel>,
    thread: JoinHandle<()>,
}

impl Starter {
    /// Starts nothing.
    pub(super) fn new(config: Config, cli: bool, segment: Arc<Segment>, log: LogSink) -> Self {
        Self { config, cli, segment, log, running: Mutex::new(None), next_look_ms: AtomicU64::new(0) }
    }

    /// The queue to the node, if it is a thread of this process.
    pub(super) fn channel(&self) -> Option<Arc<Channel>> {
        let running = self.running.lock();
        // A thread that ended (it lost the claim to another process, say) answers nothing: the socket does.
        let alive = running.as_ref()?.get().filter(|running| !running.thread.is_finished())?;
        Some(alive.channel.clone())
    }

    /// Starts the node here unless some process of the segment runs it. Cheap when called often.
    pub(super) fn ensure(&self, now_ms: u64) {
        let next = self.next_look_ms.load(Ordering::Relaxed);
        if now_ms < next && self.segment.table().node_pid.load(Ordering::Relaxed) != 0 {
            return;
        }
        self.next_look_ms.store(now_ms + LOOK_EVERY_MS, Ordering::Relaxed);
        // Held only to look: the node's own thread takes it for good.
        let free = self.segment.claim().try_lock().is_some();
        if free {
            self.start();
        }
    }

    fn start(&self) {
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
        let client = match self.config.role {
            Role::Client => true,
            Role::Member => false,
            Role::Auto => self.cli,
        };
        let script = self.is_script();
        let start = Start {
            node_id: self.node_id(),
            client,
            config: self.config.clone(),
            segment: self.segment.clone(),
            jobs,
            bell: channel.bell(),
            log: if script { self.log.clone().errors_only() } else { self.log.clone() },
        };
        let builder = std::thread::Builder::new().name("ephpm_kv".to_string());
        // A thread inherits the mask: PHP's signals must be PHP's.
        let spawned = with_signals_blocked(|| builder.spawn(move || node::run(start)));
        if let Ok(thread) = spawned {
            *running = Some(OfProcess::new(Running { channel, thread }));
        }
    }

    /// A CLI script whose node is for itself alone.
    fn is_script(&self) -> bool {
        self.cli && self.config.role == Role::Auto
    }

    /// `ephpm_kv.node_id`, or host name and port; with the process id for a script's own node.
    pub(super) fn node_id(&self) -> String {
        let mut node_id = if self.config.node_id.is_empty() {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let port = self.config.bind.map_or(0, |bind| bind.port());
            let host: String = host.chars().take(48).collect();
            format!("{host}:{port}")
        } else {
            self.config.node_id.clone()
        };
        if self.is_script() {
            let suffix = format!("#{}", pid());
            node_id.truncate(crate::segment::table::NODE_ID_LEN_MAX - suffix.len());
            node_id.push_str(&suffix);
        }
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

fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid to write to; `before` is only read after pthread_sigmask has filled it.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = run();
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
