//! The host segment: the memory that all PHP processes of one host share.

pub mod descriptors;
pub mod limit;
pub mod mutex;
pub mod table;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::clock::Clock;
use crate::error::SetupError;
use crate::metrics::Metrics;
use descriptors::Descriptors;
use mutex::RobustMutex;
use table::Table;

/// Says that a mapping is a host segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"EPHPMKV\x01");

/// Number of the layout; a segment of another layout is not taken over. Raised with every change of what lies where,
/// or of what it means.
pub const LAYOUT: u32 = 2;

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
    descriptors: Descriptors,
}

// SAFETY: all shared state behind `base` is atomics and process-shared locks, or is written only before sharing.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a fresh segment of `memory_bytes` (rounded down to whole pages). Errors: a size out of range, no 16-byte
    /// atomics on this machine, or the kernel's refusal.
    pub fn create(memory_bytes: u64) -> Result<Arc<Self>, SetupError> {
        let mut random = [0_u8; 32];
        let mut filled = 0;
        while filled < random.len() {
            let more = rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty());
            filled += more.map_err(|error| SetupError::new("host segment: random numbers", error))?;
        }
        Self::create_as(memory_bytes, &random)
    }

    /// The same with an identity that the caller chose, for runs that can be repeated.
    pub(crate) fn create_as(memory_bytes: u64, random: &[u8; 32]) -> Result<Arc<Self>, SetupError> {
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
        let size = Self::size_of(memory_bytes);
        let segment = Self::map(Descriptors::create(size).map_err(|error| fail("memfd", &error))?, size)?;
        segment.initialise(random).map_err(|error| fail("set-up", &error))?;
        Ok(Arc::new(segment))
    }

    /// Maps a segment that another process made. Errors: it cannot be trusted (see [`Descriptors::trusted_size`]), is
    /// none, or one of another layout.
    pub fn join(descriptors: Descriptors) -> Result<Arc<Self>, SetupError> {
        let refuse = |why: String| SetupError::new("host segment of another process", why);
        let size = descriptors.trusted_size().map_err(refuse)?;
        if !(MEMORY_MIN..=MEMORY_MAX).contains(&size) || size % 0x1_0000 != 0 {
            return Err(refuse(format!("{size} bytes is no size of a segment")));
        }
        let segment = Self::map(descriptors, size as usize)?;
        let header = segment.header();
        if header.magic != MAGIC {
            return Err(refuse("not a segment".to_string()));
        }
        if header.layout != layout() {
            return Err(refuse(format!(
                "layout {} there, {} here: it belongs to another release of the module",
                header.layout as u32,
                layout() as u32
            )));
        }
        if header.size != size {
            return Err(refuse(format!("{size} bytes hold a segment of {}", header.size)));
        }
        Ok(Arc::new(segment))
    }

    /// Size in bytes of a segment made for `memory_bytes`.
    pub fn size_of(memory_bytes: u64) -> usize {
        (memory_bytes & !0xffff) as usize
    }

    fn map(descriptors: Descriptors, size: usize) -> Result<Self, SetupError> {
        let fail = |error: &dyn std::fmt::Display| SetupError::new("host segment: mmap", error);
        let (protection, memory) = (ProtFlags::READ | ProtFlags::WRITE, &descriptors.memory);
        // SAFETY: a fresh shared mapping of a file of exactly `size` bytes that cannot shrink.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, memory, 0) }
            .map_err(|error| fail(&error))?;
        // Counters are nobody's business in a core file; not being able to say so is no reason to fail.
        // SAFETY: the range is this mapping; the advice changes no content.
        let _ = unsafe { rustix::mm::madvise(base, size, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| fail(&"mapped at zero"))?;
        Ok(Self { base, size, descriptors })
    }

    fn initialise(&self, random: &[u8; 32]) -> Result<(), std::io::Error> {
        let word = |at: usize| random[at..at + 8].iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let header = self.base.cast::<Header>().as_ptr();
        // SAFETY: the mapping is larger than the header, page aligned, zeroed (valid for every field), and not shared
        // with anybody yet.
        unsafe {
            (*header).layout = layout();
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

    /// Whether a node of this segment lives. One that was killed leaves its number and frees the claim.
    pub fn has_node(&self) -> bool {
        self.table().node_pid.load(Ordering::Acquire) != 0 && self.claim().try_lock().is_none()
    }

    /// Size of the mapping in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What gives access to it.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
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

/// What the header says of the layout: the number, and above it the size of the header, which differs where a type of
/// the platform does.
fn layout() -> u64 {
    let number = LAYOUT;
    // A second layout, for tests of what two releases make of each other.
    #[cfg(feature = "testing")]
    let number = std::env::var("EPHPM_KV_TEST_LAYOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(number);
    u64::from(number) | (std::mem::size_of::<Header>() as u64) << 32
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
        assert!(rustix::fs::ftruncate(&one.descriptors().memory, 1 << 20).is_err());
        assert!(Segment::create(1 << 20).is_err());
        assert!(one.claim().try_lock().is_some());
    }

    #[test]
    fn a_segment_can_be_joined_by_its_descriptors_and_nothing_else_can() {
        let one = Segment::create(4 << 20).unwrap();
        let joined = Segment::join(one.descriptors().duplicate().unwrap()).unwrap();
        assert_eq!((joined.origin(), joined.size()), (one.origin(), one.size()));
        joined.next_sweep_ms().store(7, Ordering::Release);
        assert_eq!(one.next_sweep_ms().load(Ordering::Acquire), 7);

        let empty = Descriptors::create(4 << 20).unwrap();
        assert_eq!(Segment::join(empty).err().unwrap().why, "not a segment");
        let mut unsealed = one.descriptors().duplicate().unwrap();
        unsealed.memory = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Segment::join(unsealed).is_err());
        // SAFETY: the field is aligned and nobody reads it meanwhile.
        unsafe { (*one.base.cast::<Header>().as_ptr()).layout = layout() + 1 };
        let error = Segment::join(one.descriptors().duplicate().unwrap()).err().unwrap();
        assert!(error.why.starts_with(&format!("layout {} there, {LAYOUT} here", LAYOUT + 1)), "{error}");
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
