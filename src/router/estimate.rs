//! What a caller is told while nobody knows whether its call was applied. Nothing is counted here.

use super::local_outcome;
use crate::error::Refusal;
use crate::store::{Standing, Store, Value};
use crate::wire::message::{Call, Op, Outcome, Reply};

/// The degraded answer to an unresolved call: for increments, this host's copy plus the deltas, uncounted.
pub fn estimate(store: &Store, call: &Call) -> Reply {
    let outcome = match &call.op {
        Op::Incr { deltas, .. } => Outcome::Values(estimated_values(store, call, deltas)),
        // Repeating these does no harm, and the owner's state replaces what they leave here.
        _ => local_outcome(store, call, Standing::Degraded),
    };
    Reply { outcome, state: super::window_state(store, call), degraded: true }
}

fn estimated_values(store: &Store, call: &Call, deltas: &[i64]) -> Vec<Result<i64, Refusal>> {
    let held = store.read(call.key.as_key(), |value| match value {
        Value::Int(value) => Ok(value),
        Value::Bytes(_) | Value::Elsewhere(_) => Err(Refusal::NotAnInteger),
    });
    let mut sum = match held {
        Ok(Some(Ok(value))) => value,
        Ok(None) => 0,
        Ok(Some(Err(refusal))) | Err(refusal) => return vec![Err(refusal); deltas.len()],
    };
    deltas
        .iter()
        .map(|delta| {
            let next = sum.checked_add(*delta).ok_or(Refusal::Overflow)?;
            sum = next;
            Ok(next)
        })
        .collect()
}
