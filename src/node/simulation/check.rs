//! Judges a run: copies that agree, sums that are exact, deletes that stay.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::history::{Counted, How, Record, Ret, Use};
use super::host::Machine;
use super::network::Place;
use super::run::{Run, is_lossless};
use crate::metrics::Lost;
use crate::record::{Body, State};
use crate::segment::table::Owner;
use crate::wire::message::Op;

/// What a host had not sent when it was killed is younger than this, if its lines were whole: an interval of
/// replication, a message, and steps of the simulation.
const LAG_MS: u64 = 60;

/// Two copies' remaining times may differ by this: the time on the way is not taken off.
const TTL_APART_MS: u64 = 1_000;

/// The same where a copy may have waited on a line that was cut.
const TTL_HELD_MS: u64 = 1_000;

/// What has a deadline that a run sees the end of lives for so long at the most.
const SHORT_TTL_MS: u64 = 2_500;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What must not be.
    pub violations: Vec<String>,
    /// Times that two nodes counted as owners of one key at once.
    pub forks: u64,
    /// Calls.
    pub calls: u64,
    /// Those answered degraded.
    pub degraded: u64,
    /// Increments lost and accounted for.
    pub lost: u64,
    /// Planted faults that were played.
    pub planted: u64,
}

impl Verdict {
    /// One violation.
    pub fn failed(what: String) -> Self {
        Self { violations: vec![what], ..Self::default() }
    }
}

/// What a script would see of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Absent,
    Int(i128),
    Bytes(bytes::Bytes),
    /// Bytes of this length that other hosts have.
    Stub(u32),
}

fn seen(state: Option<&State>) -> (Seen, Option<u64>) {
    let Some(state) = state else { return (Seen::Absent, None) };
    match &state.body {
        Body::Tombstone(_) => (Seen::Absent, None),
        Body::Counter(shares) => (Seen::Int(shares.iter().map(|share| i128::from(share.amount)).sum()), state.ttl_ms),
        Body::Bytes(bytes) => (Seen::Bytes(bytes.clone()), state.ttl_ms),
        Body::Elsewhere { len } => (Seen::Stub(*len), state.ttl_ms),
    }
}

fn read(machine: &Machine, run: &Run, key: usize) -> (Seen, Option<u64>) {
    seen(machine.store.state(run.workload.keys[key].key.as_key()).as_ref())
}

/// What a key is on a host that has all of it; if there is none, on any.
fn whole(run: &Run, key: usize) -> Option<(Place, (Seen, Option<u64>))> {
    let mut copies = run.running().map(|(host, machine, _)| (host.place, read(machine, run, key)));
    let first = copies.next()?;
    let is_whole = |(_, (seen, _)): &(Place, (Seen, _))| !matches!(seen, Seen::Stub(_));
    Some(if is_whole(&first) { first } else { copies.find(is_whole).unwrap_or(first) })
}

fn name_of(run: &Run, key: usize) -> String {
    let usage = &run.workload.keys[key];
    format!("{} ({:?})", String::from_utf8_lossy(usage.key.as_bytes()), usage.usage)
}

