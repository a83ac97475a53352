//! Every call of a run with its result, as `tests/php/mixed.php` logs them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::checker::Call;
use crate::support::host::unescape;

/// What a call returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Out {
    /// int
    Int(i64),
    /// string; a long one by its token and length
    Text(String),
    /// bool
    Bool(bool),
    /// null
    Null,
}

/// One finished call. Times are monotonic nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Before it was made.
    pub start: u64,
    /// After it returned.
    pub end: u64,
    /// Number of the host that made it.
    pub host: usize,
    /// Process that made it.
    pub pid: u32,
    /// The key.
    pub key: String,
    /// The function without its prefix.
    pub op: String,
    /// What was to be added, stored or appended.
    pub argument: Out,
    /// `cas`: what was expected and what was to replace it.
    pub change: Option<(Out, Out)>,
    /// TTL in ms.
    pub ttl_ms: u64,
    /// What it returned.
    pub out: Out,
    /// Flagged degraded.
    pub degraded: bool,
    /// Stamp and origin of the window of an increment.
    pub window: (u64, u64),
    /// The owner by this host's table right after; empty: nobody.
    pub owner: String,
}

/// A call that never returned, because its process was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// When it was announced.
    pub start: u64,
    /// Process that made it.
    pub pid: u32,
    /// The key.
    pub key: String,
    /// The function without its prefix.
    pub op: String,
    /// What was to be added, stored or appended.
    pub argument: Out,
}

/// Everything that was recorded.
#[derive(Debug, Default)]
pub struct Record {
    /// Finished calls by their start.
    pub events: Vec<Event>,
    /// Calls that may or may not have been applied.
    pub open: Vec<Open>,
    /// Processes that logged.
    pub processes: usize,
}

impl Out {
    fn read(text: &str) -> Option<Self> {
        Some(match text.split_at_checked(1)? {
            ("i", number) => Self::Int(number.parse().ok()?),
            ("s", text) => Self::Text(unescape(text)),
            ("t", "") => Self::Bool(true),
            ("f", "") => Self::Bool(false),
            ("n", "") => Self::Null,
            _ => return None,
        })
    }

    /// The integer, if it is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }
}

impl Event {
    /// Whether it adds to a counter.
    pub fn is_increment(&self) -> bool {
        self.op.starts_with("incr")
    }

    /// What it was to add; 0 for other calls.
    pub fn delta(&self) -> i64 {
        if self.is_increment() { self.argument.int().unwrap_or_default() } else { 0 }
    }

    /// The same as the counter's checker reads it.
    pub fn as_call(&self) -> Call {
        Call {
            start: self.start,
            end: self.end,
            host: format!("host{}", self.host),
            pid: self.pid,
            key: self.key.clone(),
            op: self.op.clone(),
            delta: self.delta(),
            ttl_ms: self.ttl_ms,
            ret: self.out.int(),
            degraded: self.degraded,
            window: self.window,
        }
    }
}

impl Record {
    /// Reads every log in a directory.
    pub fn read(dir: &Path) -> Self {
        let mut record = Self::default();
        for entry in std::fs::read_dir(dir).expect("the directory").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(host) = name.strip_prefix("mixed-host").and_then(|rest| rest.split('-').next()?.parse().ok())
            else {
                continue;
            };
            let bytes = std::fs::read(entry.path()).expect("a log");
            record.read_log(host, &String::from_utf8_lossy(&bytes));
        }
        record.events.sort_by_key(|event| (event.start, event.pid));
        record
    }

    fn read_log(&mut self, host: usize, log: &str) {
        self.processes += 1;
        let mut announced = None;
        for line in log.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields.as_slice() {
                // A line that was cut short in the middle is no line.
                ["I", start, pid, key, op, argument] => {
                    announced = parse_open(start, pid, key, op, argument);
                }
                ["C", rest @ ..] => {
                    if let Some(event) = parse_event(host, rest) {
                        announced = None;
                        self.events.push(event);
                    }
                }
                _ => {}
            }
        }
        self.open.extend(announced);
    }

    /// The finished calls by key, for keys that begin with `prefix`.
    pub fn by_key(&self, prefix: &str) -> BTreeMap<&str, Vec<&Event>> {
        let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.key.starts_with(prefix)) {
            keys.entry(&event.key).or_default().push(event);
        }
        keys
    }

    /// Sum of what open calls may have added to a key.
    pub fn open_sum(&self, key: &str) -> i128 {
        let of_key = self.open.iter().filter(|open| open.key == key && open.op.starts_with("incr"));
        of_key.map(|open| i128::from(open.argument.int().unwrap_or_default())).sum()
    }
}

fn parse_open(start: &str, pid: &str, key: &str, op: &str, argument: &str) -> Option<Open> {
    Some(Open {
        start: start.parse().ok()?,
        pid: pid.parse().ok()?,
        key: unescape(key),
        op: op.to_owned(),
        argument: argument.split('>').next_back().and_then(Out::read).unwrap_or(Out::Null),
    })
}

fn parse_event(host: usize, fields: &[&str]) -> Option<Event> {
    let [start, end, pid, key, op, argument, ttl, out, degraded, stamp, origin, owner] = fields else { return None };
    let change = argument.split_once('>').and_then(|(old, new)| Some((Out::read(old)?, Out::read(new)?)));
    Some(Event {
        start: start.parse().ok()?,
        end: end.parse().ok()?,
        host,
        pid: pid.parse().ok()?,
        key: unescape(key),
        op: (*op).to_owned(),
        argument: Out::read(argument.rsplit('>').next()?)?,
        change,
        ttl_ms: ttl.parse().ok()?,
        out: Out::read(out)?,
        degraded: *degraded == "1",
        window: (stamp.parse().ok()?, origin.parse().ok()?),
        owner: (*owner).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_back_and_an_open_call_is_kept() {
        let mut record = Record::default();
        record.read_log(
            2,
            "I\t4\t7\tc%3A1\tincr\ti3\nC\t5\t6\t7\tc%3A1\tincr\ti3\t0\ti9\t1\t11\t12\thost0\n\
             I\t7\t7\tx%3A0\tcas\ts1>s2\nC\t8\t9\t7\tx%3A0\tcas\ts1>s2\t0\tt\t0\t0\t0\thost1\n\
             I\t10\t7\tc%3A1\tincr\ti4\nC\t11\t1",
        );
        assert_eq!(record.events.len(), 2);
        assert_eq!(
            (record.events[0].delta(), record.events[0].out.int(), record.events[0].degraded),
            (3, Some(9), true)
        );
        assert_eq!(record.events[1].change, Some((Out::Text("1".into()), Out::Text("2".into()))));
        assert_eq!(record.open.len(), 1);
        assert_eq!(record.open_sum("c:1"), 4);
    }
}
