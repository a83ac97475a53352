//! Where what lies in the store's part of the segment, and the only way to touch it.
//!
//! All shared words are atomics. The {value, meta} pair of an entry is only ever touched as 16 bytes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portable_atomic::AtomicU128;

pub(super) use super::words::{Meta, PageState, Shape, pair, unpair};
use crate::error::SetupError;
use crate::record::{Key, Window};
use crate::segment::Segment;
use crate::segment::mutex::RobustMutex;

/// Shards that hold keys.
pub(super) const SHARDS: usize = 64;
/// The shard without keys, whose lock and journal serve changes of the applied ids alone.
pub(super) const SIDE_SHARD: usize = SHARDS;
/// Word writes that one transaction may have.
pub(super) const JOURNAL_LEN: usize = 160;
/// Ids remembered per stream.
pub(super) const IDS_KEPT: u64 = 4096;

/// Sizes of entries: 64 bytes and the key. Pages of these keep their class for ever, because a stalled
/// compare-and-swap of a counter must never meet other data.
const ENTRY_SIZES: [usize; 11] = [80, 96, 112, 128, 160, 192, 256, 384, 512, 768, 1152];
/// Sizes of the pieces of a chain (values, share lists). Empty pages of these go back to the pool.
const PIECE_SIZES: [usize; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
pub(super) const ENTRY_CLASSES: usize = ENTRY_SIZES.len();
pub(super) const CLASSES: usize = ENTRY_CLASSES + PIECE_SIZES.len();

/// Bytes before an entry's key.
pub(super) const ENTRY_HEAD: usize = 64;
/// Bytes before a piece's data: next piece (low 32 bits) and length (high).
pub(super) const PIECE_HEAD: usize = 8;

/// Size in bytes of the objects of `class`.
pub(super) fn class_size(class: usize) -> usize {
    if class < ENTRY_CLASSES { ENTRY_SIZES[class] } else { PIECE_SIZES[class - ENTRY_CLASSES] }
}

/// The class of an entry whose key (with namespace) has `key_len` bytes.
pub(super) fn entry_class(key_len: usize) -> usize {
    let size = ENTRY_HEAD + key_len;
    ENTRY_SIZES.iter().position(|have| *have >= size).unwrap_or(ENTRY_CLASSES - 1)
}

/// One shard's bookkeeping. Zero is the initial value of everything but the lock.
#[repr(C, align(128))]
pub(super) struct Shard {
    pub lock: RobustMutex,
    /// Odd while chains change: a miss seen without the lock counts only if this is even and unchanged.
    pub seq: AtomicU64,
    /// Word writes of a committed transaction that may not all have been applied.
    pub committed: AtomicU64,
    /// Reference of the counter whose meta has CLAIMED set.
    pub claimed: AtomicU64,
    /// Chain under construction, not yet any entry's.
    pub building: AtomicU64,
    /// Chain no longer any entry's, being freed.
    pub freeing: AtomicU64,
    /// Live entries, those of them that hold bytes (stubs do not), and tombstones.
    pub live: AtomicU64,
    pub live_bytes: AtomicU64,
    pub tombstones: AtomicU64,
    /// Bytes of allocated objects.
    pub used: AtomicU64,
    /// Per class the first page with room (index plus one).
    pub classes: [AtomicU64; CLASSES],
    /// {offset with tag bits, word}
    pub journal: [[AtomicU64; 2]; JOURNAL_LEN],
}

/// What all shards share. Words of it are written under `lock`, from the journal of the shard that `holder` names.
#[repr(C, align(128))]
pub(super) struct Global {
    pub lock: RobustMutex,
    /// Index plus one of the shard whose transaction writes these words.
    pub holder: AtomicU64,
    /// First free page plus one (low 32 bits) and the first never used one (high 32 bits).
    pub pool: AtomicU64,
    /// Pages in the pool, never used ones included.
    pub pages_free: AtomicU64,
    /// Entries flagged PENDING, nearly: a killed process may leave it one off until the next rescan.
    pub pending: AtomicU64,
    /// Where eviction goes on (page index).
    pub hand: AtomicU64,
}

/// The applied ids of one stream.
#[repr(C)]
pub(super) struct Stream {
    pub id: AtomicU64,
    pub last: AtomicU64,
    /// When it was last used; outside of transactions.
    pub used: AtomicU64,
    pub bits: [AtomicU64; (IDS_KEPT / 64) as usize],
}

/// A page's bookkeeping.
/// Word 0: first free object plus one (16 bits), objects ever carved (16), allocated (16), class (8), shard plus one (8).
/// Word 1: previous and next page with room in its class, or next free page (index plus one, 32 bits each).
#[repr(C)]
pub(super) struct Page {
    pub state: AtomicU64,
    pub links: AtomicU64,
}

/// The store's part of the segment.
pub(super) struct Area {
    segment: Arc<Segment>,
    base: NonNull<u8>,
    shards: usize,
    buckets: usize,
    /// Buckets per shard, minus one.
    pub bucket_mask: u64,
    streams: usize,
    pub stream_count: usize,
    pages: usize,
    pub page_count: usize,
    hints: usize,
    pub hint_words: usize,
    summary: usize,
    arena: usize,
    pub page_shift: u32,
}

// SAFETY: `base` points into the shared mapping that `segment` keeps; everything there is atomics, process-shared locks
// or data guarded by them.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Computes the layout, and initialises the memory if this is its first use. Errors: locks that cannot be made.
    pub fn open(segment: Arc<Segment>) -> Result<Self, SetupError> {
        let (base, len) = segment.area();
        let memory = segment.size();
        let page_shift: u32 = if memory < 16 << 20 { 12 } else { 14 };
        let page = 1_usize << page_shift;
        let shards = size_of::<Global>().next_multiple_of(128);
        let buckets = (shards + (SHARDS + 1) * size_of::<Shard>()).next_multiple_of(128);
        let per_shard = (memory / 128 / SHARDS).next_power_of_two();
        let streams = buckets + SHARDS * per_shard * 4;
        let stream_count = if memory < 16 << 20 { 256 } else { 1024 };
        let pages = (streams + stream_count * size_of::<Stream>()).next_multiple_of(128);
        // Of what is left, each page takes itself, its bookkeeping and a bit; rounding is paid by three pages.
        let page_count = ((len - pages) / (page + size_of::<Page>() + 1)).saturating_sub(3);
        let hint_words = page_count.div_ceil(64);
        let hints = pages + page_count * size_of::<Page>();
        let summary = hints + hint_words * 8;
        let arena = (summary + hint_words.div_ceil(64) * 8).next_multiple_of(page);
        assert!(arena + page_count * page <= len, "layout fits");
        let area = Self {
            segment,
            base,
            shards,
            buckets,
            bucket_mask: per_shard as u64 - 1,
            streams,
            stream_count,
            pages,
            page_count,
            hints,
            hint_words,
            summary,
            arena,
            page_shift,
        };
        let fail = |error: &dyn std::fmt::Display| SetupError::new("host segment: locks", error);
        area.segment.area_once(
            || {
                let locks = (0..=SIDE_SHARD).map(|index| &area.shard(index).lock).chain([&area.global().lock]);
                for lock in locks {
                    // SAFETY: mapped memory that stays; whoever opens the area waits until this has been done once.
                    unsafe { lock.init() }.map_err(|error| fail(&error))?;
                }
                area.global().pages_free.store(area.page_count as u64, Ordering::Release);
                Ok(())
            },
            || fail(&"another process is stopped while setting up"),
        )?;
        Ok(area)
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset.is_multiple_of(align_of::<T>()));
        // SAFETY: every caller's offset was computed from the layout (or is a reference made by the allocator), so it
        // lies in the mapping, aligned; T is atomics and locks only, for which any content is valid.
        unsafe { self.base.add(offset).cast::<T>().as_ref() }
    }

    #[inline]
    pub fn global(&self) -> &Global {
        self.at(0)
    }

    #[inline]
    pub fn shard(&self, index: usize) -> &Shard {
        self.at(self.shards + index * size_of::<Shard>())
    }

    /// The word with two buckets, and the shift of the one of `hash`.
    #[inline]
    pub fn bucket(&self, hash: u64) -> (&AtomicU64, u32) {
        let index = shard_of(hash) as u64 * (self.bucket_mask + 1) + (hash & self.bucket_mask);
        self.bucket_at(index as usize)
    }

    /// Bucket by number over all shards.
    pub fn bucket_at(&self, index: usize) -> (&AtomicU64, u32) {
        (self.at(self.buckets + index / 2 * 8), (index as u32 & 1) * 32)
    }

    pub fn stream(&self, index: usize) -> &Stream {
        self.at(self.streams + index * size_of::<Stream>())
    }

    pub fn page(&self, index: usize) -> &Page {
        self.at(self.pages + index * size_of::<Page>())
    }

    pub fn page_state(&self, index: usize) -> PageState {
        PageState::decode(self.page(index).state.load(Ordering::Acquire))
    }

    pub fn hint(&self, word: usize) -> &AtomicU64 {
        self.at(self.hints + word * 8)
    }

    pub fn summary(&self, word: usize) -> &AtomicU64 {
        self.at(self.summary + word * 8)
    }

    pub fn page_size(&self) -> usize {
        1 << self.page_shift
    }

    /// Objects of `class` that a page holds.
    pub fn page_capacity(&self, class: usize) -> usize {
        self.page_size() / class_size(class)
    }

    /// The reference of an object.
    pub fn reference(&self, page: usize, class: usize, index: usize) -> u32 {
        ((self.arena + (page << self.page_shift) + index * class_size(class)) / 16) as u32
    }

    /// Page and index of an object.
    pub fn locate(&self, reference: u32) -> (usize, usize) {
        let offset = reference as usize * 16 - self.arena;
        let page = offset >> self.page_shift;
        let class = self.page_state(page).class as usize;
        (page, (offset & (self.page_size() - 1)) / class_size(class))
    }

    pub fn page_of(&self, reference: u32) -> usize {
        (reference as usize * 16 - self.arena) >> self.page_shift
    }

    /// Whether `reference` points into the arena at all.
    pub fn in_arena(&self, reference: u32) -> bool {
        let offset = reference as usize * 16;
        offset >= self.arena && offset < self.arena + (self.page_count << self.page_shift)
    }

    /// The largest class of pieces of this page size.
    pub fn piece_class_max(&self) -> usize {
        ENTRY_CLASSES + PIECE_SIZES.iter().position(|size| *size == self.page_size()).unwrap_or(0)
    }

    /// The smallest class of pieces that takes `len` bytes of data, or the largest there is.
    pub fn piece_class(&self, len: usize) -> usize {
        let fits = PIECE_SIZES.iter().position(|size| size - PIECE_HEAD >= len).unwrap_or(PIECE_SIZES.len());
        (ENTRY_CLASSES + fits).min(self.piece_class_max())
    }

    /// Word `index` of the object at `reference`; of an entry, words 0 and 1 are the pair's and not to be had here.
    #[inline]
    pub fn word(&self, reference: u32, index: usize) -> &AtomicU64 {
        self.at(reference as usize * 16 + index * 8)
    }

    #[inline]
    pub fn pair(&self, reference: u32) -> &AtomicU128 {
        self.at(reference as usize * 16)
    }

    /// A word by its offset, as the journal has it.
    #[inline]
    pub fn word_at(&self, offset: usize) -> &AtomicU64 {
        self.at(offset)
    }

    pub fn pair_at(&self, offset: usize) -> &AtomicU128 {
        self.at(offset)
    }

    pub fn offset_of(&self, word: &AtomicU64) -> usize {
        word as *const AtomicU64 as usize - self.base.as_ptr() as usize
    }

    /// Copies `data` to the object at `reference`, `at` bytes into it. The object is not reachable by anybody else.
    pub fn write(&self, reference: u32, at: usize, data: &[u8]) {
        // SAFETY: the allocator gave out an object of at least `at + data.len()` bytes, and the caller holds the lock
        // of the shard that the object belongs to; pieces are only read under it.
        unsafe {
            let target = self.base.add(reference as usize * 16 + at).as_ptr();
            std::ptr::copy_nonoverlapping(data.as_ptr(), target, data.len());
        }
    }

    /// Appends `len` bytes of the object at `reference`, `at` bytes into it.
    pub fn read(&self, reference: u32, at: usize, len: usize, out: &mut Vec<u8>) {
        // SAFETY: as in `write`; nobody writes a piece while the shard's lock is held by this thread.
        let data = unsafe {
            std::slice::from_raw_parts(self.base.add(reference as usize * 16 + at).as_ptr().cast_const(), len)
        };
        out.extend_from_slice(data);
    }

    /// Whether the entry's key is `key`. Racing with a writer the answer may be wrong; the pair's generation tells.
    #[inline]
    pub fn key_is(&self, reference: u32, key: Key<'_>) -> bool {
        let len = key.namespace.len() + key.name.len();
        let shape = Shape::decode(self.word(reference, 7).load(Ordering::Acquire));
        shape.key_len as usize == len
            && shape.namespace_len as usize == key.namespace.len()
            && (0..len.div_ceil(8)).all(|i| self.word(reference, 8 + i).load(Ordering::Relaxed) == key_word(key, i))
    }

    /// Writes the key of an entry that nobody can reach yet.
    pub fn write_key(&self, reference: u32, key: Key<'_>) {
        for i in 0..(key.namespace.len() + key.name.len()).div_ceil(8) {
            self.word(reference, 8 + i).store(key_word(key, i), Ordering::Relaxed);
        }
    }

    /// The entry's key, namespace first, and the length of the namespace.
    pub fn read_key(&self, reference: u32, out: &mut Vec<u8>) -> usize {
        let shape = Shape::decode(self.word(reference, 7).load(Ordering::Acquire));
        let len = shape.key_len as usize;
        out.clear();
        for i in 0..len.div_ceil(8) {
            let word = self.word(reference, 8 + i).load(Ordering::Relaxed).to_le_bytes();
            out.extend_from_slice(&word[..(len - i * 8).min(8)]);
        }
        shape.namespace_len as usize
    }

    pub fn window(&self, reference: u32) -> Window {
        Window {
            stamp: self.word(reference, 3).load(Ordering::Relaxed),
            origin: self.word(reference, 4).load(Ordering::Relaxed),
        }
    }

    /// The keyed hash: shard in the top 6 bits, bucket in the low ones, 32 bits between them in the entry.
    #[inline]
    pub fn hash(&self, key: Key<'_>) -> u64 {
        let mut seed = self.segment.hash_seed();
        if !key.namespace.is_empty() {
            seed ^= xxhash_rust::xxh3::xxh3_64_with_seed(key.namespace, !seed) | 1;
        }
        xxhash_rust::xxh3::xxh3_64_with_seed(key.name, seed)
    }
}

