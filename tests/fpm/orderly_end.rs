//! Every process of a host is told to end at once, as systemd does, or only PHP's master, as a container's runtime
//! does: the host leaves in order, and no increment is lost.

use crate::shared::{number, seed};
use crate::support::client::Client;
use crate::support::fpm::{Fpm, Plan};
use crate::support::load::{Load, Work};
use crate::support::{is_root, metric_sum, plans, proc, ready, settled, start_all};

/// Ends the first host under load, again and again, in the way of `end`.
fn leaves_in_order(plans: &[Plan], end: impl Fn(&Fpm)) {
    let mut hosts = start_all(plans);
    let stays: Client = hosts[1].client(0);
    for round in 0..number("EPHPM_KV_STOPS", 3) {
        let leaver = hosts.remove(0);
        let leaves = leaver.client(0);
        let keys = ["leaver", "other"].map(|whose| {
            let owner = if whose == "leaver" { &leaver.plan.name } else { &hosts[0].plan.name };
            stays.keys_owned_by(owner, &format!("end:{round}:{whose}"), 1).remove(0)
        });
        let work = Work { keys: keys.into(), per_request: 5, seed: seed() };
        let peer = Load::start(&[stays.clone(), stays.clone()], &work);
        let own = Load::start(std::slice::from_ref(&leaves), &work);
        own.wait_for(100);
        peer.wait_for(100);
        end(&leaver);
        peer.wait_for(200);
        let mut leaver = leaver;
        let status = leaver.wait();
        leaver.leaves_nothing();
        ready(std::slice::from_ref(&stays), 1);
        let (mut ledger, peers) = (own.stop(), peer.stop());
        println!("round {round}: {status}; where it stays: {}", peers.line());
        peers.exact();
        ledger.add(peers);
        ledger.check(&settled(std::slice::from_ref(&stays), &ledger.keys()), 0);
        ledger.distinct();
        assert_eq!(metric_sum(std::slice::from_ref(&stays), "ephpm_kv_lost_total"), 0.0);
        let plan = leaver.plan.clone();
        hosts.insert(0, Fpm::start(&plan));
        ready(&[hosts[0].client(0), stays.clone()], 2);
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}

#[test]
fn every_process_gets_sigterm_at_once() {
    leaves_in_order(&plans(2), |host| {
        let everybody = [host.workers(), vec![host.master()], host.nodes()].concat();
        assert_eq!(everybody.len(), 6, "four workers, master and node");
        everybody.into_iter().for_each(|pid| proc::signal(pid, libc::SIGTERM));
    });
}

#[test]
fn the_first_process_of_a_container_gets_sigterm() {
    if !is_root() {
        println!("not run: a container needs root");
        return;
    }
    let mut plans = plans(2);
    plans[0].container = Some("mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$@\"".into());
    leaves_in_order(&plans, |host| host.signal(libc::SIGTERM));
}
