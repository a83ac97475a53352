//! One run: the hosts of a plan, their threads, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use super::check::{self, Verdict};
use super::faults::{DELAY_MS, Fault, Plan, Weather};
use super::gossip::Gossips;
use super::history::{How, KeyUse, OwnerLog, Use};
use super::host::{Host, Machine, World};
use super::network::{Arrival, Life, Network, Place};
use super::php::{Thread, Workload, key_of};
use super::plant::Plant;
use super::random::Random;
use super::trace::Trace;
use crate::config::{Config, HostPort};
use crate::metrics::Lost;
use crate::record::{Body, Share, State};
use crate::segment::table::{NodeState, Owner, SLOTS};

/// Time moves in steps of this many milliseconds: what a coarse clock shows.
const STEP_MS: u64 = 2;

/// More messages in one run are a storm.
const SENT_MAX: u64 = 3_000_000;

/// After a heal all copies agree within this.
pub const AGREE_WITHIN_MS: u64 = 5_000;

/// They must then agree for this long.
const STEADY_MS: u64 = 200;

/// Time between two looks whether they do.
const LOOK_MS: u64 = 50;

/// A kill, and since when what the host did may not have reached the others.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    pub origin: u64,
    pub at: u64,
    pub machine_too: bool,
    /// Since when lines of the host were not whole.
    pub apart_since: u64,
}

/// Everything that moves in a run.
pub struct Run {
    seed: u64,
    pub plan: Plan,
    pub hosts: Vec<Host>,
    pub workload: Workload,
    pub kills: Vec<Kill>,
    /// What was lost and itemised on machines that are gone, by reason.
    pub lost_before: [u64; 3],
    /// When one segment's node first had another's in its view.
    met: BTreeMap<(u64, u64), u64>,
    /// The last view of each place that was looked at.
    views: Vec<(Life, u64)>,
    threads: Vec<Thread>,
    world: World,
    gossips: Gossips,
    now: u64,
    lives: Life,
    stopped_hosts: Vec<u64>,
    random: Random,
    /// Events, if they are wanted.
    trace: Option<Trace>,
    /// Of everything that happened.
    pub digest: u64,
    next_fault: usize,
    watched: Option<usize>,
    shown: Vec<String>,
}

impl Run {
    /// The run of a seed.
    pub fn new(seed: u64, plant: Plant, traced: bool) -> Self {
        Self::with(seed, Plan::new, plant, traced)
    }

    /// The run of a seed with another plan than usual.
    pub fn with(seed: u64, plan: fn(&mut Random) -> Plan, plant: Plant, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = plan(&mut random);
        let seeds: Vec<HostPort> =
            (0..2).map(|place| HostPort { host: "10.0.0.1".to_owned(), port: 7_000 + place }).collect();
        // Small enough that texts and lists are large values, which only some keep.
        let small_value_max = *random.pick(&[512, 512, 30]);
        let replicas = random.between(1, 2) as u32;
        let config = Config { join: seeds, replicate_ms: 10, small_value_max, replicas, ..Config::default() };
        let log = Arc::new(Mutex::new(OwnerLog::default()));
        let network = Arc::new(Mutex::new(Network::new(plan.places, DELAY_MS, random.fork())));
        let lost_percent = *random.pick(&[0, 0, 5, 20]);
        let gossips = Gossips::new(plan.places, 2, config.gossip_interval_ms, lost_percent, random.fork());
        let keys = keys(&mut random);
        log.lock().keys =
            keys.iter().enumerate().map(|(at, key)| (key.key.as_key().name.to_vec(), at as u32)).collect();
        // A lock is worth something when it is fought for in the middle of a fault.
        let from = keys.iter().map(|key| match key.usage {
            Use::Once => random.between(plan.begin, plan.heal),
            _ => 0,
        });
        let from = from.collect();
        let retire_at = random.between(plan.begin, plan.heal);
        let mut threads = Vec::new();
        for place in 0..plan.places {
            for _ in 0..random.between(1, 2) {
                let pace = *random.pick(&[8, 15, 30]);
                threads.push(Thread::new(place, pace, random.fork()));
            }
        }
        let workload = Workload {
            retired: vec![None; keys.len()],
            from,
            keys,
            records: Vec::new(),
            log: log.clone(),
            plant,
            retire_at,
            numbers: 0,
            stopped_permille: if plant == Plant::SlipPastFreeze { 200 } else { 10 },
            until: plan.heal + 300,
        };
        let watched = std::env::var("EPHPM_KV_SIM_KEY").ok().filter(|_| traced).and_then(|name| {
            let is_it = |key: &KeyUse| key.key.as_bytes() == name.as_bytes();
            workload.keys.iter().position(is_it)
        });
        let hosts = (0..plan.places).map(|place| Host::new(place, plan.client == Some(place))).collect();
        Self {
            seed,
            hosts,
            workload,
            kills: Vec::new(),
            lost_before: [0; 3],
            met: BTreeMap::new(),
            views: vec![(0, 0); plan.places],
            threads,
            world: World { network, config, plant, log },
            gossips,
            now: 0,
            lives: 0,
            stopped_hosts: vec![0; plan.places],
            random: random.fork(),
            trace: traced.then(Trace::begin),
            digest: seed,
            next_fault: 0,
            watched,
            shown: vec![String::new(); plan.places],
            plan,
        }
    }

