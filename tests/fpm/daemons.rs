//! What a script starts, and leaves running, is none of the host's.

use std::time::Duration;

use crate::shared::poll;
use crate::support::client::Request;
use crate::support::proc::{self, Sleepers};
use crate::support::{plans, ready, start_all};

#[test]
fn what_a_script_leaves_running_keeps_no_node_alive() {
    let mut hosts = start_all(&plans(1));
    let client = hosts[0].client(0);
    let (node, origin) = (client.node_pid(), client.info().origin);
    let body = client.body(Request::new("daemons.php"));
    let sleepers = Sleepers::read(&body);
    assert_eq!(sleepers.0.len(), 2);
    for pid in &sleepers.0 {
        poll("it sleeps", Duration::from_secs(5), || {
            let comm = proc::comm(*pid);
            if comm == "sleep" { Ok(()) } else { Err(comm) }
        });
        for (number, link) in proc::descriptors(*pid) {
            assert!(!link.contains("memfd:"), "{pid}: descriptor {number} is {link}");
        }
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("its environment");
        assert!(!String::from_utf8_lossy(&environment).contains("EPHPM_KV_SEGMENT"));
    }
    println!("segment {origin}, node {node}, started {:?}", sleepers.0);
    let mut host = hosts.remove(0);
    host.signal(libc::SIGQUIT);
    assert!(host.wait().success());
    host.leaves_nothing();
    assert!(!proc::alive(node));
    assert!(sleepers.0.iter().all(|pid| proc::alive(*pid)), "they were to outlive the host");
}

#[test]
fn a_php_that_a_script_starts_is_a_process_of_its_own() {
    let hosts = start_all(&plans(1));
    let client = hosts[0].client(0);
    ready(std::slice::from_ref(&client), 1);
    assert_eq!(client.incr("started"), (1, false));
    let started = |options: &str| client.body(Request::new("start_php.php").arg("options", options));
    // With the host's settings it is part of the host; with none it counts for itself.
    let ini = hosts[0].path().join("php.ini");
    assert_eq!(started(&format!("-c {}", ini.display())), "2 not degraded");
    let module = crate::shared::host::module();
    assert_eq!(started(&format!("-n -d extension={}", module.display())), "1 not degraded");
    assert_eq!(client.incr("started"), (3, false));
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
