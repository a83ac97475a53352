//! A start of the module and the processes forked from it: what each of them does at its first request, and what
//! the first of them does at its end.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

use super::find::HANDED_ON;
use super::fork::pid;
use crate::segment::Segment;
use crate::segment::table::NodeState;

/// How long a node may take to notice that nobody is left.
const NOTICE_PATIENCE: Duration = Duration::from_millis(250);

/// The processes of one start of the module.
pub(super) struct Family {
    /// Process that started the module: not yet the master of a server that puts itself into the background.
    founder: u32,
    /// The segment as it was found then.
    segment: Arc<Segment>,
    /// The segment is handed on to what this process executes, until its first request.
    handed_on: bool,
    leave_timeout: Duration,
    /// Process of this family that has entered last, as this one sees it.
    entered: AtomicU32,
    /// Shared by the family: its master's process, 0 before the first request.
    master: &'static AtomicU32,
}

/// The family of this process's last start of the module, for the end of the process.
static FAMILY: AtomicPtr<Family> = AtomicPtr::new(ptr::null_mut());

impl Family {
    /// Founds one. `forks`: its members are forked, and the end of their master waits for the node's.
    /// `executes_itself`: the segment is handed on to what this process executes.
    pub(super) fn found(
        segment: Arc<Segment>,
        forks: bool,
        executes_itself: bool,
        leave_timeout: Duration,
    ) -> std::io::Result<&'static Self> {
        let handed_on = executes_itself && segment.descriptors().describe().map(hand_on).is_ok();
        segment.descriptors().set_inherited(handed_on);
        let (founder, entered) = (pid(), AtomicU32::new(0));
        // SAFETY: what is stored there is never freed.
        let master = match unsafe { FAMILY.load(Ordering::Acquire).as_ref() } {
            // Started anew in one process: that is the master still.
            Some(before) => before.master,
            None => shared_word()?,
        };
        let family = Self { founder, segment, handed_on, leave_timeout, entered, master };
        let family: &'static Self = Box::leak(Box::new(family));
        if forks && FAMILY.swap(ptr::from_ref(family).cast_mut(), Ordering::AcqRel).is_null() {
            // SAFETY: the handler is a function of this module, which stays mapped (`-z nodelete`).
            unsafe { libc::atexit(at_exit) };
        }
        Ok(family)
    }

    /// Whether a request is this process's first. From then on scripts may start programs, which inherit nothing.
    pub(super) fn enter(&self) -> bool {
        let me = pid();
        if self.entered.load(Ordering::Relaxed) == me {
            return false;
        }
        self.entered.store(me, Ordering::Relaxed);
        if self.handed_on && me != self.founder {
            self.segment.descriptors().set_inherited(false);
            // SAFETY: a process of a server that forks has one thread here, and no script runs yet.
            unsafe { std::env::remove_var(HANDED_ON) };
        }
        let parent = || rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get() as u32);
        let master = if me == self.founder { me } else { parent() };
        // A worker that outlives its master has another parent.
        let _ = self.master.compare_exchange(0, master, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}

fn hand_on(text: String) {
    // SAFETY: the module is being started; no other thread of the process reads the environment.
    unsafe { std::env::set_var(HANDED_ON, text) };
}

/// A word, zero at first, that this process shares with those that are forked from it.
fn shared_word() -> std::io::Result<&'static AtomicU32> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping, which is never unmapped.
    let page = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size_of::<AtomicU32>(), protection, flags) }?;
    // SAFETY: mapped for good, aligned to a page, zeroed, and only used as this atomic.
    Ok(unsafe { &*page.cast::<AtomicU32>() })
}

/// The end of a process, in order. When it is the master, its workers are gone: the node leaves if nobody else is
/// there, and must have the time, because with the first process of a container everything ends.
extern "C" fn at_exit() {
    // SAFETY: what is stored there is never freed.
    let Some(family) = (unsafe { FAMILY.load(Ordering::Acquire).as_ref() }) else { return };
    if family.master.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    // SAFETY: the descriptor is the segment's, which is not used in this process any more; the process ends.
    unsafe { libc::close(family.segment.descriptors().alive.as_raw_fd()) };
    let begun = Instant::now();
    while family.segment.has_node() && begun.elapsed() < family.leave_timeout {
        let leaves = family.segment.table().state() == NodeState::Leaving;
        // Others are there and keep it.
        if !leaves && begun.elapsed() >= NOTICE_PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