    /// Runs to the end and judges.
    pub fn go(mut self) -> (Self, Verdict) {
        while self.now < self.plan.heal {
            self.step();
        }
        self.heal();
        let until = self.plan.heal + 300;
        // A node that could not leave in order is taken over from when it has gone.
        let leaves = |run: &Self| run.running().any(|(_, _, process)| process.is_leaving());
        while self.now < until || self.threads.iter().any(Thread::is_busy) || leaves(&self) {
            self.step();
        }
        let deadline = self.now + AGREE_WITHIN_MS;
        let mut agreed_since = None;
        let mut why = String::new();
        while self.now < deadline || agreed_since.is_some() {
            let until = self.now + LOOK_MS;
            while self.now < until {
                self.step();
            }
            match check::agreement(&self) {
                Ok(()) => {
                    let since = *agreed_since.get_or_insert(self.now);
                    if self.now - since >= STEADY_MS {
                        let verdict = self.judge();
                        return (self, verdict);
                    }
                }
                Err(difference) => (agreed_since, why) = (None, difference),
            }
        }
        let verdict = Verdict::failed(format!("no agreement {AGREE_WITHIN_MS} ms after everything was whole: {why}"));
        (self, verdict)
    }

    fn judge(&mut self) -> Verdict {
        let verdict = check::sums(self);
        if verdict.violations.is_empty() { self.delete_all(verdict) } else { verdict }
    }

    /// Deletes every key on the healed cluster: none may come back.
    fn delete_all(&mut self, mut verdict: Verdict) -> Verdict {
        let place = self.hosts.iter().position(|host| host.process.is_some()).unwrap_or(0);
        let keys: Vec<usize> = (0..self.workload.keys.len()).collect();
        self.workload.until = 0;
        let first = self.workload.records.len();
        for key in keys {
            let mut thread = Thread::new(place, 1, Random::new(0));
            thread.delete(self.now, key, &mut self.hosts[place], &mut self.workload);
            self.threads.push(thread);
        }
        let until = self.now + 200;
        while self.now < until || self.threads.iter().any(Thread::is_busy) {
            self.step();
        }
        let answered = |how: How| matches!(how, How::Inline | How::Asked);
        for record in &self.workload.records[first..] {
            if !answered(record.how) || record.degraded {
                verdict.violations.push(format!("a delete on a healthy cluster was not the owner's: {record:?}"));
            }
        }
        // A line that was cut may still be waiting to send again what was lost.
        let deadline = self.plan.heal + AGREE_WITHIN_MS;
        while self.now < deadline && check::present(self).next().is_some() {
            self.step();
        }
        verdict.violations.extend(check::present(self).map(|what| format!("just deleted: {what}")));
        let until = self.now + 700;
        while self.now < until {
            self.step();
        }
        verdict.violations.extend(check::present(self).map(|what| format!("deleted a while ago: {what}")));
        verdict
    }

