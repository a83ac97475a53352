//! The vocabulary that store, wire and routing share: keys, windows, shares and copies.
//!
//! These are plain values. Nothing here reads a clock, allocates shared memory or does I/O.

use bytes::Bytes;

use crate::error::Refusal;

/// Longest key in bytes, namespace not counted.
pub const KEY_LEN_MAX: usize = 1024;

/// Longest namespace in bytes.
pub const NAMESPACE_LEN_MAX: usize = 64;

/// A borrowed key: any 1 to [`KEY_LEN_MAX`] bytes in a namespace (empty for none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The namespace, at most [`NAMESPACE_LEN_MAX`] bytes.
    pub namespace: &'a [u8],
    /// The key as the script named it.
    pub name: &'a [u8],
}

/// An owned [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyBuf {
    bytes: Bytes,
    namespace_len: u8,
}

impl KeyBuf {
    /// Copies `key`. Lengths are the caller's to have checked.
    pub fn new(key: Key<'_>) -> Self {
        let mut bytes = Vec::with_capacity(key.namespace.len() + key.name.len());
        bytes.extend_from_slice(key.namespace);
        bytes.extend_from_slice(key.name);
        Self { bytes: bytes.into(), namespace_len: key.namespace.len() as u8 }
    }

    /// Takes `bytes` (namespace, then name) without copying; `None` when the lengths break a limit.
    pub fn from_parts(bytes: Bytes, namespace_len: usize) -> Option<Self> {
        let name_len = bytes.len().checked_sub(namespace_len)?;
        if namespace_len > NAMESPACE_LEN_MAX || name_len == 0 || name_len > KEY_LEN_MAX {
            return None;
        }
        Some(Self { bytes, namespace_len: namespace_len as u8 })
    }

    /// Borrows the key.
    pub fn as_key(&self) -> Key<'_> {
        let (namespace, name) = self.bytes.split_at(self.namespace_len as usize);
        Key { namespace, name }
    }

    /// Namespace and name in one slice, as they are stored and sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// One life of a key, from creation to delete or deadline: the creation stamp and the segment that created it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window {
    /// Hybrid logical clock at creation (48 bits of milliseconds, 16 of counter).
    pub stamp: u64,
    /// The segment that created it.
    pub origin: u64,
}

/// One origin's cumulative part of a window's count. A delivery joins: per (origin, window) the larger sequence wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The segment that counted, not 0.
    pub origin: u64,
    /// The window it was counted in, which after a fault may differ from the owner's.
    pub window: Window,
    /// Hybrid logical clock when the amount was read; names exactly that amount.
    /// With the top bit set the share is a mark of the owner's (amount 0): windows of `window.origin` up to `window`
    /// have ended.
    pub sequence: u64,
    /// The cumulative amount.
    pub amount: i64,
}

/// The bit of a sequence that makes a share a *fold*: a note of the owner's that it has taken over what a segment that is
/// gone had counted (see `store::fold`, which alone reads the rest).
pub const FOLDED: u64 = 1 << 62;

impl Share {
    /// Whether this is no share but a note of one that is part of another by now.
    pub fn is_fold(&self) -> bool {
        self.sequence & (FOLDED | 1 << 63) == FOLDED
    }
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A counter: its value is the sum of the shares.
    Counter(Vec<Share>),
    /// Bytes.
    Bytes(Bytes),
    /// Bytes that are kept elsewhere: a *stub*, which knows all about the key but these.
    Elsewhere {
        /// How many.
        len: u32,
    },
    /// A stamped delete, with the shares that it ended (so that a late copy of one cannot bring the key back).
    Tombstone(Vec<Share>),
}

/// The state of a key apart from its name, as it travels between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Term of the owner that wrote it.
    pub term: u64,
    /// Stamp of the last change of bytes, deadline or liveness. Apart from shares, a copy is replaced only by a
    /// larger (term, stamp).
    pub stamp: u64,
    /// The life of the key this state belongs to. Bytes of one window are the same bytes: every change of them begins a new
    /// one.
    pub window: Window,
    /// Remaining time to live in milliseconds; `None`: no deadline.
    pub ttl_ms: Option<u64>,
    /// Set when this is a change that nobody has made who speaks for the cluster.
    pub diverged: Option<Diverged>,
    /// The content.
    pub body: Body,
}

impl State {
    /// Whether this replaces `other`, shares apart.
    pub fn comes_after(&self, other: &Self) -> bool {
        (self.term, self.stamp) > (other.term, other.stamp)
    }

    /// How many bytes the value has, here or elsewhere; `None`: it is no such value.
    pub fn byte_len(&self) -> Option<u32> {
        match &self.body {
            Body::Bytes(bytes) => Some(bytes.len() as u32),
            Body::Elsewhere { len } => Some(*len),
            Body::Counter(_) | Body::Tombstone(_) => None,
        }
    }

    /// Whether both are the same bytes, here or elsewhere.
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        self.window == other.window && self.byte_len().is_some_and(|len| other.byte_len() == Some(len))
    }
}

/// A set, delete or new deadline made without an owner that speaks for the cluster. The state keeps the (term, stamp) that
/// it was made over, its base: an owner applies the change when the key still has that stamp, otherwise it yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverged {
    /// Hybrid logical clock of the change: orders changes over one base. 0: there was no room to keep it.
    pub at: u64,
    /// The integer that a set put there, to which the shares add; otherwise 0.
    pub amount: i64,
    /// The value was set, not only the deadline.
    pub sets: bool,
}

/// A key with its state: one item of replication, of a sync, or of a share sent home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The key.
    pub key: KeyBuf,
    /// Its state.
    pub state: State,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Increments: the value after each delta, or why that delta was refused. Append: the new length in bytes.
    Values(Vec<Result<i64, Refusal>>),
    /// Set: done. SetNx and Cas: whether it was done. Del and Expire: whether the key was there. Get: whether it is.
    Done(bool),
    /// Refused as a whole: nothing changed.
    Refused(Refusal),
}

/// What an owner knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was applied.
    Applied,
    /// It was not, and never will be: asking has voided it.
    NotApplied,
    /// Too long ago to tell.
    Unknown,
}

/// A term: how often a slot changed owner (upper 32 bits) and, to break ties after a split, a hash of the claimant.
pub fn term_after(previous: u64, claimant: u64) -> u64 {
    (((previous >> 32) + 1) << 32) | (claimant & 0xffff_ffff)
}

/// Parses a canonical decimal integer: what `set` stores as a counter, because it reads back byte for byte.
pub fn canonical_integer(bytes: &[u8]) -> Option<i64> {
    if bytes.is_empty() || bytes.len() > 20 {
        return None;
    }
    let value: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    let canonical = matches!(bytes, b"0" | [b'-', b'1'..=b'9', ..] | [b'1'..=b'9', ..]);
    canonical.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_integers_read_back_byte_for_byte() {
        for text in ["0", "7", "-7", "10", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(canonical_integer(text.as_bytes()).map(|v| v.to_string()).as_deref(), Some(text));
        }
        for text in ["", "-", "-0", "+1", "01", " 5", "5 ", "1.5", "1e3", "abc", "9223372036854775808", "--1", "0x1"] {
            assert_eq!(canonical_integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_later_term_is_larger_whoever_claims_it() {
        let first = term_after(0, u64::MAX);
        assert!(term_after(first, 0) > first);
        assert_ne!(term_after(first, 1), term_after(first, 2));
    }
}
