//! Promise 1 under php-fpm, and what a node process is made of.

use crate::support::load::{Load, Work};
use crate::support::{plans, proc, start_all, test_time};

#[test]
fn three_masters_are_one_count() {
    let hosts = start_all(&plans(3));
    let clients: Vec<_> = hosts.iter().map(|host| host.client(0)).collect();
    let keys: Vec<String> = (0..6).map(|number| format!("one:{number}")).collect();
    let two_each = [clients.clone(), clients.clone()].concat();
    let load = Load::start(&two_each, &Work { keys: keys.clone(), per_request: 20, seed: crate::shared::seed() });
    std::thread::sleep(test_time());
    let ledger = load.stop();
    ledger.one_count(&clients);
    assert_eq!((ledger.refused, ledger.cut), (0, 0));

    for (host, client) in hosts.iter().zip(&clients) {
        let info = client.info();
        assert_eq!(info.node_id, host.plan.name);
        assert_eq!(host.nodes(), [info.node_pid], "one node process, the one that is told");
        let workers = host.workers();
        assert_eq!(workers.len(), 4);
        for pid in workers {
            assert!(ledger.pids.contains(&pid), "worker {pid} has served nothing");
            assert_eq!(proc::status(pid, "Threads"), "1", "worker {pid}");
        }
        assert_eq!(proc::status(host.master(), "Threads"), "1", "the master");

        let node = info.node_pid;
        assert_eq!(proc::command_line(node), format!("ephpm_kv: node {}", host.plan.name));
        assert_ne!(proc::group(node), proc::group(host.master()), "a process group of its own");
        let worker = host.workers()[0];
        for field in ["Uid", "Gid"] {
            assert_eq!(proc::status(node, field), proc::status(worker, field), "{field} of the workers");
        }
        // Nothing of fpm's stays open: neither what it listens on, nor the log.
        let descriptors = proc::descriptors(node);
        println!("{}: {descriptors:?}", host.plan.name);
        for (number, link) in &descriptors[..3] {
            assert_eq!(link, "/dev/null", "descriptor {number}");
        }
        let listening = proc::unix_sockets(&host.listen_path(0).display().to_string());
        assert!(!listening.is_empty());
        for (number, link) in &descriptors {
            assert!(!listening.iter().any(|inode| *link == format!("socket:[{inode}]")), "{number} is fpm's socket");
            assert!(!link.ends_with("fpm.log"), "{number} is fpm's log");
        }
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
