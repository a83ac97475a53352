//! Folding what segments have counted that are gone: whatever comes late, from whatever side, nothing is counted twice or
//! lost.

mod one_key;

use std::sync::atomic::Ordering;

use ephpm_kv::record::Copy;
use ephpm_kv::store::{FOLD_KEPT_S, Joined, Standing};
use one_key::{Dice, Host, KEY};

impl Host {
    fn take(&self, copy: &Copy) {
        self.store.apply_copy(copy, true);
    }

    /// What the replicator does with a share that goes home.
    fn go_home(&self, to: &Host, term: u64) {
        let Some(copy) = self.copy() else { return };
        let sent = self.own_share(&copy.state);
        match to.store.join_home(&copy, term << 32) {
            Joined::Merged(state) => match sent {
                Some(sent) => self.store.acknowledge_share(KEY, &sent, &state),
                None => self.take(&Copy { key: copy.key, state }),
            },
            Joined::Ended(Some(state)) => self.take(&Copy { key: copy.key, state }),
            Joined::Ended(None) | Joined::Early | Joined::Full => {}
        }
    }

    fn fold(&self, term: u64, gone: &[u64]) -> bool {
        self.store.fold(KEY, term << 32, &|origin| gone.contains(&origin))
    }
}

const fn owner(term: u64) -> Standing {
    Standing::Owner { term: term << 32 }
}

