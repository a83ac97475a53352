//! The packed words of entries and pages.

use super::layout::ENTRY_CLASSES;

/// A page's state word taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageState {
    pub free: u16,
    pub carved: u16,
    pub used: u16,
    pub class: u8,
    pub shard: u8,
}

impl PageState {
    pub fn decode(word: u64) -> Self {
        Self {
            free: word as u16,
            carved: (word >> 16) as u16,
            used: (word >> 32) as u16,
            class: (word >> 48) as u8,
            shard: (word >> 56) as u8,
        }
    }

    pub fn encode(self) -> u64 {
        u64::from(self.free)
            | u64::from(self.carved) << 16
            | u64::from(self.used) << 32
            | u64::from(self.class) << 48
            | u64::from(self.shard) << 56
    }

    /// The shard that has this page of entries, if it is one.
    pub fn entries_of(self) -> Option<usize> {
        (self.shard != 0 && (self.class as usize) < ENTRY_CLASSES).then(|| self.shard as usize - 1)
    }
}

/// The meta word: deadline (40 bits, coarse monotonic ms, 0 none), flags, generation (17 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta(pub u64);

impl Meta {
    pub const DEADLINE_MAX: u64 = (1 << 40) - 1;
    pub const LIVE: u64 = 1 << 40;
    /// With LIVE: an integer. Without: bytes.
    pub const COUNTER: u64 = 1 << 41;
    /// A process under the shard's lock is changing it: everybody else to the lock.
    pub const CLAIMED: u64 = 1 << 42;
    /// Shares of others count too: the value alone is not the answer.
    pub const SHARES: u64 = 1 << 43;
    /// With LIVE, without COUNTER: a stub, whose bytes are kept by other hosts.
    pub const ELSEWHERE: u64 = Self::SHARES;
    /// Changed since it was last drained.
    pub const DIRTY: u64 = 1 << 44;
    /// An own share that no owner has acknowledged.
    pub const PENDING: u64 = 1 << 45;
    /// The value is this segment's share of the window, even if it is 0.
    pub const OWN: u64 = 1 << 46;
    const FLAGS: u64 = 0x7f << 40;
    pub const GENERATION: u32 = 47;

    pub fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    pub fn deadline(self) -> u64 {
        self.0 & Self::DEADLINE_MAX
    }

    /// Whether these are bytes that this host has.
    pub fn has_bytes(self) -> bool {
        self.0 & (Self::LIVE | Self::COUNTER | Self::ELSEWHERE) == Self::LIVE
    }

    pub fn expired(self, now_ms: impl FnOnce() -> u64) -> bool {
        self.deadline() != 0 && now_ms() >= self.deadline()
    }

    /// The next generation, with this deadline and these flags.
    pub fn next(self, deadline: u64, flags: u64) -> Self {
        let generation = (self.0 >> Self::GENERATION).wrapping_add(1);
        Self(deadline & Self::DEADLINE_MAX | flags & Self::FLAGS | generation << Self::GENERATION)
    }
}

pub(super) fn pair(value: i64, meta: Meta) -> u128 {
    value as u64 as u128 | (meta.0 as u128) << 64
}

pub(super) fn unpair(pair: u128) -> (i64, Meta) {
    (pair as u64 as i64, Meta((pair >> 64) as u64))
}

/// Word 7 of an entry: chain (32 bits), key length with namespace (16), namespace length (8), flags (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub chain: u32,
    pub key_len: u16,
    pub namespace_len: u8,
    pub flags: u8,
}

impl Shape {
    /// A degraded set, delete or expire changed this copy.
    pub const DIVERGED: u8 = 1;
    /// Read since the clock hand passed. Of a tombstone: not made by eviction.
    pub const REFERENCED: u8 = 2;
    /// A copy from before may live on when this has expired: then this leaves a tombstone.
    pub const SHORTENED: u8 = 4;

    pub fn decode(word: u64) -> Self {
        Self {
            chain: word as u32,
            key_len: (word >> 32) as u16,
            namespace_len: (word >> 48) as u8,
            flags: (word >> 56) as u8,
        }
    }

    pub fn encode(self) -> u64 {
        u64::from(self.chain)
            | u64::from(self.key_len) << 32
            | u64::from(self.namespace_len) << 48
            | u64::from(self.flags) << 56
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        let meta = Meta(0).next(77, Meta::LIVE | Meta::OWN);
        assert!(meta.has(Meta::LIVE | Meta::OWN) && !meta.has(Meta::COUNTER));
        assert_eq!(meta.deadline(), 77);
        assert_ne!(meta.next(77, Meta::LIVE | Meta::OWN), meta);
        assert_eq!(unpair(pair(-5, meta)), (-5, meta));
        let state = PageState { free: 1, carved: 2, used: 3, class: 4, shard: 5 };
        assert_eq!(PageState::decode(state.encode()), state);
        let shape = Shape { chain: u32::MAX, key_len: 1088, namespace_len: 64, flags: 3 };
        assert_eq!(Shape::decode(shape.encode()), shape);
    }
}