/// The shard of a hash.
#[inline]
pub(super) fn shard_of(hash: u64) -> usize {
    (hash >> 58) as usize
}

/// The part of the hash that entries hold.
#[inline]
pub(super) fn tag_of(hash: u64) -> u32 {
    (hash >> 26) as u32
}

/// Eight bytes of namespace and name in one row, padded with zeros.
#[inline]
fn key_word(key: Key<'_>, index: usize) -> u64 {
    let (namespace, name, at) = (key.namespace, key.name, index * 8);
    let whole = |bytes: &[u8], at: usize| {
        let rest = &bytes[at..];
        match rest.first_chunk::<8>() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        }
    };
    if at >= namespace.len() {
        whole(name, at - namespace.len())
    } else if at + 8 <= namespace.len() {
        whole(namespace, at)
    } else {
        let head = namespace.len() - at;
        let mut word = [0; 8];
        word[..head].copy_from_slice(&namespace[at..]);
        let tail = name.len().min(8 - head);
        word[head..head + tail].copy_from_slice(&name[..tail]);
        u64::from_le_bytes(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_words_are_namespace_and_name_in_a_row() {
        let bytes: Vec<u8> = (1..=40).collect();
        for split in 0..=20 {
            for len in split + 1..=40 {
                let key = Key { namespace: &bytes[..split], name: &bytes[split..len] };
                let mut row = Vec::new();
                (0..len.div_ceil(8)).for_each(|i| row.extend(key_word(key, i).to_le_bytes()));
                assert_eq!(row[..len], bytes[..len]);
                assert!(row[len..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
