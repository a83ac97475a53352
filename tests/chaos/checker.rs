//! Judges a run: promise by promise, from what was called and answered, what was done to the hosts and what they hold
//! at the end. Pure: no process, no clock.
//!
//! Some rules hold at every moment (sums, at most once, deadlines, bounded calls). Others hold while owners hand over
//! what they own, but not when one is cut off, stopped or killed: both sides of a partition go on by design. Those are
//! judged in *calm* stretches: from [`SETTLE`] after one such fault until the next.

use std::time::Duration;

use crate::record::Event;
use crate::run::Run;
use crate::{order, totals, values};

/// After a fault is healed all promises must hold within this time.
pub const SETTLE: Duration = Duration::from_secs(5);

/// A thread that does nothing and wakes so late: nodes may have been thought dead.
const STARVED: Duration = Duration::from_millis(400);

/// Examples of one violation that are told.
const TOLD_MAX: usize = 8;

/// What one rule came to.
#[derive(Debug)]
pub struct Finding {
    /// The promise's number in the design.
    pub promise: u8,
    /// The rule.
    pub rule: &'static str,
    /// How many things were held to it.
    pub checked: usize,
    /// What breaks it.
    pub violations: Vec<String>,
    /// Worth knowing, but no violation.
    pub notes: Vec<String>,
}

impl Finding {
    /// Nothing checked yet.
    pub fn new(promise: u8, rule: &'static str) -> Self {
        Self { promise, rule, checked: 0, violations: Vec::new(), notes: Vec::new() }
    }

    /// One thing was held to the rule.
    pub fn check(&mut self, right: bool, what: impl FnOnce() -> String) {
        self.checked += 1;
        if !right {
            self.violations.push(what());
        }
    }

    /// The first violations, and how many more there are.
    pub fn told(&self) -> Vec<String> {
        let mut told: Vec<String> = self.violations.iter().take(TOLD_MAX).cloned().collect();
        if self.violations.len() > TOLD_MAX {
            told.push(format!("and {} more", self.violations.len() - TOLD_MAX));
        }
        told
    }
}

/// Everything that a run came to.
#[derive(Debug)]
pub struct Verdict {
    /// Rule by rule.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Whether every promise held.
    pub fn is_right(&self) -> bool {
        self.findings.iter().all(|finding| finding.violations.is_empty())
    }

    /// Whether this rule was broken.
    pub fn broke(&self, rules: &[&str]) -> bool {
        self.findings.iter().any(|finding| rules.contains(&finding.rule) && !finding.violations.is_empty())
    }
}

/// When owners could be replaced without handing over.
pub struct Troubles {
    hard: Vec<(u64, u64)>,
}

impl Troubles {
    /// Of a run.
    pub fn of(run: &Run) -> Self {
        let settle = SETTLE.as_nanos() as u64;
        let mut hard: Vec<(u64, u64)> = run
            .spans
            .iter()
            .filter(|span| span.fault.is_hard())
            .map(|span| (span.from.saturating_sub(100_000_000), span.to + settle))
            .collect();
        let starved = run.delays.0.iter().filter(|(_, late)| *late > STARVED.as_nanos() as u64);
        hard.extend(starved.map(|(at, late)| (at - late, at + settle)));
        hard.sort_unstable();
        Self { hard }
    }

