//! The host segment: the memory that all PHP processes of one host share.

pub mod mutex;
pub mod table;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::clock::Clock;
use crate::error::SetupError;
use crate::metrics::Metrics;
use mutex::RobustMutex;
use table::Table;

/// Says that a mapping is a host segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"EPHPMKV\x01");

/// Number of the layout; a segment of another layout is not taken over.
pub const LAYOUT: u32 = 1;

/// Smallest segment in bytes.
pub const MEMORY_MIN: u64 = 2 << 20;

/// Largest segment in bytes: references are 32 bits of 16 bytes.
pub const MEMORY_MAX: u64 = 64 << 30;

/// How far ahead of the wall clock a received stamp may be, in milliseconds, before it is ignored: a broken peer must
/// not burn the clock.
const STAMP_AHEAD_MAX_MS: u64 = 86_400_000;

/// The first bytes of the segment. Zero is every field's initial value unless `create` sets it.
#[repr(C)]
struct Header {
    magic: u64,
    layout: u64,
    size: u64,
    origin: u64,
    token: [u8; 16],
    hash_seed: u64,
    hlc: AtomicU64,
    next_sweep_ms: AtomicU64,
    sweep_cursor: AtomicU64,
    area_ready: AtomicU64,
    area_setup: RobustMutex,
    claim: RobustMutex,
    metrics: Metrics,
    table: Table,
}

/// The mapping. Forked children share it; it is left out of core dumps; its pages are touched only when used.
pub struct Segment {
    base: NonNull<u8>,
    size: usize,
    fd: OwnedFd,
}

