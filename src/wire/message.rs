//! Requests and responses. Their bytes are `codec`'s business.

use bytes::Bytes;

use crate::record::{Copy, KeyBuf, State};
pub use crate::record::{Fate, Outcome};

/// One operation on one key, ordered by the key's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The key.
    pub key: KeyBuf,
    /// What to do with it.
    pub op: Op,
}

/// The operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Increments that waited together, each judged for itself; the TTL applies when the first creates the counter.
    Incr {
        /// At least one delta, all of one sign.
        deltas: Vec<i64>,
        /// Milliseconds; `None`: no deadline on creation.
        ttl_ms: Option<u64>,
    },
    /// Replaces the value. `None`: no deadline.
    Set {
        /// The new value.
        value: Bytes,
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Sets the value unless the key is there. Never degraded.
    SetNx {
        /// The value.
        value: Bytes,
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Adds bytes at the end of the value. Never degraded.
    Append {
        /// The bytes.
        value: Bytes,
    },
    /// Replaces the value if it is the expected one. Never degraded.
    Cas {
        /// `None`: no such key.
        expected: Option<Bytes>,
        /// `None`: delete it.
        new: Option<Bytes>,
        /// Milliseconds; of the new value.
        ttl_ms: Option<u64>,
    },
    /// Deletes the key.
    Del,
    /// Sets the deadline; `None` removes it.
    Expire {
        /// Milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Reads the key's state.
    Get {
        /// With the bytes of a value. Without them the state may be a stub, which knows whether the key is there and
        /// until when.
        bytes: bool,
    },
}

/// What became of a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result for the caller.
    pub outcome: Outcome,
    /// The key's state afterwards, so that the caller's host reads its own write; `None`: no such key. Long bytes come
    /// as a stub: the caller has them, or reads them when it needs them.
    pub state: Option<State>,
    /// Answered without the owner.
    pub degraded: bool,
}

/// One batch of replication from an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Counts the batches of one sender generation from 1.
    pub position: u64,
    /// Position of the batch before this one that was for this receiver too; a receiver that has not come so far has
    /// missed something, and pulls.
    pub after: u64,
    /// The latest state of each changed key.
    pub copies: Vec<Copy>,
    /// Request ids whose effect is in `copies` or in an earlier batch.
    pub applied: Vec<AppliedIds>,
}

/// Request ids that an owner has applied, of one stream (one connection of one caller's host).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedIds {
    /// The stream, a random number that its opener chose.
    pub stream: u64,
    /// The ids.
    pub ids: Vec<u64>,
}

/// What a receiver wants to be sent from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Every key; large values it does not back up as stubs.
    All,
    /// What is in these slots, whole, and nothing else.
    Slots(Vec<SlotRange>),
}

/// A run of slots: first and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// How many, at least 1.
    pub count: u16,
}

/// What became of a share sent home, or of a change to be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Homecoming {
    /// In the owner's count (or applied), whose state this is.
    Merged(State),
    /// Its window has ended at the owner (or the key was written meanwhile): dropped. The owner's state, if it has one.
    Ended(Option<State>),
    /// The receiver does not own the key, or does not speak for the cluster; the share stays with its host.
    NotOwner,
    /// The receiver has no room; the share stays with its host.
    Full,
}

/// Asked of a peer (or, over the host's socket, of the node).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Are you there?
    Ping,
    /// An operation on a key that the receiver should own.
    Call(Call),
    /// Copies from an owner.
    Replicate(Batch),
    /// A page of copies. Large values come as stubs, unless the sender backs them up by the receiver's view or has
    /// asked for slots.
    Sync {
        /// 0 first, then what the last page said.
        cursor: u64,
        /// Of these slots; empty: of all.
        slots: Vec<SlotRange>,
        /// Of those of them that the receiver owns; otherwise what it has, whoever owns them.
        owned: bool,
        /// What the sender wants in batches from now on; `None`: nothing changes.
        wants: Option<Wants>,
    },
    /// The whole bytes of these keys, of those that the receiver has: as many as fit, in order.
    Fetch {
        /// The keys.
        keys: Vec<KeyBuf>,
        /// Where the receiver has a stub, too: what that has replaced there.
        older: bool,
    },
    /// The sender should own these slots now: hand them over.
    Claim {
        /// The slots.
        slots: Vec<SlotRange>,
        /// Position of the last batch of the receiver's up to which the sender lacks nothing.
        synced_to: u64,
    },
    /// The sender owns these slots since `term`. With none, it asks to be told what the receiver owns.
    Announce {
        /// The slots.
        slots: Vec<SlotRange>,
        /// The term.
        term: u64,
    },
    /// Shares of the sender's host, each with the state its key has there.
    Share(Vec<Copy>),
    /// Changes that the sender's host made without an owner: the receiver, which should own the keys, applies those whose
    /// base it still has. Answered as Share.
    Replay(Vec<Copy>),
    /// What became of these requests? Asking voids those not yet applied.
    Resolve {
        /// Their stream.
        stream: u64,
        /// Their ids.
        ids: Vec<u64>,
        /// Who was asked: node id and segment.
        of: (String, u64),
    },
    /// Ends every window of a namespace in the slots that the receiver owns.
    Flush {
        /// The namespace; empty is a namespace too.
        namespace: Bytes,
    },
    /// Has the receiver been with its cluster all along, as far as members remember?
    Standing,
    /// What the sender owns, in short: the receiver compares.
    Digest {
        /// Bytes up to this length are in the digests.
        small_max: u32,
        /// Slots with the digest of what they hold.
        slots: Vec<(u16, u64)>,
    },
    /// Copies of keys that the receiver owns and has never heard of.
    Offer(Vec<Copy>),
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To Ping.
    Pong {
        /// The receiver has the sender in its view.
        vouches: bool,
    },
    /// To Call.
    Reply(Reply),
    /// To Call, Claim: somebody else owns it, as far as the receiver knows.
    NotOwner {
        /// The owner's node id; `None`: nobody that it knows of (a takeover under way).
        owner: Option<String>,
        /// The owner's term.
        term: u64,
    },
    /// To Call: the id was voided by a Resolve that overtook it; nothing was applied.
    Voided,
    /// To Replicate.
    Acked {
        /// The batch's position.
        position: u64,
        /// Which of its copies found no room, by their place in it.
        full: Vec<u32>,
        /// The receiver has the sender in its view and knows no later owner of what is in the batch.
        vouches: bool,
    },
    /// To Sync and Fetch.
    Page {
        /// The copies.
        copies: Vec<Copy>,
        /// Cursor of the next page, or how many of the keys were looked at; `None`: this was the last, or all were.
        next: Option<u64>,
    },
    /// To Claim: the receiver does not own any of the slots (any more), and the sender has all that it had in them.
    Claimed {
        /// Largest term the receiver knows among them.
        term: u64,
        /// Those that it owned until now.
        released: Vec<SlotRange>,
        /// Other members, alive for all the receiver knows, that own some of the others.
        owners: Vec<String>,
    },
    /// To Announce: those of the slots that the receiver owns itself, or knows a later owner of.
    Announced {
        /// The slots.
        contested: Vec<SlotRange>,
    },
    /// To Flush, Digest and Offer.
    Done,
    /// To Share and Replay, in order.
    Shares(Vec<Homecoming>),
    /// To Resolve.
    Fates {
        /// In order.
        fates: Vec<Fate>,
        /// Who was asked is known to have left in order.
        left: bool,
    },
    /// To Standing.
    Standing {
        /// It has.
        together: bool,
    },
    /// The request could not be understood or served; nothing was applied.
    Error(String),
}