    /// Lost for this reason, so far, on all machines that ever were.
    pub fn lost(&self, reason: Lost) -> u64 {
        let live = self.hosts.iter().filter_map(|host| host.machine.as_ref());
        live.map(|machine| machine.segment.metrics().lost(reason)).sum::<u64>() + self.lost_before[reason as usize]
    }

    /// The log of owners.
    pub fn log(&self) -> &Mutex<OwnerLog> {
        &self.world.log
    }

    fn is_awake(&self, place: Place) -> bool {
        self.now >= self.stopped_hosts[place] && self.hosts[place].is_awake(self.now)
    }

    fn step(&mut self) {
        let (now, end) = (self.now, self.now + STEP_MS);
        assert!(self.world.network.lock().sent < SENT_MAX, "seed {}: a storm of messages at {now} ms", self.seed);
        self.world.log.lock().now = now;
        self.fail();
        for at in 0..self.threads.len() {
            let place = self.threads[at].place;
            if now >= self.stopped_hosts[place] {
                self.threads[at].step(now, &mut self.hosts[place], &mut self.workload);
            }
        }
        let awake: Vec<bool> = (0..self.hosts.len()).map(|place| self.is_awake(place)).collect();
        self.gossips.step(now, &awake);
        let mut arrivals: Vec<Vec<Arrival>> = self.hosts.iter().map(|_| Vec::new()).collect();
        for (place, arrival) in self.world.network.lock().arrivals(now, &awake) {
            self.digest = mix(self.digest, now ^ arrival.conn << 20 ^ (place as u64) << 50);
            arrivals[place].push(arrival);
        }
        for (place, arrivals) in arrivals.into_iter().enumerate() {
            if awake[place] {
                super::trace::here(now, place);
                self.hosts[place].run(now, end, arrivals, &self.world);
            }
        }
        self.meet();
        self.now = end;
        self.part();
        self.watch();
    }

    /// Notes who has come to know whom.
    fn meet(&mut self) {
        for (place, host) in self.hosts.iter().enumerate() {
            let (Some(machine), Some(process)) = (&host.machine, &host.process) else { continue };
            let view = process.node.peers.view();
            let seen = (process.life, view.epoch);
            if std::mem::replace(&mut self.views[place], seen) == seen {
                continue;
            }
            for member in view.members.iter().filter(|member| !member.is_me) {
                self.met.entry((machine.segment.origin(), member.origin)).or_insert(self.now);
            }
        }
    }

    /// Whether two segments belonged to clusters of which no member had seen any of the other before `at`.
    pub fn are_strangers(&self, one: u64, other: u64, at: u64) -> bool {
        let (mut known, mut next) = (BTreeSet::from([one]), vec![one]);
        while let Some(origin) = next.pop() {
            for ((a, b), _) in self.met.iter().filter(|(_, met_at)| **met_at < at) {
                let found = if *a == origin { *b } else { *a };
                if (*a == origin || *b == origin) && known.insert(found) {
                    next.push(found);
                }
            }
        }
        !known.contains(&other)
    }

    /// Whether there was a host at `at` that this segment's cluster had never seen.
    pub fn has_strangers(&self, origin: u64, at: u64) -> bool {
        let origins =
            self.hosts.iter().filter_map(|host| host.machine.as_ref()).map(|machine| machine.segment.origin());
        let there = |other: u64| self.met.iter().any(|((one, _), met_at)| *one == other && *met_at < at);
        origins.filter(|other| *other != origin && there(*other)).any(|other| self.are_strangers(origin, other, at))
    }

