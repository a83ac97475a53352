//! What the hosts hold when everything is over: the same, and what their owners say.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::hosts::Fleet;
use crate::record::Record;
use crate::run::{LOOK_EVERY, sleep};
use crate::support::now_ns;

/// How long copies may differ after the end of the load (the heal is longer ago).
const AGREE_LIMIT: Duration = Duration::from_secs(5);

/// Hosts are asked one after the other, so what is about to end may be gone on some of them, ms.
const ENDING_MS: i64 = 1_000;

/// Keys of which it is told how copies differ.
const TOLD_MAX: usize = 12;

/// What the hosts hold.
#[derive(Debug, Default)]
pub struct Held {
    /// Value and remaining ms of each key where the copies agree; `n`: none.
    pub finals: BTreeMap<String, (String, i64)>,
    /// When the hosts were asked for the last time, monotonic ns.
    pub asked: u64,
    /// Whether all copies agreed then.
    pub agreed: bool,
    /// What was not as it should be.
    pub problems: Vec<String>,
}

impl Held {
    /// Asks all hosts for every key of the record until they agree, within 5 s of `ended`.
    pub fn agreed(fleet: &Fleet, record: &Record, hosts: usize, ended: u64) -> Self {
        let mut keys: Vec<String> = record.events.iter().map(|event| event.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let deadline = now_ns().max(ended + AGREE_LIMIT.as_nanos() as u64);
        loop {
            let dumps: Result<Vec<_>, _> = (0..hosts).map(|host| fleet.dump(host, &keys)).collect();
            let asked = now_ns();
            let dumps = match dumps {
                Ok(dumps) => dumps,
                Err(reason) => {
                    let problems = vec![format!("a host cannot be asked what it holds: {reason}")];
                    return Self { asked, problems, ..Self::default() };
                }
            };
            let differs = |index: &usize| dumps.iter().any(|dump| !same(&dumps[0][*index], &dump[*index]));
            let differ: Vec<usize> = (0..keys.len()).filter(differs).collect();
            if differ.is_empty() || asked >= deadline {
                let agreed = differ.is_empty();
                let problems = differ.iter().take(TOLD_MAX).map(|index| {
                    let held = dumps.iter().map(|dump| format!("{} ({} ms)", dump[*index].0, dump[*index].1));
                    format!(
                        "copies differ after {AGREE_LIMIT:?}: {}: {}",
                        keys[*index],
                        held.collect::<Vec<_>>().join(" | ")
                    )
                });
                let mut problems: Vec<String> = problems.collect();
                if differ.len() > TOLD_MAX {
                    problems.push(format!("copies differ: {} more keys", differ.len() - TOLD_MAX));
                }
                let all = keys.into_iter().zip(dumps[0].clone()).enumerate();
                let finals = all.filter(|(index, _)| !differ.contains(index)).map(|(_, held)| held).collect();
                return Self { finals, asked, agreed, problems };
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Every host must speak for the cluster again, with the value that all copies have.
    pub fn speaks(&mut self, fleet: &Fleet, hosts: usize) {
        for (key, (value, _)) in self.finals.iter().filter(|(key, _)| key.starts_with("c:")) {
            for host in 0..hosts {
                match fleet.add_nothing(host, key) {
                    Ok((Some(found), false)) if format!("s{found}") == *value => {}
                    other => {
                        self.problems.push(format!("host{host} answers for {key} {other:?}, the copies say {value}"));
                    }
                }
            }
        }
    }
}

/// Equal, or about to end.
fn same(one: &(String, i64), other: &(String, i64)) -> bool {
    let ending = |held: &(String, i64)| held.1 == -2 || (0..=ENDING_MS).contains(&held.1);
    if one.0 != other.0 || (one.1 == -2) != (other.1 == -2) {
        return ending(one) && ending(other);
    }
    if one.1 < 0 || other.1 < 0 { one.1 == other.1 } else { (one.1 - other.1).abs() <= 1_000 }
}
