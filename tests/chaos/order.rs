//! Promises 1, 2, 7 and 8 of counters: one order of calls, windows that end on time and never come back.

use std::collections::{BTreeMap, HashSet};

use crate::checker::{Finding, Troubles, line, ms};
use crate::hosts::TTL_MS;
use crate::plan::Fault;
use crate::record::{Event, Out};
use crate::run::Run;
use crate::support::accounts::growing;
use crate::support::checker::Call;

/// The coarse clock's resolution twice, and a wake-up.
const RESOLUTION_NS: u64 = 50_000_000;

/// How long a node asks what became of a call: so much later it may be counted.
const LATE_NS: u64 = 10_000_000_000;

/// So long after a change everybody has it, on a busy machine.
const REPLICATED_NS: u64 = 500_000_000;

const TTL_NS: u64 = TTL_MS * 1_000_000;

/// The increments of a key that were answered by an owner, by window.
fn windows<'a>(events: &[&'a Event]) -> BTreeMap<(u64, u64), Vec<&'a Event>> {
    let mut windows: BTreeMap<(u64, u64), Vec<&Event>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_increment() && !event.degraded && event.out.int().is_some()) {
        windows.entry(event.window).or_default().push(event);
    }
    windows
}

/// Promise 1: in calm stretches, changes of owner included, values are distinct, in the order of real time, and grow
/// by what was added and by what was counted elsewhere before.
pub fn order(run: &Run, troubles: &Troubles) -> Finding {
    let mut finding = Finding::new(1, "one order");
    let stretches = troubles.stretches(run);
    let calm_ns: u64 = stretches.iter().map(|(from, to)| to - from).sum();
    for prefix in ["c:", "t:", "d:"] {
        for (key, events) in run.record.by_key(prefix) {
            for (window, calls) in windows(&events) {
                // A counter that nobody ends is one, whatever windows faults have made of it.
                let calls = if prefix == "c:" { events.clone() } else { calls };
                for (from, to) in &stretches {
                    let (checked, result) = stretch(run, &events, &calls, *from, *to);
                    finding.checked += checked;
                    if let Err(reason) = result {
                        finding.violations.push(format!("{key}, window {window:?}: {reason}"));
                    }
                }
                if prefix == "c:" {
                    break;
                }
            }
        }
    }
    finding.notes.push(format!("{:.1} s of {:.1} s were calm", ms(calm_ns) / 1e3, ms(run.ended - run.began) / 1e3));
    finding
}

/// One key and window in one calm stretch.
fn stretch(run: &Run, all: &[&Event], calls: &[&Event], from: u64, to: u64) -> (usize, Result<(), String>) {
    let inside = |event: &&&Event| event.start >= from && event.end <= to && event.is_increment() && !event.degraded;
    let calls: Vec<Call> = calls.iter().filter(inside).map(|event| event.as_call()).collect();
    let calls: Vec<&Call> = calls.iter().collect();
    let Some(first) = calls.iter().filter_map(|call| Some(i128::from(call.ret?) - i128::from(call.delta))).min() else {
        return (0, Ok(()));
    };
    // What may come in late: what nobody saw the answer of, and what was counted without the owner.
    let late =
        |event: &&&Event| event.is_increment() && event.degraded && event.end + LATE_NS >= from && event.start <= to;
    let elsewhere: i128 = all.iter().filter(late).map(|event| i128::from(event.delta())).sum();
    // Counted apart, in a window of its own, a share comes into the owner's window and leaves it when its own has ended.
    if elsewhere > 0 && !all.first().is_some_and(|event| event.key.starts_with("c:")) {
        return (0, Ok(()));
    }
    // Those that had begun when the stretch did are not among its calls, but may have been counted within it.
    let begun = |event: &&&Event| {
        event.is_increment() && !event.degraded && event.start < from && (from..=to).contains(&event.end)
    };
    let begun: i128 = all.iter().filter(begun).map(|event| i128::from(event.delta())).sum();
    let open = all.first().map_or(0, |event| run.record.open_sum(&event.key));
    let result = growing(&calls, first + elsewhere + begun + open).map_err(|reason| {
        format!("between {:.3} and {:.3} s: {reason}", ms(from - run.began) / 1e3, ms(to - run.began) / 1e3)
    });
    (calls.len(), result)
}

