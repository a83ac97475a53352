//! Hosts that leave, come back, or claim a name that is taken.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::accounts::nothing_lost;
use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Value};
use crate::support::load::{Load, history, wait};
use crate::support::ports::free_port;
use crate::support::{poll, seed};

#[test]
fn a_host_that_leaves_in_order_loses_nothing() {
    let seed = seed();
    let mut cluster = Cluster::new(3);
    let dir = cluster.path().to_owned();
    let load = Load::new(2, seed).with("prefix", "leave").with("keys", 30).with("mix", "incr");
    let load = load.with("low", 1).with("high", 9).with("pause_us", 200);
    // The one that leaves counts to the last moment; the others go on.
    let mut leaver = cluster.hosts.pop().expect("host2");
    load.clone().with("calls", 2_000).start(&mut leaver, 2, &dir);
    load.lasting(Duration::from_secs(4)).start_all(&mut cluster.hosts, &dir);
    wait(&mut leaver, Duration::from_secs(60));
    let status = leaver.quit();
    assert!(status.success(), "{status}");
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    cluster.wait_ready();
    let history = history(&dir);
    let values = cluster.settled(history.increments().into_keys());
    for (key, calls) in history.increments() {
        assert!(calls.iter().all(|call| call.ret.is_some()));
        let value = values[key];
        nothing_lost(&calls, value).unwrap_or_else(|reason| panic!("{key}: {reason}"));
    }
    println!("{} calls, {} degraded", history.calls.len(), history.calls.iter().filter(|call| call.degraded).count());
    cluster.quit();
}

#[test]
fn a_host_that_stops_as_soon_as_it_is_no_longer_cut_off_brings_home_what_it_counted_meanwhile() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("leave_timeout_ms".into(), "10000".into());
    });
    let names: Vec<String> = (0..30).map(|number| format!("apart:{number}")).collect();
    for name in &names {
        cluster.hosts[0].incr(name, 1);
    }
    for host in &cluster.hosts[..2] {
        host.stop();
    }
    let apart = &mut cluster.hosts[2];
    poll("it is alone", Duration::from_secs(10), || match apart.info().members {
        1 => Ok(()),
        members => Err(format!("{members} members")),
    });
    for name in &names {
        assert!(apart.incr(name, 10).1, "{name} is counted without the others");
    }
    let apart = cluster.hosts.pop().expect("host2");
    for host in &cluster.hosts {
        host.signal(libc::SIGCONT);
    }
    assert!(apart.quit().success());
    for name in &names {
        cluster.wait_value(name, 11, Duration::from_secs(10));
    }
    cluster.quit();
}

#[test]
fn a_host_that_stops_finds_out_first_what_became_of_its_calls() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("leave_timeout_ms".into(), "10000".into());
    });
    let names = cluster.keys_owned_by("host0", "asked", 10);
    cluster.hosts[0].stop();
    for name in &names {
        assert!(cluster.hosts[2].incr(name, 10).1, "{name} is counted without its owner");
    }
    let caller = cluster.hosts.pop().expect("host2");
    let spec = caller.spec.clone();
    let end = std::thread::spawn(move || caller.quit());
    poll("host2 begins to leave", Duration::from_secs(5), || match spec.stderr() {
        log if log.contains("leaving the cluster") => Ok(()),
        log => Err(log),
    });
    cluster.hosts[0].signal(libc::SIGCONT);
    assert!(end.join().expect("its status").success());
    for name in &names {
        cluster.wait_value(name, 10, Duration::from_secs(10));
    }
    cluster.quit();
}

#[test]
fn a_counter_outlives_every_single_host_when_they_restart_in_turn() {
    let mut cluster = Cluster::new(3);
    let keys: Vec<String> = (0..20).map(|number| format!("turn:{number}")).collect();
    for key in &keys {
        assert_eq!(cluster.hosts[0].incr(key, 10), (10, false));
    }
    for key in &keys {
        cluster.wait_value(key, 10, Duration::from_secs(5));
    }
    for turn in 0..3 {
        let host = cluster.hosts.remove(turn);
        let spec = host.spec.clone();
        if turn == 1 {
            assert!(host.quit().success());
        } else {
            host.kill();
        }
        // Back at once, under the same node id.
        cluster.hosts.insert(turn, Host::start(&spec));
        cluster.wait_ready();
        for key in &keys {
            cluster.wait_value(key, 10 + turn as i64, Duration::from_secs(5));
            assert_eq!(cluster.hosts[turn].incr(key, 1), (11 + turn as i64, false), "{key} after turn {turn}");
        }
        for key in &keys {
            cluster.wait_value(key, 11 + turn as i64, Duration::from_secs(5));
        }
    }
    cluster.quit();
}

/// Nothing is written, so nothing but the joining itself makes the members tell the new one what they hold.
#[test]
fn a_host_that_comes_back_to_an_idle_cluster_becomes_ready_each_time() {
    let mut cluster = Cluster::new(3);
    for turn in 0..8 {
        let host = cluster.hosts.pop().expect("host2");
        let spec = host.spec.clone();
        if turn % 2 == 0 {
            assert!(host.quit().success());
        } else {
            host.kill();
        }
        // The others try to reach it again and again: let them do so before, while and after it joins.
        std::thread::sleep(Duration::from_millis(150 * turn));
        cluster.hosts.push(Host::start(&spec));
        cluster.wait_ready();
    }
    cluster.quit();
}

#[test]
fn a_second_host_with_a_name_that_is_taken_is_refused() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.hosts[0].incr("name", 1), (1, false));
    let mut spec = cluster.hosts[1].spec.clone();
    spec.port = free_port();
    spec.ini.insert("bind".into(), format!("127.0.0.1:{}", spec.port));
    spec.dir = cluster.path().join("twin");
    std::fs::create_dir(&spec.dir).expect("a directory");
    let mut twin = Host::start(&spec);
    let info = poll("the twin is told", Duration::from_secs(15), || {
        twin.call("ephpm_kv_get", &[Value::text("warm")]);
        let info = twin.info();
        if info.state != "ready" && info.reason.contains("host1") { Ok(info) } else { Err(format!("{info:?}")) }
    });
    println!("{info:?}");
    let (_, degraded) = twin.incr("name", 1);
    assert!(degraded, "a refused host speaks for nobody");
    for host in &mut cluster.hosts {
        host.wait_ready(3);
        let (_, degraded) = host.incr("other", 1);
        assert!(!degraded, "{} is not disturbed", host.spec.name);
    }
    twin.quit();
    cluster.quit();
}

#[test]
fn a_client_owns_nothing_and_counts_with_the_others() {
    let dir = TempDir::new().expect("a directory");
    let mut specs = specs(3, dir.path());
    specs[2].ini.insert("role".into(), "client".into());
    let mut hosts: Vec<Host> = specs.iter().map(Host::start).collect();
    for host in &mut hosts {
        host.call("ephpm_kv_get", &[Value::text("warm")]);
    }
    for host in &mut hosts {
        poll("ready", Duration::from_secs(15), || {
            host.call("ephpm_kv_get", &[Value::text("warm")]);
            let info = host.info();
            if info.state == "ready" { Ok(()) } else { Err(format!("{info:?}")) }
        });
    }
    for number in 0..60 {
        let key = format!("client:{number}");
        assert_ne!(hosts[2].owner(&key), "host2");
        assert_eq!(hosts[2].incr(&key, 2), (2, false), "{key}");
        assert_eq!(hosts[number % 2].incr(&key, 3), (5, false), "{key}");
    }
    for host in hosts {
        assert!(host.quit().success());
    }
}
