//! Workers that end after a few requests, which is how php-fpm is run against leaks.

use crate::shared::seed;
use crate::support::fpm::Pool;
use crate::support::load::{Load, Work};
use crate::support::{plans, proc, start_all, test_time};

/// KiB that the node's resident memory may grow by.
const SLACK_KIB: u64 = 2_048;

#[test]
fn the_end_of_workers_does_not_touch_the_node() {
    let mut plans = plans(2);
    plans[0].pools = vec![Pool::new("www", 4, "www-data").line("pm.max_requests = 20")];
    let hosts = start_all(&plans);
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let before: Vec<_> = clients.iter().map(|client| client.info()).collect();
    let node = before[0].node_pid;

    let work = Work { keys: vec!["recycled:0".into(), "recycled:1".into()], per_request: 2, seed: seed() };
    let load = Load::start(&[&clients[0], &clients[0], &clients[0], &clients[1]].map(Clone::clone), &work);
    // Pages are touched when first used, so what counts is the growth after that.
    std::thread::sleep(test_time() / 3);
    let early = proc::status_number(node, "VmRSS");
    std::thread::sleep(test_time() * 2 / 3);
    let late = proc::status_number(node, "VmRSS");
    let ledger = load.stop();
    println!("resident memory of the node: {early} KiB, then {late} KiB");

    ledger.one_count(&clients);
    let recycled = ledger.pids.len() - 8;
    assert!(recycled >= 10, "only {recycled} workers were replaced");
    assert!(late <= early + SLACK_KIB, "the node grew from {early} to {late} KiB");
    for (client, before) in clients.iter().zip(before) {
        let after = client.info();
        assert_eq!(after.node_pid, before.node_pid, "{}", client.name);
        assert_eq!((after.epoch, after.live), (before.epoch, before.live), "{}: nobody came or went", client.name);
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
