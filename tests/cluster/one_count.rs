//! Promise 1: three hosts of four processes each are one counter.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::load::{Latencies, Load, history, wait};
use crate::support::{number, seed};

#[test]
fn three_hosts_of_four_processes_are_one_count() {
    let seed = seed();
    let calls = number("EPHPM_KV_TEST_CALLS", 60_000) / 12;
    // Nothing here is about answers that come late, as they may on a busy machine.
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    });
    let dir = cluster.path().to_owned();
    let load = Load::new(4, seed).with("prefix", "one").with("keys", 50).with("calls", calls);
    let load = load.with("mix", "incr,incr_ttl,incr_by").with("ttl", 3_600).with("low", -5).with("high", 9);
    load.start_all(&mut cluster.hosts, &dir);
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(300));
    }

    let history = history(&dir);
    assert_eq!(history.calls.len() as u64, calls * 12, "every call is in the logs");
    println!("{}", Latencies::of(history.calls.iter()).line());
    let finals = cluster.settled(history.increments().into_keys());
    history.one_count(&finals).expect("one count");

    // Each host owns about a third of the slots, so two thirds of the calls must have gone through an owner elsewhere.
    let mut count = |name: &str| -> f64 { cluster.hosts.iter_mut().map(|host| host.metric(name)).sum() };
    let remote = count("ephpm_kv_ops_total{op=\"incr\",path=\"remote\"}");
    let local = count("ephpm_kv_ops_total{op=\"incr\",path=\"local\"}");
    println!("local {local}, remote {remote}");
    assert_eq!(local + remote, (calls * 12) as f64, "each increment went one way");
    assert!(remote > local / 2.0, "nothing went to other hosts");
    assert_eq!(count("ephpm_kv_ops_total{op=\"incr\",path=\"degraded\"}"), 0.0);
    cluster.quit();
}
