//! The store: counters and byte values in the host segment, shared by all its processes.
//!
//! Plain increments of a live counter and reads of one go without a lock: one 16-byte compare-and-swap on the entry's
//! {value, meta}. Everything else runs under the lock of the key's shard as a redo transaction (`shard`), so a process
//! may be killed at any instruction.
//!
//! A counter is the sum of its *shares*, one per (origin, window). This segment's own share of the live window lies in
//! the entry, the others in a chain of pieces (`slab`). How two states of a key become one is `merge`'s business.

mod applied;
mod conditional;
mod digest;
mod drain;
mod fold;
mod forget;
mod hit;
mod item;
mod layout;
mod merge;
mod ops;
mod replaced;
mod replay;
mod shard;
mod slab;
mod stubs;
mod sweep;
mod verify;
mod words;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::error::{Refusal, SetupError};
use crate::record::{Copy, State, Window};
use crate::segment::Segment;
use layout::{Area, SHARDS};

pub use crate::record::{Fate, Outcome};
pub use digest::Digests;
pub use fold::FOLD_KEPT_S;
pub use merge::counter_value;
pub use stubs::Held;

/// How long a tombstone is kept at the longest, in milliseconds: late copies of what it ended must not bring the key
/// back. The node publishes in the segment how long it has to be ([`TOMBSTONE_GRACE_SHORT_MS`] when nobody is away).
pub const TOMBSTONE_GRACE_MS: u64 = 600_000;

/// How long a tombstone is kept while every member is there and takes what it is sent.
pub const TOMBSTONE_GRACE_SHORT_MS: u64 = 60_000;

/// How a store is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Changes are marked for replication and deletes leave tombstones.
    pub clustered: bool,
    /// Longest byte value.
    pub value_max: u32,
}

/// Who a change is made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This segment owns the key's slot (or there is no cluster: term 0).
    Owner {
        /// The term of the ownership.
        term: u64,
    },
    /// Nobody to be had who speaks for the cluster: increments count in the own share until an owner acknowledges it;
    /// other changes diverge from the owner's state until they are replayed.
    Degraded,
}

/// What an increment did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The value afterwards.
    pub value: i64,
    /// The life of the key it was counted in.
    pub window: Window,
    /// Whether this increment began that life.
    pub created: bool,
    /// Remaining milliseconds; `None`: no deadline.
    pub ttl_ms: Option<u64>,
}

/// A value as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A counter.
    Int(i64),
    /// Bytes.
    Bytes(&'a [u8]),
    /// This many bytes, of which this host has none.
    Elsewhere(u32),
}

/// A key's time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// No such key.
    NoKey,
    /// The key has no deadline.
    NoDeadline,
    /// Remaining milliseconds, at least 1.
    Ms(u64),
}

/// The number of a request: at most one effect each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The caller's stream, not 0.
    pub stream: u64,
    /// Counts up in the stream from 1.
    pub id: u64,
}

