//! Promise 2: a counter made with a deadline is never without one, and never counts past it.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::load::{Load, history, wait};
use crate::support::{number, seed};

const TTL_MS: u64 = 200;

/// The kernel's tick, and as much again for a machine that is busy with twelve processes.
const RESOLUTION_MS: u64 = 20;

fn hammer(mix: &str, by: i64) -> (crate::support::checker::History, Cluster) {
    let time = Duration::from_secs(number("EPHPM_KV_TEST_SECONDS", 3));
    let seed = seed();
    // Nothing here is about answers that come late, as they may on a busy machine.
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    });
    let dir = cluster.path().to_owned();
    let load = Load::new(4, seed).with("prefix", "short").with("keys", 6).with("mix", mix);
    let load = load.with("ttl", TTL_MS as f64 / 1e3).with("low", by).with("high", by).with("pause_us", 200);
    load.lasting(time).start_all(&mut cluster.hosts, &dir);
    for host in &mut cluster.hosts {
        wait(host, time + Duration::from_secs(30));
    }
    (history(&dir), cluster)
}

#[test]
fn incr_ttl_never_leaves_a_key_without_its_deadline() {
    let (history, cluster) = hammer("incr_ttl,incr_ttl,pttl", 5);
    let windows = history.windows(TTL_MS, RESOLUTION_MS).expect("windows");
    println!("{} calls in {windows} windows", history.calls.len());
    // Six keys that live 0.2 s each, for seconds.
    assert!(windows as u64 >= 6 * 2 * number("EPHPM_KV_TEST_SECONDS", 3), "{windows} windows");
    assert!(history.calls.iter().filter(|call| call.op == "pttl").count() > 100);
    cluster.quit();
}

#[test]
fn incr_then_expire_when_the_result_is_one_never_goes_back() {
    let (mut history, cluster) = hammer("incr_expire", 1);
    for (key, calls) in history.increments() {
        let mut windows: std::collections::BTreeMap<_, Vec<_>> = std::collections::BTreeMap::new();
        for call in calls {
            windows.entry(call.window).or_default().push(call);
        }
        assert!(windows.len() > 3, "{key}: {} windows", windows.len());
    }
    // Between the increment and its expire there is no deadline, so a window may live longer than its TTL by as long
    // as that takes, but never less, and each is one chain.
    history.calls.retain(|call| call.op == "incr");
    history.windows(TTL_MS, 1_000).expect("windows");
    cluster.quit();
}