/// Whether everybody is ready, nothing is open, and all copies are equal.
pub fn agreement(run: &Run) -> Result<(), String> {
    run.all_ready()?;
    let running = run.running().count();
    for (host, machine, process) in run.running() {
        let members = process.node.peers.view().members.len();
        if members != running {
            return Err(format!("n{} sees {members} members of {running}", host.place));
        }
        if !machine.segment.table().lease_holds(process.node.store.clock().now_ms()) {
            return Err(format!("n{} does not speak for the cluster", host.place));
        }
        let table = machine.segment.table();
        let others = table
            .members
            .iter()
            .filter(|cell| cell.is_present() && cell.origin.load(Ordering::Acquire) != machine.segment.origin());
        if let Some(cell) = others.into_iter().find(|cell| !cell.takes_calls()) {
            return Err(format!("n{} does not call {} (yet)", host.place, cell.node_id.get()));
        }
        if !process.node.homeward.all_home() {
            let parked = process.node.homeward.any_parked();
            let text = parked.map(|key| String::from_utf8_lossy(key.as_key().name).into_owned());
            return Err(format!("n{} has shares that are not home, such as of {text:?}", host.place));
        }
        if super::php::unresolved(machine) != 0 && is_lossless(&run.plan) {
            return Err(format!("n{} has calls whose fate is open", host.place));
        }
    }
    if run.forked_now() != 0 {
        return Err("a slot has two owners".to_owned());
    }
    for key in &run.workload.keys {
        let mut owners = run.running().map(|(host, machine, _)| (host.place, owner_of(machine, key.slot)));
        let Some((first_place, first)) = owners.next() else { return Ok(()) };
        for (place, owner) in owners.chain([(first_place, first.clone())]) {
            if owner.is_none() || owner != first {
                return Err(format!("n{place} says that {owner:?} owns slot {}, n{first_place}: {first:?}", key.slot));
            }
        }
    }
    // Who has left without a word may come back with bytes: they are waited for longer than this.
    let awaited = run.running().any(|(_, _, process)| {
        let view = process.node.peers.view();
        view.voters.any(|node_id| view.member(node_id).is_none())
    });
    let ttl_apart = if run.plan.troubles.is_empty() { TTL_APART_MS } else { TTL_HELD_MS };
    for key in 0..run.workload.keys.len() {
        let Some((first_place, (first, first_ttl))) = whole(run, key) else { return Ok(()) };
        for (place, (other, ttl)) in run.running().map(|(host, machine, _)| (host.place, read(machine, run, key))) {
            let apart = first_ttl.unwrap_or(0).abs_diff(ttl.unwrap_or(0));
            let is_stub = matches!((&first, &other), (Seen::Bytes(all), Seen::Stub(len)) if all.len() == *len as usize);
            if other != first && !is_stub
                || matches!(first, Seen::Stub(_)) && !awaited
                || ttl.is_some() != first_ttl.is_some()
                || apart > ttl_apart
            {
                let name = name_of(run, key);
                return Err(format!(
                    "{name} is {first:?} ({first_ttl:?} ms) on n{first_place} and {other:?} ({ttl:?} ms) on n{place}"
                ));
            }
        }
    }
    Ok(())
}

/// The member of the view that owns `slot`, as this host has it.
fn owner_of(machine: &Machine, slot: u16) -> Option<String> {
    let table = machine.segment.table();
    let Owner::Member(index) = table.owner(slot) else { return None };
    let member = table.member(index);
    member.is_present().then(|| member.node_id.get())
}

/// Where keys are: names, places and what is there.
pub fn present(run: &Run) -> impl Iterator<Item = String> {
    let keys = (0..run.workload.keys.len()).flat_map(|key| run.running().map(move |running| (key, running)));
    keys.filter_map(|(key, (host, machine, _))| {
        let (seen, _) = read(machine, run, key);
        (seen != Seen::Absent).then(|| format!("{} is {seen:?} on n{}", name_of(run, key), host.place))
    })
}

