//! The only place that reads a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host-monotonic milliseconds, comparable between all processes of this host.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The kernel's coarse monotonic clock: 6 ns to read, resolution one tick (1 to 10 ms).
    #[default]
    System,
    /// A clock that tests move by hand.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// A manual clock and the handle that moves it (milliseconds).
    pub fn manual(start_ms: u64) -> (Self, Arc<AtomicU64>) {
        let hand = Arc::new(AtomicU64::new(start_ms));
        (Self::Manual(hand.clone()), hand)
    }

    /// Coarse monotonic milliseconds.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(libc::CLOCK_MONOTONIC_COARSE),
            Self::Manual(hand) => hand.load(Ordering::Relaxed),
        }
    }

    /// Milliseconds since the machine was started, its sleep included: how long something was not looked at.
    pub fn since_boot_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(libc::CLOCK_BOOTTIME),
            Self::Manual(hand) => hand.load(Ordering::Relaxed),
        }
    }

    /// Wall-clock milliseconds since 1970: only the seed of stamps, never a deadline.
    pub fn wall_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(libc::CLOCK_REALTIME_COARSE),
            Self::Manual(hand) => hand.load(Ordering::Relaxed),
        }
    }
}

/// Wall-clock nanoseconds since 1970: the generation of a node, new at every start.
pub fn generation() -> u64 {
    let time = read(libc::CLOCK_REALTIME);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn read_ms(id: libc::clockid_t) -> u64 {
    let time = read(id);
    time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}

fn read(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to, and these clock ids exist on every supported kernel.
    unsafe { libc::clock_gettime(id, &mut time) };
    time
}
