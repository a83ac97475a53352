//! PHP threads: one call after the other, decided as `bridge::host` decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;

use super::history::{Counted, How, KeyUse, OwnerLog, Record, Ret, Use};
use super::host::{Host, Machine};
use super::network::Place;
use super::plant::Plant;
use super::random::Random;
use crate::error::Refusal;
use crate::metrics::{Lost, OpKind, Path};
use crate::record::KeyBuf;
use crate::router::{
    Place as Where, amount, count_here, estimate, has_moved, is_conditional, local_outcome, op_kind, path_of, place,
    standing_of_write, still_speaks,
};
use crate::store::{Standing, Store, StoreOptions};
use crate::wire::message::{Call, Op, Outcome, Reply};

/// How long a thread waits for its node.
const TIMEOUT_MS: u64 = 50;

/// Words that are appended to one key: it stays a small value.
const WORDS_MAX: usize = 70;

enum Doing {
    Nothing,
    /// It knows where its call runs, and was stopped before it ran.
    Stopped {
        record: usize,
        standing: Standing,
        speaks: bool,
        until: u64,
    },
    /// It waits for the node.
    Waiting {
        record: usize,
        number: u64,
        deadline: u64,
    },
}

/// One thread of one host.
pub struct Thread {
    pub place: Place,
    doing: Doing,
    next_at: u64,
    pace_ms: u64,
    random: Random,
}

/// What all threads share.
pub struct Workload {
    pub keys: Vec<KeyUse>,
    pub records: Vec<Record>,
    pub log: Arc<Mutex<OwnerLog>>,
    pub plant: Plant,
    /// Retired keys, and when each was deleted for good.
    pub retired: Vec<Option<u64>>,
    /// From when on keys are used.
    pub from: Vec<u64>,
    /// From when on the retired keys are deleted.
    pub retire_at: u64,
    pub numbers: u64,
    /// Of a thousand calls, how many find their thread stopped between looking and counting.
    pub stopped_permille: u64,
    /// Calls end here.
    pub until: u64,
}

impl Thread {
    pub fn new(place: Place, pace_ms: u64, mut random: Random) -> Self {
        let next_at = random.between(0, 2 * pace_ms);
        Self { place, doing: Doing::Nothing, next_at, pace_ms, random }
    }

    /// Whether a call of it is under way.
    pub fn is_busy(&self) -> bool {
        !matches!(self.doing, Doing::Nothing)
    }

    /// One step.
    pub fn step(&mut self, now: u64, host: &mut Host, workload: &mut Workload) {
        let Some(machine) = &host.machine else { return };
        machine.set_time(now);
        match self.doing {
            Doing::Nothing => {
                let leaves = host.process.as_ref().is_some_and(super::host::Process::is_leaving);
                if now >= self.next_at && now < workload.until && !leaves {
                    self.next_at = now + self.random.between(1, 2 * self.pace_ms);
                    self.begin(now, host, workload);
                }
            }
            Doing::Stopped { record, standing, speaks, until } if now >= until => {
                self.doing = Doing::Nothing;
                self.here(now, record, standing, speaks, true, host, workload);
            }
            Doing::Waiting { record, number, deadline } => {
                let answers = host.process.as_ref().map(|process| process.answers.clone());
                let answer = answers.and_then(|answers| {
                    let mut answers = answers.lock();
                    let at = answers.iter().position(|(answered, _)| *answered == number)?;
                    Some(answers.swap_remove(at).1)
                });
                match answer {
                    Some(Some(reply)) => self.answered(now, record, How::Asked, &reply, machine, workload),
                    Some(None) => self.not_taken(now, record, machine, workload),
                    None if now >= deadline => {
                        let reply = estimate(&machine.store, &workload.call(record));
                        self.answered(now, record, How::Undecided, &reply, machine, workload);
                    }
                    None => {}
                }
            }
            Doing::Stopped { .. } => {}
        }
    }

    /// The node that it may be waiting for was killed; `unread`: calls that the node had not taken.
    pub fn node_died(&mut self, now: u64, unread: &[u64], machine: &Machine, workload: &mut Workload) {
        let Doing::Waiting { record, number, .. } = self.doing else { return };
        if unread.contains(&number) {
            return self.not_taken(now, record, machine, workload);
        }
        let call = workload.call(record);
        machine.segment.metrics().lose(Lost::Unresolved, amount(&call));
        let reply = estimate(&machine.store, &call);
        self.answered(now, record, How::Lost, &reply, machine, workload);
    }

    /// Deletes a key now.
    pub fn delete(&mut self, now: u64, key: usize, host: &mut Host, workload: &mut Workload) {
        self.call(now, key, Op::Del, host, workload);
    }

    /// Its machine is gone.
    pub fn die(&mut self) {
        self.doing = Doing::Nothing;
    }

