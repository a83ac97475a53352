//! Deletes stay deleted: for hosts that were there, and for one that was away for longer than deletes are remembered.

use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::host::{Host, Spec, Value};
use crate::support::{number, poll};

/// Members are remembered for seconds instead of minutes, and tombstones kept no longer.
fn forgetful(spec: &mut Spec, remember_ms: u64, grace_ms: u64) {
    spec.env.insert("EPHPM_KV_TEST_REMEMBER_MS".into(), remember_ms.to_string());
    spec.env.insert("EPHPM_KV_TEST_GRACE_MS".into(), grace_ms.to_string());
    spec.ini.insert("sweep_interval".into(), "1".into());
}

/// Sets and deletes `count` fresh keys on a host.
fn churn(host: &mut Host, prefix: &str, count: usize) {
    let code = format!(
        "for ($i = 0; $i < {count}; $i++) {{ ephpm_kv_set(\"{prefix}:$i\", 'x'); ephpm_kv_del(\"{prefix}:$i\"); }} \
         echo 'done';"
    );
    assert_eq!(host.run(&code), "done");
}

#[test]
fn a_storm_of_deletes_does_not_fill_the_memory() {
    let mut cluster = Cluster::with(3, |spec| forgetful(spec, 600_000, 500));
    let rounds = number("EPHPM_KV_TEST_ROUNDS", 12);
    let mut used = Vec::new();
    for round in 0..rounds {
        for host in &mut cluster.hosts {
            let prefix = format!("{}:{round}", host.spec.name);
            churn(host, &prefix, 400);
        }
        std::thread::sleep(Duration::from_millis(500));
        used.push(cluster.hosts.iter_mut().map(|host| host.info().memory_used).max().unwrap_or(0));
    }
    println!("bytes used: {used:?}");
    // With every tombstone kept it would grow by the same amount each round.
    poll("the tombstones are gone", Duration::from_secs(20), || {
        let now: Vec<u64> = cluster.hosts.iter_mut().map(|host| host.info().memory_used).collect();
        if now.iter().all(|now| *now < 20_000) { Ok(()) } else { Err(format!("{now:?}")) }
    });
    let (early, late) = (used[..used.len() / 2].iter().max(), used[used.len() / 2..].iter().max());
    assert!(late.unwrap_or(&0) < &(early.unwrap_or(&0) * 2), "{used:?}");
    cluster.quit();
}

/// Whether no host has any of these keys.
fn none_left(cluster: &mut Cluster, keys: &[String]) -> Result<(), String> {
    for host in &mut cluster.hosts {
        for key in keys {
            let answer = host.call("ephpm_kv_get", &[Value::text(key)]);
            if answer.value != Value::Null {
                return Err(format!("{} has {key}: {:?}", host.spec.name, answer.value));
            }
        }
    }
    Ok(())
}

#[test]
fn a_host_that_was_away_for_longer_than_deletes_are_remembered_starts_clean() {
    let mut cluster = Cluster::with(3, |spec| forgetful(spec, 4_000, 500));
    // Of every owner, that of the one to be away included.
    let gone: Vec<String> = (0..60).map(|number| format!("gone:{number}")).collect();
    let kept: Vec<String> = (0..60).map(|number| format!("kept:{number}")).collect();
    for key in gone.iter().chain(&kept) {
        assert_eq!(cluster.hosts[2].incr(key, 10), (10, false));
    }
    for key in gone.iter().chain(&kept) {
        cluster.wait_value(key, 10, Duration::from_secs(5));
    }
    cluster.hosts[2].stop();
    let stopped_at = Instant::now();
    for host in &mut cluster.hosts[..2] {
        host.wait_ready(2);
    }
    for key in &gone {
        poll(&format!("{key} is deleted"), Duration::from_secs(5), || {
            let answer = cluster.hosts[0].call("ephpm_kv_del", &[Value::text(key)]);
            // A first try may be degraded: then the owner says, after the replay, that nothing is left to delete.
            if answer.degraded { Err(format!("{answer:?}")) } else { Ok(()) }
        });
    }
    for key in &kept {
        assert_eq!(cluster.hosts[1].incr(key, 1), (11, false));
    }
    // The two have forgotten the third, and all that was deleted.
    std::thread::sleep(Duration::from_secs(7).saturating_sub(stopped_at.elapsed()));
    cluster.hosts[2].signal(libc::SIGCONT);
    cluster.wait_ready();
    none_left(&mut cluster, &gone).unwrap_or_else(|reason| panic!("{reason}"));
    for key in &kept {
        cluster.wait_value(key, 11, Duration::from_secs(5));
        assert_eq!(cluster.hosts[2].incr(key, 1), (12, false));
    }
    std::thread::sleep(Duration::from_secs(2));
    none_left(&mut cluster, &gone).unwrap_or_else(|reason| panic!("{reason}"));
    let log = cluster.hosts[2].spec.stderr();
    assert!(log.contains("dropping all copies"), "{log}");
    cluster.quit();
}

#[test]
fn a_cluster_that_slept_as_a_whole_keeps_everything() {
    let mut cluster = Cluster::with(3, |spec| forgetful(spec, 3_000, 500));
    for number in 0..60 {
        assert_eq!(cluster.hosts[number % 3].incr(&format!("sleep:{number}"), 10), (10, false));
    }
    std::thread::sleep(Duration::from_millis(500));
    cluster.hosts.iter().for_each(Host::stop);
    std::thread::sleep(Duration::from_secs(5));
    cluster.hosts.iter().for_each(|host| host.signal(libc::SIGCONT));
    cluster.wait_ready();
    for number in 0..60 {
        let key = format!("sleep:{number}");
        cluster.wait_value(&key, 10, Duration::from_secs(5));
        assert_eq!(cluster.hosts[number % 3].incr(&key, 1), (11, false));
    }
    cluster.quit();
}