/// Promise 2: nothing is counted past a window's deadline.
pub fn deadlines(run: &Run, troubles: &Troubles) -> Finding {
    let mut finding = Finding::new(2, "deadlines");
    let mut latest = 0;
    for (_, events) in run.record.by_key("t:") {
        for calls in windows(&events).values() {
            let Some(created) = calls.iter().map(|event| event.end).min() else { continue };
            for event in calls {
                let over = event.start.saturating_sub(created + TTL_NS);
                let allowed = RESOLUTION_NS + travel(run, troubles, created, event.start);
                latest = latest.max(over);
                finding.check(over <= allowed, || {
                    format!(
                        "counted {:.0} ms past its deadline ({:.0} ms may be): {}",
                        ms(over),
                        ms(allowed),
                        line(run, event)
                    )
                });
            }
        }
    }
    finding.notes.push(format!("the latest was {:.1} ms past the deadline", ms(latest)));
    finding
}

/// How long a copy, which says what time is left, may have been on its way or lain unread.
fn travel(run: &Run, troubles: &Troubles, from: u64, to: u64) -> u64 {
    let late = run.delays.worst_between(from, to);
    let slow = run.spans.iter().filter(|span| span.from <= to && from <= span.to).map(|span| match span.fault {
        // There and back, and a stream that waits for what was overtaken.
        Fault::Slow(_, delay) | Fault::Reorder(_, delay) => 3 * delay * 1_000_000,
        _ => 0,
    });
    let slow = slow.max().unwrap_or(0);
    if troubles.calm(from, to) {
        return slow + 2 * late;
    }
    let hard = run.spans.iter().filter(|span| span.fault.is_hard() && span.from <= to && from <= span.to + LATE_NS);
    // What lay in the buffers of a stopped or unreachable host has aged by that time.
    hard.map(|span| span.to - span.from).max().unwrap_or(0) + slow + 2 * late + 1_000_000_000
}

/// Promise 2: no window is replaced before its time.
pub fn windows_in_turn(run: &Run, troubles: &Troubles) -> Finding {
    let mut finding = Finding::new(2, "windows in turn");
    for (key, events) in run.record.by_key("t:") {
        let mut lives: Vec<(u64, u64, Vec<&Event>)> = windows(&events)
            .into_values()
            .filter_map(|calls| {
                let creator = calls
                    .iter()
                    .filter(|event| event.out.int() == Some(event.delta()))
                    .min_by_key(|event| event.start)?;
                Some((creator.start, creator.end, calls.clone()))
            })
            .collect();
        lives.sort_by_key(|(start, ..)| *start);
        for pair in lives.windows(2) {
            let ((from, to, calls), (next_from, next_to, _)) = (&pair[0], &pair[1]);
            if !troubles.calm(from.saturating_sub(TTL_NS), *next_to) {
                continue;
            }
            finding.check(next_to + RESOLUTION_NS >= from + TTL_NS, || {
                format!("{key}: a window was replaced after {:.0} ms", ms(next_to.saturating_sub(*from)))
            });
            let late = calls.iter().find(|event| event.start > next_to.max(to) + RESOLUTION_NS);
            finding.check(late.is_none(), || {
                let late = late.map(|event| line(run, event)).unwrap_or_default();
                format!(
                    "{key}: counted after the next window had begun at {:.3} s: {late}",
                    ms(next_from - run.began) / 1e3
                )
            });
        }
    }
    finding
}

/// Promise 7: a window that an owner has ended stays ended, whatever happens later.
pub fn deleted_windows(run: &Run, troubles: &Troubles) -> Finding {
    let mut finding = Finding::new(7, "deleted windows");
    for (key, events) in run.record.by_key("d:") {
        let deletes = events.iter().filter(|event| {
            event.op == "del"
                && !event.degraded
                && matches!(event.out, Out::Int(_))
                && troubles.calm(event.start, event.end + REPLICATED_NS)
        });
        for delete in deletes {
            let counted = |event: &&&Event| event.is_increment() && !event.degraded;
            let before: HashSet<(u64, u64)> = events
                .iter()
                .filter(counted)
                .filter(|event| event.end < delete.start)
                .map(|event| event.window)
                .collect();
            let again =
                events.iter().filter(counted).find(|event| event.start > delete.end && before.contains(&event.window));
            finding.check(again.is_none(), || {
                let again = again.map(|event| line(run, event)).unwrap_or_default();
                format!("{key}: {} and yet: {again}", line(run, delete))
            });
        }
    }
    finding
}

/// Promises 2 and 8: a counter made with a TTL has a deadline whoever looks, and never more time left than it was given.
pub fn remaining_time(run: &Run) -> Finding {
    let mut finding = Finding::new(8, "remaining time");
    let right = |left: i64| left == -2 || (1..=TTL_MS as i64).contains(&left);
    for event in run.record.events.iter().filter(|event| event.op == "pttl") {
        finding.check(event.out.int().is_some_and(right), || line(run, event));
    }
    for (key, (_, left)) in run.held.finals.iter().filter(|(key, _)| key.starts_with("t:")) {
        finding.check(right(*left), || format!("{key} has {left} ms left at the end"));
    }
    finding
}