    fn begin(&mut self, now: u64, host: &mut Host, workload: &mut Workload) {
        if let Some((key, op)) = workload.choose(now, &mut self.random) {
            self.call(now, key, op, host, workload);
        }
    }

    fn call(&mut self, now: u64, key: usize, op: Op, host: &mut Host, workload: &mut Workload) {
        let Some(machine) = &host.machine else { return };
        let (how, ret, window) = (How::Open, Ret::Nothing, None);
        let origin = machine.segment.origin();
        let record =
            Record { place: self.place, origin, key, op, at: now, done: now, how, ret, degraded: true, window };
        workload.records.push(record);
        let record = workload.records.len() - 1;
        match place(machine.segment.table(), workload.keys[key].slot, machine.now_ms()) {
            Where::Here(_, true) if is_conditional(&workload.records[record].op) => {
                self.ask(now, record, host, workload)
            }
            Where::Here(standing, speaks) => {
                if self.random.next() % 1_000 < workload.stopped_permille {
                    let until = now + self.random.between(1, 400);
                    self.doing = Doing::Stopped { record, standing, speaks, until };
                } else {
                    self.here(now, record, standing, speaks, false, host, workload);
                }
            }
            Where::Node => self.ask(now, record, host, workload),
        }
    }

    fn ask(&mut self, now: u64, record: usize, host: &mut Host, workload: &mut Workload) {
        workload.numbers += 1;
        let (number, call) = (workload.numbers, workload.call(record));
        match &mut host.process {
            Some(process) => {
                process.inbox.push((number, call));
                self.doing = Doing::Waiting { record, number, deadline: now + TIMEOUT_MS };
            }
            None => {
                if let Some(machine) = &host.machine {
                    self.not_taken(now, record, machine, workload);
                }
            }
        }
    }

    fn not_taken(&mut self, now: u64, record: usize, machine: &Machine, workload: &mut Workload) {
        let reply = count_here(&machine.store, &workload.call(record));
        self.answered(now, record, How::NotTaken, &reply, machine, workload);
    }

    #[allow(clippy::too_many_arguments)]
    fn here(
        &mut self,
        now: u64,
        record: usize,
        standing: Standing,
        speaks: bool,
        late: bool,
        host: &mut Host,
        workload: &mut Workload,
    ) {
        let Some(machine) = &host.machine else { return };
        let call = workload.call(record);
        let slot = workload.keys[workload.records[record].key].slot;
        let table = machine.segment.table();
        let moved = has_moved(table, slot, standing);
        if workload.plant == Plant::SlipPastFreeze && late && moved && matches!(call.op, Op::Incr { .. }) {
            workload.log.lock().planted += 1;
            // As if nothing had to be noticed: no mark is left.
            let options = StoreOptions { clustered: false, ..machine.store.options() };
            let unseen = Store::open(machine.segment.clone(), machine.store.clock().clone(), options);
            return self.apply(now, record, standing, speaks, &unseen, machine, &call, workload);
        }
        let store = machine.store.clone();
        if is_conditional(&call.op) && !speaks {
            return self.refuse(now, record, workload);
        }
        let standing = match call.op {
            Op::Set { .. } | Op::Del | Op::Expire { .. } => standing_of_write(standing, speaks),
            _ => standing,
        };
        self.apply(now, record, standing, speaks, &store, machine, &call, workload);
        let (table, now_ms) = (machine.segment.table(), machine.now_ms());
        let is_write = matches!(call.op, Op::Set { .. } | Op::Del | Op::Expire { .. });
        if is_write && has_moved(table, slot, standing) && !matches!(workload.records[record].ret, Ret::Refused(_)) {
            self.ask(now, record, host, workload);
        } else if !still_speaks(table, slot, standing, now_ms) && !is_conditional(&call.op) {
            workload.records[record].degraded = true;
        }
    }

    /// Not decided: this host does not speak for the key (any more).
    fn refuse(&mut self, now: u64, record: usize, workload: &mut Workload) {
        let outcome = Outcome::Refused(Refusal::NoOwner);
        self.finish(now, record, How::Inline, &Reply { outcome, state: None, degraded: true }, workload);
    }

    #[allow(clippy::too_many_arguments)]
    fn apply(
        &mut self,
        now: u64,
        record: usize,
        standing: Standing,
        speaks: bool,
        store: &Store,
        machine: &Machine,
        call: &Call,
        workload: &mut Workload,
    ) {
        let outcome = local_outcome(store, call, standing);
        let state = store.state(call.key.as_key());
        let reply = Reply { outcome, state, degraded: !speaks };
        if let Standing::Owner { term } = standing {
            workload.note(now, record, term, &reply, machine);
        }
        let path = if speaks { Path::Local } else { Path::Degraded };
        machine.segment.metrics().count(0, op_kind(&call.op), path);
        self.finish(now, record, How::Inline, &reply, workload);
    }