    /// Tells how the key that is watched changes on each host.
    fn watch(&mut self) {
        let Some(key) = self.watched else { return };
        for (place, host) in self.hosts.iter().enumerate() {
            let Some(machine) = &host.machine else { continue };
            let slot = self.workload.keys[key].slot;
            let (owner, term) = machine.segment.table().ownership(slot);
            let state = machine.store.state(self.workload.keys[key].key.as_key());
            let owner = match owner {
                Owner::Member(index) => format!("of {}", machine.segment.table().member(index).node_id.get()),
                other => format!("of {other:?}"),
            };
            let shown = format!("{owner} term {}.{:x}: {}", term >> 32, term & 0xffff, brief(state, self.now));
            if self.shown[place] != shown {
                if let Some(trace) = &self.trace {
                    trace.tell(self.now, &format!("    n{place} holds {shown}"));
                }
                self.shown[place] = shown;
            }
        }
    }

    /// Hosts that have left are gone.
    fn part(&mut self) {
        for place in 0..self.hosts.len() {
            let Some(clean) = self.hosts[place].has_left(self.now, &self.world) else { continue };
            self.tell(|| {
                format!("host {place} has left, {}", if clean { "with nothing" } else { "keeping something" })
            });
            if !clean {
                let origin = self.hosts[place].machine.as_ref().map_or(0, |machine| machine.segment.origin());
                // Cut off from everybody else, it takes with it what a killed one would.
                let apart_since = self.plan.apart_since(place, self.now);
                self.kills.push(Kill { origin, at: self.now, machine_too: true, apart_since });
            }
            self.bury(place, true);
        }
    }

    fn bury(&mut self, place: Place, machine_too: bool) {
        let unread: Vec<u64> = match &self.hosts[place].process {
            Some(process) => process.inbox.iter().map(|(number, _)| *number).collect(),
            None => Vec::new(),
        };
        let threads = self.threads.iter_mut().filter(|thread| thread.place == place);
        if machine_too {
            threads.for_each(Thread::die);
            if let Some(machine) = &self.hosts[place].machine {
                for reason in [Lost::WindowEnded, Lost::Unresolved, Lost::MemoryFull] {
                    self.lost_before[reason as usize] += machine.segment.metrics().lost(reason);
                }
                self.lost_before[Lost::Unresolved as usize] += super::php::unresolved(machine);
            }
        } else if let Some(machine) = &self.hosts[place].machine {
            machine.set_time(self.now);
            threads.for_each(|thread| thread.node_died(self.now, &unread, machine, &mut self.workload));
        }
        self.hosts[place].kill(machine_too, &self.world, &mut self.gossips, self.now);
    }

    fn heal(&mut self) {
        self.tell(|| "everything is whole".to_owned());
        while self.next_fault < self.plan.faults.len() {
            let fault = self.plan.faults[self.next_fault].1.clone();
            self.next_fault += 1;
            self.play(fault);
        }
        for from in 0..self.plan.places {
            for to in 0..self.plan.places {
                self.world.network.lock().mend(from, to, self.now);
                self.gossips.set_cut(from, to, false);
            }
        }
        for place in 0..self.plan.places {
            self.stopped_hosts[place] = 0;
            if let Some(process) = &mut self.hosts[place].process {
                process.stopped_until = None;
            }
        }
    }

    fn fail(&mut self) {
        while let Some((_, fault)) = self.plan.faults.get(self.next_fault).filter(|(at, _)| *at <= self.now) {
            let fault = fault.clone();
            self.next_fault += 1;
            self.play(fault);
        }
    }

