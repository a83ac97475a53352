//! One run: hosts started, load and faults let loose on them, healed, and asked what they hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::held::Held;
use crate::hosts::Fleet;
use crate::net::Net;
use crate::plan::{Cut, Fault, Plan, Planned};
use crate::record::Record;
use crate::support::control::{Control, Delays};
use crate::support::now_ns;

/// Ends of fault phases, ready hosts and the like are looked for this often.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long hosts may take to be ready with all others in view.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// How long calls whose fate is open may stay so.
const UNRESOLVED_LIMIT: Duration = Duration::from_secs(20);

/// Somebody wants the test to end: it takes down what it has put up.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What happened, with the times at which it did.
#[derive(Clone, Debug)]
pub struct Span {
    /// What.
    pub fault: Fault,
    /// From, monotonic ns.
    pub from: u64,
    /// To.
    pub to: u64,
    /// Moments within it: what was killed, started, ended.
    pub moments: Vec<(u64, String)>,
}

/// All that is known of a run.
pub struct Run {
    /// What was planned.
    pub plan: Plan,
    /// What was done, in the order of time.
    pub spans: Vec<Span>,
    /// Every call.
    pub record: Record,
    /// Begin of the load, monotonic ns.
    pub began: u64,
    /// No fault from here on.
    pub healed: u64,
    /// All hosts ready, each seeing all others.
    pub ready: u64,
    /// End of the load.
    pub ended: u64,
    /// What the hosts hold at the end.
    pub held: Held,
    /// `ephpm_kv_lost_total` of all hosts by reason, and what was left of `ephpm_kv_unresolved`.
    pub lost: BTreeMap<String, u64>,
    /// What went wrong besides the calls: hosts that did not get ready, did not end, copies that differ.
    pub problems: Vec<String>,
    /// How late the machine woke a thread that did nothing.
    pub delays: Delays,
}

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM end the run in order.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic, which a signal handler may.
        unsafe { libc::signal(signal, interrupt as *const () as libc::sighandler_t) };
    }
}

/// Sleeps until a time, monotonic ns; panics when somebody wants the test to end.
fn sleep_until(ns: u64) {
    loop {
        assert!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
        let now = now_ns();
        if now >= ns {
            return;
        }
        std::thread::sleep(Duration::from_nanos(ns - now).min(Duration::from_millis(100)));
    }
}

/// Sleeps for a time.
pub fn sleep(time: Duration) {
    sleep_until(now_ns() + time.as_nanos() as u64);
}

/// Runs a plan; logs go to `dir`. The error says why there can be no run here.
pub fn run(plan: &Plan, dir: &Path, kinds: &str, plant: Option<&str>) -> Result<Run, String> {
    catch_interrupts();
    let net = Net::new(plan.hosts + 1, plan.seed)?;
    let fleet = Fleet::new(plan, net, dir, kinds, plant);
    let stage = Stage { fleet: &fleet, plan, moving: Mutex::default(), problems: Mutex::default() };
    (0..plan.hosts).for_each(|host| fleet.start(host));
    stage.await_ready()?;

    let control = Control::start();
    let began = now_ns();
    fleet.load_until(began + plan.load_ms * 1_000_000);
    (0..plan.hosts).for_each(|host| fleet.start_load(host));
    let spans: Vec<Span> = std::thread::scope(|scope| {
        let faults: Vec<_> = plan.faults.iter().map(|planned| scope.spawn(|| stage.perform(planned, began))).collect();
        sleep_until(began + plan.heal_ms * 1_000_000);
        faults.into_iter().map(|fault| fault.join().expect("a fault's thread")).collect()
    });
    fleet.net.heal();
    (0..=plan.hosts).for_each(|host| _ = fleet.signal_all(host, libc::SIGCONT));
    let healed = now_ns();
    if let Err(reason) = stage.await_ready() {
        stage.problem(reason);
    }
    let ready = now_ns();
    for host in 0..plan.hosts {
        // A process that was to be started while its host was away.
        fleet.start_load(host);
    }
    sleep_until(began + plan.load_ms * 1_000_000);
    for host in 0..plan.hosts {
        stage.check(fleet.wait_load(host, Duration::from_secs(30)));
    }
    let ended = now_ns();
    let unresolved = stage.await_resolved();
    let record = Record::read(dir);
    let mut held = Held::agreed(&fleet, &record, plan.hosts, ended);
    held.speaks(&fleet, plan.hosts);
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    for host in 0..=plan.hosts {
        for (reason, amount) in fleet.last(host).lost {
            *lost.entry(reason).or_default() += amount;
        }
    }
    if unresolved > 0 {
        lost.insert("still unresolved".into(), unresolved);
    }
    let delays = control.stop();
    for host in 0..plan.hosts {
        stage.check(fleet.end(host));
    }
    let mut problems = stage.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    problems.append(&mut held.problems);
    for host in 0..=plan.hosts {
        problems.extend(complaints(&fleet.stderr(host)).into_iter().map(|line| format!("host{host}: {line}")));
    }
    Ok(Run { plan: plan.clone(), spans, record, began, healed, ready, ended, held, lost, problems, delays })
}

