//! A run as a picture: one lane per host with what befell it and how many of its calls were degraded, and one with
//! the changes of owners.

use std::collections::HashMap;
use std::fmt::Write;

use crate::plan::Fault;
use crate::run::{Run, Span};

const LEFT: f64 = 70.0;
const WIDTH: f64 = 1_200.0;
const LANE: f64 = 74.0;
const TOP: f64 = 46.0;

/// Width of one column of degraded calls, ns.
const COLUMN_NS: u64 = 250_000_000;

struct Scale {
    began: u64,
    length: u64,
}

impl Scale {
    fn x(&self, ns: u64) -> f64 {
        LEFT + WIDTH * ns.saturating_sub(self.began).min(self.length) as f64 / self.length as f64
    }
}

/// The picture as SVG.
pub fn svg(run: &Run, right: bool) -> String {
    let scale = Scale { began: run.began, length: (run.ended - run.began).max(1) };
    let lanes = run.plan.hosts + 1;
    let height = TOP + LANE * (lanes + 1) as f64 + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        LEFT + WIDTH + 20.0
    );
    let verdict = if right { "all promises held" } else { "BROKEN" };
    text(&mut out, LEFT, 18.0, &format!("seed {}, {} hosts: {verdict}", run.plan.seed, run.plan.hosts));
    axis(&mut out, &scale, height - 44.0);
    for host in 0..lanes {
        lane(&mut out, run, &scale, host);
    }
    owners(&mut out, run, &scale, lanes);
    legend(&mut out, height - 14.0);
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, x: f64, y: f64, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{what}</text>");
}

fn rect(out: &mut String, x: f64, y: f64, width: f64, height: f64, fill: &str, title: &str) {
    let width = width.max(1.0);
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"><title>{title}</title></rect>"
    );
}

fn axis(out: &mut String, scale: &Scale, y: f64) {
    let seconds = scale.length / 1_000_000_000;
    let step = if seconds > 30 { 5 } else { 1 };
    for second in (0..=seconds).step_by(step) {
        let x = scale.x(scale.began + second * 1_000_000_000);
        let _ = writeln!(out, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>");
        text(out, x - 6.0, y + 14.0, &format!("{second} s"));
    }
    for (ns, label) in [(scale.began, "load"), (scale.began + scale.length, "end")] {
        text(out, scale.x(ns) - 10.0, TOP - 8.0, label);
    }
}

fn color(fault: &Fault) -> &'static str {
    match fault.kind() {
        "kill-worker" | "kill-node" | "kill-host" => "#b03030",
        "stop-node" | "stop-host" => "#e0a030",
        "partition" | "one-way" | "pair-cut" | "gossip-cut" | "data-cut" => "#5070c0",
        "slow" | "reorder" => "#90b0d0",
        "clock-step" => "#9060b0",
        _ => "#60a060",
    }
}

fn lane(out: &mut String, run: &Run, scale: &Scale, host: usize) {
    let y = TOP + LANE * host as f64;
    text(out, 8.0, y + 20.0, &format!("host{host}"));
    for (from, to) in lives(run, host) {
        rect(out, scale.x(from), y + 8.0, scale.x(to) - scale.x(from), 6.0, "#70b070", "alive");
    }
    let touching =
        |span: &&Span| span.fault.hosts().contains(&host) || (span.fault.hosts().is_empty() && moments(span, host) > 0);
    for (row, span) in run.spans.iter().filter(touching).enumerate() {
        let (x, width) = (scale.x(span.from), scale.x(span.to) - scale.x(span.from));
        rect(out, x, y + 16.0 + 7.0 * (row % 2) as f64, width, 6.0, color(&span.fault), &span.fault.to_string());
    }
    degraded(out, run, scale, host, y + 70.0);
}

fn moments(span: &Span, host: usize) -> usize {
    let name = format!("host{host}");
    span.moments.iter().filter(|(_, what)| what.ends_with(&name)).count()
}

/// From and to of each life of a host.
fn lives(run: &Run, host: usize) -> Vec<(u64, u64)> {
    let name = format!("host{host}");
    let mut news: Vec<(u64, bool)> = Vec::new();
    for (at, what) in run.spans.iter().flat_map(|span| &span.moments).filter(|(_, what)| what.ends_with(&name)) {
        news.push((*at, what.starts_with("started")));
    }
    news.sort_unstable();
    let mut alive = (host < run.plan.hosts).then_some(run.began);
    let mut lives = Vec::new();
    for (at, started) in news {
        match (alive, started) {
            (Some(from), false) => {
                lives.push((from, at));
                alive = None;
            }
            (None, true) => alive = Some(at),
            _ => {}
        }
    }
    lives.extend(alive.map(|from| (from, run.ended)));
    lives
}

/// The share of degraded calls of a host over time, as columns that stand on `floor`.
fn degraded(out: &mut String, run: &Run, scale: &Scale, host: usize, floor: f64) {
    let mut columns: HashMap<u64, (u32, u32)> = HashMap::new();
    for event in run.record.events.iter().filter(|event| event.host == host) {
        let column = columns.entry(event.end.saturating_sub(run.began) / COLUMN_NS).or_default();
        column.0 += u32::from(event.degraded);
        column.1 += 1;
    }
    for (column, (degraded, all)) in columns {
        let from = scale.x(run.began + column * COLUMN_NS);
        let width = scale.x(run.began + (column + 1) * COLUMN_NS) - from;
        let height = 36.0 * f64::from(degraded) / f64::from(all);
        rect(out, from, floor - 1.0, width, 1.0, "#bbb", &format!("{all} calls"));
        if degraded > 0 {
            rect(out, from, floor - height, width, height, "#d06060", &format!("{degraded} of {all} calls degraded"));
        }
    }
}

/// How many of the keys in use changed their owner, as seen by whoever called.
fn owners(out: &mut String, run: &Run, scale: &Scale, lane: usize) {
    let (y, mut last) = (TOP + LANE * lane as f64, HashMap::<(usize, &str), &str>::new());
    text(out, 8.0, y + 20.0, "owners");
    let mut columns: HashMap<u64, u32> = HashMap::new();
    for event in run.record.events.iter().filter(|event| !event.key.starts_with("b:")) {
        if last.insert((event.host, &event.key), &event.owner).is_some_and(|before| before != event.owner) {
            *columns.entry(event.end.saturating_sub(run.began) / COLUMN_NS).or_default() += 1;
        }
    }
    let most = columns.values().copied().max().unwrap_or(1);
    for (column, changes) in columns {
        let from = scale.x(run.began + column * COLUMN_NS);
        let height = 40.0 * f64::from(changes) / f64::from(most);
        rect(out, from, y + 60.0 - height, 4.0, height, "#508080", &format!("{changes} changes of owner seen"));
    }
}

fn legend(out: &mut String, y: f64) {
    let entries = [
        ("#70b070", "alive"),
        ("#b03030", "SIGKILL"),
        ("#e0a030", "SIGSTOP"),
        ("#5070c0", "partition"),
        ("#90b0d0", "slow, reordering"),
        ("#9060b0", "clock"),
        ("#60a060", "restart, join, leave"),
        ("#d06060", "share of degraded calls"),
        ("#508080", "changes of owner"),
    ];
    for (index, (fill, label)) in entries.into_iter().enumerate() {
        let x = LEFT + 135.0 * index as f64;
        rect(out, x, y - 9.0, 10.0, 10.0, fill, label);
        text(out, x + 14.0, y, label);
    }
}