    fn play(&mut self, fault: Fault) {
        self.tell(|| format!("{fault:?}"));
        let now = self.now;
        match fault {
            Fault::Cut { lines, data, gossip } => {
                for (from, to) in lines {
                    if data {
                        self.world.network.lock().cut(from, to, now);
                    }
                    if gossip {
                        self.gossips.set_cut(from, to, true);
                    }
                }
            }
            Fault::Mend { lines } => {
                for (from, to) in lines {
                    self.world.network.lock().mend(from, to, now);
                    self.gossips.set_cut(from, to, false);
                }
            }
            Fault::Break(a, b) => {
                self.world.network.lock().break_between(a, b, now);
            }
            Fault::Slow { place, delay_ms } => {
                for other in 0..self.plan.places {
                    let mut network = self.world.network.lock();
                    network.slow(place, other, delay_ms);
                    network.slow(other, place, delay_ms);
                }
            }
            Fault::StopNode { place, until } => {
                if let Some(process) = &mut self.hosts[place].process {
                    process.stopped_until = Some(until);
                }
            }
            Fault::StopHost { place, until } => {
                self.stopped_hosts[place] = until;
            }
            Fault::KillNode(place) => self.kill(place, false),
            Fault::KillHost(place) => self.kill(place, true),
            Fault::Start(place) => self.start(place),
            Fault::Leave(place) => {
                let world = self.world.clone();
                self.hosts[place].leave(&world);
            }
        }
    }

    fn kill(&mut self, place: Place, machine_too: bool) {
        let host = &self.hosts[place];
        let Some(machine) = &host.machine else { return };
        if host.process.is_none() && !machine_too {
            return;
        }
        let apart_since = self.plan.apart_since(place, self.now);
        let origin = machine.segment.origin();
        self.kills.push(Kill { origin, at: self.now, machine_too, apart_since });
        self.bury(place, machine_too);
    }

    fn start(&mut self, place: Place) {
        if self.hosts[place].process.is_some() {
            return;
        }
        if self.hosts[place].machine.is_none() {
            // Clocks of machines differ by minutes.
            let base = 1_000_000_000 + self.random.between(0, 600_000);
            let machine = Machine::new(&self.random.identity(), base, self.now);
            self.hosts[place].machine = Some(machine);
        }
        self.lives += 1;
        self.stopped_hosts[place] = 0;
        let life = self.lives;
        self.hosts[place].start(life, &self.world, &mut self.gossips, self.now);
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.tell(self.now, &what());
        }
    }

    /// Lines for a failed run: every fault, and every call.
    pub fn story(&self) -> String {
        let mut lines = self.trace.as_ref().map_or(Vec::new(), Trace::lines);
        for record in &self.workload.records {
            let name = String::from_utf8_lossy(self.workload.keys[record.key].key.as_bytes()).into_owned();
            let flag = if record.degraded { " degraded" } else { "" };
            lines.push((
                record.at,
                format!(
                    "n{} {name} {:?} {:?} -> {:?}{flag} ({:?}, until {}, window {:?})",
                    record.place,
                    self.workload.keys[record.key].usage,
                    record.op,
                    record.ret,
                    record.how,
                    record.done,
                    record.window
                ),
            ));
        }
        lines.sort_by_key(|(at, _)| *at);
        let mut out = String::new();
        for (at, line) in lines {
            let _ = writeln!(out, "{at:>6}  {line}");
        }
        out
    }

    /// Ends the digest with the calls.
    pub fn fingerprint(&self) -> u64 {
        self.workload.records.iter().fold(self.digest, |digest, record| {
            let ret = match record.ret {
                super::history::Ret::Value(value) => value as u64,
                super::history::Ret::Done(done) => u64::from(done),
                _ => 7,
            };
            mix(digest, record.done << 8 ^ ret ^ u64::from(record.degraded))
        })
    }

    /// Nodes that run, with their machines.
    pub fn running(&self) -> impl Iterator<Item = (&Host, &Machine, &super::host::Process)> {
        self.hosts.iter().filter_map(|host| Some((host, host.machine.as_ref()?, host.process.as_ref()?)))
    }

    /// Slots of the run's keys that more than one node owns at this moment.
    pub fn forked_now(&self) -> usize {
        let slots = self.workload.keys.iter().map(|key| key.slot);
        slots
            .filter(|slot| {
                let owns = |machine: &Machine| {
                    let table = machine.segment.table();
                    matches!(table.owner(*slot), Owner::Member(index) if Some(index) == table.self_index())
                };
                self.running().filter(|(_, machine, _)| owns(machine)).count() > 1
            })
            .count()
    }

    /// How many of some slots each node says to own.
    fn owners_of(&self, pick: impl Fn(u16) -> bool) -> Vec<(Place, usize)> {
        let owns = |machine: &Machine| {
            let table = machine.segment.table();
            let mine = table.self_index().map(Owner::Member);
            (0..SLOTS as u16).filter(|slot| pick(*slot) && Some(table.owner(*slot)) == mine).count()
        };
        self.running().map(|(host, machine, _)| (host.place, owns(machine))).collect()
    }

    /// Whether everybody is ready.
    pub fn all_ready(&self) -> Result<(), String> {
        for (host, machine, process) in self.running() {
            let table = machine.segment.table();
            if table.state() != NodeState::Ready || process.is_leaving() {
                let nobodys = (0..SLOTS as u16).filter(|slot| table.owner(*slot) == Owner::Nobody).count();
                let (state, reason) = (table.state(), table.reason.get());
                let owners = self.owners_of(|slot| table.owner(slot) == Owner::Nobody);
                return Err(format!(
                    "n{} is {state:?}: {reason} ({nobodys} slots are nobody's to it, and others say {owners:?})",
                    host.place
                ));
            }
        }
        Ok(())
    }
}