    fn answered(
        &mut self,
        now: u64,
        record: usize,
        how: How,
        reply: &Reply,
        machine: &Machine,
        workload: &mut Workload,
    ) {
        let kind: OpKind = op_kind(&workload.records[record].op);
        machine.segment.metrics().count(0, kind, path_of(reply));
        self.finish(now, record, how, reply, workload);
    }

    fn finish(&mut self, now: u64, record: usize, how: How, reply: &Reply, workload: &mut Workload) {
        self.doing = Doing::Nothing;
        let record = &mut workload.records[record];
        (record.done, record.how, record.degraded) = (now, how, reply.degraded);
        record.window = reply.state.as_ref().map(|state| state.window);
        record.ret = match &reply.outcome {
            Outcome::Values(values) => match values.first() {
                Some(Ok(value)) => Ret::Value(*value),
                Some(Err(refusal)) => Ret::Refused(*refusal),
                None => Ret::Nothing,
            },
            Outcome::Done(done) => Ret::Done(*done),
            Outcome::Refused(refusal) => Ret::Refused(*refusal),
        };
    }
}

impl Workload {
    /// The call of a record.
    pub fn call(&self, record: usize) -> Call {
        let record = &self.records[record];
        Call { key: self.keys[record.key].key.clone(), op: record.op.clone() }
    }

    /// What a thread does next.
    fn choose(&mut self, now: u64, random: &mut Random) -> Option<(usize, Op)> {
        let key = random.below(self.keys.len());
        let incr = |random: &mut Random, ttl_ms| {
            let delta = if random.chance(80) { 1 } else { random.between(2, 9) as i64 };
            Op::Incr { deltas: vec![delta], ttl_ms }
        };
        let ttl = |random: &mut Random| *random.pick(&[None, None, Some(300), Some(900), Some(2_500), Some(60_000)]);
        if now < self.from[key] {
            return None;
        }
        let op = match self.keys[key].usage {
            Use::Count => incr(random, None),
            Use::Long => incr(random, Some(600_000)),
            Use::Timed(ttl_ms) => incr(random, Some(ttl_ms)),
            Use::Mixed => match random.below(10) {
                0 => Op::Del,
                1 => Op::Set { value: Bytes::from(random.between(0, 1_000).to_string()), ttl_ms: ttl(random) },
                2 => Op::Expire { ttl_ms: ttl(random) },
                _ => {
                    let ttl_ms = ttl(random);
                    incr(random, ttl_ms)
                }
            },
            Use::Value => match random.below(10) {
                0 => Op::Del,
                1 => Op::Expire { ttl_ms: ttl(random) },
                _ => {
                    let len = *random.pick(&[1, 20, 300]);
                    let text = format!("{}-{}", self.records.len(), "v".repeat(len));
                    Op::Set { value: Bytes::from(text), ttl_ms: ttl(random) }
                }
            },
            Use::Once => {
                let value = Bytes::from(format!("{}-once", self.records.len()));
                Op::SetNx { value, ttl_ms: None }
            }
            Use::Text if self.records.iter().filter(|record| record.key == key).count() >= WORDS_MAX => return None,
            Use::Text => Op::Append { value: Bytes::from(format!("{},", self.records.len())) },
            Use::Retired if self.retired[key].is_some() => return None,
            Use::Retired if now >= self.retire_at => {
                let busy = |record: &Record| record.key == key && record.how == How::Open;
                if self.records.iter().any(busy) {
                    return None;
                }
                self.retired[key] = Some(now);
                Op::Del
            }
            Use::Retired => incr(random, None),
        };
        Some((key, op))
    }

    /// Notes what an owner did in a thread of its host.
    fn note(&mut self, at: u64, record: usize, term: u64, reply: &Reply, machine: &Machine) {
        let record = &self.records[record];
        let (place, origin, key) = (record.place, machine.segment.origin(), record.key as u32);
        let mut log = self.log.lock();
        if let (Op::Incr { deltas, .. }, Outcome::Values(values)) = (&record.op, &reply.outcome) {
            let window = reply.state.as_ref().map(|state| state.window).unwrap_or_default();
            for (delta, value) in deltas.iter().zip(values) {
                let Ok(value) = *value else { continue };
                log.counted.push(Counted { at, place, origin, key, term, window, delta: *delta, value });
            }
        }
    }
}

/// A key of the run.
pub fn key_of(number: usize, usage: Use) -> KeyUse {
    let name = format!("key{number}");
    let key = KeyBuf::new(crate::record::Key { namespace: b"", name: name.as_bytes() });
    KeyUse { slot: crate::placement::slot(name.as_bytes()), key, usage }
}

/// Sum of the increments whose fate a node is asking after.
pub fn unresolved(machine: &Machine) -> u64 {
    machine.segment.table().unresolved.load(Ordering::Relaxed)
}