    /// Whether there was none in this time.
    pub fn calm(&self, from: u64, to: u64) -> bool {
        !self.hard.iter().any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// The calm stretches of a run.
    pub fn stretches(&self, run: &Run) -> Vec<(u64, u64)> {
        let (mut calm, mut from) = (Vec::new(), run.began);
        for (begin, end) in &self.hard {
            if *begin > from {
                calm.push((from, *begin));
            }
            from = from.max(*end);
        }
        if from < run.ended {
            calm.push((from, run.ended));
        }
        calm
    }
}

/// Holds a run to all promises.
pub fn judge(run: &Run) -> Verdict {
    let troubles = Troubles::of(run);
    let mut findings = vec![
        totals::sums(run),
        totals::at_most_once(run),
        order::order(run, &troubles),
        order::deadlines(run, &troubles),
        order::windows_in_turn(run, &troubles),
        degraded_calls_return(run),
        bounded(run),
        whole(run),
        order::deleted_windows(run, &troubles),
    ];
    findings.extend(values::values(run, &troubles));
    findings.push(order::remaining_time(run));
    Verdict { findings }
}

/// Every increment is answered with a number, whatever breaks.
fn degraded_calls_return(run: &Run) -> Finding {
    let mut finding = Finding::new(4, "calls return");
    for event in run.record.events.iter().filter(|event| event.is_increment()) {
        finding.check(event.out.int().is_some(), || format!("refused: {}", line(run, event)));
    }
    let degraded = run.record.events.iter().filter(|event| event.degraded).count();
    finding.notes.push(format!("{degraded} calls were degraded"));
    finding
}

/// No call takes longer than its deadline, but for what the machine and a stop of the caller itself add.
fn bounded(run: &Run) -> Finding {
    let mut finding = Finding::new(5, "bounded calls");
    let timeout = crate::hosts::TIMEOUT.as_nanos() as u64;
    let mut slowest: Option<(u64, &Event)> = None;
    let mut over = 0;
    for event in &run.record.events {
        // A caller that was stopped itself cannot answer in time.
        let stopped =
            |span: &&crate::run::Span| span.fault.kind() == "stop-host" && span.fault.hosts().contains(&event.host);
        if run.spans.iter().filter(stopped).any(|span| span.from <= event.end && event.start <= span.to) {
            continue;
        }
        let took = event.end - event.start;
        if slowest.is_none_or(|(most, _)| took > most) {
            slowest = Some((took, event));
        }
        // The deadline, a lock whose holder is stopped (20 ms), and what a waiting process may be late by.
        let late = if took > timeout { run.delays.worst_between(event.start, event.end) } else { 0 };
        over += usize::from(took > timeout + 3 * late + 30_000_000);
        // One process may get no processor for long on a machine that everybody uses; many do not.
        finding.check(took <= timeout + 3 * late + 950_000_000, || {
            format!("{:.0} ms (the machine was up to {:.0} ms late): {}", ms(took), ms(late), line(run, event))
        });
    }
    let most = finding.checked / 1_000;
    finding.check(over <= most.max(3), || format!("{over} calls took more than 30 ms longer than their deadline"));
    finding.notes.push(format!("{over} calls took more than 30 ms longer than their deadline"));
    if let Some((took, event)) = slowest {
        finding.notes.push(format!("the slowest took {:.1} ms: {}", ms(took), line(run, event)));
    }
    finding
}

/// Hosts got ready, ended in order, agreed; nobody hung or crashed.
fn whole(run: &Run) -> Finding {
    let mut finding = Finding::new(6, "hosts");
    finding.checked = run.record.processes;
    finding.violations = run.problems.clone();
    let after = |ns: u64, since: u64| ms(ns.saturating_sub(since));
    finding.notes.push(format!("ready {:.0} ms after the heal", after(run.ready, run.healed)));
    if run.held.agreed {
        finding.notes.push(format!("all copies agreed {:.0} ms after the last call", after(run.held.asked, run.ended)));
    }
    finding
}

/// Nanoseconds as milliseconds.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A call in one line, with times from the start of the load.
pub fn line(run: &Run, event: &Event) -> String {
    let at = |ns: u64| ns.saturating_sub(run.began) as f64 / 1e9;
    let degraded = if event.degraded { ", degraded" } else { "" };
    format!(
        "host{} {} at {:.3}..{:.3} s: {}({}, {:?}) gave {:?}{degraded}, window {:?}, owner {}",
        event.host,
        event.pid,
        at(event.start),
        at(event.end),
        event.op,
        event.key,
        event.argument,
        event.out,
        event.window,
        event.owner
    )
}
