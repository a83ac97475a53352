//! Apache with mod_php: workers are forked, and a graceful restart (SIGUSR1) starts the module anew in one process.

use std::time::Duration;

use crate::hosts::load::{Load, Work};
use crate::hosts::{metric_sum, plans, proc, ready, settled, test_time};
use crate::shared::{number, poll, seed};
use crate::support::server::{Kind, WebServer};
use crate::support::{clients, start_all};

fn work(prefix: &str) -> Work {
    Work { keys: (0..4).map(|number| format!("{prefix}:{number}")).collect(), per_request: 5, seed: seed() }
}

#[test]
fn workers_of_two_hosts_are_one_count() {
    let servers = start_all(Kind::Apache, &plans(2));
    let clients = clients(&servers);
    let load = Load::start(&[clients.clone(), clients.clone(), clients.clone()].concat(), &work("one"));
    std::thread::sleep(test_time());
    let ledger = load.stop();
    ledger.one_count(&clients);
    assert_eq!((ledger.refused, ledger.cut), (0, 0));
    for (server, client) in servers.iter().zip(&clients) {
        let workers = server.workers();
        assert_eq!(workers.len(), 4);
        assert!(workers.iter().filter(|pid| ledger.pids.contains(pid)).count() > 1, "one worker served everything");
        for pid in [vec![server.master()], workers].concat() {
            assert_eq!(proc::status(pid, "Threads"), "1", "process {pid}");
        }
        let node = client.info().node_pid;
        assert_eq!(server.nodes(), [node], "one node process, the one that is told");
        assert_eq!(proc::status(node, "Uid"), proc::status(server.workers()[0], "Uid"));
        for (number, link) in proc::descriptors(node) {
            assert!(number > 2 || link == "/dev/null", "{number} is {link}");
            assert!(!link.ends_with("/apache.pid"), "{number} is Apache's");
        }
    }
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn graceful_restarts_keep_counters_and_node() {
    let servers = start_all(Kind::Apache, &plans(2));
    let clients = clients(&servers);
    let before: Vec<_> = clients.iter().map(|client| client.info()).collect();
    let load = Load::start(&[&clients[0], &clients[0], &clients[1]].map(Clone::clone), &work("graceful"));
    let descriptors = || proc::descriptors(servers[0].master()).len();
    let mut open = Vec::new();
    for _ in 0..number("EPHPM_KV_RELOADS", 5) {
        load.wait_for(50);
        servers[0].restart_gracefully();
        assert_eq!(servers[0].nodes(), [before[0].node_pid], "the node stays");
        open.push(descriptors());
    }
    load.wait_for(50);
    let ledger = load.stop();
    ledger.one_count(&clients);
    assert_eq!((ledger.refused, ledger.cut), (0, 0), "{:?}", ledger.reasons);
    println!("open in the first process: {open:?}");
    assert!(open.iter().all(|count| *count == open[0]), "descriptors grow: {open:?}");
    for (client, before) in clients.iter().zip(before) {
        let after = client.info();
        assert_eq!((after.node_pid, after.origin), (before.node_pid, before.origin), "{}", client.name);
        assert_eq!((after.epoch, after.live), (before.epoch, before.live), "{}: nobody came or went", client.name);
    }
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn a_graceful_restart_with_other_settings_replaces_the_node() {
    let mut servers = start_all(Kind::Apache, &plans(2));
    let clients = clients(&servers);
    let before = clients[0].info();
    let load = Load::start(&clients, &work("setting"));
    load.wait_for(200);
    servers[0].plan.ini.insert("timeout_ms".into(), "3000".into());
    servers[0].restart_gracefully();
    poll("another node", Duration::from_secs(10), || {
        let nodes = servers[0].nodes();
        if nodes.len() == 1 && nodes[0] != before.node_pid { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    ready(&clients, 2);
    load.wait_for(200);
    let ledger = load.stop();
    ledger.check(&settled(&clients, &ledger.keys()), 0);
    assert_eq!(ledger.failed, 0, "{:?}", ledger.errors);
    assert_eq!(clients[0].info().origin, before.origin, "the segment stays");
    assert_eq!(metric_sum(&clients, "ephpm_kv_lost_total"), 0.0, "it left in order");
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn a_cluster_that_is_taken_out_of_the_settings_is_left_and_joined_again_with_them() {
    let mut servers = start_all(Kind::Apache, &plans(2));
    let clients = clients(&servers);
    let keys = clients[0].keys_owned_by(&servers[0].plan.name, "out", 1);
    let before = clients[0].info();
    assert_eq!(clients[0].incr(&keys[0]), (1, false));
    settled(&clients, &keys);
    let bind = servers[0].plan.ini.remove("bind").expect("an address");
    servers[0].restart_gracefully();
    assert_eq!(clients[0].info().origin, before.origin, "the segment stays");
    assert_eq!(clients[0].incr(&keys[0]), (2, false), "what it counted is still there");
    poll("the node has left", Duration::from_secs(10), || {
        let nodes = servers[0].nodes();
        if nodes.is_empty() { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    assert_eq!(clients[0].info().state, "alone");
    ready(&clients[1..], 1);
    // The node that left took the last increment along, if that was made before it had noticed the new settings.
    let known = clients[1].incr(&keys[0]).0;
    assert!((2..=3).contains(&known), "the others go on with what they know: {known}");

    servers[0].plan.ini.insert("bind".into(), bind);
    servers[0].restart_gracefully();
    ready(&clients, 2);
    assert_eq!(clients[0].info().origin, before.origin);
    let joined = settled(&clients, &keys);
    println!("counted on both sides meanwhile: {joined:?}");
    assert_eq!(clients[0].incr(&keys[0]), (joined[0] + 1, false));
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn another_size_begins_empty_with_a_node_of_its_own() {
    let mut servers = start_all(Kind::Apache, &plans(1));
    let client = servers[0].client();
    let before = client.info();
    assert_eq!(client.incr("size"), (1, false));
    servers[0].plan.ini.insert("memory".into(), "32M".into());
    servers[0].restart_gracefully();
    let clients = [client];
    ready(&clients, 1);
    let after = poll("another segment", Duration::from_secs(20), || {
        let info = clients[0].info();
        if info.origin != before.origin { Ok(info) } else { Err(format!("{info:?}")) }
    });
    ready(&clients, 1);
    assert_eq!(clients[0].incr("size"), (1, false));
    poll("the former node has left", Duration::from_secs(10), || {
        let nodes = servers[0].nodes();
        if nodes == [after.node_pid] { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    println!("{after:?}");
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn a_stop_loses_nothing() {
    // At once, and after the requests that are being served (`apachectl graceful-stop`).
    for signal in [libc::SIGTERM, libc::SIGWINCH] {
        let mut servers = start_all(Kind::Apache, &plans(2));
        let clients = clients(&servers);
        let keys = [0, 1].map(|owner| clients[1].keys_owned_by(&servers[owner].plan.name, "stop", 1).remove(0));
        let work = Work { keys: keys.into(), per_request: 5, seed: seed() };
        let own = Load::start(&clients[..1], &work);
        let peers = Load::start(&clients[1..], &work);
        own.wait_for(100);
        peers.wait_for(100);
        let mut leaver = servers.remove(0);
        leaver.signal(signal);
        let status = leaver.wait();
        assert!(status.success(), "{status}");
        peers.wait_for(200);
        ready(&clients[1..], 1);
        let (mut ledger, peers) = (own.stop(), peers.stop());
        peers.exact();
        ledger.add(peers);
        ledger.check(&settled(&clients[1..], &ledger.keys()), 0);
        ledger.distinct();
        assert_eq!(metric_sum(&clients[1..], "ephpm_kv_lost_total"), 0.0);
        servers.into_iter().for_each(WebServer::stop);
    }
}