/// The sums, the orders and the deletes of a run whose copies agree.
pub fn sums(run: &Run) -> Verdict {
    let mut verdict = Verdict::default();
    let records = &run.workload.records;
    verdict.calls = records.len() as u64;
    verdict.degraded = records.iter().filter(|record| record.degraded).count() as u64;
    let open: u64 = run.running().map(|(_, machine, _)| super::php::unresolved(machine)).sum();
    verdict.lost = run.lost(Lost::Unresolved) + run.lost(Lost::MemoryFull) + open;
    let (by_key, counted) = (calls_by_key(run), counted_by_key(run));
    let lossless = is_lossless(&run.plan) && run.kills.is_empty();
    let mut missing_in_all = 0;
    let mut may_be_lost_in_all = 0;
    for (key, usage) in run.workload.keys.iter().enumerate() {
        let name = name_of(run, key);
        let Some((_, (value, _))) = whole(run, key) else { return verdict };
        let calls = by_key.get(&key).map_or(&[][..], Vec::as_slice);
        match usage.usage {
            Use::Count | Use::Long => {
                let value = match value {
                    Seen::Absent => 0,
                    Seen::Int(value) => value,
                    Seen::Bytes(_) | Seen::Stub(_) => {
                        verdict.violations.push(format!("{name} holds bytes that nobody set"));
                        continue;
                    }
                };
                let sum = |pick: &dyn Fn(&Record) -> bool| -> i128 {
                    calls.iter().filter(|record| pick(record)).map(|record| record.delta()).sum()
                };
                let expected = sum(&|record| matches!(record.ret, Ret::Value(_)));
                let open = sum(&|record| record.is_open());
                let may_be_lost = if lossless { 0 } else { sum(&|record| may_be_lost(run, record, &counted)) };
                let missing = expected - value;
                missing_in_all += missing.max(0);
                may_be_lost_in_all += may_be_lost;
                if missing < -open {
                    verdict.violations.push(format!(
                        "{name}: {expected} counted, {open} more may be, but the value is {value}: counted twice"
                    ));
                }
                let itemised = i128::from(verdict.lost);
                if missing > may_be_lost + if lossless { 0 } else { itemised } {
                    verdict.violations.push(format!(
                        "{name}: {expected} counted, but the value is {value}: {missing} are missing (a kill explains \
                         {may_be_lost}, itemised in all {itemised})"
                    ));
                }
            }
            Use::Retired => retired(run, key, &name, calls, &value, &mut verdict),
            Use::Value => last_write(run, &name, calls, &value, &mut verdict),
            Use::Once => one_winner(run, &name, calls, &value, &mut verdict),
            Use::Text => every_word_once(run, &name, calls, &value, &mut verdict),
            Use::Timed(_) | Use::Mixed => {}
        }
        chains(&name, calls, counted.get(&key).map_or(&[][..], Vec::as_slice), &mut verdict);
        if matches!(usage.usage, Use::Count | Use::Long) {
            gapless(run, &name, calls, &mut verdict);
        }
        verdict.forks += forks(counted.get(&key).map_or(&[][..], Vec::as_slice));
    }
    if missing_in_all > may_be_lost_in_all + i128::from(verdict.lost) {
        let (missing, lost) = (missing_in_all, verdict.lost);
        verdict
            .violations
            .push(format!("{missing} are missing in all, {lost} are itemised, {may_be_lost_in_all} explained"));
    }
    if lossless && verdict.lost != 0 {
        verdict.violations.push(format!("nothing was killed, but {} are said to be lost", verdict.lost));
    }
    verdict.planted = run.log().lock().planted;
    verdict
}

fn calls_by_key(run: &Run) -> BTreeMap<usize, Vec<&Record>> {
    let mut by_key: BTreeMap<usize, Vec<&Record>> = BTreeMap::new();
    for record in &run.workload.records {
        by_key.entry(record.key).or_default().push(record);
    }
    by_key
}

fn counted_by_key(run: &Run) -> BTreeMap<usize, Vec<Counted>> {
    let mut by_key: BTreeMap<usize, Vec<Counted>> = BTreeMap::new();
    for counted in &run.log().lock().counted {
        by_key.entry(counted.key as usize).or_default().push(*counted);
    }
    by_key
}

/// Whether a kill may have taken what this call counted before anybody else had it.
fn may_be_lost(run: &Run, record: &Record, counted: &BTreeMap<usize, Vec<Counted>>) -> bool {
    run.kills.iter().any(|kill| {
        if record.at > kill.at {
            return false;
        }
        let since = kill.apart_since.saturating_sub(LAG_MS);
        let on_it = record.origin == kill.origin;
        if !kill.machine_too {
            // What the node was asked, and had neither answered nor brought home.
            return on_it && matches!(record.how, How::Undecided | How::Lost);
        }
        let counted_there = || {
            counted.get(&record.key).is_some_and(|list| {
                let there = |counted: &&Counted| counted.origin == kill.origin && counted.at >= since;
                list.iter()
                    .filter(there)
                    .any(|counted| counted.at + 100 >= record.at && counted.at <= record.done + 2_000)
            })
        };
        on_it && (record.degraded || record.done >= since) || record.done >= since && counted_there()
    })
}

/// While an owner stays the owner, each increment starts from what the one before left, or from more (shares came home).
fn chains(name: &str, calls: &[&Record], counted: &[Counted], verdict: &mut Verdict) {
    let mut last: BTreeMap<(u64, u64, crate::record::Window), i64> = BTreeMap::new();
    for one in counted {
        let from = one.value.wrapping_sub(one.delta);
        let before = last.insert((one.origin, one.term, one.window), one.value);
        let may_fall = || began_apart(one, calls) || was_left(one, calls, counted) || was_rivalled(one, calls, counted);
        if let Some(before) = before.filter(|before| from < *before && !may_fall()) {
            verdict.violations.push(format!(
                "{name}: n{} counted from {from} at {} when it had answered {before} before",
                one.place, one.at
            ));
        }
    }
}

