//! What was called, what came back, and what owners counted.

use crate::error::Refusal;
use crate::record::{KeyBuf, Window};
use crate::wire::message::Op;

use super::network::Place;

/// What a key is used for: decides the calls made on it, and what must hold at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Increments, nothing else.
    Count,
    /// Increments that create with a TTL longer than any run.
    Long,
    /// Increments that create with a short TTL.
    Timed(u64),
    /// Increments, deletes, sets of integers, new deadlines.
    Mixed,
    /// Sets of bytes that differ, deletes, new deadlines.
    Value,
    /// `setnx` of values that differ, nothing else.
    Once,
    /// Appends of words that differ.
    Text,
    /// Increments until it is deleted for good.
    Retired,
}

/// A key of a run.
#[derive(Clone, Debug)]
pub struct KeyUse {
    pub key: KeyBuf,
    pub slot: u16,
    pub usage: Use,
}

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Not yet, or never: its machine was killed.
    Open,
    /// In the thread itself.
    Inline,
    /// By the node.
    Asked,
    /// By the thread for the node, which had not taken it.
    NotTaken,
    /// By the thread, which did not wait longer; the node decides it.
    Undecided,
    /// By the thread, when the node that had taken it was killed.
    Lost,
}

/// What it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ret {
    Nothing,
    Value(i64),
    Done(bool),
    Refused(Refusal),
}

/// One call of a PHP thread.
#[derive(Clone, Debug)]
pub struct Record {
    pub place: Place,
    /// The segment it was made on.
    pub origin: u64,
    pub key: usize,
    pub op: Op,
    pub at: u64,
    pub done: u64,
    pub how: How,
    pub ret: Ret,
    pub degraded: bool,
    pub window: Option<Window>,
}

impl Record {
    /// The sum of its deltas.
    pub fn delta(&self) -> i128 {
        match &self.op {
            Op::Incr { deltas, .. } => deltas.iter().map(|delta| i128::from(*delta)).sum(),
            _ => 0,
        }
    }

    /// Whether it may have been counted although nobody saw an answer.
    pub fn is_open(&self) -> bool {
        self.how == How::Open
    }
}

/// An increment that an owner counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub at: u64,
    pub place: Place,
    pub origin: u64,
    pub key: u32,
    pub term: u64,
    pub window: Window,
    pub delta: i64,
    pub value: i64,
}

/// What owners did, in the order in which they did it.
#[derive(Default)]
pub struct OwnerLog {
    /// By name, the number of the key.
    pub keys: std::collections::BTreeMap<Vec<u8>, u32>,
    pub counted: Vec<Counted>,
    /// The simulation's time.
    pub now: u64,
    /// Planted faults that were played.
    pub planted: u64,
}
