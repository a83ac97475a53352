//! Shares join: whatever is repeated, reordered or split, nothing is counted twice or lost.

mod one_key;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use ephpm_kv::record::{Body, Copy, KeyBuf, Share, State, Window};
use ephpm_kv::store::{Applied, Joined, Replayed, Standing, Ttl, Value};
use one_key::{Dice, Host, KEY};

impl Host {
    fn own(&self, state: &State) -> Share {
        match &state.body {
            Body::Counter(shares) => *shares.iter().rfind(|share| share.origin == self.origin()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

const fn owner(term: u64) -> Standing {
    Standing::Owner { term: term << 32 }
}

/// Sends the host's share home and hands back the answer, as the replicator does.
fn go_home(from: &Host, to: &Host, term: u64) -> Joined {
    let copy = from.copy().unwrap();
    let joined = to.store.join_home(&copy, term << 32);
    match &joined {
        Joined::Merged(state) => from.store.acknowledge_share(KEY, &from.own(&copy.state), state),
        Joined::Ended(Some(state)) => {
            from.store.apply_copy(&Copy { key: KeyBuf::new(KEY), state: state.clone() }, true);
        }
        Joined::Ended(None) | Joined::Early | Joined::Full => {}
    }
    joined
}

fn replicate(from: &Host, to: &Host) -> Applied {
    to.store.apply_copy(&from.copy().unwrap(), true)
}

#[test]
fn degraded_increments_start_from_the_copy_and_come_home_once() {
    let (a, b) = (Host::new(1_000), Host::new(9_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    assert_eq!(replicate(&a, &b), Applied::Stored);
    assert_eq!(replicate(&a, &b), Applied::Stale);
    assert_eq!(b.store.incr(KEY, 5, None, Standing::Degraded).unwrap().value, 15);
    a.store.incr(KEY, 1, None, owner(1)).unwrap();
    assert_eq!(b.store.rescan_dirty(), 1);
    for _ in 0..3 {
        assert!(matches!(go_home(&b, &a, 1), Joined::Merged(_)));
    }
    assert_eq!((a.value(), b.value()), (Some(16), Some(16)));
    assert_eq!(b.store.rescan_dirty(), 0);
    assert_eq!(b.store.incr(KEY, 1, None, Standing::Degraded).unwrap().value, 17);
    let late = b.copy().unwrap();
    b.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    go_home(&b, &a, 1);
    a.store.join_home(&late, 1 << 32);
    assert_eq!((a.value(), b.value()), (Some(18), Some(18)));
    a.store.verify().unwrap();
    b.store.verify().unwrap();
}

#[test]
fn counting_on_keeps_the_share_pending() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    b.store.incr(KEY, 5, None, Standing::Degraded).unwrap();
    let copy = b.copy().unwrap();
    let Joined::Merged(state) = a.store.join_home(&copy, 1 << 32) else { panic!() };
    b.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    b.store.acknowledge_share(KEY, &b.own(&copy.state), &state);
    assert_eq!(b.store.rescan_dirty(), 1);
    go_home(&b, &a, 1);
    assert_eq!((b.store.rescan_dirty(), a.value(), b.value()), (0, Some(6), Some(6)));
}

#[test]
fn windows_created_apart_are_summed_under_the_owners() {
    let (a, b, c) = (Host::new(1_000), Host::new(2_000), Host::new(3_000));
    let window = a.store.incr(KEY, 10, Some(60_000), owner(1)).unwrap().window;
    b.store.incr(KEY, 5, None, Standing::Degraded).unwrap();
    assert_eq!(replicate(&a, &b), Applied::Stored);
    assert_eq!(b.value(), Some(15), "counted apart, and not yet home");
    assert_eq!(b.store.rescan_dirty(), 1);
    assert!(matches!(go_home(&b, &a, 1), Joined::Merged(_)));
    replicate(&a, &c);
    for host in [&a, &b, &c] {
        assert_eq!(host.value(), Some(15));
        assert_eq!(host.store.state(KEY).unwrap().window, window);
        host.store.verify().unwrap();
    }
    assert_eq!((b.store.rescan_dirty(), b.lost()), (0, 0));
    // The owner counts on; everybody agrees.
    assert_eq!(a.store.incr(KEY, 1, None, owner(1)).unwrap().value, 16);
    replicate(&a, &b);
    assert_eq!(b.value(), Some(16));
}

#[test]
fn a_share_of_a_window_that_ended_is_dropped_and_counted() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    replicate(&a, &b);
    b.store.incr(KEY, 5, None, Standing::Degraded).unwrap();
    a.store.del(KEY, owner(1)).unwrap();
    assert!(matches!(go_home(&b, &a, 1), Joined::Ended(Some(_))));
    assert_eq!((a.value(), b.value(), b.lost()), (None, None, 5));
    // The same, but the owner has begun anew.
    a.store.incr(KEY, 1, None, owner(1)).unwrap();
    replicate(&a, &b);
    b.store.incr(KEY, 7, None, Standing::Degraded).unwrap();
    a.store.set(KEY, b"100", None, owner(1)).unwrap();
    assert!(matches!(go_home(&b, &a, 1), Joined::Ended(Some(_))));
    assert_eq!((a.value(), b.value(), b.lost()), (Some(100), Some(100), 12));
    // Late copies change nothing.
    assert_eq!(b.store.rescan_dirty(), 0);
    b.store.verify().unwrap();
}

#[test]
fn what_a_new_owner_ended_stays_ended_although_it_began_elsewhere() {
    let (a, b, c) = (Host::new(1_000), Host::new(1_000), Host::new(1_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    replicate(&a, &b);
    replicate(&a, &c);
    b.store.incr(KEY, 5, None, Standing::Degraded).unwrap();
    let old = b.copy().unwrap();
    // C takes over, deletes and begins anew; B hears of the new window only.
    c.store.del(KEY, owner(2)).unwrap();
    c.store.incr(KEY, 1, None, owner(2)).unwrap();
    replicate(&c, &b);
    assert_eq!((b.value(), c.value()), (Some(1), Some(1)));
    assert_eq!(b.lost(), 5);
    assert!(matches!(c.store.join_home(&old, 2 << 32), Joined::Ended(Some(_))));
    // A, the former owner, comes back with its old copy.
    assert!(matches!(c.store.join_home(&a.copy().unwrap(), 2 << 32), Joined::Ended(Some(_))));
    assert_eq!(c.store.apply_copy(&a.copy().unwrap(), false), Applied::Stale);
    replicate(&c, &a);
    for host in [&a, &b, &c] {
        assert_eq!(host.value(), Some(1));
        host.store.verify().unwrap();
    }
}

#[test]
fn what_was_counted_apart_does_not_bring_back_a_window_that_its_own_beginner_has_ended() {
    let (owns, apart) = (Host::new(1_000), Host::new(9_000));
    owns.store.incr(KEY, 10, None, owner(1)).unwrap();
    replicate(&owns, &apart);
    // The other host is cut off, and learns neither of the deadline nor of what follows.
    owns.store.expire(KEY, Some(100), owner(1)).unwrap();
    owns.hand.fetch_add(100, Ordering::Relaxed);
    while !owns.store.sweep(1_000).round_ended {}
    apart.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    assert!(matches!(go_home(&apart, &owns, 1), Joined::Ended(Some(_))));
    assert_eq!((owns.value(), apart.value()), (None, None));
}

/// What an owner has told one host of, another does not bring back.
#[test]
fn what_an_owner_says_has_ended_it_does_not_take_for_news_from_another() {
    let long = Some(1_000_000_000);
    // It has no entry any more: of a tombstone that has gone, or of a change made apart that has expired.
    for by_delete in [true, false] {
        let [owns, apart, other] = [1_000, 1_000, 1_000].map(Host::new);
        owns.store.incr(KEY, 10, long, owner(1)).unwrap();
        replicate(&owns, &apart);
        replicate(&owns, &other);
        apart.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
        if by_delete {
            owns.store.del(KEY, owner(1)).unwrap();
            owns.hand.fetch_add(700_000, Ordering::Relaxed);
            while !owns.store.sweep(1_000).round_ended {}
            assert!(owns.store.state(KEY).is_none());
        } else {
            owns.store.expire(KEY, Some(100), Standing::Degraded).unwrap();
            owns.hand.fetch_add(100, Ordering::Relaxed);
        }
        assert!(matches!(go_home(&apart, &owns, 2), Joined::Ended(Some(_))));
        assert_eq!(apart.value(), None);
        owns.hand.fetch_add(1, Ordering::Relaxed);
        while !owns.store.sweep(1_000).round_ended {}
        assert_eq!(owns.store.apply_copy(&other.copy().unwrap(), false), Applied::Stale, "{by_delete}");
        assert_eq!(owns.value(), None);
        owns.store.verify().unwrap();
    }
}

#[test]
fn a_share_that_comes_home_late_is_not_taken_back_where_its_window_had_ended() {
    let (owns, apart) = (Host::new(1_000), Host::new(9_000));
    apart.store.incr(KEY, 2, None, Standing::Degraded).unwrap();
    let early = apart.copy().unwrap();
    apart.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    let late = apart.copy().unwrap();
    owns.store.incr(KEY, 10, None, owner(1)).unwrap();
    replicate(&owns, &apart);
    assert_eq!(apart.value(), Some(13));
    // The owner has never heard of the share when it ends its own window.
    owns.store.del(KEY, owner(1)).unwrap();
    replicate(&owns, &apart);
    assert!(matches!(owns.store.join_home(&early, 1 << 32), Joined::Merged(_)));
    replicate(&owns, &apart);
    assert_eq!((owns.value(), apart.value()), (Some(2), Some(3)));
    owns.store.join_home(&late, 1 << 32);
    apart.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    go_home(&apart, &owns, 1);
    assert_eq!((owns.value(), apart.value()), (Some(4), Some(4)));
}

#[test]
fn a_minority_that_took_over_does_not_undo_what_the_others_deleted() {
    let (owner, cut_off) = (Host::new(1_000), Host::new(1_000));
    owner.store.incr(KEY, 5, None, Standing::Owner { term: 1 << 32 }).unwrap();
    cut_off.store.apply_copy(&owner.copy().unwrap(), true);
    cut_off.store.settle_own(KEY, 2 << 32, false);
    cut_off.store.incr(KEY, 1, None, Standing::Owner { term: 2 << 32 }).unwrap();
    owner.store.del(KEY, Standing::Owner { term: 1 << 32 }).unwrap();
    // The split heals: each takes in what the other has.
    owner.store.apply_copy(&cut_off.copy().unwrap(), true);
    assert_eq!(owner.text(), None);
    cut_off.store.apply_copy(&owner.copy().unwrap(), true);
    assert_eq!(cut_off.text(), None);
}

#[test]
fn a_tombstone_travels_and_an_older_copy_does_not_bring_the_key_back() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    let old = a.copy().unwrap();
    replicate(&a, &b);
    a.store.del(KEY, owner(1)).unwrap();
    assert_eq!(replicate(&a, &b), Applied::Stored);
    assert_eq!(b.value(), None);
    assert_eq!(b.store.apply_copy(&old, true), Applied::Stale);
    assert!(matches!(b.store.join_home(&old, 1 << 32), Joined::Ended(_)));
    assert_eq!(b.value(), None);
    // A share counted apart survives the tombstone of a window it had nothing to do with.
    let c = Host::new(5_000);
    c.store.incr(KEY, 3, None, Standing::Degraded).unwrap();
    replicate(&a, &c);
    assert_eq!(c.value(), Some(3));
    assert!(matches!(go_home(&c, &a, 1), Joined::Merged(_)));
    assert_eq!((a.value(), c.value(), c.lost()), (Some(3), Some(3), 0));
}

#[test]
fn remaining_time_travels_and_clocks_may_differ() {
    let (a, b) = (Host::new(1_000), Host::new(900_000));
    a.store.incr(KEY, 10, Some(500), owner(1)).unwrap();
    a.hand.fetch_add(200, Ordering::Relaxed);
    replicate(&a, &b);
    b.hand.fetch_add(299, Ordering::Relaxed);
    assert_eq!(b.value(), Some(10));
    b.hand.fetch_add(1, Ordering::Relaxed);
    assert_eq!(b.value(), None);
    // Degraded after the deadline: a new window, whose share the owner takes in when its own has expired, too.
    b.store.incr(KEY, 2, Some(1_000), Standing::Degraded).unwrap();
    a.hand.fetch_add(300, Ordering::Relaxed);
    assert!(matches!(go_home(&b, &a, 1), Joined::Merged(_)));
    assert_eq!((a.value(), b.value()), (Some(2), Some(2)));
    // Expired here but not at the owner, whose clock rules: counted under the owner's window.
    b.hand.fetch_add(1_000, Ordering::Relaxed);
    b.store.incr(KEY, 4, Some(1_000), Standing::Degraded).unwrap();
    assert_eq!(b.value(), Some(4));
    assert_eq!(replicate(&a, &b), Applied::Stored);
    assert_eq!(b.value(), Some(6));
    assert!(matches!(go_home(&b, &a, 1), Joined::Merged(_)));
    assert_eq!((a.value(), b.value(), b.lost()), (Some(6), Some(6), 0));
}

#[test]
fn degraded_changes_yield_to_a_write_and_unsent_increments_survive_them() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    replicate(&a, &b);
    b.store.set(KEY, b"100", None, Standing::Degraded).unwrap();
    assert_eq!(b.store.incr(KEY, 1, None, Standing::Degraded).unwrap().value, 101);
    // Increments are no write: the change stays, to be replayed.
    a.store.incr(KEY, 1, None, owner(1)).unwrap();
    replicate(&a, &b);
    assert_eq!((b.value(), b.store.rescan_dirty()), (Some(101), 1));
    // A new deadline is one.
    a.store.expire(KEY, Some(60_000), owner(1)).unwrap();
    replicate(&a, &b);
    assert_eq!(b.value(), Some(12));
    go_home(&b, &a, 1);
    assert_eq!((a.value(), b.value()), (Some(12), Some(12)));
    b.store.incr(KEY, 2, None, Standing::Degraded).unwrap();
    b.store.del(KEY, Standing::Degraded).unwrap();
    assert_eq!(b.value(), None);
    a.store.expire(KEY, None, owner(1)).unwrap();
    assert!(matches!(replay(&b, &a, 1), Replayed::Yielded(Some(_))));
    assert_eq!(b.value(), Some(14));
    go_home(&b, &a, 1);
    assert_eq!((a.value(), b.value(), b.lost()), (Some(14), Some(14), 0));
    // A set that yields to a delete takes what it set with it, and not what was counted on it.
    b.store.set(KEY, b"100", None, Standing::Degraded).unwrap();
    b.store.incr(KEY, 3, None, Standing::Degraded).unwrap();
    a.store.del(KEY, owner(1)).unwrap();
    replicate(&a, &b);
    assert_eq!(b.value(), Some(3));
    go_home(&b, &a, 1);
    assert_eq!((a.value(), b.value(), b.lost()), (Some(3), Some(3), 0));
    // Bytes: the same rules.
    a.store.set(KEY, b"text", None, owner(1)).unwrap();
    replicate(&a, &b);
    b.store.set(KEY, b"other", None, Standing::Degraded).unwrap();
    a.store.set(KEY, b"third", None, owner(1)).unwrap();
    replicate(&a, &b);
    assert_eq!((b.text().as_deref(), b.store.rescan_dirty()), (Some("third"), 0));
}

/// Replays the host's change and hands back the answer, as the node does.
fn replay(from: &Host, to: &Host, term: u64) -> Replayed {
    let copy = from.copy().unwrap();
    let replayed = to.store.replay(&copy, term << 32);
    if let Replayed::Applied(state) | Replayed::Yielded(Some(state)) = &replayed {
        let answer = Copy { key: KeyBuf::new(KEY), state: state.clone() };
        let applied = matches!(replayed, Replayed::Applied(_));
        from.store.settle_replay(&answer, copy.state.diverged.unwrap(), applied);
        match from.own_share(&copy.state) {
            Some(sent) if applied => from.store.acknowledge_share(KEY, &sent, state),
            _ => assert_ne!(from.store.apply_copy(&answer, true), Applied::Full),
        }
    }
    replayed
}

fn agree(hosts: &[&Host], text: Option<&str>) {
    for host in hosts {
        assert_eq!(host.text().as_deref(), text);
        assert_eq!(host.store.rescan_dirty(), 0);
        assert!(host.store.state(KEY).is_none_or(|state| state.diverged.is_none()));
        host.store.verify().unwrap();
    }
}

#[test]
fn degraded_changes_are_replayed_where_nothing_was_written() {
    let (a, b, c) = (Host::new(1_000), Host::new(500_000), Host::new(9_000));
    let all = [&a, &b, &c];
    let share = || [&b, &c].into_iter().for_each(|to| assert_ne!(replicate(&a, to), Applied::Full));
    // A set to an integer, and what was counted on it; the owner counts on, too, and a takeover is no write.
    a.store.incr(KEY, 10, None, owner(1)).unwrap();
    share();
    b.store.set(KEY, b"100", Some(60_000), Standing::Degraded).unwrap();
    b.store.incr(KEY, 5, None, Standing::Degraded).unwrap();
    a.store.settle_own(KEY, 2 << 32, true);
    share();
    assert_eq!((a.value(), b.value()), (Some(10), Some(105)));
    assert!(matches!(replay(&b, &a, 2), Replayed::Applied(_)));
    share();
    agree(&all, Some("105"));
    // Once more changes nothing: its base is no longer there.
    b.store.incr(KEY, 1, None, Standing::Degraded).unwrap();
    go_home(&b, &a, 2);
    share();
    agree(&all, Some("106"));
    // A new deadline, with increments.
    b.store.incr(KEY, 4, None, Standing::Degraded).unwrap();
    b.store.expire(KEY, None, Standing::Degraded).unwrap();
    assert!(matches!(replay(&b, &a, 2), Replayed::Applied(_)));
    share();
    agree(&all, Some("110"));
    assert_eq!(c.store.ttl(KEY), Ok(Ttl::NoDeadline));
    // A delete; then a set of a key that is gone.
    b.store.del(KEY, Standing::Degraded).unwrap();
    assert!(matches!(replay(&b, &a, 2), Replayed::Applied(_)));
    share();
    agree(&all, None);
    c.store.set(KEY, b"bytes", Some(60_000), Standing::Degraded).unwrap();
    c.store.expire(KEY, Some(90_000), Standing::Degraded).unwrap();
    assert!(matches!(replay(&c, &a, 2), Replayed::Applied(_)));
    share();
    agree(&all, Some("bytes"));
    assert!(matches!(b.store.ttl(KEY), Ok(Ttl::Ms(ms)) if (80_000..=90_000).contains(&ms)));
    assert_eq!(b.lost() + c.lost(), 0);
}

#[test]
fn of_two_degraded_writes_one_wins_everywhere() {
    let (a, b, c) = (Host::new(1_000), Host::new(1_000), Host::new(1_000));
    a.store.set(KEY, b"old", None, owner(1)).unwrap();
    [&b, &c].into_iter().for_each(|to| assert_ne!(replicate(&a, to), Applied::Full));
    b.store.set(KEY, b"from b", None, Standing::Degraded).unwrap();
    c.store.del(KEY, Standing::Degraded).unwrap();
    assert!(matches!(replay(&b, &a, 1), Replayed::Applied(_)));
    assert!(matches!(replay(&c, &a, 1), Replayed::Yielded(Some(_))));
    agree(&[&a, &b, &c], Some("from b"));
}

#[test]
fn a_change_made_apart_yields_to_a_later_delete_of_what_was_deleted_before() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    a.store.set(KEY, b"1", None, owner(1)).unwrap();
    assert!(a.store.del(KEY, owner(1)).unwrap());
    b.store.set(KEY, b"2", None, Standing::Degraded).unwrap();
    let sent = b.copy().unwrap();
    a.hand.fetch_add(10, Ordering::Relaxed);
    assert!(!a.store.del(KEY, owner(1)).unwrap());
    assert!(matches!(a.store.replay(&sent, 1 << 32), Replayed::Yielded(Some(_))));
    assert_eq!(a.value(), None);
    a.store.verify().unwrap();
}

#[test]
fn a_change_made_while_an_earlier_one_is_replayed_is_one_over_that() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    a.store.set(KEY, b"old", None, owner(1)).unwrap();
    replicate(&a, &b);
    b.store.set(KEY, b"first", None, Standing::Degraded).unwrap();
    let sent = b.copy().unwrap();
    b.store.set(KEY, b"second", None, Standing::Degraded).unwrap();
    let Replayed::Applied(state) = a.store.replay(&sent, 1 << 32) else { panic!() };
    let answer = Copy { key: KeyBuf::new(KEY), state };
    b.store.settle_replay(&answer, sent.state.diverged.unwrap(), true);
    b.store.apply_copy(&answer, true);
    assert_eq!(b.text().as_deref(), Some("second"));
    assert!(matches!(replay(&b, &a, 1), Replayed::Applied(_)));
    agree(&[&a, &b], Some("second"));
}

#[test]
fn a_minority_owner_s_changes_reach_its_side_and_are_replayed_by_whoever_is_left() {
    let (majority, minority, peer) = (Host::new(1_000), Host::new(1_000), Host::new(1_000));
    minority.store.set(KEY, b"old", None, owner(1)).unwrap();
    [&majority, &peer].into_iter().for_each(|to| assert_ne!(replicate(&minority, to), Applied::Full));
    majority.store.settle_own(KEY, 2 << 32, true);
    for value in [&b"one"[..], b"two"] {
        minority.store.set(KEY, value, None, Standing::Degraded).unwrap();
        let copy = minority.copy().unwrap();
        peer.store.apply_copy(&copy, true);
        // Late, and of an owner that has been replaced: nothing for the other side.
        assert_eq!(majority.store.apply_copy(&copy, true), Applied::Stale);
    }
    assert_eq!(peer.text().as_deref(), Some("two"));
    // The minority's owner is gone; its peer brings the change home.
    assert!(matches!(replay(&peer, &majority, 2), Replayed::Applied(_)));
    agree(&[&majority, &peer], Some("two"));
    // Had it come back, its own answer would have been the same.
    assert!(matches!(replay(&minority, &majority, 2), Replayed::Yielded(Some(_))));
    agree(&[&majority, &minority], Some("two"));
}

#[test]
fn what_was_counted_on_a_change_does_not_begin_its_window_before_the_change_is_there() {
    let (majority, minority) = (Host::new(1_000), Host::new(1_000));
    minority.store.incr(KEY, 3, Some(100), owner(1)).unwrap();
    replicate(&minority, &majority);
    minority.store.set(KEY, b"292", None, Standing::Degraded).unwrap();
    minority.store.incr(KEY, 7, None, Standing::Degraded).unwrap();
    for expired in [false, true] {
        // It still believes to be the owner, and replicates.
        majority.store.join_home(&minority.copy().unwrap(), 2 << 32);
        if !expired {
            majority.hand.fetch_add(100, Ordering::Relaxed);
        }
    }
    assert_eq!(majority.value(), None);
    assert!(matches!(replay(&minority, &majority, 2), Replayed::Applied(_)));
    agree(&[&majority, &minority], Some("299"));
}

#[test]
fn a_copy_that_has_expired_on_its_way_ends_older_ones_of_its_window() {
    let (owns, copy) = (Host::new(1_000), Host::new(9_000));
    owns.store.incr(KEY, 1, Some(60_000), owner(1)).unwrap();
    replicate(&owns, &copy);
    owns.store.expire(KEY, Some(300), owner(1)).unwrap();
    let mut late = owns.copy().unwrap();
    late.state.ttl_ms = Some(0);
    assert_eq!(copy.store.apply_copy(&late, true), Applied::Stored);
    assert_eq!(copy.value(), None);
    // But not what was counted apart, in a window of its own.
    let apart = Host::new(9_000);
    apart.store.incr(KEY, 2, None, Standing::Degraded).unwrap();
    assert_eq!(apart.store.apply_copy(&late, true), Applied::Stale);
    assert_eq!(apart.value(), Some(2));
}

#[test]
fn a_counter_in_which_a_host_has_nothing_is_not_pending() {
    let (owns, copy) = (Host::new(1_000), Host::new(9_000));
    owns.store.incr(KEY, 1, None, owner(1)).unwrap();
    replicate(&owns, &copy);
    copy.store.mark_pending(KEY);
    assert_eq!((copy.store.rescan_dirty(), copy.store.stats().pending), (0, 0));
    copy.store.incr(KEY, 1, None, owner(1)).unwrap();
    copy.store.mark_pending(KEY);
    assert_eq!(copy.store.rescan_dirty(), 1);
}

// -- shared histories: one key, forks of ownership, lost hosts, repeated and reordered delivery

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Id(u64, Window);

/// One random history, with or without deletes and sets; what went wrong.
fn history(seed: u64, with_ends: bool) -> Result<(), String> {
    let mut dice = Dice(seed);
    let n = 2 + dice.below(4);
    let mut hosts: Vec<Host> = (0..n).map(|i| Host::new(1_000_000 + i as u64 * 50_000)).collect();
    let mut term = 1;
    let mut terms = vec![1; n];
    let (mut side, mut view) = (vec![0; n], vec![0; n]);
    // What each share truly is, and the latest that somebody other than its origin has seen.
    let mut truth: HashMap<Id, i64> = HashMap::new();
    let id = |share: &Share| Id(share.origin, share.window);
    let held = |hosts: &[Host]| {
        let mut held: HashMap<Id, (u64, i64)> = HashMap::new();
        for share in hosts.iter().flat_map(Host::shares) {
            let best = held.entry(id(&share)).or_insert((share.sequence, share.amount));
            if best.0 < share.sequence {
                *best = (share.sequence, share.amount);
            }
        }
        held
    };
    let mut killed: HashMap<Id, u64> = HashMap::new();
    let deliver = |from: &Host, to: &Host, owns: bool, term: u64| match from.copy() {
        None => {}
        Some(copy) if owns => {
            to.store.apply_copy(&copy, true);
        }
        Some(copy) if copy.state.diverged.is_some() => drop(replay(from, to, term)),
        Some(copy) => {
            let sent = from.own_share(&copy.state);
            match to.store.join_home(&copy, term << 32) {
                Joined::Merged(state) => {
                    if let Some(sent) = sent {
                        from.store.acknowledge_share(KEY, &sent, &state);
                    }
                }
                Joined::Ended(Some(state)) => {
                    from.store.apply_copy(&Copy { key: copy.key, state }, true);
                }
                Joined::Ended(None) | Joined::Early | Joined::Full => {}
            }
        }
    };
    for _ in 0..20 + dice.below(200) {
        let (chance, i) = (dice.chance(), dice.below(n));
        hosts[i].hand.fetch_add(dice.below(3) as u64, Ordering::Relaxed);
        if chance < 0.05 {
            side.iter_mut().for_each(|side| *side = dice.below(2));
        } else if chance < 0.10 {
            side.fill(0);
        } else if chance < 0.12 {
            let origin = hosts[i].origin();
            let now = hosts[i].hand.load(Ordering::Relaxed);
            hosts[i] = Host::new(now);
            // A share of the lost host is due as far as a living host holds it.
            let held = held(&hosts);
            truth.retain(|id, _| id.0 != origin);
            // Whoever held more of an earlier lost host's may have been lost just now.
            killed.clear();
            for (id, (sequence, _)) in held {
                if hosts.iter().all(|host| host.origin() != id.0) {
                    killed.insert(id, sequence);
                }
            }
        } else if chance < 0.27 {
            let new = (0..n).find(|j| side[*j] == side[i]).unwrap_or(i);
            if view[i] != new {
                view[i] = new;
                if new == i {
                    term += 1;
                    terms[i] = term;
                    hosts[i].store.settle_own(KEY, term << 32, true);
                }
            }
        } else if chance < 0.77 {
            let by = [1, 1, 1, 2, 5, -1][dice.below(6)];
            let j = view[i];
            let reachable = j == i || side[j] == side[i] && view[j] == j;
            let (at, standing) = if reachable { (j, owner(terms[j])) } else { (i, Standing::Degraded) };
            if with_ends && dice.chance() < 0.1 {
                hosts[at].store.del(KEY, standing).map_err(|error| error.to_string())?;
                continue;
            }
            if with_ends && dice.chance() < 0.05 {
                let ttl = (dice.chance() < 0.5).then_some(100_000_000);
                hosts[at].store.expire(KEY, ttl, standing).map_err(|error| error.to_string())?;
                continue;
            }
            if with_ends && dice.chance() < 0.05 {
                let value: &[u8] = if dice.chance() < 0.5 { b"1000" } else { b"bytes" };
                hosts[at].store.set(KEY, value, None, standing).map_err(|error| error.to_string())?;
                continue;
            }
            if with_ends && hosts[at].text() == Some("bytes".into()) {
                continue;
            }
            let counted = hosts[at].store.incr(KEY, by, None, standing).map_err(|error| error.to_string())?;
            *truth.entry(Id(hosts[at].origin(), counted.window)).or_default() += by;
        } else {
            let j = dice.below(n);
            if i != j && side[i] == side[j] {
                deliver(&hosts[i], &hosts[j], view[i] == i, terms[j].max(terms[i]));
            }
        }
    }
    term += 1;
    if with_ends {
        // What a successor does: it asks everybody for the newest copy.
        for copy in hosts[1..].iter().filter_map(Host::copy) {
            hosts[0].store.apply_copy(&copy, false);
        }
    }
    hosts[0].store.settle_own(KEY, term << 32, true);
    for _ in 0..3 {
        hosts[1..].iter().for_each(|host| deliver(host, &hosts[0], false, term));
        hosts[1..].iter().for_each(|host| deliver(&hosts[0], host, true, term));
    }
    if with_ends {
        for host in &hosts {
            host.store.verify()?;
            if host.text() != hosts[0].text() {
                let states = [host.store.state(KEY), hosts[0].store.state(KEY)];
                return Err(format!("a host has {:?}, the owner {:?}: {states:#?}", host.text(), hosts[0].text()));
            }
            if host.origin() != hosts[0].origin() && host.store.rescan_dirty() != 0 {
                return Err("a share is still pending".into());
            }
        }
        return Ok(());
    }
    let last: HashMap<Id, (u64, i64)> =
        hosts[0].shares().iter().map(|share| (id(share), (share.sequence, share.amount))).collect();
    for (id, amount) in &truth {
        if *amount != 0 && last.get(id).map(|share| share.1) != Some(*amount) {
            return Err(format!("share of {:x}: {:?}, due {amount}", id.0, last.get(id)));
        }
    }
    for (id, sequence) in &killed {
        if last.get(id).is_none_or(|share| share.0 < *sequence) {
            return Err(format!("share of the lost {:x} was held and is gone", id.0));
        }
    }
    let total: i64 = last.values().map(|share| share.1).sum();
    for host in &hosts {
        host.store.verify()?;
        if last.is_empty() != host.value().is_none() || host.value().is_some_and(|value| value != total) {
            return Err(format!("a host has {:?}, the owner {total}", host.value()));
        }
        if host.lost() != 0 {
            return Err(format!("{} lost", host.lost()));
        }
    }
    for host in &hosts[1..] {
        if host.store.rescan_dirty() != 0 {
            return Err("a share is still pending".into());
        }
    }
    Ok(())
}

impl Host {
    fn text(&self) -> Option<String> {
        let text = |value: Value<'_>| match value {
            Value::Int(value) => value.to_string(),
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Elsewhere(len) => format!("{len} elsewhere"),
        };
        self.store.read(KEY, text).unwrap()
    }
}

#[test]
fn random_histories_of_forks_and_lost_hosts_end_exact() {
    expect_none_wrong(500, false);
}

#[test]
fn after_random_histories_with_deletes_and_sets_all_copies_agree() {
    expect_none_wrong(500, true);
}

fn expect_none_wrong(seeds: u64, with_ends: bool) {
    let wrong: Vec<(u64, String)> =
        (0..seeds).filter_map(|seed| history(seed, with_ends).err().map(|error| (seed, error))).collect();
    assert!(wrong.is_empty(), "{} wrong, first {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

#[test]
fn a_share_that_was_on_its_way_when_the_key_was_deleted_begins_nothing_anew() {
    let (a, b) = (Host::new(1_000), Host::new(1_000));
    b.store.incr(KEY, 7, None, Standing::Degraded).unwrap();
    let early = b.copy().unwrap();
    a.hand.fetch_add(500, Ordering::Relaxed);
    a.store.incr(KEY, 1, None, owner(1)).unwrap();
    assert!(a.store.del(KEY, owner(1)).unwrap());
    assert_eq!(a.store.join_home(&early, 1 << 32), Joined::Early);
    assert_eq!(a.value(), None);
    // Its host has it still, and says so once it has heard of the delete.
    replicate(&a, &b);
    assert_eq!(b.value(), Some(7));
    assert!(matches!(go_home(&b, &a, 1), Joined::Merged(_)));
    assert_eq!((a.value(), b.value()), (Some(7), Some(7)));
}
