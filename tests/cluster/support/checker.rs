//! Judges a run by the calls that were made and what they returned. Pure: no process, no clock.
//!
//! # One chain
//! Each increment that returned `ret` for `delta` claims that the counter went from `ret - delta` to `ret`. A key's
//! calls are right when they can be put in one order in which each call starts from the value the one before it left,
//! beginning at the window's start, and in which a call that had returned before another was made comes first
//! (linearizability of a counter). With mixed signs values repeat, so the order is not evident from the values; it is
//! searched for: processes are sequential, so a state of the search is how many calls of each process are placed, and
//! the counter's value there is the sum of their deltas whatever their order was. A call may be placed next if it
//! starts from that value and no call still to be placed had returned before it was made. States found to lead nowhere
//! are remembered, so each is visited once. The search is exact: it accepts if and only if such an order exists, and
//! says so when it gives up (`STATES_MAX`) instead of accepting.

use std::collections::{BTreeMap, HashMap, HashSet};

/// One finished call. Times are monotonic nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Before it was made.
    pub start: u64,
    /// After it returned.
    pub end: u64,
    /// Host that made it.
    pub host: String,
    /// Process that made it.
    pub pid: u32,
    /// The key.
    pub key: String,
    /// incr, incr_by, incr_ttl or pttl.
    pub op: String,
    /// What was added.
    pub delta: i64,
    /// TTL on creation, ms; 0: none.
    pub ttl_ms: u64,
    /// What it returned; `None`: false.
    pub ret: Option<i64>,
    /// Flagged degraded.
    pub degraded: bool,
    /// Creation stamp and origin of the window it was counted in; zeros in a build that does not tell.
    pub window: (u64, u64),
}

/// A call that a process announced and that never returned, because the process was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The key.
    pub key: String,
    /// What was to be added.
    pub delta: i64,
}

/// Everything that was logged in a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Finished calls, in no order.
    pub calls: Vec<Call>,
    /// Calls that may or may not have been counted.
    pub unfinished: Vec<Unfinished>,
}

/// States one search may visit: about 100 bytes each.
const STATES_MAX: usize = 20_000_000;

impl History {
    /// Adds one process's log.
    pub fn read(&mut self, log: &str) {
        let mut announced: Option<Unfinished> = None;
        for line in log.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields.as_slice() {
                ["I", _, _, _, key, _, delta] => {
                    announced = Some(Unfinished { key: key.to_string(), delta: delta.parse().unwrap_or_default() });
                }
                [start, end, host, pid, key, op, delta, ttl, ret, degraded, stamp, origin] => {
                    announced = None;
                    self.calls.push(Call {
                        start: start.parse().expect("start"),
                        end: end.parse().expect("end"),
                        host: host.to_string(),
                        pid: pid.parse().expect("pid"),
                        key: super::host::unescape(key),
                        op: op.to_string(),
                        delta: delta.parse().expect("delta"),
                        ttl_ms: ttl.parse().expect("ttl"),
                        ret: if *ret == "F" { None } else { Some(ret.parse().expect("ret")) },
                        degraded: *degraded == "1",
                        window: (stamp.parse().expect("stamp"), origin.parse().expect("origin")),
                    });
                }
                // The last line of a killed process may be cut short; what it announced stays unfinished.
                _ => {}
            }
        }
        if let Some(mut unfinished) = announced {
            unfinished.key = super::host::unescape(&unfinished.key);
            self.unfinished.push(unfinished);
        }
    }

    /// The increments, by key.
    pub fn increments(&self) -> BTreeMap<&str, Vec<&Call>> {
        let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.op.starts_with("incr")) {
            keys.entry(&call.key).or_default().push(call);
        }
        keys
    }

    /// Promise 1 for every key, from nothing to the value in `finals`, with no call degraded or refused.
    pub fn one_count(&self, finals: &BTreeMap<String, i64>) -> Result<(), String> {
        let keys = self.increments();
        for (key, calls) in &keys {
            let end = one_chain(calls).map_err(|reason| format!("{key}: {reason}"))?;
            match finals.get(*key) {
                Some(value) if *value == end => {}
                found => return Err(format!("{key}: the chain ends at {end}, the counter is {found:?}")),
            }
        }
        match finals.keys().find(|key| !keys.contains_key(key.as_str())) {
            Some(key) => Err(format!("{key}: a counter that nobody incremented")),
            None => Ok(()),
        }
    }

    /// Promise 2 for every key: each window is one chain from nothing, windows follow each other in real time, nothing
    /// is counted in a window after its deadline and none ends before it, and no key is seen without a deadline.
    /// With `resolution_ms` of slack for the coarse clock. Gives the number of windows.
    pub fn windows(&self, ttl_ms: u64, resolution_ms: u64) -> Result<usize, String> {
        if let Some(call) = self.calls.iter().find(|call| call.op == "pttl" && call.ret.is_none_or(|left| left == -1)) {
            return Err(format!("{}: seen without a deadline: {call:?}", call.key));
        }
        let mut count = 0;
        for (key, calls) in self.increments() {
            let mut windows: BTreeMap<(u64, u64), Vec<&Call>> = BTreeMap::new();
            for call in calls {
                windows.entry(call.window).or_default().push(call);
            }
            if windows.contains_key(&(0, 0)) {
                return Err("the module does not tell windows: not built with `testing`".into());
            }
            count += windows.len();
            let fail = |reason: String| format!("{key}: {reason}");
            for (window, calls) in &windows {
                one_chain(calls).map_err(|reason| fail(format!("window {window:?}: {reason}")))?;
            }
            in_turn(windows.into_values().collect(), ttl_ms, resolution_ms).map_err(fail)?;
        }
        Ok(count)
    }
}