/// Whether the window began with a set without an owner. That may yield to a delete, and takes what it set with it, while
/// what was counted on top of it stays, since increments are no write.
fn began_apart(at: &Counted, calls: &[&Record]) -> bool {
    let is_it = |record: &Record| matches!(record.op, Op::Set { .. }) && record.window == Some(at.window);
    calls.iter().any(|record| record.degraded && is_it(record))
}

/// Whether a host that takes part in the window had ended it before by a change without an owner. Of two such changes one
/// yields: where it was made the window is the other's again, without what had been counted in it before and had ended
/// with the change.
fn was_left(at: &Counted, calls: &[&Record], counted: &[Counted]) -> bool {
    let is_in_it = |record: &&&Record| record.delta() != 0 && record.window == Some(at.window);
    let Some(begun) = calls.iter().filter(is_in_it).map(|record| record.at).min() else { return false };
    let takes_part = |place| {
        calls.iter().filter(is_in_it).any(|record| record.place == place)
            || counted.iter().any(|one| one.place == place && one.window == at.window)
    };
    let ends = |record: &Record| matches!(record.op, Op::Set { .. } | Op::Del) && record.ret == Ret::Done(true);
    calls.iter().any(|record| {
        let deletes = matches!(record.op, Op::Del) || record.window != Some(at.window);
        let other = record.degraded && ends(record) && deletes;
        other && (begun..=at.at).contains(&record.at) && takes_part(record.place)
    })
}

/// Whether another host has counted in a window of its own that lived at the same time: when that ends (it has a deadline)
/// at an owner, all that was counted in it ends for both, or the owner goes on in this one with what it finds of it.
fn was_rivalled(at: &Counted, calls: &[&Record], counted: &[Counted]) -> bool {
    let begun = counted.iter().filter(|one| one.window == at.window).map(|one| one.at).min().unwrap_or(at.at);
    let meanwhile = begun.saturating_sub(SHORT_TTL_MS)..=at.at;
    let rival = |one: &Counted| one.origin != at.origin && one.window != at.window && meanwhile.contains(&one.at);
    let apart = |record: &&Record| record.degraded && record.delta() != 0 && record.origin != at.origin;
    let elsewhere = |record: &&Record| record.window != Some(at.window) && meanwhile.contains(&record.at);
    counted.iter().any(rival) || calls.iter().copied().any(|record| apart(&record) && elsewhere(&record))
}

/// Where nothing failed the values of a key are distinct and leave nothing out, whoever owned it.
fn gapless(run: &Run, name: &str, calls: &[&Record], verdict: &mut Verdict) {
    let begin = run.plan.begin;
    let calm = run.plan.weather == super::faults::Weather::Calm;
    if !calm || run.workload.records.iter().any(|record| record.degraded && record.at >= begin) {
        return;
    }
    let value = |record: &Record| if let Ret::Value(value) = record.ret { i128::from(value) } else { 0 };
    let mut owners: Vec<&&Record> = calls.iter().filter(|record| !record.degraded).collect();
    owners.sort_by_key(|record| value(record));
    // Shares that were counted before the cluster was there have come home by then.
    let late = owners.iter().position(|record| record.at >= begin + 1_000).unwrap_or(owners.len());
    let settled = owners[late..].windows(2).filter(|pair| pair[0].at >= begin + 1_000 && pair[1].at >= begin + 1_000);
    for pair in settled {
        if value(pair[1]) - pair[1].delta() != value(pair[0]) {
            verdict.violations.push(format!("{name}: {:?} does not follow {:?}", pair[1], pair[0]));
            return;
        }
    }
}

/// How often a key was counted by two owners at once.
fn forks(counted: &[Counted]) -> u64 {
    let mut reigns: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
    for one in counted {
        let reign = reigns.entry((one.origin, one.term)).or_insert((one.at, one.at));
        reign.1 = one.at;
    }
    let reigns: Vec<((u64, u64), (u64, u64))> = reigns.into_iter().collect();
    let mut forks = 0;
    for (at, ((origin, _), (begin, end))) in reigns.iter().enumerate() {
        for ((other, _), (other_begin, other_end)) in &reigns[at + 1..] {
            forks += u64::from(origin != other && begin < other_end && other_begin < end);
        }
    }
    forks
}

