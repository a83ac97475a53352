//! Processes with the same settings are one host: whoever comes later attaches to the segment of the host's node.

use std::time::Duration;

use tempfile::TempDir;

use crate::hosts::proc;
use crate::shared::cluster::{Cluster, specs};
use crate::shared::host::Host;
use crate::shared::load::{Load, history, wait};
use crate::shared::{number, poll, seed};
use crate::support::facts::{Counted, Facts, another, count_for, wait_value};

/// Two hosts; no call is degraded only because a small machine is busy.
fn two_hosts() -> Cluster {
    Cluster::with(2, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    })
}

fn keys(cluster: &mut Cluster, prefix: &str) -> [String; 2] {
    ["host0", "host1"].map(|owner| cluster.keys_owned_by(owner, prefix, 1).remove(0))
}

#[test]
fn three_processes_are_one_host() {
    let mut cluster = two_hosts();
    let keys = keys(&mut cluster, "three");
    let first = Facts::of(&mut cluster.hosts[0]);
    let peers_view = Facts::of(&mut cluster.hosts[1]);
    let mut others = ["second", "third"].map(|name| another(&cluster.hosts[0], name));
    for other in &mut others {
        other.wait_ready(2);
        assert_eq!(Facts::of(other), first, "the same segment, the same node");
        assert_eq!(other.usage()[0].threads, 1);
    }
    let load = Load::new(2, seed()).keys(&keys).with("calls", number("EPHPM_KV_TEST_CALLS", 2_000));
    for (host, index) in others.iter_mut().chain(&mut cluster.hosts).zip(0..) {
        load.start(host, index, &host.spec.dir.clone());
    }
    for host in others.iter_mut().chain(&mut cluster.hosts) {
        wait(host, Duration::from_secs(60));
    }
    let finals = cluster.settled(keys.iter().map(String::as_str));
    history(cluster.path()).one_count(&finals).unwrap_or_else(|reason| panic!("{reason}"));
    for other in others {
        assert!(other.quit().success());
    }
    assert_eq!(Facts::of(&mut cluster.hosts[0]), first, "the host goes on");
    assert_eq!(Facts::of(&mut cluster.hosts[1]), peers_view, "nobody came or went");
    cluster.quit();
}

#[test]
fn an_attached_process_counts_at_memory_speed() {
    let mut cluster = two_hosts();
    let [own, _] = keys(&mut cluster, "speed");
    let mut second = another(&cluster.hosts[0], "second");
    second.wait_ready(2);
    // CPU time of the process per increment, the best of some stretches, in ns.
    let code = format!(
        "$best = PHP_INT_MAX;
         $cpu = function () {{ $r = getrusage(); return ($r['ru_utime.tv_sec'] + $r['ru_stime.tv_sec']) * 1e9
             + ($r['ru_utime.tv_usec'] + $r['ru_stime.tv_usec']) * 1e3; }};
         for ($n = 0; $n < 10; $n++) {{
             $start = $cpu();
             for ($i = 0; $i < 100000; $i++) {{ ephpm_kv_incr('{own}'); }}
             $best = min($best, ($cpu() - $start) / 100000);
         }}
         echo (int)$best;"
    );
    let [alone, attached] =
        [&mut cluster.hosts[0], &mut second].map(|host| host.run(&code).parse::<f64>().expect("a number"));
    println!("{alone} ns in the node's process, {attached} ns in another");
    assert!(attached < 3.0 * alone, "{attached} ns, {alone} ns");
    assert!(second.quit().success());
    cluster.quit();
}

/// Three processes are a host; the one that runs the node ends in the way of `end` while the others count. How many
/// increments are itemised as lost: the only ones that may be missing.
fn the_server_ends(end: impl Fn(Host)) -> f64 {
    let mut cluster = two_hosts();
    let keys = keys(&mut cluster, "server");
    let before = Facts::of(&mut cluster.hosts[0]);
    let mut others = ["second", "third"].map(|name| another(&cluster.hosts[0], name));
    others.iter_mut().for_each(|other| other.wait_ready(2));
    let time = Duration::from_secs(4);
    let counted: Vec<Counted> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            others.iter_mut().zip(&keys).map(|(host, key)| scope.spawn(|| count_for(host, key, time))).collect();
        std::thread::sleep(Duration::from_secs(1));
        end(cluster.hosts.remove(0));
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    println!("{counted:?}");
    let processes = others.each_ref().map(Host::pid);
    for other in &mut others {
        other.wait_ready(2);
        let after = Facts::of(other);
        assert_eq!((&after.origin, &after.node_id), (&before.origin, &before.node_id), "the segment stays");
        assert!(processes.contains(&after.node_pid), "{after:?}, processes {processes:?}");
    }
    let [mut second, mut third] = others;
    let peer = &mut cluster.hosts[0];
    for (key, counted) in keys.iter().zip(&counted) {
        assert_eq!((counted.refused, counted.backwards), (0, 0), "{key}");
        assert!(counted.degraded < counted.calls, "{key}: all degraded");
    }
    let lost: f64 = [&mut second, peer].map(lost).iter().sum();
    println!("lost: {lost}");
    let mut missing = 0;
    for (key, counted) in keys.iter().zip(&counted) {
        let value = wait_value(&mut [&mut second, &mut third, peer], key, |value| {
            value <= counted.calls && value >= counted.calls - lost as i64
        });
        missing += counted.calls - value;
    }
    assert!(missing <= lost as i64, "{missing} are missing, {lost} itemised as lost");
    for host in [second, third] {
        assert!(host.quit().success());
    }
    cluster.quit();
    lost
}

