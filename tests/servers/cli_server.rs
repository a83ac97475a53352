//! `php -S`, with workers (`PHP_CLI_SERVER_WORKERS`) and without.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::hosts::client::Request;
use crate::hosts::load::{Load, Work};
use crate::hosts::{metric_sum, plans, proc, ready, settled, test_time};
use crate::shared::{poll, seed};
use crate::support::server::{Kind, WebServer};
use crate::support::{clients, start_all};

#[test]
fn workers_are_one_count_and_run_no_node() {
    let servers = start_all(Kind::Workers, &plans(2));
    let clients = clients(&servers);
    let keys = (0..4).map(|number| format!("workers:{number}")).collect();
    let work = Work { keys, per_request: 5, seed: seed() };
    let load = Load::start(&[clients.clone(), clients.clone(), clients.clone()].concat(), &work);
    std::thread::sleep(test_time());
    let ledger = load.stop();
    ledger.one_count(&clients);
    for (server, client) in servers.iter().zip(&clients) {
        let node = client.info().node_pid;
        assert_eq!(server.nodes(), [node], "one node process, the one that is told");
        let workers = server.workers();
        assert_eq!(workers.len(), 4);
        assert!(workers.iter().filter(|pid| ledger.pids.contains(pid)).count() > 1, "one worker served everything");
        for pid in [vec![server.master()], workers].concat() {
            assert_eq!(proc::status(pid, "Threads"), "1", "process {pid}");
        }
    }
    servers.into_iter().for_each(WebServer::stop);
}

#[test]
fn one_process_runs_the_node_as_a_thread() {
    let servers = start_all(Kind::Alone, &plans(2));
    let clients = clients(&servers);
    let keys = [0, 1].map(|owner| clients[0].keys_owned_by(&servers[owner].plan.name, "alone", 1).remove(0));
    let load = Load::start(&clients, &Work { keys: keys.into(), per_request: 5, seed: seed() });
    load.wait_for(500);
    let ledger = load.stop();
    ledger.one_count(&clients);
    for (server, client) in servers.iter().zip(&clients) {
        assert_eq!(client.info().node_pid, server.master());
        assert_eq!(proc::status(server.master(), "Threads"), "2");
        assert_eq!(server.nodes(), [0; 0]);
    }
    servers.into_iter().for_each(WebServer::stop);
}

/// Ends the second of two servers in this way; what it had counted is on the other, which has the lower node id and so
/// goes on for the cluster whether it was told or not.
fn ends(kind: Kind, end: impl Fn(&WebServer)) -> std::process::ExitStatus {
    let mut servers = start_all(kind, &plans(2));
    let clients = clients(&servers);
    let keys = [0, 1].map(|owner| clients[1].keys_owned_by(&servers[owner].plan.name, "ends", 1).remove(0));
    for key in &keys {
        assert_eq!(clients[1].incr(key), (1, false));
    }
    settled(&clients, &keys);
    let mut leaver = servers.remove(1);
    end(&leaver);
    let status = leaver.wait();
    ready(&clients[..1], 1);
    // A server that was killed may have spoken for its keys for a moment after that; then the other takes them over.
    poll("the first server owns all", Duration::from_secs(10), || {
        let owned = clients[0].keys_owned_by(&servers[0].plan.name, "ends", 64);
        if keys.iter().all(|key| owned.contains(key)) { Ok(()) } else { Err(format!("{owned:?}")) }
    });
    for key in &keys {
        assert_eq!(clients[0].incr(key), (2, false), "{key}");
    }
    assert_eq!(metric_sum(&clients[..1], "ephpm_kv_lost_total"), 0.0);
    servers.into_iter().for_each(WebServer::stop);
    status
}

#[test]
fn ctrl_c_ends_all_processes_in_order() {
    for kind in [Kind::Workers, Kind::Alone] {
        let status = ends(kind, |server| server.signal_all(libc::SIGINT));
        assert!(status.success(), "{kind:?}: {status}");
    }
}

#[test]
fn sigterm_ends_all_processes() {
    for kind in [Kind::Workers, Kind::Alone] {
        // PHP does not handle it.
        let status = ends(kind, |server| server.signal_all(libc::SIGTERM));
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{kind:?}");
    }
}

#[test]
fn a_fork_in_a_request_counts_in_both_processes() {
    for kind in [Kind::Workers, Kind::Alone] {
        let servers = start_all(kind, &plans(2));
        let clients = clients(&servers);
        for owner in &servers {
            let owner = &owner.plan.name;
            let key = clients[0].keys_owned_by(owner, "fork", 1).remove(0);
            for round in 0..5 {
                let body = clients[0].body(Request::new("fork.php").arg("key", &key));
                assert_eq!(body, "exact", "{kind:?}, round {round}, owner {owner}");
            }
            assert_eq!(settled(&clients, &[key]), [500]);
        }
        servers.into_iter().for_each(WebServer::stop);
    }
}
