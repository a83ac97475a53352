//! A run in words.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checker::{Verdict, ms};
use crate::plan::Plan;
use crate::run::Run;
use crate::totals::accounts;

/// The plan, before anything is done.
pub fn plan(plan: &Plan) -> String {
    let mut out = format!(
        "chaos: EPHPM_KV_SEED={} EPHPM_KV_CHAOS_HOSTS={} EPHPM_KV_CHAOS_SECONDS={} ({:?}; nodes of their own: {:?})\n",
        plan.seed,
        plan.hosts,
        plan.load_ms / 1_000,
        plan.menu,
        plan.own_process
    );
    for planned in &plan.faults {
        let (at, lasts) = (planned.at_ms as f64 / 1e3, planned.for_ms as f64 / 1e3);
        let _ = writeln!(out, "  planned at {at:6.2} s for {lasts:5.2} s: {}", planned.fault);
    }
    out
}

/// What happened and what it came to.
pub fn whole(run: &Run, verdict: &Verdict) -> String {
    let mut out = String::new();
    let at = |ns: u64| ms(ns.saturating_sub(run.began)) / 1e3;
    for span in &run.spans {
        let _ = write!(out, "  {:6.2} to {:6.2} s: {}", at(span.from), at(span.to), span.fault);
        for (when, what) in &span.moments {
            let _ = write!(out, "; {:.2} {what}", at(*when));
        }
        out.push('\n');
    }
    let _ = writeln!(
        out,
        "  healed at {:.2} s, all ready at {:.2} s, load ended at {:.2} s",
        at(run.healed),
        at(run.ready),
        at(run.ended)
    );
    calls(run, &mut out);
    losses(run, &mut out);
    for finding in &verdict.findings {
        let state = if finding.violations.is_empty() { "holds" } else { "BROKEN" };
        let _ = writeln!(out, "promise {}, {}: {state}, {} checked", finding.promise, finding.rule, finding.checked);
        finding.notes.iter().for_each(|note| _ = writeln!(out, "    {note}"));
        finding.told().iter().for_each(|violation| _ = writeln!(out, "  ! {violation}"));
    }
    let verdict = if verdict.is_right() { "all promises held" } else { "BROKEN" };
    let _ = writeln!(out, "seed {} on {} hosts: {verdict}", run.plan.seed, run.plan.hosts);
    out
}

/// Calls by function and how they were answered.
fn calls(run: &Run, out: &mut String) {
    let mut table: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for event in &run.record.events {
        let path = match (event.degraded, event.owner == format!("host{}", event.host)) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        };
        table.entry(&event.op).or_default()[path] += 1;
    }
    let _ = writeln!(out, "  {:10} {:>9} {:>9} {:>9}", "calls", "own keys", "others'", "degraded");
    for (op, [local, remote, degraded]) in &table {
        let _ = writeln!(out, "  {op:10} {local:9} {remote:9} {degraded:9}");
    }
    let (processes, open) = (run.record.processes, run.record.open.len());
    let _ = writeln!(out, "  {processes} processes called; {open} calls never returned (killed)");
}

/// Every counter of which something is missing.
fn losses(run: &Run, out: &mut String) {
    for (key, account) in accounts(run) {
        let Some(account) = account.filter(|account| account.missing != 0) else { continue };
        let _ = writeln!(
            out,
            "  {key}: {} acknowledged + {} degraded - {} = {} (explained up to {}; {} in calls that never returned)",
            account.acknowledged, account.degraded, account.missing, account.value, account.exposed, account.open
        );
    }
}
