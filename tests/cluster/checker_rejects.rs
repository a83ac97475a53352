//! The checker itself: right histories pass, each planted fault is found. No process is started here.

use std::collections::BTreeMap;

use crate::support::accounts::{after_kill, growing, nothing_lost, reconcile};
use crate::support::checker::{Call, History, one_chain};

/// A call of process `pid` that took from `start` to `end`.
fn call(pid: u32, start: u64, end: u64, delta: i64, ret: i64) -> Call {
    Call {
        start,
        end,
        host: "host".into(),
        pid,
        key: "k".into(),
        op: "incr".into(),
        delta,
        ttl_ms: 0,
        ret: Some(ret),
        degraded: false,
        window: (1, 1),
    }
}

fn chain(calls: &[Call]) -> Result<i64, String> {
    one_chain(&calls.iter().collect::<Vec<_>>())
}

/// A right history of `length` calls by `processes` processes, whose times overlap, with deltas of both signs.
fn right(processes: u32, length: u64, seed: u64) -> Vec<Call> {
    let (mut state, mut value) = (seed | 1, 0);
    let mut free_from = vec![0u64; processes as usize];
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let next = |at: u64| {
        // The call takes effect at `at`; it began before and returned after that, but after its process's last.
        let at = (at + 1) * 1_000;
        let pid = (random() % u64::from(processes)) as usize;
        let start = free_from[pid].max(at - random() % 900);
        let end = at + random() % 5_000;
        let usable = start <= at && free_from[pid] < at;
        let delta = [1, 2, -1, -3, 5][(random() % 5) as usize];
        usable.then(|| {
            free_from[pid] = end + 1;
            value += delta;
            call(pid as u32, start, end, delta, value)
        })
    };
    (0..length).filter_map(next).collect()
}

#[test]
fn right_histories_with_both_signs_pass() {
    for seed in 1..40 {
        let calls = right(6, 400, seed * 7_919);
        let value = calls.iter().map(|call| call.delta).sum::<i64>();
        assert!(calls.len() > 100);
        assert_eq!(chain(&calls), Ok(value), "seed {seed}");
    }
}

#[test]
fn a_dropped_increment_is_found() {
    for seed in 1..40 {
        // Answered as if counted: the next call starts from the value before it. Positive, so nothing can hide it.
        let mut calls: Vec<Call> = right(6, 300, seed * 7_919);
        let mut value = 0;
        for (index, call) in calls.iter_mut().enumerate() {
            call.delta = call.delta.abs();
            call.ret = Some(value + call.delta);
            if index != 100 {
                value += call.delta;
            }
        }
        assert!(chain(&calls).is_err(), "seed {seed}");
    }
}

#[test]
fn a_value_answered_twice_is_found() {
    let calls = [call(1, 0, 1, 1, 1), call(2, 2, 5, 1, 2), call(3, 2, 5, 1, 2)];
    assert!(chain(&calls).is_err());
    let calls = [call(1, 0, 1, 2, 2), call(2, 2, 5, 1, 3), call(3, 2, 5, 1, 3), call(1, 6, 7, -1, 2)];
    assert!(chain(&calls).is_err(), "also with deltas of both signs");
}

#[test]
fn an_order_against_real_time_is_found() {
    let right = [call(1, 0, 10, 1, 1), call(2, 5, 20, 1, 2)];
    assert_eq!(chain(&right), Ok(2));
    let wrong = [call(1, 0, 10, 1, 2), call(2, 15, 20, 1, 1)];
    assert!(chain(&wrong).is_err());
}

#[test]
fn one_process_is_in_its_own_order_even_at_equal_times() {
    let wrong = [call(1, 0, 10, 1, 2), call(1, 10, 20, 1, 1)];
    assert!(chain(&wrong).is_err());
}

#[test]
fn a_gap_a_wrong_start_and_a_degraded_or_refused_call_are_found() {
    assert!(chain(&[call(1, 0, 1, 1, 1), call(1, 2, 3, 1, 3)]).is_err());
    assert!(chain(&[call(1, 0, 1, 1, 2)]).is_err());
    let degraded = Call { degraded: true, ..call(1, 0, 1, 1, 1) };
    assert!(chain(&[degraded]).is_err());
    let refused = Call { ret: None, ..call(1, 0, 1, 1, 1) };
    assert!(chain(&[refused]).is_err());
}

#[test]
fn a_wrong_choice_among_equal_values_is_taken_back() {
    // Both +1 calls of 1 and 2 start at 0 and overlap; only the order 1, -1, 2, +5 leads to the end.
    let calls = [call(1, 0, 100, 1, 1), call(3, 0, 100, -1, 0), call(2, 0, 100, 1, 1), call(4, 0, 100, 5, 6)];
    assert_eq!(chain(&calls), Ok(6));
}

#[test]
fn a_final_value_that_is_not_the_chains_end_is_found() {
    let history = History { calls: vec![call(1, 0, 1, 1, 1)], unfinished: Vec::new() };
    assert_eq!(history.one_count(&BTreeMap::from([("k".into(), 1)])), Ok(()));
    assert!(history.one_count(&BTreeMap::from([("k".into(), 2)])).is_err());
    assert!(history.one_count(&BTreeMap::new()).is_err());
    assert!(history.one_count(&BTreeMap::from([("k".into(), 1), ("other".into(), 1)])).is_err());
}