/// The calls of one window form one chain from 0; gives its last value.
pub fn one_chain(calls: &[&Call]) -> Result<i64, String> {
    if let Some(call) = calls.iter().find(|call| call.degraded || call.ret.is_none()) {
        return Err(format!("degraded or refused: {call:?}"));
    }
    let mut processes: HashMap<(&str, u32), Vec<&Call>> = HashMap::new();
    for call in calls {
        processes.entry((call.host.as_str(), call.pid)).or_default().push(call);
    }
    let mut rows: Vec<Vec<&Call>> = processes.into_values().collect();
    for row in &mut rows {
        row.sort_by_key(|call| (call.start, call.end));
    }
    Search { rows: &rows, total: calls.len() }.run()
}

struct Search<'a> {
    /// Each process's calls, in the order it made them.
    rows: &'a [Vec<&'a Call>],
    total: usize,
}

/// How many calls of each process are placed.
type Placed = Box<[u32]>;

impl Search<'_> {
    fn run(&self) -> Result<i64, String> {
        let start: Placed = vec![0; self.rows.len()].into();
        let mut seen: HashSet<Placed> = HashSet::from([start.clone()]);
        let mut stack: Vec<(Placed, i128, usize)> = vec![(start.clone(), 0, 0)];
        let mut furthest = (start, 0, 0);
        while let Some((placed, value, depth)) = stack.pop() {
            if depth == self.total {
                return i64::try_from(value).map_err(|_| "the chain leaves 64 bits".to_owned());
            }
            if depth > furthest.2 {
                furthest = (placed.clone(), value, depth);
            }
            for row in self.next(&placed, value) {
                let call = self.rows[row][placed[row] as usize];
                let mut after = placed.clone();
                after[row] += 1;
                if seen.insert(after.clone()) {
                    stack.push((after, value + i128::from(call.delta), depth + 1));
                }
            }
            if seen.len() > STATES_MAX {
                return Err(format!("undecided after {STATES_MAX} states"));
            }
        }
        let waiting: Vec<String> = self.pending(&furthest.0).map(|(_, call)| format!("{call:?}")).collect();
        Err(format!(
            "no order explains the answers: after {} of {} calls, at value {}, none of these can be next:\n  {}",
            furthest.2,
            self.total,
            furthest.1,
            waiting.join("\n  ")
        ))
    }

    /// The first call of each process that is not placed yet.
    fn pending<'b>(&'b self, placed: &'b [u32]) -> impl Iterator<Item = (usize, &'b Call)> {
        self.rows.iter().enumerate().filter_map(|(row, calls)| calls.get(placed[row] as usize).map(|call| (row, *call)))
    }

    /// The processes whose next call can be the next of all.
    fn next(&self, placed: &[u32], value: i128) -> Vec<usize> {
        // A process's calls do not overlap, so its first pending one returns before its later ones.
        let first_end = self.pending(placed).map(|(_, call)| call.end).min().unwrap_or(u64::MAX);
        let fits = |call: &Call| {
            let ret = call.ret.map(i128::from);
            call.start <= first_end && ret.is_some_and(|ret| ret - i128::from(call.delta) == value)
        };
        self.pending(placed).filter(|(_, call)| fits(call)).map(|(row, _)| row).collect()
    }
}

/// Windows of one key: in turn, none beyond its deadline, none cut short.
fn in_turn(mut windows: Vec<Vec<&Call>>, ttl_ms: u64, resolution_ms: u64) -> Result<(), String> {
    let ns = |ms: u64| ms * 1_000_000;
    // A window is created between the start and the end of the call that found nothing: the one that returned its delta.
    // With values that come back to the delta the earliest such call is meant.
    let creator = |window: &[&Call]| {
        let created = window.iter().filter(|call| call.ret == Some(call.delta)).min_by_key(|call| call.start);
        created
            .map(|call| (call.start, call.end))
            .ok_or_else(|| format!("nobody created the window of {:?}", window[0]))
    };
    windows.sort_by_key(|window| window.iter().map(|call| call.end).min());
    // What each process did before must be in an earlier window; so must what any process had finished before.
    for pair in windows.windows(2) {
        let first_end = pair[1].iter().map(|call| call.end).min().unwrap_or(u64::MAX);
        if let Some(late) = pair[0].iter().find(|call| call.start > first_end) {
            return Err(format!("counted in a window after a call of the next one had returned: {late:?}"));
        }
    }
    for (index, window) in windows.iter().enumerate() {
        let (created_from, created_to) = creator(window)?;
        let deadline = created_to + ns(ttl_ms + resolution_ms);
        if let Some(late) = window.iter().find(|call| call.start > deadline) {
            let over = (late.start - created_to) / 1_000_000;
            return Err(format!("counted {over} ms after the window was created, its TTL is {ttl_ms} ms: {late:?}"));
        }
        if let Some(next) = windows.get(index + 1) {
            let (_, next_to) = creator(next)?;
            if next_to + ns(resolution_ms) < created_from + ns(ttl_ms) {
                let lived = (next_to.saturating_sub(created_from)) / 1_000_000;
                return Err(format!("a window of {ttl_ms} ms was replaced after {lived} ms: {:?}", window[0]));
            }
        }
    }
    Ok(())
}
