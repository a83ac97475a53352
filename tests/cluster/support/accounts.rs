//! The sums of a run with faults: *final = acknowledged + degraded - itemised loss*, to the last increment.
//!
//! Only for positive deltas, whose values tell their order. While a fault lasts an owner's count also grows by shares
//! that come home, so its chain has steps between calls; they may only be as large as what was counted elsewhere.

use std::collections::BTreeMap;

use super::checker::Call;

/// What became of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Sum of increments answered by an owner.
    pub acknowledged: i128,
    /// Sum of increments answered degraded.
    pub degraded: i128,
    /// Acknowledged increments that are not in the final value, newest last.
    pub lost: Vec<Call>,
    /// Sum of calls in flight at the kill that nobody could answer for: answered degraded, dropped, in the metric.
    pub dropped: i128,
    /// Sum of calls that never returned, but were counted.
    pub unfinished: i128,
}

/// Every increment in `calls` is in `value` exactly once.
pub fn nothing_lost(calls: &[&Call], value: i64) -> Result<Account, String> {
    let sum = |degraded: bool| -> i128 {
        calls
            .iter()
            .filter(|call| call.degraded == degraded && call.ret.is_some())
            .map(|call| i128::from(call.delta))
            .sum()
    };
    let account = Account { acknowledged: sum(false), degraded: sum(true), ..Account::default() };
    let expected = account.acknowledged + account.degraded;
    if i128::from(value) == expected {
        return Ok(account);
    }
    Err(format!(
        "{} acknowledged + {} degraded = {expected}, but the counter is {value}: off by {}",
        account.acknowledged,
        account.degraded,
        i128::from(value) - expected
    ))
}

/// Answers of one owner: distinct, in real-time order, growing by at least each call's delta, and by no more in all
/// than what was counted elsewhere (`elsewhere`: degraded increments, and calls that nobody saw the answer of).
pub fn growing(calls: &[&Call], elsewhere: i128) -> Result<(), String> {
    let mut answered: Vec<&&Call> = calls.iter().filter(|call| !call.degraded && call.ret.is_some()).collect();
    answered.sort_by_key(|call| call.ret);
    let (mut value, mut steps, mut latest_start) = (0i128, 0i128, 0u64);
    for call in answered {
        let from = call.ret.map_or(0, i128::from) - i128::from(call.delta);
        if from < value {
            return Err(format!("counted from {from}, when the counter was at {value} already: {call:?}"));
        }
        if call.end < latest_start {
            return Err(format!("returned before a call with a smaller value was made: {call:?}"));
        }
        latest_start = latest_start.max(call.start);
        steps += from - value;
        value = call.ret.map_or(0, i128::from);
    }
    if steps > elsewhere {
        return Err(format!("the count grew by {steps} that nobody added; at most {elsewhere} was counted elsewhere"));
    }
    Ok(())
}

/// What may have become of one key over the kill of an owner at `killed_at` (monotonic ns), for each sum of calls that
/// were dropped because nobody could answer for them (at most `dropped_max`).
///
/// What the dead owner had acknowledged is a chain; its successor goes on from a copy, so what is lost is an end piece
/// of that chain, of calls younger than `lag_ms` at the kill. Calls that `unfinished` announces, of processes that died
/// in them, may have been counted. Of several explanations with one sum the one with the least loss is taken.
pub fn after_kill(
    calls: &[&Call],
    unfinished: &[i64],
    value: i64,
    killed_at: u64,
    lag_ms: u64,
    dropped_max: i128,
) -> Result<BTreeMap<i128, Account>, String> {
    let delta = |call: &&Call| i128::from(call.delta);
    let done: Vec<&Call> = calls.iter().copied().filter(|call| call.ret.is_some()).collect();
    let sum = |degraded: bool| done.iter().filter(|call| call.degraded == degraded).map(delta).sum();
    let account = Account { acknowledged: sum(false), degraded: sum(true), ..Account::default() };
    // Positive: missing. Negative: counted, though no answer was seen.
    let missing = account.acknowledged + account.degraded - i128::from(value);

    // An answer may be read just after its sender died; the successor takes much longer than one call to take over.
    let mut before: Vec<&Call> =
        done.iter().copied().filter(|call| !call.degraded && call.start <= killed_at).collect();
    before.sort_by_key(|call| std::cmp::Reverse(call.ret));
    if unfinished.len() > 16 {
        return Err(format!("too many open calls to account for: {}", unfinished.len()));
    }
    let mut found = BTreeMap::new();
    let mut lost = 0i128;
    for end_piece in 0..=before.len() {
        if end_piece > 0 {
            let call = before[end_piece - 1];
            if call.end + lag_ms * 1_000_000 < killed_at {
                break;
            }
            lost += delta(&call);
        }
        for counted in 0..1u32 << unfinished.len() {
            let picked = unfinished.iter().enumerate().filter(|(index, _)| counted & (1 << index) != 0);
            let unfinished: i128 = picked.map(|(_, delta)| i128::from(*delta)).sum();
            let dropped = missing - lost + unfinished;
            if (0..=dropped_max).contains(&dropped) {
                found.entry(dropped).or_insert_with(|| {
                    let lost = before[..end_piece].iter().rev().map(|call| (*call).clone()).collect();
                    Account { lost, unfinished, dropped, ..account.clone() }
                });
            }
        }
    }
    if found.is_empty() {
        return Err(format!(
            "{} acknowledged + {} degraded, but the counter is {value}: {missing} missing, which no end piece of the \
             dead owner's last {lag_ms} ms explains (dropped in all: {dropped_max}, {unfinished:?} may be counted)",
            account.acknowledged, account.degraded,
        ));
    }
    Ok(found)
}

/// Picks one explanation of each key so that together they drop exactly `dropped`: what the metric says.
pub fn reconcile(keys: &[BTreeMap<i128, Account>], dropped: i128) -> Result<Vec<Account>, String> {
    let mut sums: BTreeMap<i128, Vec<Account>> = BTreeMap::from([(0, Vec::new())]);
    for explanations in keys {
        let mut next: BTreeMap<i128, Vec<Account>> = BTreeMap::new();
        for (sum, chosen) in &sums {
            for (part, account) in explanations {
                if sum + part <= dropped {
                    next.entry(sum + part)
                        .or_insert_with(|| [chosen.as_slice(), std::slice::from_ref(account)].concat());
                }
            }
        }
        sums = next;
    }
    let possible: Vec<i128> = sums.keys().copied().collect();
    sums.remove(&dropped).ok_or_else(|| format!("the metric says {dropped} were dropped; the sums allow {possible:?}"))
}
