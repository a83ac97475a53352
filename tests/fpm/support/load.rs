//! Threads that make requests with increments and know every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::Client;
use super::fcgi::Failure;
use super::random::Random;
use super::settled;
use crate::shared::poll;

/// Between two requests of a thread: what is tested is not how a host does without processor time.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Running threads.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Ledger>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    completed: AtomicU64,
}

/// What each thread does.
#[derive(Clone, Debug)]
pub struct Work {
    /// Counters to choose from.
    pub keys: Vec<String>,
    /// Increments of one counter in one request.
    pub per_request: usize,
    /// Seed of the choice.
    pub seed: u64,
}

/// What is known of one counter.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Increments that were answered with a value.
    pub completed: i64,
    /// Of these, answered without the owner.
    pub degraded: i64,
    /// Increments that may have been counted: their request was cut off.
    pub cut: i64,
    /// Values that the owner answered.
    pub values: Vec<i64>,
}

/// What is known of all requests of a load.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By counter.
    pub tallies: BTreeMap<String, Tally>,
    /// Processes that served.
    pub pids: BTreeSet<u32>,
    /// Requests with a complete answer.
    pub served: u64,
    /// Requests that nobody took.
    pub refused: u64,
    /// Requests that were cut off.
    pub cut: u64,
    /// Why, and how often.
    pub reasons: BTreeMap<String, u64>,
    /// Increments that returned false.
    pub failed: u64,
    /// Requests over their deadline, values that did not grow: what must never be.
    pub wrong: Vec<String>,
    /// Some of what PHP logged.
    pub errors: BTreeSet<String>,
    /// The longest call of `ephpm_kv_incr`.
    pub slowest: Duration,
    /// The longest request.
    pub slowest_request: Duration,
}

impl Load {
    /// Starts one thread for each client; name a client twice for two.
    pub fn start(clients: &[Client], work: &Work) -> Self {
        let shared = Arc::new(Shared::default());
        let threads = clients.iter().zip(0..).map(|(client, number)| {
            let (client, work, shared) = (client.clone(), work.clone(), shared.clone());
            std::thread::spawn(move || run(&client, &work, number, &shared))
        });
        Self { threads: threads.collect(), shared }
    }

    /// Increments with an answer, so far.
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Waits until so many more increments have been answered.
    pub fn wait_for(&self, more: u64) {
        let goal = self.completed() + more;
        poll(&format!("{more} more increments"), Duration::from_secs(20), || {
            let now = self.completed();
            if now >= goal { Ok(()) } else { Err(format!("{} are missing", goal - now)) }
        });
    }

    /// Ends the threads, each after its request, and gives what they know together.
    pub fn stop(self) -> Ledger {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut all = Ledger::default();
        for thread in self.threads {
            all.add(thread.join().expect("a thread of the load"));
        }
        all
    }
}

fn run(client: &Client, work: &Work, number: u64, shared: &Shared) -> Ledger {
    let mut random = Random::new(work.seed, number);
    let mut ledger = Ledger::default();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let key = random.pick(&work.keys);
        let tally = ledger.tallies.entry(key.clone()).or_default();
        match client.try_incr(key, work.per_request) {
            Ok(counted) => {
                ledger.served += 1;
                ledger.pids.insert(counted.pid);
                ledger.slowest = ledger.slowest.max(counted.slowest);
                ledger.slowest_request = ledger.slowest_request.max(counted.elapsed);
                if ledger.errors.len() < 10 && !counted.errors.is_empty() {
                    ledger.errors.insert(counted.errors);
                }
                for (value, degraded) in counted.answers {
                    let Some(value) = value else {
                        ledger.failed += 1;
                        continue;
                    };
                    tally.completed += 1;
                    if degraded {
                        tally.degraded += 1;
                        continue;
                    }
                    let before = last.insert(key, value).unwrap_or(0);
                    if value <= before {
                        ledger.wrong.push(format!("{}: {key} was {before}, then {value}", client.name));
                    }
                    tally.values.push(value);
                }
                shared.completed.fetch_add(work.per_request as u64, Ordering::Relaxed);
            }
            Err(Failure::Refused(reason)) => {
                ledger.refused += 1;
                *ledger.reasons.entry(reason).or_default() += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Failure::Cut(reason)) => {
                ledger.cut += 1;
                *ledger.reasons.entry(reason).or_default() += 1;
                tally.cut += work.per_request as i64;
            }
            Err(Failure::TimedOut(after)) => {
                tally.cut += work.per_request as i64;
                ledger.wrong.push(format!("{}: a request took more than {after:?}", client.name));
            }
        }
    }
    ledger
}

impl Ledger {
    /// Adds what another thread or load knows.
    pub fn add(&mut self, other: Self) {
        for (key, tally) in other.tallies {
            let mine = self.tallies.entry(key).or_default();
            mine.completed += tally.completed;
            mine.degraded += tally.degraded;
            mine.cut += tally.cut;
            mine.values.extend(tally.values);
        }
        self.pids.extend(other.pids);
        self.served += other.served;
        self.refused += other.refused;
        self.cut += other.cut;
        self.failed += other.failed;
        self.wrong.extend(other.wrong);
        self.errors.extend(other.errors);
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.slowest = self.slowest.max(other.slowest);
        self.slowest_request = self.slowest_request.max(other.slowest_request);
    }

    /// The counters, in the order in which [`Self::check`] wants their values.
    pub fn keys(&self) -> Vec<String> {
        self.tallies.keys().cloned().collect()
    }

    /// Increments answered without the owner.
    pub fn degraded(&self) -> i64 {
        self.tallies.values().map(|tally| tally.degraded).sum()
    }

    /// No request hung, no client saw a counter go back, and every counter is what was completed and at most what was
    /// cut off besides; `lost` increments in all may be missing, because a killed node took the answer with it.
    pub fn check(&self, finals: &[i64], lost: i64) {
        println!("{}", self.line());
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        let mut missing = 0;
        for ((key, tally), value) in self.tallies.iter().zip(finals) {
            let Tally { completed, cut, .. } = tally;
            assert!(*value <= completed + cut, "{key} is {value}: {completed} were completed, {cut} cut off");
            missing += (completed - value).max(0);
        }
        println!("{missing} of them in no count, {lost} itemised as lost");
        assert!(missing <= lost, "{missing} completed increments are in no count, {lost} are itemised as lost");
    }

    /// All values of a counter are different: what one owner must give.
    pub fn distinct(&self) {
        for (key, tally) in &self.tallies {
            let different: BTreeSet<i64> = tally.values.iter().copied().collect();
            assert_eq!(different.len(), tally.values.len(), "{key}: a value was returned twice");
        }
    }

    /// No call was degraded or refused.
    pub fn exact(&self) {
        assert_eq!((self.degraded(), self.failed), (0, 0), "degraded and refused increments; {:?}", self.errors);
    }

    /// All hosts agree, nothing is missing, nothing was degraded, and each value was given once: one count without a
    /// fault.
    pub fn one_count(&self, clients: &[Client]) {
        self.check(&settled(clients, &self.keys()), 0);
        self.exact();
        self.distinct();
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let completed: i64 = self.tallies.values().map(|tally| tally.completed).sum();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "{} requests by {} workers, slowest {:.1} ms ({} refused, {} cut off: {:?}), {completed} increments ({} degraded, \
             {} failed), slowest {:.1} ms",
            self.served,
            self.pids.len(),
            ms(self.slowest_request),
            self.refused,
            self.cut,
            self.reasons,
            self.degraded(),
            self.failed,
            ms(self.slowest)
        )
    }
}
