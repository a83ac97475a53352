//! The checker against an owner that is wrong on purpose: a run that it accepts would prove nothing.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::load::{Load, history, wait};
use crate::support::seed;

/// The verdict on a run of which one in so many increments from other hosts is treated wrongly.
fn verdict(plant: &str) -> Result<(), String> {
    let seed = seed();
    let mut cluster = Cluster::with(3, |spec| {
        if !plant.is_empty() {
            spec.env.insert("EPHPM_KV_PLANT".into(), plant.into());
        }
    });
    let dir = cluster.path().to_owned();
    let load = Load::new(2, seed).with("prefix", "plant").with("keys", 10).with("calls", 3_000);
    load.with("mix", "incr,incr_by").with("low", 1).with("high", 4).start_all(&mut cluster.hosts, &dir);
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(120));
    }
    let history = history(&dir);
    assert_eq!(history.calls.len(), 18_000);
    let finals = cluster.settled(history.increments().into_keys());
    let degraded = history.calls.iter().filter(|call| call.degraded || call.ret.is_none()).count();
    assert_eq!(degraded, 0, "the plant must be what the checker finds, not this");
    history.one_count(&finals)
}

#[test]
fn an_owner_that_drops_one_increment_in_a_thousand_is_found() {
    let reason = verdict("drop:1000").expect_err("the checker must fail");
    println!("found: {reason}");
}

#[test]
fn an_owner_that_answers_twice_with_one_value_is_found() {
    let reason = verdict("repeat:1000").expect_err("the checker must fail");
    println!("found: {reason}");
}

#[test]
fn the_same_run_without_a_plant_passes() {
    verdict("").expect("one count");
}