/// A state in few words, with the moment at which it ends.
fn brief(state: Option<State>, now: u64) -> String {
    let Some(state) = state else { return "nothing".to_owned() };
    let body = match &state.body {
        Body::Counter(shares) => {
            let of = |share: &Share| {
                format!("{:x}/{:x}={}", share.origin & 0xfff, share.window.stamp & 0xff_ffff, share.amount)
            };
            shares.iter().map(of).collect::<Vec<_>>().join(" ")
        }
        Body::Bytes(bytes) => String::from_utf8_lossy(&bytes[..bytes.len().min(12)]).into_owned(),
        Body::Elsewhere { len } => format!("{len} bytes elsewhere"),
        Body::Tombstone(shares) => format!("deleted, {} shares", shares.len()),
    };
    let until = state.ttl_ms.map_or(String::new(), |ttl_ms| format!(", until {}", (now + ttl_ms) / 5 * 5));
    let (window, stamp) = (state.window.stamp & 0xff_ffff, state.stamp & 0xff_ffff);
    format!("{body} (window {window:x}, {}.{:x} {stamp:x}{until})", state.term >> 32, state.term & 0xffff)
}

fn keys(random: &mut Random) -> Vec<KeyUse> {
    let mut keys: Vec<KeyUse> = Vec::new();
    for (usage, count) in [
        (Use::Count, 5),
        (Use::Long, 3),
        (Use::Timed(400), 1),
        (Use::Timed(1_500), 2),
        (Use::Mixed, 3),
        (Use::Value, 3),
        (Use::Once, 8),
        (Use::Text, 2),
        (Use::Retired, 2),
    ] {
        for _ in 0..count {
            // One key is used for one thing.
            let unused = std::iter::repeat_with(|| key_of(random.between(0, 1_000_000) as usize, usage))
                .find(|key| keys.iter().all(|used| used.key != key.key));
            keys.extend(unused);
        }
    }
    keys
}

fn mix(digest: u64, word: u64) -> u64 {
    (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Whether nothing may be lost: nothing is killed, and nobody leaves while others cannot answer for its calls.
pub fn is_lossless(plan: &Plan) -> bool {
    let leaves = plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Leave(_)));
    !plan.kills() && (plan.weather == Weather::Calm || !leaves)
}
