//! fpm's reload (SIGUSR2): the master executes itself anew.

use std::time::{Duration, Instant};

use crate::shared::{number, poll, seed};
use crate::support::load::{Load, Work};
use crate::support::{metric_sum, plans, ready, settled, start_all};

fn work(prefix: &str) -> Work {
    Work { keys: (0..4).map(|number| format!("{prefix}:{number}")).collect(), per_request: 5, seed: seed() }
}

#[test]
fn counters_and_the_node_survive_reloads() {
    let hosts = start_all(&plans(2));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let before: Vec<_> = clients.iter().map(|client| client.info()).collect();
    let load = Load::start(&[&clients[0], &clients[0], &clients[1]].map(Clone::clone), &work("reload"));
    let mut slowest = Duration::ZERO;
    for _ in 0..number("EPHPM_KV_RELOADS", 5) {
        load.wait_for(50);
        // The master executes itself when the last of its workers has ended.
        let begun = Instant::now();
        hosts[0].reload();
        slowest = slowest.max(begun.elapsed());
        assert_eq!(hosts[0].nodes(), [before[0].node_pid], "the node stays");
    }
    println!("the slowest reload took {slowest:?}");
    load.wait_for(50);
    let ledger = load.stop();
    ledger.one_count(&clients);
    for (client, before) in clients.iter().zip(before) {
        let after = client.info();
        assert_eq!((after.node_pid, after.origin), (before.node_pid, before.origin), "{}", client.name);
        assert_eq!((after.epoch, after.live), (before.epoch, before.live), "{}: nobody came or went", client.name);
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}

#[test]
fn a_changed_setting_replaces_the_node_and_keeps_the_counters() {
    let mut hosts = start_all(&plans(2));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let before = clients[0].info();
    let load = Load::start(&[clients[0].clone(), clients[1].clone()], &work("setting"));
    load.wait_for(200);
    hosts[0].plan.ini.insert("timeout_ms".into(), "3000".into());
    hosts[0].reload();
    poll("another node", Duration::from_secs(10), || {
        let nodes = hosts[0].nodes();
        if nodes.len() == 1 && nodes[0] != before.node_pid { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    ready(&clients, 2);
    load.wait_for(200);
    let ledger = load.stop();
    let finals = settled(&clients, &ledger.keys());
    assert_eq!(metric_sum(&clients, "ephpm_kv_lost_total"), 0.0, "it left in order");
    ledger.check(&finals, 0);
    assert_eq!(ledger.failed, 0, "{:?}", ledger.errors);
    let after = clients[0].info();
    assert_eq!(after.origin, before.origin, "the segment stays");
    assert_eq!(hosts[0].nodes(), [after.node_pid]);
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
