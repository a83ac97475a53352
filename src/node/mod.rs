//! The node: composition root of everything that runs in the background of a host. One per host segment.

mod absence;
mod leave;
mod life;
mod log;
mod meet;
mod numbers;
mod orders;
mod parts;
mod serve;
#[cfg(test)]
mod simulation;
mod timers;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::config::Config;
use crate::error::SetupError;
use crate::metrics::Lost;
use crate::router::Done;
use crate::segment::Segment;
use crate::segment::descriptors::Descriptors;
use crate::segment::table::NodeState;
use crate::wire::message::Call;

pub use life::settings_of;
pub use log::LogSink;
pub use meet::{calls_address, host_address};

/// How long another process may hold the claim that runs no node, in milliseconds.
const CLAIM_PATIENCE_MS: u64 = 10;

/// What PHP threads of the node's own process ask of it.
pub enum Job {
    /// Decide this call by the deadline.
    Call {
        /// The call.
        call: Call,
        /// When the caller stops waiting.
        deadline: Instant,
        /// Receives the reply.
        done: Done,
    },
    /// End every window of a namespace, at every owner.
    Flush {
        /// The namespace.
        namespace: Vec<u8>,
        /// When the caller stops waiting.
        deadline: Instant,
        /// Receives whether every owner did.
        done: Box<dyn FnOnce(bool) + Send>,
    },
    /// Leave in order, within this time, and end.
    Stop {
        /// For leaving.
        timeout: Duration,
    },
}

/// Where the node runs, and how its own process's PHP threads (if it has any) reach it.
pub enum Home {
    /// A thread of a PHP process.
    Thread {
        /// Jobs of this process.
        jobs: Receiver<Job>,
        /// Rings when `jobs` has something: an eventfd that this process shares with the node's thread.
        bell: RawFd,
    },
    /// A process of its own, which ends when no PHP process of the segment is left.
    Process,
}

/// What the node is to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host's node: on the host's port, and the one to attach to.
    Host,
    /// The host's node serves another segment: this one is a client on a port that the system gives, until that one
    /// has gone.
    Guest,
    /// A CLI script's own: the same, for good.
    Script,
}

/// What a node is started with.
pub struct Start {
    /// The settings.
    pub config: Config,
    /// What it is to its host.
    pub place: Place,
    /// Owns nothing. Always so for guests and scripts.
    pub client: bool,
    /// The identity.
    pub node_id: String,
    /// The identity if it has to be a guest after all.
    pub guest_id: String,
    /// The host segment; its claim is taken by the node's thread.
    pub segment: Arc<Segment>,
    /// Where it runs.
    pub home: Home,
    /// Hash of what it is started with.
    pub stamp: u64,
    /// Where to log.
    pub log: LogSink,
}

/// Runs the node on this thread until it is stopped. Returns at once when another process of the segment has one.
///
/// The thread must be the node's alone. In a PHP process it must have all signals blocked, and gets a descriptor table
/// of its own, so that nothing the node opens is inherited by what PHP forks or starts, and holds nothing that PHP has
/// open.
pub fn run(start: Start) {
    let segment = start.segment.clone();
    // Others hold it for a moment only, to look.
    let Ok((claim, _recovered)) = segment.claim().lock_timeout(CLAIM_PATIENCE_MS) else { return };
    if let Home::Thread { bell, .. } = &start.home {
        let Descriptors { memory, hangup, alive } = segment.descriptors();
        let of_segment = [memory, hangup, alive].map(AsRawFd::as_raw_fd);
        isolate_descriptors(&[&[*bell, start.log.descriptor()], &of_segment[..]].concat());
    }
    let table = segment.table();
    forget_predecessor(&segment);
    table.set_state(NodeState::Joining, "starting");
    table.node_pid.store(std::process::id(), Ordering::Release);
    let guard = start.log.install();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_runtime(start)));
    let reason = match ended {
        Ok(Ok(())) => String::new(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the node panicked".to_string(),
    };
    if !reason.is_empty() {
        tracing::error!(reason = %reason, "node ended");
    }
    drop(guard);
    table.lease_until_ms.store(0, Ordering::Release);
    table.set_heard(false);
    table.members_live.store(0, Ordering::Release);
    table.set_state(NodeState::Alone, &reason);
    table.node_pid.store(0, Ordering::Release);
    drop(claim);
}

/// What a node before this one left in the segment's table is not this one's.
fn forget_predecessor(segment: &Segment) {
    let table = segment.table();
    // What it owned is not ours until the cluster says so.
    for slot in 0..crate::segment::table::SLOTS as u16 {
        table.set_owner(slot, crate::segment::table::Owner::Nobody, table.term(slot));
    }
    table.lease_until_ms.store(0, Ordering::Release);
    table.set_heard(false);
    table.set_complete(false, table.copies_dropped());
    // A node that was killed took the answers to these with it.
    let unresolved = table.unresolved.swap(0, Ordering::Relaxed);
    segment.metrics().lose(Lost::Unresolved, unresolved);
}

fn run_runtime(start: Start) -> Result<(), SetupError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(2)
        .thread_keep_alive(Duration::from_secs(5))
        .build()
        .map_err(|error| SetupError::new("ephpm_kv node", error))?;
    runtime.block_on(life::live(start));
    // A name that is being looked up must not hold the end of PHP up.
    runtime.shutdown_timeout(Duration::from_millis(10));
    Ok(())
}

/// Gives this thread a descriptor table of its own that holds 0 to 2 and `keep`.
fn isolate_descriptors(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().filter(|fd| **fd > 2).map(|fd| *fd as u32).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut first = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if first < fd || fd == u32::MAX {
            let last = if fd == u32::MAX { u32::MAX } else { fd - 1 };
            // SAFETY: close_range reads no memory. With the unshare flag it closes only in this thread's own copy of
            // the table, in which nobody else uses a descriptor.
            let result =
                unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE as libc::c_uint) };
            if result != 0 {
                // An old kernel: the node works, but what PHP starts inherits its descriptors' lifetimes.
                return;
            }
        }
        first = fd.saturating_add(1);
    }
}
