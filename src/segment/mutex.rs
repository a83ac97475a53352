//! A lock between processes that survives the death of its holder.

use std::cell::UnsafeCell;
use std::marker::PhantomData;

/// A robust, process-shared mutex. It lives in shared memory and must not move once initialised.
#[repr(C)]
pub struct RobustMutex {
    inner: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: a process-shared pthread mutex may be used from any thread of any process that maps it.
unsafe impl Send for RobustMutex {}
// SAFETY: as above.
unsafe impl Sync for RobustMutex {}

/// The lock was not had in time: its holder is stopped or very busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Holds a [`RobustMutex`]; dropping it unlocks. Not `Send`: the locking thread must unlock.
pub struct Guard<'a> {
    mutex: &'a RobustMutex,
    not_send: PhantomData<*const ()>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the initialised mutex.
        unsafe { libc::pthread_mutex_unlock(self.mutex.inner.get()) };
    }
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn pthread_mutex_clocklock(
        mutex: *mut libc::pthread_mutex_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

impl RobustMutex {
    /// Initialises the mutex where it lies.
    ///
    /// # Safety
    /// The memory is mapped for writing, stays where it is, and no thread or process uses it yet.
    pub unsafe fn init(&self) -> Result<(), std::io::Error> {
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attributes are initialised by the first call before the others read them, and the caller
        // guarantees that nobody uses the mutex yet.
        let code = unsafe {
            let attributes = attributes.as_mut_ptr();
            let mut code = libc::pthread_mutexattr_init(attributes);
            if code == 0 {
                code = libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED);
                if code == 0 {
                    code = libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST);
                }
                if code == 0 {
                    code = libc::pthread_mutex_init(self.inner.get(), attributes);
                }
                libc::pthread_mutexattr_destroy(attributes);
            }
            code
        };
        if code == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(code)) }
    }

    /// Takes the lock if it is free. The flag says that its last holder died with it.
    #[inline]
    pub fn try_lock(&self) -> Option<(Guard<'_>, bool)> {
        // SAFETY: the mutex was initialised before it was shared.
        let code = unsafe { libc::pthread_mutex_trylock(self.inner.get()) };
        self.taken(code)
    }

    /// Takes the lock, waiting at most `ms` milliseconds. The flag says that its last holder died with it.
    #[inline]
    pub fn lock_timeout(&self, ms: u64) -> Result<(Guard<'_>, bool), Busy> {
        match self.try_lock() {
            Some(taken) => Ok(taken),
            None => self.wait(ms),
        }
    }

    #[cold]
    fn wait(&self, ms: u64) -> Result<(Guard<'_>, bool), Busy> {
        // musl has no clocklock; there a stepped wall clock can stretch or cut the wait.
        #[cfg(target_env = "gnu")]
        let clock = libc::CLOCK_MONOTONIC;
        #[cfg(not(target_env = "gnu"))]
        let clock = libc::CLOCK_REALTIME;
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `until` is a valid timespec to write to.
        unsafe { libc::clock_gettime(clock, &mut until) };
        let nanos = until.tv_nsec as u64 + (ms % 1_000) * 1_000_000;
        until.tv_sec += (ms / 1_000 + nanos / 1_000_000_000) as libc::time_t;
        until.tv_nsec = (nanos % 1_000_000_000) as _;
        #[cfg(target_env = "gnu")]
        // SAFETY: the mutex was initialised before it was shared, `until` is a valid instant.
        let code = unsafe { pthread_mutex_clocklock(self.inner.get(), clock, &until) };
        #[cfg(not(target_env = "gnu"))]
        // SAFETY: as above.
        let code = unsafe { libc::pthread_mutex_timedlock(self.inner.get(), &until) };
        self.taken(code).ok_or(Busy)
    }

    /// Whether waiting on makes sense: nobody holds the lock by now (a wait may end late, or its holder has died), or
    /// the holder is runnable or sleeping rather than stopped (SIGSTOP, a debugger). `false` when it cannot be told.
    #[cold]
    pub fn is_worth_waiting_for(&self) -> bool {
        let Some(thread) = self.holder() else { return cfg!(target_env = "gnu") };
        match std::fs::read(format!("/proc/{thread}/stat")) {
            // The state follows the name, which is in parentheses and may contain anything.
            Ok(stat) => {
                let name_ends = stat.iter().rposition(|byte| *byte == b')');
                let state = name_ends.and_then(|at| stat.get(at + 2));
                state.is_some_and(|state| matches!(state, b'R' | b'S' | b'D' | b'I'))
            }
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }

    /// The holder's thread id, from the futex word that the kernel itself reads when a holder of a robust mutex dies.
    #[cfg(target_env = "gnu")]
    fn holder(&self) -> Option<u32> {
        const THREAD: u32 = 0x3fff_ffff;
        // SAFETY: glibc keeps the futex word of a mutex at its start, and changes it only atomically.
        let word = unsafe { &*self.inner.get().cast::<std::sync::atomic::AtomicU32>() };
        Some(word.load(std::sync::atomic::Ordering::Relaxed) & THREAD).filter(|thread| *thread != 0)
    }

    #[cfg(not(target_env = "gnu"))]
    fn holder(&self) -> Option<u32> {
        None
    }

    fn taken(&self, code: libc::c_int) -> Option<(Guard<'_>, bool)> {
        let guard = Guard { mutex: self, not_send: PhantomData };
        match code {
            0 => Some((guard, false)),
            libc::EOWNERDEAD => {
                // SAFETY: EOWNERDEAD means that this thread now holds the mutex.
                unsafe { libc::pthread_mutex_consistent(self.inner.get()) };
                Some((guard, true))
            }
            _ => {
                // Not held: the guard must not unlock it.
                std::mem::forget(guard);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutex() -> Box<RobustMutex> {
        // SAFETY: zero is a valid bit pattern of a pthread mutex, and nobody uses it before `init`.
        let mutex: Box<RobustMutex> = unsafe { Box::new_zeroed().assume_init() };
        // SAFETY: the box does not move and nobody else has it.
        unsafe { mutex.init() }.unwrap();
        mutex
    }

    #[test]
    fn a_held_lock_times_out_and_a_dead_holder_is_told() {
        let mutex = mutex();
        let held = mutex.lock_timeout(5).unwrap();
        assert!(!held.1);
        #[cfg(target_env = "gnu")]
        assert!(mutex.is_worth_waiting_for());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(mutex.lock_timeout(5).is_err()));
        });
        drop(held);
        std::thread::scope(|scope| {
            // The thread ends without unlocking.
            scope.spawn(|| std::mem::forget(mutex.try_lock().unwrap()));
        });
        assert!(mutex.lock_timeout(1_000).unwrap().1);
        assert!(!mutex.try_lock().unwrap().1);
        #[cfg(target_env = "gnu")]
        assert!(mutex.is_worth_waiting_for(), "it is free");
    }
}
