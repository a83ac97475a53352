//! Promises 6 and 7 of values: what was written is read, what was deleted stays deleted, and of several only one wins.

use crate::checker::{Finding, SETTLE, Troubles, line};
use crate::record::{Event, Out};
use crate::run::Run;

/// Everything about keys that hold no counters.
pub fn values(run: &Run, troubles: &Troubles) -> Vec<Finding> {
    vec![own_values(run, troubles), locks(run), versions(run), lists(run)]
}

/// So long after a write everybody has it, on a busy machine.
const REPLICATED_NS: u64 = 500_000_000;

/// Deadlines are right within this.
const SLACK_NS: u64 = 1_000_000_000;

/// What a process knows of a key that only it writes.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The last write was answered by an owner in a calm stretch, and none since is in doubt.
    certain: bool,
    value: Option<String>,
    /// Monotonic ns.
    deadline: Option<u64>,
    /// Begin of the last write.
    since: u64,
    /// End of the last write in doubt: until it has settled, the writer's copy may differ from the owner's.
    doubt: u64,
}

impl Known {
    fn write(&mut self, event: &Event, certain: bool) {
        let deadline = (event.ttl_ms > 0).then(|| event.end + event.ttl_ms * 1_000_000);
        match event.op.as_str() {
            "set" => {
                self.certain = certain && event.out == Out::Bool(true);
                self.value = match &event.argument {
                    Out::Text(text) => Some(text.clone()),
                    _ => None,
                };
                self.deadline = deadline;
            }
            "del" => {
                (self.certain, self.value, self.deadline) = (certain, None, None);
            }
            // Only says something of a key that is known.
            "expire" => {
                self.certain &= certain;
                if event.out == Out::Bool(false) {
                    // It had ended.
                    (self.value, self.deadline) = (None, None);
                } else if self.value.is_some() {
                    self.deadline = deadline;
                }
            }
            _ => return,
        }
        self.since = event.start;
        if !certain {
            self.doubt = event.end;
        }
    }

    /// Whether a reader at this time must see what is known.
    fn binds(&self, troubles: &Troubles, event: &Event) -> bool {
        let settled = self.doubt == 0 || event.start >= self.doubt + SETTLE.as_nanos() as u64;
        self.certain && settled && !event.degraded && troubles.calm(self.since, event.end)
    }

    /// The value that a reader may see at this time: with one that is about to end, also none.
    fn allows(&self, found: Option<&str>, at: u64) -> bool {
        let ended = self.deadline.is_some_and(|deadline| at + SLACK_NS >= deadline);
        let surely_ended = self.deadline.is_some_and(|deadline| at >= deadline + SLACK_NS);
        match found {
            None => self.value.is_none() || ended,
            Some(found) => self.value.as_deref() == Some(found) && !surely_ended,
        }
    }
}

/// Promise 7: keys that one process writes. Read your writes, and what is held at the end is what was written last.
fn own_values(run: &Run, troubles: &Troubles) -> Finding {
    let mut finding = Finding::new(7, "own values");
    let (mut kept, mut yielded) = (0, 0);
    let until = run.held.asked;
    for (key, events) in run.record.by_key("b:") {
        let mut known = Known::default();
        let mut written: Vec<&str> = Vec::new();
        for event in &events {
            if let ("set", Out::Text(text)) = (event.op.as_str(), &event.argument) {
                written.push(text);
            }
            let calm = troubles.calm(event.start, event.end + REPLICATED_NS);
            if event.op == "get" {
                if known.binds(troubles, event) {
                    let found = text(&event.out);
                    finding.check(known.allows(found, event.end), || {
                        format!("read {found:?} instead of {:?}: {}", known.value, line(run, event))
                    });
                }
            } else {
                if event.op == "expire" && known.binds(troubles, event) {
                    let found = (event.out == Out::Bool(true)).then_some(known.value.as_deref()).flatten();
                    finding.check(known.allows(found, event.end), || format!("held {known:?}: {}", line(run, event)));
                }
                known.write(event, calm && !event.degraded);
            }
        }
        if run.record.open.iter().any(|open| open.key == key && open.op != "get") {
            continue;
        }
        let Some((held, left)) = run.held.finals.get(key) else { continue };
        let found = held.strip_prefix('s').map(crate::support::host::unescape);
        finding.check(found.as_deref().is_none_or(|found| written.contains(&found)), || {
            format!("{key} holds {found:?}, which nobody wrote")
        });
        let right = known.allows(found.as_deref(), until) && known.fits(*left, found.is_some(), until);
        if known.certain {
            finding.check(right, || {
                let last =
                    events.iter().rfind(|event| event.op != "get").map(|event| line(run, event)).unwrap_or_default();
                format!("{key} holds {found:?} with {left} ms left instead of {known:?}; the last write: {last}")
            });
        } else if right {
            kept += 1;
        } else {
            yielded += 1;
        }
    }
    finding.notes.push(format!("last writes made in trouble: {kept} kept, {yielded} yielded"));
    finding
}

impl Known {
    /// Whether so many ms left at this time are right.
    fn fits(&self, left_ms: i64, found: bool, at: u64) -> bool {
        match self.deadline {
            _ if !found => true,
            None => left_ms == -1,
            Some(deadline) => {
                let expected = deadline.saturating_sub(at) as f64 / 1e6;
                (left_ms as f64 - expected).abs() <= 2.0 * SLACK_NS as f64 / 1e6
            }
        }
    }
}

