//! Promise 8: the owner's clock rules, and wall clocks may differ by minutes.

use std::path::Path;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::Value;
use crate::support::load::{Load, history, wait};
use crate::support::{poll, seed};

/// Debian's libfaketime. Preloaded rather than through the `faketime` command, which would stand between the test
/// and the process to kill.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// What libfaketime leaves in shared memory for a process that it was preloaded to; gone with the value.
struct Leftovers(u32);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for name in [format!("faketime_shm_{}", self.0), format!("sem.faketime_sem_{}", self.0)] {
            // It removes them itself when the process ended in order.
            let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

fn off_by(minutes: &str) -> Cluster {
    assert!(Path::new(LIBRARY).exists(), "{LIBRARY} is missing: install the package libfaketime");
    Cluster::with(3, |spec| {
        if spec.name == "host1" {
            let set = [
                ("LD_PRELOAD", LIBRARY),
                ("FAKETIME", minutes),
                // The monotonic clock is the kernel's: no machine's runs ahead by minutes.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
                ("DONT_FAKE_MONOTONIC", "1"),
            ];
            spec.env.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
    })
}

fn one_count_and_ttl(minutes: &str) {
    let seed = seed();
    let mut cluster = off_by(minutes);
    let _leftovers = Leftovers(cluster.hosts[1].pid());
    let walls: Vec<i64> = cluster
        .hosts
        .iter_mut()
        .map(|host| match host.call("time", &[]).value {
            Value::Int(time) => time,
            other => panic!("time() gave {other:?}"),
        })
        .collect();
    assert!((walls[1] - walls[0]).abs() > 200, "the clock is not off: {walls:?}");

    // The remaining time is the same seen from everywhere, whoever owns the key and whoever made it.
    for maker in 0..3 {
        for owner in ["host0", "host1", "host2"] {
            let key = &cluster.keys_owned_by(owner, &format!("ttl{maker}"), 1)[0];
            let made =
                cluster.hosts[maker].call("ephpm_kv_incr_ttl", &[Value::text(key), Value::Int(1), Value::Int(20)]);
            assert_eq!((made.value, made.degraded), (Value::Int(1), false), "{key}");
            for host in &mut cluster.hosts {
                let name = host.spec.name.clone();
                poll(&format!("{name} has {key}"), Duration::from_secs(3), || {
                    match host.call("ephpm_kv_pttl", &[Value::text(key)]).value {
                        Value::Int(left) if (15_000..=20_000).contains(&left) => Ok(()),
                        other => Err(format!("pttl of {key} made on host{maker}, owned by {owner}: {other:?}")),
                    }
                });
            }
        }
    }

    // Expiry and order under load.
    let dir = cluster.path().to_owned();
    let load =
        Load::new(2, seed).with("prefix", "clock").with("keys", 9).with("mix", "incr,incr_by").with("calls", 1_500);
    load.with("low", -5).with("high", 9).start_all(&mut cluster.hosts, &dir);
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    let all = history(&dir);
    let finals = cluster.settled(all.increments().into_keys());
    all.one_count(&finals).expect("one count");

    let short = dir.join("short");
    std::fs::create_dir(&short).expect("a directory");
    let load = Load::new(2, seed).with("prefix", "brief").with("keys", 6).with("mix", "incr_ttl,pttl");
    let load = load.with("ttl", 0.2).with("low", 5).with("high", 5).with("pause_us", 300);
    load.lasting(Duration::from_secs(2)).start_all(&mut cluster.hosts, &short);
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    history(&short).windows(200, 20).expect("windows");
    cluster.quit();
}

#[test]
fn a_wall_clock_five_minutes_ahead_changes_no_ttl_and_no_order() {
    one_count_and_ttl("+5m");
}

#[test]
fn a_wall_clock_five_minutes_behind_changes_no_ttl_and_no_order() {
    one_count_and_ttl("-5m");
}
