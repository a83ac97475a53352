//! Refusals: every one says what it means for the state, which is always unchanged.

/// Why the store or the owner refused an operation. The key's state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An increment of something that is not an integer.
    #[error("the value is not an integer")]
    NotAnInteger,
    /// The result would not fit in 64 bits.
    #[error("the result would overflow a 64-bit integer")]
    Overflow,
    /// No room in the host segment and nothing may be evicted.
    #[error("memory is full (ephpm_kv.memory)")]
    MemoryFull,
    /// The value is longer than `ephpm_kv.value_max`.
    #[error("the value is longer than ephpm_kv.value_max")]
    ValueTooLarge,
    /// A shard's lock was not had in time: its holder is stopped.
    #[error("the store is busy: a process that holds a lock is stopped")]
    Busy,
    /// No owner to be had and the operation cannot be degraded honestly.
    #[error("the key's owner cannot be reached")]
    NoOwner,
    /// The extension is disabled or its set-up failed.
    #[error("ephpm_kv is disabled")]
    Disabled,
}

impl Refusal {
    /// The number that stands for this refusal on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The refusal a wire number stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        use Refusal::*;
        [NotAnInteger, Overflow, MemoryFull, ValueTooLarge, Busy, NoOwner, Disabled]
            .into_iter()
            .find(|refusal| refusal.code() == code)
    }
}

/// A set-up that failed: which setting or resource, and why. Nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct SetupError {
    /// The setting or resource.
    pub what: String,
    /// The reason, in words an operator can act on.
    pub why: String,
}

impl SetupError {
    /// A set-up error about `what`.
    pub fn new(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self { what: what.into(), why: why.to_string() }
    }
}