/// Lines of a host's log that no run may have.
fn complaints(log: &str) -> Vec<String> {
    let wrong = |line: &&str| line.contains("panicked") || line.contains("Fatal") || line.contains("Uncaught");
    log.lines().filter(wrong).map(str::to_owned).collect()
}

struct Stage<'a> {
    fleet: &'a Fleet,
    plan: &'a Plan,
    /// Held while a host comes or goes in order: one at a time, as the handbook has it.
    moving: Mutex<()>,
    problems: Mutex<Vec<String>>,
}

impl Stage<'_> {
    fn problem(&self, what: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn check(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.problem(what);
        }
    }

    /// Waits until every host that is to be there is ready and sees all others, and nobody else.
    fn await_ready(&self) -> Result<(), String> {
        (0..self.plan.hosts).try_for_each(|host| self.await_host(host, self.plan.hosts as u64, READY_LIMIT))
    }

    fn await_host(&self, host: usize, members: u64, limit: Duration) -> Result<(), String> {
        let deadline = now_ns() + limit.as_nanos() as u64;
        loop {
            let state = self.fleet.state(host);
            if matches!(&state, Ok((state, live, reason)) if state == "ready" && *live == members && reason.is_empty())
            {
                return Ok(());
            }
            if now_ns() >= deadline {
                return Err(format!("host{host} is not ready with {members} members after {limit:?}: {state:?}"));
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Does what was planned when it is time, and says when it did.
    fn perform(&self, planned: &Planned, began: u64) -> Span {
        sleep_until(began + planned.at_ms * 1_000_000);
        let _alone = planned.fault.is_orderly().then(|| self.moving.lock().unwrap_or_else(PoisonError::into_inner));
        let mut span = Span { fault: planned.fault.clone(), from: now_ns(), to: 0, moments: Vec::new() };
        let last = Duration::from_millis(planned.for_ms);
        match &planned.fault {
            Fault::KillWorker(host) => {
                if let Some(pid) = self.fleet.kill_worker(*host, planned.at_ms) {
                    span.moments.push((now_ns(), format!("killed {pid}")));
                }
            }
            Fault::KillNode(host) => {
                if self.fleet.signal_node(*host, libc::SIGKILL) {
                    span.moments.push((now_ns(), format!("killed host{host}'s node")));
                }
                sleep(last);
            }
            Fault::KillHost(host) => {
                self.fleet.kill(*host);
                span.moments.push((now_ns(), format!("killed host{host}")));
                sleep(last);
                self.start(*host, &mut span);
            }
            Fault::StopNode(host) => {
                self.fleet.signal_node(*host, libc::SIGSTOP);
                sleep(last);
                self.fleet.signal_node(*host, libc::SIGCONT);
            }
            Fault::StopHost(host) => {
                self.fleet.signal_all(*host, libc::SIGSTOP);
                sleep(last);
                self.fleet.signal_all(*host, libc::SIGCONT);
            }
            Fault::Partition(cut) => {
                self.partition(cut, true);
                sleep(last);
                self.partition(cut, false);
            }
            Fault::Slow(host, ms) => self.delay(*host, *ms, 0, last),
            Fault::Reorder(host, ms) => self.delay(*host, 0, *ms, last),
            Fault::ClockStep(host, seconds) => self.fleet.step_clock(*host, *seconds),
            Fault::Restart(host) => self.restart(*host, &mut span),
            Fault::Rolling => {
                for host in 0..self.plan.hosts {
                    self.restart(host, &mut span);
                    // As the handbook has it: wait until all are well before the next one.
                    self.check(self.await_ready());
                }
            }
            Fault::Guest => self.guest(last, &mut span),
        }
        span.to = now_ns();
        span
    }

    fn start(&self, host: usize, span: &mut Span) {
        self.fleet.start(host);
        self.fleet.start_load(host);
        span.moments.push((now_ns(), format!("started host{host}")));
    }

    fn restart(&self, host: usize, span: &mut Span) {
        self.check(self.fleet.end(host));
        span.moments.push((now_ns(), format!("ended host{host}")));
        self.start(host, span);
    }

    fn guest(&self, last: Duration, span: &mut Span) {
        let guest = self.plan.hosts;
        self.start(guest, span);
        sleep(last);
        self.check(self.fleet.end(guest));
        span.moments.push((now_ns(), format!("ended host{guest}")));
        // A guest that has left is in nobody's view before the next change.
        self.check(self.await_ready());
    }

    fn partition(&self, cut: &Cut, on: bool) {
        self.fleet.net.change(|from, to, way| match cut {
            Cut::Halves(side) if side.contains(&from) != side.contains(&to) => (way.no_udp, way.no_tcp) = (on, on),
            Cut::OneWay(side) if side.contains(&from) && !side.contains(&to) => (way.no_udp, way.no_tcp) = (on, on),
            Cut::Pair(one, other) if [(*one, *other), (*other, *one)].contains(&(from, to)) => {
                (way.no_udp, way.no_tcp) = (on, on)
            }
            Cut::Gossip(host) if from == *host || to == *host => way.no_udp = on,
            Cut::Data(host) if from == *host || to == *host => way.no_tcp = on,
            _ => {}
        });
    }

    fn delay(&self, host: usize, delay_ms: u64, jitter_ms: u64, last: Duration) {
        let set = |delay_ms, jitter_ms| {
            self.fleet.net.change(|from, to, way| {
                if from == host || to == host {
                    (way.delay_ms, way.jitter_ms) = (delay_ms, jitter_ms);
                }
            });
        };
        set(delay_ms, jitter_ms);
        sleep(last);
        set(0, 0);
    }

    /// Waits until nobody asks any more what became of a call and every share is home; gives what stays open.
    fn await_resolved(&self) -> u64 {
        let deadline = now_ns() + UNRESOLVED_LIMIT.as_nanos() as u64;
        loop {
            let sum = |name: &str| -> f64 {
                (0..self.plan.hosts).map(|host| self.fleet.metrics(host).get(name).copied().unwrap_or_default()).sum()
            };
            let (unresolved, pending) = (sum("ephpm_kv_unresolved"), sum("ephpm_kv_shares_pending"));
            if unresolved == 0.0 && pending == 0.0 {
                return 0;
            }
            if now_ns() >= deadline {
                self.problem(format!("after {UNRESOLVED_LIMIT:?}: {unresolved} unresolved, {pending} shares pending"));
                return unresolved as u64;
            }
            sleep(LOOK_EVERY);
        }
    }
}
