//! What tells a node to stop, and in a PHP process brings it the calls of its threads.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Receiver;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::{Home, Job, Place};
use crate::config::Config;
use crate::dataplane::{UnixAddr, is_served};
use crate::segment::Segment;

/// After a signal to end: how long the PHP processes, which may have got it too, are waited for.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks at whether a node with other settings is wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time between two looks of a guest at whether the host's node is gone.
const GUEST_LOOK_EVERY: Duration = Duration::from_secs(5);

/// The source of a node's orders.
pub(super) struct Orders {
    of: Source,
    leave_timeout: Duration,
    /// A guest's: where the host's node serves.
    host: Option<(UnixAddr, tokio::time::Interval)>,
}

enum Source {
    /// Of a node that is a thread.
    Thread { jobs: Receiver<Job>, bell: AsyncFd<OwnedFd> },
    /// Of a node that is a process.
    Process(Box<Process>),
}

struct Process {
    segment: Arc<Segment>,
    stamp: u64,
    /// Hangs up when no PHP process of the segment is left.
    hangup: AsyncFd<OwnedFd>,
    /// SIGTERM, SIGQUIT and SIGINT.
    signals: AsyncFd<OwnedFd>,
    stop_at: Option<Instant>,
    looks: tokio::time::Interval,
}

/// A descriptor that stays open whatever this runtime does, as one of this runtime.
fn watch(descriptor: RawFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the bell and the lifeline are open in this thread's descriptor table for as long as the node runs.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let own = rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?;
    // SAFETY: `OwnedFd` names one open descriptor until the AsyncFd drops it.
    Ok(unsafe { AsyncFd::register(own) }?)
}

impl Orders {
    /// Of a node that runs at `home`. Must run on the node's runtime.
    pub(super) fn new(home: Home, segment: &Arc<Segment>, config: &Config, stamp: u64) -> io::Result<Self> {
        let of = match home {
            Home::Thread { jobs, bell } => Source::Thread { jobs, bell: watch(bell)? },
            Home::Process => Source::Process(Box::new(Process {
                segment: segment.clone(),
                stamp,
                hangup: watch(segment.descriptors().hangup.as_raw_fd())?,
                signals: signals()?,
                stop_at: None,
                looks: tokio::time::interval(LOOK_EVERY),
            })),
        };
        Ok(Self { of, leave_timeout: Duration::from_millis(config.leave_timeout_ms), host: None })
    }

    /// The node is a guest while somebody serves at `host`.
    pub(super) fn end_without(&mut self, host: UnixAddr, place: Place) {
        if place == Place::Guest {
            self.host = Some((host, tokio::time::interval(GUEST_LOOK_EVERY)));
        }
    }

    /// Gives every job to `take` until told to stop; the time to leave in. May be dropped and called again.
    pub(super) async fn obey(&mut self, take: &mut dyn FnMut(Job)) -> Duration {
        let Self { of, leave_timeout, host } = self;
        let told = async {
            match of {
                Source::Thread { jobs, bell } => work(jobs, bell, take).await,
                Source::Process(process) => {
                    process.wait().await;
                    *leave_timeout
                }
            }
        };
        tokio::select! {
            timeout = told => timeout,
            () = is_free(host) => {
                tracing::info!("the host's node is gone: ending, so that this segment's takes its place");
                *leave_timeout
            }
        }
    }
}

/// Waits until nobody serves at the place of a guest's host; for ever if the node is none.
async fn is_free(host: &mut Option<(UnixAddr, tokio::time::Interval)>) {
    let Some((address, looks)) = host else { return std::future::pending().await };
    loop {
        looks.tick().await;
        if !is_served(address) {
            return;
        }
    }
}

/// Takes jobs until one says stop.
async fn work(jobs: &Receiver<Job>, bell: &AsyncFd<OwnedFd>, take: &mut dyn FnMut(Job)) -> Duration {
    loop {
        ring(bell).await;
        while let Ok(job) = jobs.try_recv() {
            match job {
                Job::Stop { timeout } => return timeout,
                job => take(job),
            }
        }
    }
}

impl Process {
    async fn wait(&mut self) {
        loop {
            let Self { segment, stamp, hangup, signals, stop_at, looks } = self;
            let patience_ends = async {
                match stop_at {
                    Some(at) => tokio::time::sleep_until(*at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = hung_up(hangup) => {
                    tracing::info!("no PHP process is left");
                    return;
                },
                () = patience_ends => return,
                () = told(signals) => if stop_at.is_none() {
                    tracing::info!("told by a signal to end");
                    *stop_at = Some(Instant::now() + SIGNAL_PATIENCE);
                },
                _ = looks.tick() => {
                    let wanted = segment.table().wanted_stamp.load(Ordering::Acquire);
                    if wanted != 0 && wanted != *stamp {
                        tracing::info!("the settings or the module have changed: making room for another node");
                        return;
                    }
                }
            }
        }
    }
}

/// The signals that end the node's process, as a descriptor: a handler would need state that outlives forks.
fn signals() -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the set is filled before it is read; the process is the node's, so its mask is, too.
    let descriptor = unsafe {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGQUIT, libc::SIGINT] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, nobody else's; `OwnedFd` names it until the AsyncFd drops it.
    Ok(unsafe { AsyncFd::register(OwnedFd::from_raw_fd(descriptor)) }?)
}

/// Waits for a signal.
async fn told(signals: &AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = signals.readable().await {
        match rustix::io::read(signals.get_ref(), &mut [0_u8; size_of::<libc::signalfd_siginfo>()]) {
            Ok(_) => return,
            Err(_) => ready.clear_ready(),
        }
    }
}

/// Waits until nobody holds the lifeline's other end.
async fn hung_up(hangup: &AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = hangup.readable().await {
        match rustix::io::read(hangup.get_ref(), &mut [0_u8; 64]) {
            Ok(0) => return,
            // Nobody has any business to write there.
            Ok(_) => {}
            Err(_) => ready.clear_ready(),
        }
    }
}

/// Waits for the bell and silences it.
async fn ring(bell: &AsyncFd<OwnedFd>) {
    if let Ok(mut ready) = bell.readable().await {
        let _ = rustix::io::read(bell.get_ref(), &mut [0_u8; 8]);
        ready.clear_ready();
    }
}
