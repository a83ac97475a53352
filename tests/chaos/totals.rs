//! Promises 1, 3 and 5: *final = acknowledged + degraded - itemised loss*, and nothing is counted twice.

use std::collections::BTreeMap;

use crate::checker::{Finding, line, ms};
use crate::plan::Fault;
use crate::record::Event;
use crate::run::{Run, Span};

/// What an owner may have acknowledged and not yet replicated when it is killed: an interval and a round trip, on a
/// busy machine.
const LAG_NS: u64 = 300_000_000;

/// How long a node asks what became of a call; and how long a host that was in trouble may take to be whole again.
const RECOVERY_NS: u64 = 10_000_000_000;

/// The account of one counter.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Sum of increments answered by an owner.
    pub acknowledged: i128,
    /// Sum of increments answered degraded.
    pub degraded: i128,
    /// Sum of calls that never returned.
    pub open: i128,
    /// What was missing at the end; negative: open calls that were counted.
    pub missing: i128,
    /// At most so much may have been in killed segments only.
    pub exposed: i128,
    /// The final value.
    pub value: i128,
}

/// The accounts of all counters that nobody ends; `None` where the copies do not agree or the key is gone.
pub fn accounts(run: &Run) -> BTreeMap<String, Option<Account>> {
    let mut accounts = BTreeMap::new();
    for (key, events) in run.record.by_key("c:") {
        let increments: Vec<&Event> = events.into_iter().filter(|event| event.is_increment()).collect();
        if increments.is_empty() && run.record.open_sum(key) == 0 {
            continue;
        }
        let value = run.held.finals.get(key).and_then(|(value, _)| value.strip_prefix('s')?.parse::<i128>().ok());
        let account = value.map(|value| {
            let sum = |degraded: bool| -> i128 {
                let counted = increments.iter().filter(|event| event.degraded == degraded && event.out.int().is_some());
                counted.map(|event| i128::from(event.delta())).sum()
            };
            let (acknowledged, degraded) = (sum(false), sum(true));
            Account {
                acknowledged,
                degraded,
                open: run.record.open_sum(key),
                missing: acknowledged + degraded - value,
                exposed: increments
                    .iter()
                    .filter(|event| exposed(run, event))
                    .map(|event| i128::from(event.delta()))
                    .sum(),
                value,
            }
        });
        accounts.insert(key.to_owned(), account);
    }
    accounts
}

/// Promises 1 and 5.
pub fn sums(run: &Run) -> Finding {
    let mut finding = Finding::new(1, "sums");
    let accounts = accounts(run);
    let lossy = run.spans.iter().any(|span| span.fault.may_lose());
    let dropped = dropped(run);
    let (mut missing, mut exposed_sum) = (0, 0);
    for (key, account) in &accounts {
        let Some(account) = account else {
            finding.check(false, || format!("{key}: no agreed final value: {:?}", run.held.finals.get(key)));
            continue;
        };
        let Account { acknowledged, degraded, open, missing: lacks, exposed, value } = account;
        finding.check(*lacks >= -open, || {
            format!("{key}: {acknowledged} acknowledged + {degraded} degraded (+ up to {open} open), but it is {value}")
        });
        finding.check(*lacks <= exposed + dropped, || {
            format!(
                "{key}: {acknowledged} acknowledged + {degraded} degraded, but it is {value}: {lacks} are missing; killed \
                 segments may explain {exposed}, the metrics {dropped}"
            )
        });
        missing += (*lacks).max(0);
        exposed_sum += exposed;
    }
    finding.check(missing <= exposed_sum + dropped, || {
        format!("{missing} are missing in all; killed segments may explain {exposed_sum}, the metrics {dropped}")
    });
    finding.check(lossy || dropped == 0, || format!("nothing was killed, but the metrics say: {:?}", run.lost));
    finding.notes.push(format!(
        "{missing} lost of {} increments' sum (explained: up to {exposed_sum} in killed segments, {dropped} by the metrics {:?})",
        accounts.values().flatten().map(|account| account.acknowledged + account.degraded).sum::<i128>(),
        run.lost
    ));
    finding
}