const MS: u64 = 1_000_000;

fn in_window(window: u64, at_ms: u64, ret: i64) -> Call {
    Call { op: "incr_ttl".into(), ttl_ms: 200, window: (window, 1), ..call(1, at_ms * MS, at_ms * MS + 1, 5, ret) }
}

fn windows(calls: &[Call]) -> Result<usize, String> {
    History { calls: calls.to_vec(), unfinished: Vec::new() }.windows(200, 10)
}

#[test]
fn windows_in_turn_pass() {
    assert_eq!(
        windows(&[in_window(1, 0, 5), in_window(1, 199, 10), in_window(2, 205, 5), in_window(2, 300, 10)]),
        Ok(2)
    );
}

#[test]
fn each_broken_rule_of_windows_is_found() {
    let expect = |calls: &[Call], words: &str| {
        let reason = windows(calls).expect_err(words);
        assert!(reason.contains(words), "{reason}");
    };
    expect(&[in_window(1, 0, 5), in_window(1, 250, 10)], "after the window was created");
    expect(&[in_window(1, 0, 5), in_window(2, 100, 5)], "was replaced after");
    expect(&[in_window(1, 0, 5), in_window(2, 205, 10)], "no order explains");
    expect(
        &[in_window(1, 0, 5), in_window(2, 205, 5), Call { pid: 2, ..in_window(1, 206, 10) }],
        "after a call of the next one",
    );
    let immortal = Call { op: "pttl".into(), ..call(1, 0, 1, 0, -1) };
    expect(&[in_window(1, 0, 5), immortal], "without a deadline");
}

fn degraded(start: u64, end: u64, delta: i64) -> Call {
    Call { degraded: true, ..call(9, start, end, delta, 0) }
}

#[test]
fn sums_must_be_exact() {
    let calls = [call(1, 0, 1, 3, 3), degraded(2, 3, 4), call(1, 4, 5, 1, 8)];
    let calls: Vec<&Call> = calls.iter().collect();
    assert!(nothing_lost(&calls, 8).is_ok());
    assert!(nothing_lost(&calls, 7).is_err());
    assert!(nothing_lost(&calls, 12).is_err());
    assert_eq!(growing(&calls, 4), Ok(()));
    assert!(growing(&calls, 3).is_err(), "a step that nobody counted");
    let twice = [call(1, 0, 1, 1, 1), call(2, 0, 1, 1, 1)];
    assert!(growing(&twice.iter().collect::<Vec<_>>(), 0).is_err());
}

#[test]
fn a_kill_may_lose_only_the_young_end_of_the_chain() {
    let killed = 1_000 * MS;
    let calls = [
        call(1, 100 * MS, 101 * MS, 3, 3),
        call(1, 990 * MS, 991 * MS, 5, 8),
        call(1, 995 * MS, 996 * MS, 7, 15),
        degraded(999 * MS, 1_050 * MS, 11),
        call(1, 2_000 * MS, 2_001 * MS, 1, 15),
    ];
    let calls: Vec<&Call> = calls.iter().collect();
    let sum = 3 + 5 + 7 + 11 + 1;
    let judge = |value: i64, unfinished: &[i64], dropped: i128| {
        let key = after_kill(&calls, unfinished, value, killed, 50, dropped)?;
        reconcile(&[key], dropped).map(|mut accounts| accounts.remove(0))
    };
    assert!(judge(sum, &[], 0).is_ok_and(|account| account.lost.is_empty()));
    assert!(judge(sum - 7, &[], 0).is_ok_and(|account| account.lost.len() == 1));
    assert!(judge(sum - 12, &[], 0).is_ok_and(|account| account.lost.len() == 2));
    assert!(judge(sum - 11, &[], 11).is_ok_and(|account| account.dropped == 11 && account.lost.is_empty()));
    assert!(judge(sum - 18, &[], 11).is_ok_and(|account| account.dropped == 11 && account.lost.len() == 1));
    assert!(judge(sum + 100, &[100], 0).is_ok_and(|account| account.unfinished == 100));
    assert!(judge(sum - 11, &[], 0).is_err(), "dropped, but not in the metric");
    assert!(judge(sum, &[], 11).is_err(), "in the metric, but not dropped");
    assert!(judge(sum - 5, &[], 0).is_err(), "not an end piece");
    assert!(judge(sum - 15, &[], 0).is_err(), "too old to be lost");
    assert!(judge(sum + 1, &[], 0).is_err(), "counted twice");
}

#[test]
fn a_log_is_read_with_what_a_kill_left_open() {
    let mut history = History::default();
    history.read(
        "I\t5\th\t7\ta%3A1\tincr\t2\n6\t9\th\t7\ta%3A1\tincr\t2\t0\t2\t0\t11\t12\nI\t10\th\t7\ta%3A1\tincr\t4\n11\t1",
    );
    assert_eq!(history.calls.len(), 1);
    assert_eq!(
        (history.calls[0].key.as_str(), history.calls[0].ret, history.calls[0].window),
        ("a:1", Some(2), (11, 12))
    );
    assert_eq!(history.unfinished.len(), 1);
    assert_eq!((history.unfinished[0].key.as_str(), history.unfinished[0].delta), ("a:1", 4));
}
