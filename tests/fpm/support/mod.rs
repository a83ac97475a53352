//! What every test here uses: php-fpm masters as hosts, requests to them, load whose every answer is known, and what
//! the kernel says about their processes.

pub mod client;
pub mod fcgi;
pub mod fpm;
pub mod load;
pub mod proc;
pub mod random;

use std::time::Duration;

use crate::shared::{number, poll, ports};
use client::{Client, Info};
use fpm::{Fpm, Plan};

/// How long most loads last.
pub fn test_time() -> Duration {
    Duration::from_secs(number("EPHPM_KV_TEST_SECONDS", 5))
}

/// Plans of `count` hosts that name each other as seeds.
pub fn plans(count: usize) -> Vec<Plan> {
    let ports = ports::free_ports(count);
    let join: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    // The port is in the name, so that a node is told apart from one of another test that runs elsewhere.
    ports.iter().enumerate().map(|(index, port)| Plan::new(&format!("fpm{index}-{port}"), *port, &join)).collect()
}

/// Starts hosts with these plans and waits until each is ready and sees all.
pub fn start_all(plans: &[Plan]) -> Vec<Fpm> {
    let hosts: Vec<Fpm> = plans.iter().map(Fpm::start).collect();
    let clients: Vec<Client> = hosts.iter().map(|host| host.client(0)).collect();
    ready(&clients, plans.len());
    hosts
}

/// Waits until the hosts of these clients are ready, under their own names, and each sees so many members.
pub fn ready(clients: &[Client], members: usize) {
    poll(&format!("{} hosts ready with {members} members", clients.len()), Duration::from_secs(20), || {
        // All of them each time: only a request starts a node.
        let infos: Vec<_> = clients.iter().map(|client| (client, client.info())).collect();
        let is_ready = |client: &Client, info: &Info| {
            info.state == "ready" && info.live.len() == members && info.node_id == client.host
        };
        match infos.iter().find(|(client, info)| !is_ready(client, info)) {
            None => Ok(()),
            Some((client, info)) => Err(format!("{}: {info:?}", client.name)),
        }
    });
}

/// Waits until nothing is on its way between these hosts and all give the same values; gives those.
pub fn settled(clients: &[Client], keys: &[String]) -> Vec<i64> {
    let mut before: Option<Vec<i64>> = None;
    poll("the hosts agree", Duration::from_secs(20), || {
        let metrics = ["ephpm_kv_shares_pending", "ephpm_kv_unresolved", "ephpm_kv_replication_lag_seconds"];
        // All of them each time: only a request starts a node, and one that is not there may be what another waits for.
        let values = clients.iter().flat_map(|client| metrics.map(|metric| (client, metric, client.metric(metric))));
        let values: Vec<_> = values.collect();
        if let Some((client, metric, value)) = values.iter().find(|(_, _, value)| *value != 0.0) {
            before = None;
            return Err(format!("{}: {metric} is {value}", client.name));
        }
        let mut all = clients.iter().map(|client| client.counts(keys));
        let first = all.next().unwrap_or_default();
        for other in all {
            if other != first {
                before = None;
                return Err(format!("{keys:?}: {first:?} and {other:?}"));
            }
        }
        // Twice, with a pause, so that nothing was just between two of the questions.
        if before.replace(first.clone()) == Some(first.clone()) {
            return Ok(first);
        }
        std::thread::sleep(Duration::from_millis(200));
        Err("they agree only just now".into())
    })
}

/// The sum of a counter metric over hosts, whatever its labels.
pub fn metric_sum(clients: &[Client], name: &str) -> f64 {
    clients.iter().map(|client| client.metric_sum(name)).sum()
}

/// Root may start pools of several users, and containers.
pub fn is_root() -> bool {
    // SAFETY: reads no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