// SAFETY: all shared state behind `base` is atomics and process-shared locks, or is written only before sharing.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a fresh segment of `memory_bytes` (rounded down to whole pages). Errors: a size out of range, no 16-byte
    /// atomics on this machine, or the kernel's refusal.
    pub fn create(memory_bytes: u64) -> Result<Arc<Self>, SetupError> {
        let fail = |what: &str, error: &dyn std::fmt::Display| SetupError::new(format!("host segment: {what}"), error);
        if !(MEMORY_MIN..=MEMORY_MAX).contains(&memory_bytes) {
            return Err(SetupError::new(
                "ephpm_kv.memory",
                format!("{memory_bytes} bytes is not between {MEMORY_MIN} and {MEMORY_MAX}"),
            ));
        }
        if !portable_atomic::AtomicU128::is_lock_free() {
            return Err(fail("atomics", &"this processor has no 16-byte compare-and-swap"));
        }
        let size = (memory_bytes & !0xffff) as usize;
        let fd = rustix::fs::memfd_create("ephpm_kv", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| fail("memfd_create", &error))?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(|error| fail("fchmod", &error))?;
        rustix::fs::ftruncate(&fd, size as u64).map_err(|error| fail("ftruncate", &error))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|error| fail("seals", &error))?;
        // SAFETY: a fresh shared mapping of a file of exactly `size` bytes that cannot shrink.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }
        .map_err(|error| fail("mmap", &error))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| fail("mmap", &"mapped at zero"))?;
        let segment = Self { base, size, fd };
        // Counters are nobody's business in a core file; not being able to say so is no reason to fail.
        // SAFETY: the range is this mapping; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, Advice::LinuxDontDump) };
        segment.initialise().map_err(|error| fail("set-up", &error))?;
        Ok(Arc::new(segment))
    }

    fn initialise(&self) -> Result<(), std::io::Error> {
        let mut random = [0_u8; 32];
        let mut filled = 0;
        while filled < random.len() {
            filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let word = |at: usize| random[at..at + 8].iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let header = self.base.cast::<Header>().as_ptr();
        // SAFETY: the mapping is larger than the header, page aligned, zeroed (valid for every field), and not shared
        // with anybody yet.
        unsafe {
            (*header).layout = u64::from(LAYOUT);
            (*header).size = self.size as u64;
            (*header).origin = word(0) | 1;
            (*header).hash_seed = word(8);
            (*header).token.copy_from_slice(&random[16..]);
            (*header).area_setup.init()?;
            (*header).claim.init()?;
            (*header).magic = MAGIC;
        }
        Ok(())
    }

    fn header(&self) -> &Header {
        // SAFETY: `create` initialised the header; it is only changed through atomics and locks since.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// What the node publishes to PHP threads.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.header().table
    }

    /// The host's counters of events.
    #[inline]
    pub fn metrics(&self) -> &Metrics {
        &self.header().metrics
    }

    /// The segment's random identity, never 0.
    #[inline]
    pub fn origin(&self) -> u64 {
        self.header().origin
    }

    /// Random bytes that only processes of this segment know.
    pub fn token(&self) -> [u8; 16] {
        self.header().token
    }

    /// Seed of the store's keyed hash.
    #[inline]
    pub fn hash_seed(&self) -> u64 {
        self.header().hash_seed
    }

    /// Who holds this may run the node.
    pub fn claim(&self) -> &RobustMutex {
        &self.header().claim
    }

    /// Size of the mapping in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memfd's number.
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Coarse monotonic milliseconds of the next sweep by a process without a node.
    #[inline]
    pub fn next_sweep_ms(&self) -> &AtomicU64 {
        &self.header().next_sweep_ms
    }

    /// Where the sweep goes on.
    pub fn sweep_cursor(&self) -> &AtomicU64 {
        &self.header().sweep_cursor
    }

    /// A new stamp of the hybrid logical clock: later than every stamp given out or observed here before.
    #[inline]
    pub fn hlc(&self, clock: &Clock) -> u64 {
        let wall = clock.wall_ms() << 16;
        let hlc = &self.header().hlc;
        let mut last = hlc.load(Ordering::Relaxed);
        loop {
            let next = wall.max(last + 1);
            match hlc.compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(now) => last = now,
            }
        }
    }

    /// Raises the clock to at least a received stamp. A stamp more than a day ahead of the wall clock is ignored.
    pub fn hlc_observe(&self, stamp: u64, clock: &Clock) {
        if stamp >> 16 <= clock.wall_ms().saturating_add(STAMP_AHEAD_MAX_MS) {
            self.header().hlc.fetch_max(stamp, Ordering::AcqRel);
        }
    }

    /// The memory behind the header, for the store: its start (64 KiB aligned) and length in bytes.
    pub fn area(&self) -> (NonNull<u8>, usize) {
        let start = std::mem::size_of::<Header>().next_multiple_of(1 << 16);
        // SAFETY: the mapping (at least 2 MiB) is larger than the header.
        (unsafe { self.base.add(start) }, self.size - start)
    }

    /// Runs `setup` on the area once in the life of the segment, whoever comes first; again if that one was killed
    /// half-way. Errors: what `setup` says, or a lock not had within a second.
    pub fn area_once<E>(&self, setup: impl FnOnce() -> Result<(), E>, busy: impl FnOnce() -> E) -> Result<(), E> {
        let header = self.header();
        if header.area_ready.load(Ordering::Acquire) == 0 {
            let Ok((_guard, _)) = header.area_setup.lock_timeout(1_000) else { return Err(busy()) };
            if header.area_ready.load(Ordering::Acquire) == 0 {
                setup()?;
                header.area_ready.store(1, Ordering::Release);
            }
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_an_identity_and_its_size_cannot_change() {
        let one = Segment::create(4 << 20).unwrap();
        let other = Segment::create(4 << 20).unwrap();
        assert_ne!(one.origin(), 0);
        assert_ne!(one.origin(), other.origin());
        assert_ne!(one.token(), other.token());
        assert!(rustix::fs::ftruncate(one.fd(), 1 << 20).is_err());
        assert!(Segment::create(1 << 20).is_err());
        assert!(one.claim().try_lock().is_some());
    }

    #[test]
    fn stamps_never_repeat_and_follow_what_was_observed() {
        let segment = Segment::create(4 << 20).unwrap();
        let (clock, hand) = Clock::manual(1_000);
        let first = segment.hlc(&clock);
        assert_eq!(first >> 16, 1_000);
        assert_eq!(segment.hlc(&clock), first + 1);
        segment.hlc_observe(5_000 << 16, &clock);
        assert_eq!(segment.hlc(&clock), (5_000 << 16) + 1);
        segment.hlc_observe((STAMP_AHEAD_MAX_MS + 1_001) << 16, &clock);
        assert_eq!(segment.hlc(&clock), (5_000 << 16) + 2);
        hand.store(6_000, Ordering::Relaxed);
        assert_eq!(segment.hlc(&clock), 6_000 << 16);
    }
}