/// Sum of increments that the metrics call lost, but for ended windows: the counters here never end.
fn dropped(run: &Run) -> i128 {
    run.lost.iter().filter(|(reason, _)| *reason != "window_ended").map(|(_, amount)| i128::from(*amount)).sum()
}

/// Whether an increment may have been in a killed segment only, or with a killed node.
fn exposed(run: &Run, event: &Event) -> bool {
    run.spans.iter().any(|span| match &span.fault {
        Fault::KillHost(host) => {
            let killed = span.moments.first().map_or(span.from, |(at, _)| *at);
            let since = untroubled_since(run, *host, killed, span);
            let of_it = (event.host == *host && event.degraded)
                || (!event.degraded && (event.owner == format!("host{host}") || since + LAG_NS < killed));
            of_it && event.start <= killed + LAG_NS && event.end + LAG_NS >= since
        }
        // Its segment lives: lost is at most what it was asking after, whose callers have been answered degraded.
        Fault::KillNode(host) => {
            let near = event.start <= span.from + LAG_NS && event.end + RECOVERY_NS >= span.from;
            event.host == *host && event.degraded && near
        }
        // One that leaves while it is cut off takes with it what it could not bring home.
        fault if fault.is_orderly() && event.degraded => {
            let cut = |other: &&Span| other.fault.is_hard() && other.from <= span.to && span.from <= other.to;
            run.spans.iter().any(|other| cut(&other)) && event.start <= span.to && event.end + RECOVERY_NS >= span.from
        }
        _ => false,
    })
}

/// Since when a host that was killed at `killed` may have held what nobody else had: since the begin of the troubles
/// that it had not recovered from.
fn untroubled_since(run: &Run, host: usize, killed: u64, kill: &Span) -> u64 {
    let mut since = killed;
    // Troubles may join: later ones first.
    for span in run.spans.iter().rev().filter(|span| !std::ptr::eq(*span, kill)) {
        let name_it = span.fault.hosts().is_empty() || span.fault.hosts().contains(&host);
        let touches = name_it || matches!(span.fault, Fault::Partition(_) | Fault::KillHost(_));
        if touches && span.fault.is_hard() && span.from < killed && span.to + RECOVERY_NS / 2 >= since {
            since = since.min(span.from);
        }
    }
    since
}

/// Promise 3: no answer is larger than what had been asked for by then.
pub fn at_most_once(run: &Run) -> Finding {
    let mut finding = Finding::new(3, "at most once");
    for (key, events) in run.record.by_key("c:") {
        let opened = run.record.open.iter().filter(|open| open.key == key && open.op.starts_with("incr"));
        let mut asked: Vec<(u64, i128)> = events.iter().map(|event| (event.start, i128::from(event.delta()))).collect();
        asked.extend(opened.map(|open| (open.start, i128::from(open.argument.int().unwrap_or_default()))));
        asked.sort_unstable();
        let mut sum = 0;
        let sums: Vec<(u64, i128)> = asked
            .into_iter()
            .map(|(start, delta)| {
                sum += delta;
                (start, sum)
            })
            .collect();
        for event in events {
            let Some(value) = answered(event) else { continue };
            let before = sums.partition_point(|(start, _)| *start <= event.end);
            // A call without an answer in time is told the copy plus what it asked for, which the copy may show already.
            let twice = if event.degraded { i128::from(event.delta()) } else { 0 };
            let most = before.checked_sub(1).map_or(0, |index| sums[index].1) + twice;
            finding
                .check(value <= most, || format!("{value}, when only {most} had been asked for: {}", line(run, event)));
        }
    }
    finding.notes.push(format!("the load lasted {:.1} s", ms(run.ended - run.began) / 1e3));
    finding
}

fn answered(event: &Event) -> Option<i128> {
    match &event.out {
        crate::record::Out::Int(value) => Some(i128::from(*value)),
        crate::record::Out::Text(text) => text.parse().ok(),
        _ => None,
    }
}