/// An operation that another host asks of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Increments in order, each judged for itself; the TTL applies when the first creates the counter.
    Incr {
        /// The deltas.
        deltas: &'a [i64],
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Replaces the value.
    Set {
        /// The value.
        value: &'a [u8],
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Sets the value unless the key is there.
    SetNx {
        /// The value.
        value: &'a [u8],
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Adds bytes at the end of the value; a key that is there keeps its deadline.
    Append {
        /// The bytes.
        value: &'a [u8],
    },
    /// Replaces the value if it is the expected one.
    Cas {
        /// `None`: no such key.
        expected: Option<&'a [u8]>,
        /// `None`: delete it.
        new: Option<&'a [u8]>,
        /// Milliseconds; of the new value.
        ttl_ms: Option<u64>,
    },
    /// Deletes.
    Del,
    /// Sets the deadline, or removes it.
    Expire {
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
}

/// What became of a request at the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// It was carried out (or refused).
    Done {
        /// Its result.
        outcome: Outcome,
        /// The key's state afterwards, a tombstone's too; `None`: no such key. Of more than 4 KiB a stub.
        state: Option<State>,
    },
    /// The request was handled before, or voided by [`Store::resolve`]: nothing changed.
    AlreadyHandled,
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Something in it was new.
    Stored,
    /// Nothing was.
    Stale,
    /// No room (or a stopped process holds the shard): nothing changed.
    Full,
}

/// What became of another host's share at the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is in the count of this state.
    Merged(State),
    /// Its window has ended here; the state that says so.
    Ended(Option<State>),
    /// It was sent before the key was deleted, in a window that this host knows nothing of: nothing changed.
    Early,
    /// No room (or a stopped process holds the shard): nothing changed.
    Full,
}

/// What became of a change that was made without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is the owner's now; the state.
    Applied(State),
    /// The key was written meanwhile (or has ended): the owner's state, if it has one.
    Yielded(Option<State>),
    /// No room (or a stopped process holds the shard): nothing changed.
    Full,
}

/// One drained entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Its state.
    pub copy: Copy,
    /// It has an own share that no owner has acknowledged.
    pub pending: bool,
}

/// What [`Store::drain`] hands out.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// The latest state of changed entries.
    pub copies: Vec<Drain>,
    /// (stream, id) of applied requests whose effect is in `copies` or was handed out earlier.
    pub applied: Vec<(u64, u64)>,
    /// The call has ended a pass over all that had changed before it began.
    pub ended: bool,
    /// It went on with a pass that had begun before: what had changed behind that is for the next.
    pub resumed: bool,
    /// A stopped process holds a part of the store, which that pass leaves out.
    pub missed: bool,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Entries freed.
    pub freed: usize,
    /// Whether the end of the memory was reached: the next sweep begins a new round.
    pub round_ended: bool,
}

/// How full the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live entries, expired ones not yet swept included.
    pub entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Bytes of the entries, values and share lists.
    pub bytes_used: u64,
    /// Bytes there are for them.
    pub bytes_total: u64,
    /// Entries with a share that no owner has acknowledged (one off per killed process until the next rescan).
    pub pending: u64,
}

/// Why an attempt under the lock ended without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fail {
    /// No room for an object of this class; a retry makes sense with this many pages in the pool.
    Need { class: usize, pages: usize },
    /// Refused.
    Refused(Refusal),
    /// The request id was used.
    Handled,
}

struct Inner {
    area: Area,
    clock: Clock,
    options: StoreOptions,
    /// Per shard the requests applied since the last drain; pushed under the shard's lock.
    applied: [Mutex<Vec<(u64, u64)>>; SHARDS],
    drain: Mutex<drain::Pass>,
    replaced: Mutex<replaced::Replaced>,
    /// Guesses where a stream's applied ids lie.
    streams_seen: [AtomicU32; 64],
}

/// A handle on the store of a segment. Cheap to clone. A process that runs a node opens its own: what `call` and
/// `drain` remember between each other is the process's.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the store of `segment`, initialising it on first use. Panics only if the kernel refuses locks; see
    /// [`Store::try_open`].
    pub fn open(segment: Arc<Segment>, clock: Clock, options: StoreOptions) -> Self {
        match Self::try_open(segment, clock, options) {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens the store of `segment`. Errors: the kernel refuses locks, or another process is stopped in the set-up.
    pub fn try_open(segment: Arc<Segment>, clock: Clock, options: StoreOptions) -> Result<Self, SetupError> {
        let inner = Inner {
            area: Area::open(segment)?,
            clock,
            options,
            applied: std::array::from_fn(|_| Mutex::new(Vec::new())),
            drain: Mutex::new(drain::Pass::default()),
            replaced: Mutex::default(),
            streams_seen: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        self.inner.area.segment()
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The options.
    pub fn options(&self) -> StoreOptions {
        self.inner.options
    }
}
