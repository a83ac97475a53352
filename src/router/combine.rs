//! Waiting increments of one key travel as one frame.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Done, Router};
use crate::record::KeyBuf;
use crate::wire::message::{Call, Op, Outcome, Reply};

/// Most deltas in one frame.
const DELTAS_MAX: usize = 512;

/// What increments must have in common to travel together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    key: KeyBuf,
    ttl_ms: Option<u64>,
    negative: bool,
}

impl Group {
    /// The group of a call of one delta; `None` for everything else.
    pub(super) fn of(call: &Call) -> Option<Self> {
        match &call.op {
            Op::Incr { deltas, ttl_ms } if deltas.len() == 1 => {
                Some(Self { key: call.key.clone(), ttl_ms: *ttl_ms, negative: deltas[0] < 0 })
            }
            _ => None,
        }
    }
}

struct Waiter {
    delta: i64,
    deadline: Instant,
    done: Done,
}

/// Per group with a frame on its way: those that wait for the next frame.
#[derive(Default)]
pub(super) struct Combiner {
    waiting: Mutex<BTreeMap<Group, Vec<Waiter>>>,
}

impl Router {
    /// The first of a group goes at once; those that come while it is on its way leave together when it is back.
    pub(super) fn submit_combined(self: &Arc<Self>, group: Group, call: Call, deadline: Instant, done: Done) {
        let Op::Incr { deltas, .. } = call.op else { return };
        let waiter = Waiter { delta: deltas[0], deadline, done };
        {
            let mut waiting = self.combine.waiting.lock();
            if let Some(queue) = waiting.get_mut(&group) {
                return queue.push(waiter);
            }
            waiting.insert(group.clone(), Vec::new());
        }
        let router = self.clone();
        self.open.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let mut batch = vec![waiter];
            while !batch.is_empty() {
                router.decide_together(&group, batch).await;
                batch = router.next_batch(&group);
            }
            router.open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Those that wait, up to a frame's worth; when nobody does, the group is forgotten.
    fn next_batch(&self, group: &Group) -> Vec<Waiter> {
        let mut waiting = self.combine.waiting.lock();
        let Some(queue) = waiting.get_mut(group) else { return Vec::new() };
        if queue.is_empty() {
            waiting.remove(group);
            return Vec::new();
        }
        let take = queue.len().min(DELTAS_MAX);
        queue.drain(..take).collect()
    }

    async fn decide_together(self: &Arc<Self>, group: &Group, batch: Vec<Waiter>) {
        let deltas: Vec<i64> = batch.iter().map(|waiter| waiter.delta).collect();
        // The latest: those whose own deadline comes first give up by themselves, and what they are told then is safe.
        let deadline = batch.iter().map(|waiter| waiter.deadline).max().unwrap_or_else(Instant::now);
        let call = Call { key: group.key.clone(), op: Op::Incr { deltas, ttl_ms: group.ttl_ms } };
        let reply = self.decide(call, deadline).await;
        for (index, waiter) in batch.into_iter().enumerate() {
            let outcome = match &reply.outcome {
                Outcome::Values(values) => match values.get(index) {
                    Some(value) => Outcome::Values(vec![*value]),
                    None => Outcome::Refused(crate::error::Refusal::NoOwner),
                },
                other => other.clone(),
            };
            // The window is for the test build, which reports it.
            let state = if cfg!(any(test, feature = "testing")) { reply.state.clone() } else { None };
            (waiter.done)(Reply { outcome, state, degraded: reply.degraded });
        }
    }
}
