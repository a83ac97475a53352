//! Load: processes forked by hosts that call the module and log every call.

use std::path::Path;
use std::time::Duration;

use super::checker::{Call, History};
use super::host::{Host, escape};
use super::now_ns;

/// What each forked process does.
#[derive(Clone, Debug)]
pub struct Load {
    fields: Vec<(String, String)>,
}

impl Load {
    /// So many processes per host, with this seed.
    pub fn new(processes: usize, seed: u64) -> Self {
        Self { fields: Vec::new() }.with("procs", processes).with("seed", seed % 1_000_000)
    }

    /// Sets one option of `load` in `tests/php/worker.php`.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.fields.retain(|(present, _)| present != name);
        self.fields.push((name.to_owned(), value.to_string()));
        self
    }

    /// Uses these keys.
    pub fn keys(self, keys: &[String]) -> Self {
        let list: Vec<String> = keys.iter().map(|key| escape(key)).collect();
        self.with("keylist", list.join(","))
    }

    /// Ends after this time.
    pub fn lasting(self, time: Duration) -> Self {
        self.with("until", now_ns() + time.as_nanos() as u64)
    }

    /// Starts it on a host. `index` keeps the random streams of hosts apart.
    pub fn start(&self, host: &mut Host, index: usize, dir: &Path) {
        self.clone().with("dir", dir.display()).start_without_log(host, index);
    }

    /// The same without a log of the calls.
    pub fn start_without_log(&self, host: &mut Host, index: usize) {
        let load = self.clone().with("first", index * 100);
        let fields: Vec<String> = load.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut command = vec!["load"];
        command.extend(fields.iter().map(String::as_str));
        host.ask(&command);
    }

    /// Starts it on all these hosts so that their processes begin together.
    pub fn start_all(&self, hosts: &mut [Host], dir: &Path) {
        let together = self.clone().with("at", now_ns() + 200_000_000);
        for (index, host) in hosts.iter_mut().enumerate() {
            together.start(host, index, dir);
        }
    }
}

/// Waits for a host's load; every process must have ended with status 0.
pub fn wait(host: &mut Host, limit: Duration) {
    let answer = host.ask_within(limit, &["wait"]).unwrap_or_else(|reason| panic!("{}: {reason}", host.spec.name));
    for status in answer[0].split(',').filter(|status| !status.is_empty()) {
        assert!(status.ends_with(":0"), "{}: a process ended with {status}", host.spec.name);
    }
}

/// Reads every log in a directory.
pub fn history(dir: &Path) -> History {
    let mut history = History::default();
    for entry in std::fs::read_dir(dir).expect("the directory").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("calls-") && name.ends_with(".log") {
            history.read(&String::from_utf8_lossy(&std::fs::read(&entry).expect("a log")));
        }
    }
    assert!(!history.calls.is_empty(), "no call was logged");
    history
}

/// Durations of calls: median, 99th percentile, share within a limit, and the longest.
pub struct Latencies {
    /// Sorted, ns.
    sorted: Vec<u64>,
}

impl Latencies {
    /// Of these calls.
    pub fn of<'a>(calls: impl Iterator<Item = &'a Call>) -> Self {
        let mut sorted: Vec<u64> = calls.map(|call| call.end - call.start).collect();
        assert!(!sorted.is_empty(), "no call to measure");
        sorted.sort_unstable();
        Self { sorted }
    }

    /// The duration that this fraction of the calls stayed within, ms.
    pub fn quantile_ms(&self, fraction: f64) -> f64 {
        let index = ((self.sorted.len() - 1) as f64 * fraction).round() as usize;
        self.sorted[index] as f64 / 1e6
    }

    /// The fraction of calls that stayed within a limit.
    pub fn within(&self, limit: Duration) -> f64 {
        let limit = limit.as_nanos() as u64;
        self.sorted.partition_point(|took| *took <= limit) as f64 / self.sorted.len() as f64
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let ms = |fraction| self.quantile_ms(fraction);
        format!("{} calls: p50 {:.3} ms, p99 {:.3} ms, max {:.1} ms", self.sorted.len(), ms(0.5), ms(0.99), ms(1.0))
    }
}