/// A key that was deleted for good, by its owner, and counted nowhere apart before: stays so.
fn retired(run: &Run, key: usize, name: &str, calls: &[&Record], value: &Seen, verdict: &mut Verdict) {
    let Some(at) = run.workload.retired[key] else { return };
    let clean = calls.iter().all(|record| !record.degraded && matches!(record.how, How::Inline | How::Asked));
    let killed = run.kills.iter().any(|kill| kill.at >= at && kill.apart_since <= at + 2_000);
    if clean && !killed && *value != Seen::Absent {
        verdict.violations.push(format!("{name} was deleted at {at} and is {value:?}"));
    }
}

/// Bytes are what somebody set, and not older than a change that an owner with a lease made.
fn last_write(run: &Run, name: &str, calls: &[&Record], value: &Seen, verdict: &mut Verdict) {
    let text = match value {
        Seen::Absent | Seen::Stub(_) => return,
        Seen::Bytes(bytes) => bytes.clone(),
        Seen::Int(value) => value.to_string().into(),
    };
    let is_it = |record: &&&Record| matches!(&record.op, Op::Set { value, .. } if *value == text);
    let Some(set) = calls.iter().find(is_it) else {
        verdict.violations.push(format!("{name} holds {text:?}, which nobody set"));
        return;
    };
    if !is_lossless(&run.plan) || set.degraded || set.is_open() {
        return;
    }
    let changes = |record: &&&Record| match record.op {
        Op::Set { .. } => record.ret == Ret::Done(true),
        Op::Del => record.ret == Ret::Done(true),
        _ => false,
    };
    let later = calls
        .iter()
        .filter(changes)
        .find(|record| !record.degraded && record.at > set.done && !run.plan.is_troubled(record.at));
    if let Some(later) = later {
        verdict.violations.push(format!("{name} holds {text:?}, set until {}, but later: {later:?}", set.done));
    }
}

/// Of those that set a key unless it is there one wins, and its value stays.
fn one_winner(run: &Run, name: &str, calls: &[&Record], value: &Seen, verdict: &mut Verdict) {
    if !is_lossless(&run.plan) {
        return;
    }
    let winners: Vec<&&Record> = calls.iter().filter(|record| record.ret == Ret::Done(true)).collect();
    if let [one, other] = winners[..]
        && run.are_strangers(one.origin, other.origin, other.at)
    {
        // Hosts that started while a cut kept them apart are two clusters, and cannot know it.
        return;
    }
    if winners.len() > 1 || winners.iter().any(|winner| winner.degraded) {
        verdict.violations.push(format!("{name}: {} won: {:?} and {:?}", winners.len(), winners[0], winners.last()));
    }
    let has =
        |record: &Record| matches!(&record.op, Op::SetNx { value: set, .. } if Seen::Bytes(set.clone()) == *value);
    if winners.first().is_some_and(|winner| !has(winner)) {
        verdict.violations.push(format!("{name} is {value:?}, but the winner was {:?}", winners[0]));
    }
}

/// What was appended with the owner's word is there once; nothing is there twice.
fn every_word_once(run: &Run, name: &str, calls: &[&Record], value: &Seen, verdict: &mut Verdict) {
    let text = match value {
        Seen::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Seen::Absent => String::new(),
        Seen::Int(value) => value.to_string(),
        Seen::Stub(_) => return,
    };
    let mut words: BTreeMap<&str, u32> = BTreeMap::new();
    text.split_terminator(',').for_each(|word| *words.entry(word).or_default() += 1);
    for record in calls {
        let Op::Append { value } = &record.op else { continue };
        let word = String::from_utf8_lossy(value).trim_end_matches(',').to_owned();
        let times = words.get(word.as_str()).copied().unwrap_or(0);
        let acknowledged = matches!(record.ret, Ret::Value(_)) && !record.degraded;
        let must_be_there = || acknowledged && is_lossless(&run.plan) && !run.has_strangers(record.origin, record.at);
        if times > 1 || times == 0 && must_be_there() {
            verdict.violations.push(format!("{name}: {word} is there {times} times in {text}: {record:?}"));
        }
    }
}
