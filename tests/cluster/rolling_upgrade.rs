//! Hosts that are updated one by one to the next protocol are one cluster all the time; one that is further off is not
//! let in, and nobody is deceived about that.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::accounts::nothing_lost;
use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Value};
use crate::support::load::{Load, history, wait};
use crate::support::{poll, seed};

/// What the build announces, and the next one.
const PROTOCOLS: [u16; 2] = [ephpm_kv::wire::hello::PROTOCOL, ephpm_kv::wire::hello::PROTOCOL + 1];

/// The protocol that a host says it speaks.
fn protocol(host: &mut Host) -> String {
    host.run("echo ephpm_kv_info()['protocol'];")
}

#[test]
fn hosts_updated_one_by_one_under_load_are_one_cluster() {
    let seed = seed();
    let mut cluster = Cluster::new(3);
    let dir = cluster.path().to_owned();
    let load = Load::new(1, seed).with("prefix", "upgrade").with("keys", 40).with("mix", "incr");
    let load = load.with("low", 1).with("high", 9).with("pause_us", 500);
    for turn in 0..3 {
        let mut leaver = cluster.hosts.remove(turn);
        let mut spec = leaver.spec.clone();
        load.clone().lasting(Duration::from_secs(5)).start_all(&mut cluster.hosts, &dir);
        load.clone().with("calls", 1_500).start(&mut leaver, 10 + turn, &dir);
        wait(&mut leaver, Duration::from_secs(60));
        assert!(leaver.quit().success());
        spec.env.insert("EPHPM_KV_TEST_PROTOCOL".into(), PROTOCOLS[1].to_string());
        let mut back = Host::start(&spec);
        back.wait_ready(3);
        load.clone().with("calls", 1_500).start(&mut back, 20 + turn, &dir);
        wait(&mut back, Duration::from_secs(60));
        cluster.hosts.insert(turn, back);
        for (index, host) in cluster.hosts.iter_mut().enumerate().filter(|(index, _)| *index != turn) {
            wait(host, Duration::from_secs(60));
            assert_eq!(protocol(host), PROTOCOLS[usize::from(index < turn)].to_string());
        }
        cluster.wait_ready();
        // Old and new, each as a caller of every owner.
        for number in 0..30 {
            let key = format!("mixed:{turn}:{number}");
            for index in 0..3 {
                assert_eq!(cluster.hosts[index].incr(&key, 1), (index as i64 + 1, false), "{key} after turn {turn}");
            }
        }
    }
    let history = history(&dir);
    let values = cluster.settled(history.increments().into_keys());
    for (key, calls) in history.increments() {
        assert!(calls.iter().all(|call| call.ret.is_some()));
        nothing_lost(&calls, values[key]).unwrap_or_else(|reason| panic!("{key}: {reason}"));
    }
    let degraded = history.calls.iter().filter(|call| call.degraded).count();
    println!("{} calls, {degraded} degraded", history.calls.len());
    // An orderly restart costs a moment while slots move.
    assert!(degraded * 20 < history.calls.len(), "{degraded} of {} degraded", history.calls.len());
    let log: String = cluster.hosts.iter().map(|host| host.spec.stderr()).collect();
    assert!(!log.contains("protocol versions"), "nobody was refused");
    cluster.quit();
}

#[test]
fn a_live_host_two_protocols_away_is_refused_and_makes_answers_degraded() {
    let dir = TempDir::new().expect("a directory");
    let specs = specs(3, dir.path());
    let mut hosts: Vec<Host> = specs[..2].iter().map(Host::start).collect();
    for host in &mut hosts {
        host.call("ephpm_kv_get", &[Value::text("warm")]);
    }
    hosts.iter_mut().for_each(|host| host.wait_ready(2));
    for (number, host) in hosts.iter_mut().enumerate() {
        assert_eq!(host.incr("far", 1), (number as i64 + 1, false));
    }
    let mut far = specs[2].clone();
    far.env.insert("EPHPM_KV_TEST_PROTOCOL".into(), (PROTOCOLS[1] + 1).to_string());
    let mut stranger = Host::start(&far);
    for host in &mut hosts {
        poll(&format!("{} says why", host.spec.name), Duration::from_secs(15), || {
            stranger.call("ephpm_kv_get", &[Value::text("warm")]);
            let (info, (_, degraded)) = (host.info(), host.incr("meanwhile", 1));
            if degraded && info.reason.contains("host2 is live and speaks protocol 3") {
                Ok(())
            } else {
                Err(format!("{degraded} {info:?}"))
            }
        });
    }
    let info = stranger.info();
    assert!(info.state != "ready" && info.reason.contains("speaks protocol"), "{info:?}");
    assert!(stranger.incr("meanwhile", 1).1, "the stranger counts for itself");
    poll("the log says why", Duration::from_secs(15), || {
        let logs: String = specs.iter().map(|spec| spec.stderr()).collect();
        if logs.contains("protocol versions") { Ok(()) } else { Err(logs) }
    });
    // What the stranger has counted cannot come along: it is killed, as if it were put back to the right release.
    stranger.kill();
    for host in &mut hosts {
        poll(&format!("{} is whole again", host.spec.name), Duration::from_secs(15), || match host.incr("after", 1) {
            (_, false) => Ok(()),
            answer => Err(format!("{answer:?} {:?}", host.info())),
        });
    }
    for host in hosts {
        assert!(host.quit().success());
    }
}