fn text(out: &Out) -> Option<&str> {
    match out {
        Out::Text(text) => Some(text),
        _ => None,
    }
}

/// `setnx`: between two winners one released, or its time was over. (A quorum knows of it: neither a cut nor a kill loses
/// it.)
fn locks(run: &Run) -> Finding {
    let mut finding = Finding::new(7, "one winner");
    for (key, events) in run.record.by_key("s:") {
        let won = |event: &&&Event| event.op == "setnx" && event.out == Out::Bool(true);
        let mut winners: Vec<&&Event> = events.iter().filter(won).collect();
        for winner in winners.iter().filter(|event| event.degraded) {
            finding.check(false, || format!("won without an owner: {}", line(run, winner)));
        }
        winners.sort_by_key(|event| event.end);
        for pair in winners.windows(2) {
            let (first, next) = (pair[0], pair[1]);
            let released = events.iter().any(|event| {
                let of_it = event.change.as_ref().is_some_and(|(old, _)| *old == first.argument);
                event.op == "cas" && of_it && event.start < next.end
            });
            // A holder that was killed in the middle of releasing.
            let open = run.record.open.iter().any(|open| open.key == key && open.op == "cas" && open.pid == first.pid);
            let over = next.end + 50_000_000 >= first.start + first.ttl_ms * 1_000_000;
            finding.check(released || open || over, || {
                format!("{key}: {} and then {}", line(run, first), line(run, next))
            });
        }
    }
    finding
}

/// `cas`: each step is made once, and none is lost.
fn versions(run: &Run) -> Finding {
    let mut finding = Finding::new(7, "versions");
    for (key, events) in run.record.by_key("x:") {
        let steps: Vec<&&Event> = events.iter().filter(|event| event.op == "cas").collect();
        let made: Vec<&&&Event> = steps.iter().filter(|event| event.out == Out::Bool(true)).collect();
        let mut seen = std::collections::HashMap::new();
        for step in &made {
            finding.check(!step.degraded, || format!("without an owner: {}", line(run, step)));
            let before = seen.insert(&step.argument, **step);
            finding.check(before.is_none(), || {
                format!(
                    "made twice: {} and {}",
                    before.map(|before| line(run, before)).unwrap_or_default(),
                    line(run, step)
                )
            });
        }
        // A step that got no answer in time may have been made.
        let open = run.record.open.iter().filter(|open| open.key == key && open.op == "cas").count();
        let maybe = steps.iter().filter(|event| event.degraded && event.out == Out::Bool(false)).count() + open;
        let held = run.held.finals.get(key).and_then(|(value, _)| value.strip_prefix("sv")?.parse::<usize>().ok());
        finding.check(held.unwrap_or(0) >= made.len() && held.unwrap_or(0) <= made.len() + maybe, || {
            format!("{key}: {} steps made and {maybe} perhaps, but it is {held:?}", made.len())
        });
    }
    finding
}

/// `append`: every word is there once.
fn lists(run: &Run) -> Finding {
    let mut finding = Finding::new(7, "lists");
    for (key, events) in run.record.by_key("a:") {
        let Some((held, _)) = run.held.finals.get(key) else { continue };
        let held = crate::support::host::unescape(held.strip_prefix('s').unwrap_or_default());
        let mut words: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
        for word in held.split_inclusive(';') {
            *words.entry(word).or_default() += 1;
        }
        for event in events.iter().filter(|event| event.op == "append") {
            let count = text(&event.argument).and_then(|word| words.remove(word)).unwrap_or(0);
            let answered = event.out.int().is_some();
            let right = if answered { count == 1 } else { count <= usize::from(event.degraded) };
            finding.check(right, || format!("{count} times in the list: {}", line(run, event)));
        }
        let open = run.record.open.iter().filter(|open| open.key == key).filter_map(|open| text(&open.argument));
        open.for_each(|word| _ = words.remove(word));
        finding.check(words.is_empty(), || format!("{key} holds what nobody appended: {words:?}"));
        finding.notes.push(format!("{key}: {} bytes", held.len()));
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: &str, ttl_ms: u64, at_ms: u64, out: bool) -> Event {
        let at = at_ms * 1_000_000;
        let (argument, out) = (Out::Text("v".to_owned()), Out::Bool(out));
        let (key, owner) = ("b:1".to_owned(), String::new());
        let op = op.to_owned();
        let (host, pid, change, degraded, window) = (0, 1, None, false, (0, 0));
        Event { start: at, end: at, host, pid, key, op, argument, change, ttl_ms, out, degraded, window, owner }
    }

    #[test]
    fn a_deadline_for_a_value_that_had_ended_brings_it_not_back() {
        let mut known = Known::default();
        known.write(&event("set", 8_000, 0, true), true);
        known.write(&event("expire", 1_000, 100, true), true);
        assert!(known.certain && !known.allows(None, 0) && known.allows(Some("v"), 0));
        known.write(&event("expire", 9_000, 2_000, false), true);
        assert!(known.certain && known.allows(None, 3_000_000_000) && !known.allows(Some("v"), 3_000_000_000));
    }
}
