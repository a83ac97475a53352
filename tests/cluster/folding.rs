//! Counters that outlive their owners again and again keep their count, and the shares of those that are gone are folded.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::host::Host;
use crate::support::poll;

#[test]
fn counters_that_many_hosts_have_owned_keep_their_count_when_shares_are_folded() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.env.insert("EPHPM_KV_TEST_REMEMBER_MS".into(), "2000".into());
        spec.env.insert("EPHPM_KV_TEST_COMPARE_MS".into(), "300".into());
        spec.ini.insert("log_level".into(), "debug".into());
    });
    let keys: Vec<String> = (0..30).map(|number| format!("fold:{number}")).collect();
    let mut due = 0;
    for turn in 0..6 {
        for host in &mut cluster.hosts {
            for key in &keys {
                let (_, degraded) = host.incr(key, 1);
                assert!(!degraded, "{key}");
            }
        }
        due += 3;
        for key in &keys {
            cluster.wait_value(key, due, Duration::from_secs(5));
        }
        // In order or not: what it counted is with the others.
        let host = cluster.hosts.remove(turn % 3);
        let spec = host.spec.clone();
        if turn % 2 == 0 {
            assert!(host.quit().success());
        } else {
            host.kill();
        }
        cluster.hosts.insert(turn % 3, Host::start(&spec));
        cluster.wait_ready();
    }
    let specs: Vec<_> = cluster.hosts.iter().map(|host| host.spec.clone()).collect();
    poll("shares are folded", Duration::from_secs(30), || {
        let log: String = specs.iter().map(|spec| spec.stderr()).collect();
        if log.contains("folded what segments have counted") { Ok(()) } else { Err("not yet".into()) }
    });
    std::thread::sleep(Duration::from_secs(4));
    for key in &keys {
        cluster.wait_value(key, due, Duration::from_secs(5));
        for host in &mut cluster.hosts {
            assert!(!host.incr(key, 1).1, "{key}");
        }
        cluster.wait_value(key, due + 3, Duration::from_secs(5));
    }
    for host in &mut cluster.hosts {
        assert_eq!(host.metric("ephpm_kv_repairs_total"), 0.0);
    }
    cluster.quit();
}