/// An owner with the shares of two that were owners before it.
fn heir() -> (Host, Host, Host) {
    let (a, b, c) = (Host::new(1_000_000), Host::new(1_000_000), Host::new(1_000_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    b.take(&a.copy().unwrap());
    b.store.settle_own(KEY, 2 << 32, true);
    b.store.incr(KEY, 5, None, owner(2)).unwrap();
    c.take(&b.copy().unwrap());
    c.store.settle_own(KEY, 3 << 32, true);
    c.store.incr(KEY, 1, None, owner(3)).unwrap();
    (a, b, c)
}

#[test]
fn shares_become_one_and_late_copies_of_them_count_nothing() {
    let (a, b, c) = heir();
    let late = [a.copy().unwrap(), b.copy().unwrap()];
    assert!(c.fold(3, &[a.origin(), b.origin()]));
    assert!(!c.fold(3, &[a.origin(), b.origin()]), "there is nothing left to fold");
    assert_eq!((c.value(), c.shares().iter().filter(|share| !share.is_fold()).count()), (Some(16), 1));
    for copy in &late {
        c.take(copy);
        c.store.join_home(copy, 3 << 32);
        assert_eq!(c.value(), Some(16));
    }
    let d = Host::new(1_000_000);
    for copy in [&late[1], &c.copy().unwrap(), &late[0], &late[1]] {
        d.take(copy);
    }
    assert_eq!(d.value(), Some(16));
    assert_eq!(c.store.incr(KEY, 1, None, owner(3)).unwrap().value, 17);
    for host in [&c, &d] {
        host.store.verify().unwrap();
    }
}

#[test]
fn one_that_was_taken_for_gone_counts_on() {
    let (a, b, c) = heir();
    a.take(&c.copy().unwrap());
    a.store.incr(KEY, 4, None, Standing::Degraded).unwrap();
    assert!(c.fold(3, &[a.origin(), b.origin()]));
    for _ in 0..2 {
        a.go_home(&c, 3);
        assert_eq!((a.value(), c.value(), a.store.rescan_dirty()), (Some(20), Some(20), 0));
    }
    // A host that forgot its copies goes on from what was folded.
    let mut page = Some(0);
    while let Some(from) = page {
        page = b.store.forget_copies(from);
    }
    b.take(&c.copy().unwrap());
    b.store.incr(KEY, 2, None, Standing::Degraded).unwrap();
    b.go_home(&c, 3);
    assert_eq!((b.value(), c.value(), b.store.rescan_dirty()), (Some(22), Some(22), 0));
}

#[test]
fn what_two_sides_of_a_split_fold_counts_once() {
    let (a, b, c) = heir();
    b.take(&c.copy().unwrap());
    assert!(c.fold(3, &[a.origin()]) && b.fold(3, &[a.origin()]));
    b.store.incr(KEY, 3, None, Standing::Degraded).unwrap();
    for _ in 0..2 {
        b.go_home(&c, 3);
        b.take(&c.copy().unwrap());
        assert_eq!((b.value(), c.value()), (Some(19), Some(19)));
    }
}

#[test]
fn folds_go_when_nobody_can_have_copies_of_what_they_cover() {
    let (a, b, c) = heir();
    assert!(c.fold(3, &[a.origin(), b.origin()]));
    assert_eq!(c.shares().len(), 3);
    c.hand.fetch_add(FOLD_KEPT_S * 1_000, Ordering::Relaxed);
    assert!(c.fold(3, &[]));
    assert_eq!((c.value(), c.shares().len()), (Some(16), 1));
    // A copy that still has them learns nothing wrong, and forgets them in time.
    let d = Host::new(1_000_000);
    d.take(&b.copy().unwrap());
    d.take(&c.copy().unwrap());
    c.store.verify().unwrap();
}

// -- histories

/// Forks of ownership, folds on any side and of anybody (gone or not), hosts that are replaced after they have told all,
/// and copies that come again, late and out of order.
fn history(seed: u64) -> Result<(), String> {
    let mut dice = Dice(seed);
    let n = 2 + dice.below(3);
    let mut hosts: Vec<Host> = (0..n).map(|i| Host::new(1_000_000 + i as u64 * 50_000)).collect();
    let (mut term, mut terms) = (1, vec![1; n]);
    let (mut side, mut view) = (vec![0; n], vec![0; n]);
    let (mut due, mut late, mut origins) = (0_i64, Vec::new(), Vec::new());
    origins.extend(hosts.iter().map(Host::origin));
    for _ in 0..20 + dice.below(150) {
        let (chance, i) = (dice.chance(), dice.below(n));
        hosts[i].hand.fetch_add(dice.below(3) as u64, Ordering::Relaxed);
        if chance < 0.05 {
            side.iter_mut().for_each(|side| *side = dice.below(2));
        } else if chance < 0.10 {
            side.fill(0);
        } else if chance < 0.13 {
            // Everybody takes what it has; then it is gone.
            if let Some(copy) = hosts[i].copy() {
                hosts.iter().for_each(|host| _ = host.store.apply_copy(&copy, false));
            }
            hosts[i] = Host::new(hosts[i].hand.load(Ordering::Relaxed));
            origins.push(hosts[i].origin());
            terms[i] = 0;
            view[i] = (0..n).find(|j| *j != i && side[*j] == side[i]).unwrap_or(i);
            if view[i] == i {
                term += 1;
                terms[i] = term;
            }
        } else if chance < 0.25 {
            let new = (0..n).find(|j| side[*j] == side[i]).unwrap_or(i);
            if view[i] != new {
                view[i] = new;
                if new == i {
                    term += 1;
                    terms[i] = term;
                    hosts[i].store.settle_own(KEY, term << 32, true);
                }
            }
        } else if chance < 0.40 {
            if view[i] == i {
                let gone: Vec<u64> = origins.iter().copied().filter(|_| dice.chance() < 0.5).collect();
                hosts[i].fold(terms[i], &gone);
            }
        } else if chance < 0.48 {
            if let Some(copy) = hosts[i].copy() {
                late.push(copy);
            }
        } else if chance < 0.58 {
            if !late.is_empty() {
                let copy: &Copy = &late[dice.below(late.len())];
                match view[i] == i {
                    true => _ = hosts[i].store.join_home(copy, terms[i] << 32),
                    false => _ = hosts[i].store.apply_copy(copy, dice.chance() < 0.5),
                }
            }
        } else if chance < 0.80 {
            let by = [1, 1, 1, 2, 5, -1][dice.below(6)];
            let j = view[i];
            let reachable = j == i || side[j] == side[i] && view[j] == j;
            let (at, standing) = if reachable { (j, owner(terms[j])) } else { (i, Standing::Degraded) };
            hosts[at].store.incr(KEY, by, None, standing).map_err(|error| error.to_string())?;
            due += by;
        } else {
            let j = dice.below(n);
            if i != j && side[i] == side[j] {
                match (view[i] == i, hosts[i].copy()) {
                    (true, Some(copy)) => hosts[j].take(&copy),
                    _ => hosts[i].go_home(&hosts[j], terms[j].max(terms[i])),
                }
            }
        }
    }
    term += 1;
    hosts[0].store.settle_own(KEY, term << 32, true);
    for round in 0..3 {
        hosts[1..].iter().for_each(|host| host.go_home(&hosts[0], term));
        if round == 0 {
            hosts[0].fold(term, &origins);
        }
        late.iter().for_each(|copy| _ = hosts[0].store.join_home(copy, term << 32));
        if let Some(copy) = hosts[0].copy() {
            hosts[1..].iter().for_each(|host| host.take(&copy));
        }
    }
    for (index, host) in hosts.iter().enumerate() {
        host.store.verify()?;
        if host.value().unwrap_or(0) != due || host.lost() != 0 {
            return Err(format!("host {index} has {:?}, due {due}: {:#?}", host.value(), host.shares()));
        }
        if index != 0 && host.store.rescan_dirty() != 0 {
            return Err(format!(
                "a share of host {index} is still pending: {:#?} {:#?}",
                host.shares(),
                hosts[0].shares()
            ));
        }
    }
    Ok(())
}

#[test]
fn random_histories_with_folds_end_exact() {
    let wrong: Vec<(u64, String)> =
        (0..2_000).filter_map(|seed| history(seed).err().map(|error| (seed, error))).collect();
    assert!(wrong.is_empty(), "{} wrong, first {}: {}", wrong.len(), wrong[0].0, wrong[0].1);
}
