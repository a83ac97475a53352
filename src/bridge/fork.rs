//! What a fork means for this process's part of the bridge.
//!
//! - prepare: nothing. PHP forks on the thread that calls us, so none of our locks is held by it, and the node's
//!   thread has a descriptor table of its own, of which a child inherits nothing.
//! - parent: nothing. It keeps its node.
//! - child: the segment is shared and stays. The node's thread does not exist here: its handle is forgotten, not
//!   dropped (a join would wait for ever), and the child reaches the node over a connection of its own.

use std::sync::atomic::{AtomicU32, Ordering};

/// A value that belongs to the process that made it.
pub(super) struct OfProcess<T> {
    pid: u32,
    value: T,
}

impl<T> OfProcess<T> {
    /// `value`, of this process.
    pub(super) fn new(value: T) -> Self {
        Self { pid: pid(), value }
    }

    /// The value, in the process that made it.
    pub(super) fn get(&self) -> Option<&T> {
        (self.pid == pid()).then_some(&self.value)
    }

    /// The same, to change.
    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        (self.pid == pid()).then_some(&mut self.value)
    }

    /// Takes the value out, or forgets it in a child of the process that made it.
    pub(super) fn into_inner(self) -> Option<T> {
        if self.pid == pid() {
            return Some(self.value);
        }
        std::mem::forget(self.value);
        None
    }
}

static PID: AtomicU32 = AtomicU32::new(0);

/// This process's id, read from the kernel once per process.
#[inline]
pub(super) fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => learn_pid(),
        pid => pid,
    }
}

#[cold]
fn learn_pid() -> u32 {
    static WATCHING: std::sync::Once = std::sync::Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is safe in a child of a process with many threads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let pid = std::process::id();
    PID.store(pid, Ordering::Relaxed);
    pid
}

extern "C" fn in_child() {
    PID.store(0, Ordering::Relaxed);
}

/// Runs `run` with every signal blocked on this thread: what it starts inherits the mask, and PHP's handlers wait.
pub(super) fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_gone_in_a_child_and_stays_in_the_parent() {
        let value = OfProcess::new(7);
        assert_eq!(value.get(), Some(&7));
        // SAFETY: the child only compares and ends without running anything of the parent's.
        match unsafe { libc::fork() } {
            0 => {
                let forgotten = value.get().is_none() && value.into_inner().is_none();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!forgotten)) }
            }
            child => {
                let mut status = -1;
                // SAFETY: `status` is valid to write to and `child` is our child.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0);
                assert_eq!(value.into_inner(), Some(7));
            }
        }
    }
}