fn lost(host: &mut Host) -> f64 {
    ["unresolved", "window_ended", "memory_full"]
        .iter()
        .map(|reason| host.metric(&format!("ephpm_kv_lost_total{{reason=\"{reason}\"}}")))
        .sum()
}

#[test]
fn the_serving_process_ends_in_order_and_another_starts_the_next_node() {
    let lost = the_server_ends(|host| assert!(host.quit().success()));
    assert_eq!(lost, 0.0);
}

#[test]
fn the_serving_process_is_killed_and_another_starts_the_next_node() {
    the_server_ends(|host| {
        host.kill();
    });
}

#[test]
fn processes_that_start_at_the_very_same_moment_end_up_in_one_segment() {
    for round in 0..20 {
        let dir = TempDir::new().expect("a directory");
        let spec = specs(1, dir.path()).remove(0);
        let mut hosts = ["one", "two"].map(|name| {
            let mut spec = spec.clone();
            spec.name = name.to_owned();
            Host::start(&spec)
        });
        let calls = 500;
        let code = format!(
            "for ($i = 0; $i < {calls}; $i++) {{ ephpm_kv_incr('same'); usleep($i % 50 === 0 ? 1000 : 0); }} echo 'done';"
        );
        std::thread::scope(|scope| {
            for host in &mut hosts {
                let code = &code;
                scope.spawn(move || assert_eq!(host.run(code), "done"));
            }
        });
        for host in &mut hosts {
            host.wait_ready(1);
        }
        let [one, two] = &mut hosts;
        let facts = [Facts::of(one), Facts::of(two)];
        assert_eq!(facts[0], facts[1], "round {round}");
        wait_value(&mut [one, two], "same", |value| value == 2 * calls);
        for host in hosts {
            assert!(host.quit().success());
        }
        poll("the port is free", Duration::from_secs(5), || {
            if proc::port_is_free(spec.port) { Ok(()) } else { Err("it is not".into()) }
        });
    }
}

#[test]
fn a_process_that_starts_while_the_node_leaves_counts_right() {
    for delay_ms in [0, 20, 60, 120, 200, 260, 400] {
        let mut cluster = two_hosts();
        let keys = keys(&mut cluster, "leaving");
        let first = cluster.hosts.remove(0);
        let mut second = another(&first, "second");
        second.wait_ready(2);
        let mut late_spec = first.spec.clone();
        late_spec.name = "late".into();
        let time = Duration::from_secs(2);
        let (own, others) = (&keys[0], &keys[1]);
        let (mut late, counted) = std::thread::scope(|scope| {
            let goes_on = scope.spawn(|| count_for(&mut second, own, time));
            let leaves = scope.spawn(move || assert!(first.quit().success()));
            std::thread::sleep(Duration::from_millis(delay_ms));
            let mut late = Host::start(&late_spec);
            let counted_late = count_for(&mut late, others, time);
            leaves.join().expect("a thread");
            (late, [goes_on.join().expect("a thread"), counted_late])
        });
        println!("{delay_ms} ms: {counted:?}");
        let peer = &mut cluster.hosts[0];
        for host in [&mut second, &mut late] {
            poll("it is ready", Duration::from_secs(15), || {
                host.call("ephpm_kv_get", &[crate::shared::host::Value::text("warm")]);
                let facts = Facts::of(host);
                if facts.state == "ready" { Ok(()) } else { Err(format!("{facts:?}")) }
            });
        }
        println!("{:?} {:?}", Facts::of(&mut second), Facts::of(&mut late));
        for (key, counted) in keys.iter().zip(&counted) {
            assert_eq!((counted.refused, counted.backwards), (0, 0), "{key} after {delay_ms} ms");
            wait_value(&mut [&mut second, &mut late, peer], key, |value| value == counted.calls);
        }
        assert!(second.quit().success());
        assert!(late.quit().success());
        cluster.quit();
    }
}
