//! The hosts of a run: started, loaded, stopped, killed and asked, each in its own namespace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::net::{self, Net};
use crate::plan::Plan;
use crate::support::host::{Host, Spec, Value, escape, unescape};
use crate::support::now_ns;

/// Debian's libfaketime, which reads the offset anew from a file.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// `ephpm_kv.timeout_ms` of all hosts.
pub const TIMEOUT: Duration = Duration::from_millis(50);

/// TTL of the counters made with one, ms.
pub const TTL_MS: u64 = 700;

/// How long an orderly end may take before it counts as stuck.
const END_LIMIT: Duration = Duration::from_secs(20);

/// How long a host may take to answer one command: an answer that came after nobody waited for it any more would be
/// taken for the next one.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// The hosts, by number. Each is held by whoever does something with it that takes time.
pub struct Fleet {
    /// Their networks.
    pub net: Net,
    /// Where everything is logged.
    pub dir: PathBuf,
    slots: Vec<Mutex<Slot>>,
    /// `kinds` of the load.
    kinds: String,
    seed: u64,
    processes: usize,
    until: Mutex<u64>,
    pause_us: u64,
}

/// One host.
struct Slot {
    spec: Spec,
    host: Option<Host>,
    /// Processes that call the module.
    load: Vec<i32>,
    /// Started so often: keeps the random streams of its lives apart.
    lives: u64,
    /// Sum of `ephpm_kv_lost_total` by reason over the segments that are gone.
    lost: BTreeMap<String, u64>,
    /// Processes of former lives, of which libfaketime may have left something.
    former: Vec<u32>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.former.extend(self.host.take().map(|host| host.pid()));
        for pid in &self.former {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

/// What a host was like at the end.
#[derive(Clone, Debug)]
pub struct Last {
    /// `ephpm_kv_lost_total` by reason, over all its segments as far as they could be asked.
    pub lost: BTreeMap<String, u64>,
}

/// Metrics by name and labels.
pub type Metrics = BTreeMap<String, f64>;

impl Fleet {
    /// The hosts of a plan, none started yet; `guest` is one more.
    pub fn new(plan: &Plan, net: Net, dir: &Path, kinds: &str, plant: Option<&str>) -> Self {
        let count = plan.hosts + 1;
        let slots = (0..count).map(|number| Mutex::new(Slot::new(plan, number, dir, plant))).collect();
        Self {
            net,
            dir: dir.to_owned(),
            slots,
            kinds: kinds.to_owned(),
            seed: plan.seed % 1_000_000,
            processes: plan.processes,
            until: Mutex::new(0),
            pause_us: plan.pause_us,
        }
    }

    fn slot(&self, number: usize) -> MutexGuard<'_, Slot> {
        self.slots[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the load ends by itself, monotonic ns.
    pub fn load_until(&self, ns: u64) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = ns;
    }

    /// Starts a host's processes and its node.
    pub fn start(&self, number: usize) {
        let namespace = self.net.namespace(number);
        let mut slot = self.slot(number);
        let mut host = Host::start_with(&slot.spec, |command| namespace.enter(command));
        host.call("ephpm_kv_get", &[Value::text("warm")]);
        slot.host = Some(host);
        slot.lives += 1;
        slot.load.clear();
    }

    /// Starts (more) processes that call, so that there are as many as there should be.
    pub fn start_load(&self, number: usize) {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = self.net.namespace(number);
        let mut slot = self.slot(number);
        slot.load.retain(|pid| is_running(*pid) && namespace.holds(*pid));
        let missing = self.processes.saturating_sub(slot.load.len());
        if missing == 0 || now_ns() >= until {
            return;
        }
        slot.lives += 1;
        let first = number as u64 * 100_000 + slot.lives * 100;
        let fields = [
            format!("procs={missing}"),
            format!("seed={}", self.seed),
            format!("first={first}"),
            format!("kinds={}", self.kinds),
            format!("dir={}", self.dir.display()),
            format!("until={until}"),
            format!("pause_us={}", self.pause_us),
            "counters=20".into(),
            "large=3000".into(),
            format!("ttl={}", TTL_MS as f64 / 1e3),
        ];
        let mut command = vec!["mixed"];
        command.extend(fields.iter().map(String::as_str));
        let Some(host) = slot.host.as_mut() else { return };
        let answer = host.ask(&command);
        let pids: Vec<i32> = answer[0].split(',').filter_map(|pid| pid.parse().ok()).collect();
        let fresh = pids[pids.len() - missing..].to_vec();
        slot.load.extend(fresh);
    }

    /// SIGKILL to one of a host's load processes; another takes its place.
    pub fn kill_worker(&self, number: usize, which: u64) -> Option<i32> {
        let pid = {
            let mut slot = self.slot(number);
            if slot.load.is_empty() {
                return None;
            }
            let index = which as usize % slot.load.len();
            slot.load.swap_remove(index)
        };
        let killed = self.net.namespace(number).signal(pid, libc::SIGKILL);
        self.start_load(number);
        killed.then_some(pid)
    }

    /// A signal to a host's node, if that is a process of its own.
    pub fn signal_node(&self, number: usize, signal: i32) -> bool {
        let mut slot = self.slot(number);
        let Some(host) = slot.host.as_mut() else { return false };
        let Ok(fields) = host.ask_within(ASK_LIMIT, &["info"]) else { return false };
        let node = fields.get(3).and_then(|pid| pid.parse().ok()).unwrap_or(0);
        node != host.pid() as i32 && self.net.namespace(number).signal(node, signal)
    }

    /// A signal to every process of a host.
    pub fn signal_all(&self, number: usize, signal: i32) -> usize {
        self.net.namespace(number).signal_all(signal)
    }

    /// Kills a host; what its metrics said right before is kept.
    pub fn kill(&self, number: usize) {
        let mut slot = self.slot(number);
        slot.keep_metrics();
        self.net.namespace(number).signal_all(libc::SIGKILL);
        if let Some(host) = slot.host.take() {
            slot.former.push(host.pid());
            host.kill();
        }
        slot.load.clear();
    }

    /// Ends a host in order: its load first, then PHP, whose node leaves.
    pub fn end(&self, number: usize) -> Result<(), String> {
        let namespace = self.net.namespace(number);
        let mut slot = self.slot(number);
        for pid in std::mem::take(&mut slot.load) {
            namespace.signal(pid, libc::SIGUSR1);
        }
        if let Some(host) = slot.host.as_mut() {
            host.ask_within(END_LIMIT, &["wait"])
                .map_err(|reason| format!("host{number}: its load does not end: {reason}"))?;
        }
        slot.keep_metrics();
        let Some(host) = slot.host.take() else { return Ok(()) };
        slot.former.push(host.pid());
        let status = host.quit();
        if !status.success() {
            return Err(format!("host{number} ended with {status}"));
        }
        // A node of its own leaves after the last PHP process has ended.
        let deadline = Instant::now() + END_LIMIT;
        while !namespace.processes().is_empty() {
            if Instant::now() >= deadline {
                return Err(format!("host{number}: processes are left: {:?}", namespace.processes()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for the load of a host to end; gives processes that ended otherwise than with status 0 or by SIGKILL.
    pub fn wait_load(&self, number: usize, limit: Duration) -> Result<(), String> {
        let mut slot = self.slot(number);
        let Some(host) = slot.host.as_mut() else { return Ok(()) };
        let answer = host.ask_within(limit, &["wait"])?;
        let wrong: Vec<&str> = answer
            .first()
            .map(|statuses| statuses.split(',').filter(|one| !one.is_empty()).collect::<Vec<_>>())
            .unwrap_or_default()
            .into_iter()
            .filter(|status| !status.ends_with(":0") && !status.ends_with(":signal9"))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("host{number}: processes ended with {}", wrong.join(", "))) }
    }

    /// State and number of live members; makes a call first, so that a node is started where none is.
    pub fn state(&self, number: usize) -> Result<(String, u64, String), String> {
        let mut slot = self.slot(number);
        let host = slot.host.as_mut().ok_or("not started")?;
        host.ask_within(ASK_LIMIT, &["call", "ephpm_kv_get", "s:warm"])?;
        let fields = host.ask_within(ASK_LIMIT, &["info"])?;
        Ok((fields[0].clone(), fields[1].parse().unwrap_or_default(), unescape(&fields[7])))
    }

    /// A host's metrics.
    pub fn metrics(&self, number: usize) -> Metrics {
        let mut slot = self.slot(number);
        slot.host.as_mut().map(read_metrics).unwrap_or_default()
    }

    /// Value and remaining ms of each key on a host.
    pub fn dump(&self, number: usize, keys: &[String]) -> Result<Vec<(String, i64)>, String> {
        let mut slot = self.slot(number);
        let host = slot.host.as_mut().ok_or("not started")?;
        let mut command = vec!["dump".to_owned()];
        command.extend(keys.iter().map(|key| escape(key)));
        let fields: Vec<&str> = command.iter().map(String::as_str).collect();
        let answer = host.ask_within(ASK_LIMIT, &fields)?;
        let held = |text: &String| {
            let (value, pttl) = text.rsplit_once(' ').unwrap_or((text, "-2"));
            (value.to_owned(), pttl.parse().unwrap_or(-2))
        };
        Ok(answer.iter().map(held).collect())
    }

    /// Adds 0 to a counter: its value by its owner, and whether that was degraded.
    pub fn add_nothing(&self, number: usize, key: &str) -> Result<(Option<i64>, bool), String> {
        let mut slot = self.slot(number);
        let host = slot.host.as_mut().ok_or("not started")?;
        let answer = host.call("ephpm_kv_incr", &[Value::text(key), Value::Int(0)]);
        let value = match answer.value {
            Value::Int(value) => Some(value),
            _ => None,
        };
        Ok((value, answer.degraded))
    }

    /// Sets the offset of a host's wall clock, in seconds.
    pub fn step_clock(&self, number: usize, seconds: i64) {
        write_offset(&self.dir, number, seconds);
    }

    /// What a host lost in all its lives.
    pub fn last(&self, number: usize) -> Last {
        let mut slot = self.slot(number);
        slot.keep_metrics();
        Last { lost: slot.lost.clone() }
    }

    /// What a host's processes wrote to stderr, the node's log included.
    pub fn stderr(&self, number: usize) -> String {
        self.slot(number).spec.stderr()
    }
}

impl Slot {
    fn new(plan: &Plan, number: usize, dir: &Path, plant: Option<&str>) -> Self {
        let name = format!("host{number}");
        let bind = format!("{}:{}", net::address(number), net::PORT);
        let join: Vec<String> = (0..plan.hosts).map(|host| format!("{}:{}", net::address(host), net::PORT)).collect();
        let runtime = if plan.own_process[number] { "process" } else { "thread" };
        let join = join.join(",");
        let timeout = TIMEOUT.as_millis().to_string();
        let ini = [
            ("bind", bind.as_str()),
            ("join", &join),
            ("node_id", &name),
            ("role", "member"),
            ("insecure", "1"),
            ("memory", "16M"),
            ("log", "stderr"),
            ("log_level", "info"),
            ("runtime", runtime),
            ("timeout_ms", &timeout),
        ];
        let ini = ini.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut env = BTreeMap::new();
        if let Some(plant) = plant {
            env.insert("EPHPM_KV_PLANT".to_owned(), plant.to_owned());
        }
        if number == plan.clock_host && Path::new(FAKETIME).exists() {
            let file = write_offset(dir, number, 0);
            let set = [
                ("LD_PRELOAD", FAKETIME),
                ("FAKETIME_TIMESTAMP_FILE", &file),
                ("FAKETIME_CACHE_DURATION", "1"),
                // The monotonic clock is the kernel's.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
                ("DONT_FAKE_MONOTONIC", "1"),
            ];
            env.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        let spec = Spec { name, port: net::PORT, ini, env, dir: dir.to_owned() };
        Self { spec, host: None, load: Vec::new(), lives: 0, lost: BTreeMap::new(), former: Vec::new() }
    }

    /// Adds what this life has lost. Called once, at its end.
    fn keep_metrics(&mut self) {
        let Some(host) = self.host.as_mut() else { return };
        for (name, value) in read_metrics(host) {
            if let Some(reason) = name.strip_prefix("ephpm_kv_lost_total{reason=\"") {
                let reason = reason.trim_end_matches("\"}").to_owned();
                *self.lost.entry(reason).or_default() += value as u64;
            }
        }
    }
}

fn read_metrics(host: &mut Host) -> Metrics {
    // A host that is stopped does not answer.
    let Ok(answer) = host.ask_within(ASK_LIMIT, &["metrics"]) else { return Metrics::new() };
    let text = unescape(&answer[0]);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

fn write_offset(dir: &Path, number: usize, seconds: i64) -> String {
    let path = dir.join(format!("clock-host{number}"));
    // In one step: libfaketime may be reading.
    let fresh = dir.join(format!("clock-host{number}.new"));
    std::fs::write(&fresh, format!("{seconds:+}s\n")).expect("the clock's file");
    std::fs::rename(&fresh, &path).expect("the clock's file");
    path.display().to_string()
}

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
