//! Pools of different users are one host, and none of them gets at the segment but through the module.

use std::time::Duration;

use crate::shared::poll;
use crate::support::client::Request;
use crate::support::fpm::Pool;
use crate::support::{is_root, plans, proc, ready, start_all};

/// Its effective user, by number.
fn user(pid: u32) -> String {
    proc::status(pid, "Uid").split_whitespace().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn pools_of_two_users_share_one_node_that_either_starts() {
    if !is_root() {
        println!("not run: pools of several users need root");
        return;
    }
    let mut plans = plans(2);
    plans[0].pools = vec![Pool::new("one", 2, "www-data"), Pool::new("two", 2, "nobody")];
    let hosts = start_all(&plans);
    let pools = [hosts[0].client(0), hosts[0].client(1)];
    let other = hosts[1].client(0);
    let key = other.keys_owned_by(&plans[1].name, "users", 1).remove(0);
    let own = other.keys_owned_by(&plans[0].name, "users", 1).remove(0);
    let mut count = 0;
    for starter in [0, 1, 0, 1] {
        // Whoever asks first finds no node and starts one.
        let node = pools[starter].node_pid();
        if count > 0 {
            proc::signal(node, libc::SIGKILL);
            poll("the node ends", Duration::from_secs(5), || {
                if proc::alive(node) { Err(node.to_string()) } else { Ok(()) }
            });
            let next = poll("another node", Duration::from_secs(10), || {
                let next = pools[starter].node_pid();
                if next != node && hosts[0].nodes().contains(&next) { Ok(next) } else { Err(next.to_string()) }
            });
            assert_eq!(user(next), user(pools[starter].info().pid), "the node is its starter's");
        }
        ready(&[pools[0].clone(), pools[1].clone(), other.clone()], 2);
        for pool in &pools {
            count += 1;
            assert_eq!(pool.incr(&key), (count, false), "{}: a key of another host", pool.name);
            assert_eq!(pool.incr(&own), (count, false), "{}: a key of this host", pool.name);
        }
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}

#[test]
fn a_script_cannot_open_the_segment() {
    if !is_root() {
        println!("not run: where everybody is one user, that user may");
        return;
    }
    let hosts = start_all(&plans(1));
    let client = hosts[0].client(0);
    assert_eq!(client.incr("closed"), (1, false));
    let node = client.node_pid();
    let body = client.body(Request::new("reopen.php").arg("node", node).arg("master", hosts[0].master()));
    println!("{body}");
    let (seen, opened): (Vec<&str>, Vec<&str>) = body.lines().partition(|line| line.starts_with("memfd "));
    assert!(!seen.is_empty(), "the script has seen no mapping of the segment: it proves nothing");
    assert_eq!(opened, [""; 0], "opened");
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
