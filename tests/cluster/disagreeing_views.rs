//! Hosts that disagree about the members: one is cut off from gossip (UDP), yet everybody is reachable on TCP.

use std::time::Duration;

use crate::support::accounts::nothing_lost;
use crate::support::cluster::Cluster;
use crate::support::control::Control;
use crate::support::host::Host;
use crate::support::load::{Latencies, Load, history, wait};
use crate::support::ports::free_ports;
use crate::support::relay::Relay;
use crate::support::{number, poll, seed};

/// Three hosts, each reached through a relay.
fn relayed() -> (Cluster, Vec<Relay>) {
    let relay_ports = free_ports(3);
    let join: Vec<String> = relay_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut relays = Vec::new();
    let cluster = Cluster::with(3, |spec| {
        let port = relay_ports[relays.len()];
        relays.push(Relay::start(port, spec.port));
        spec.ini.insert("advertise".into(), format!("127.0.0.1:{port}"));
        spec.ini.insert("join".into(), join.join(","));
    });
    (cluster, relays)
}

/// Lets no datagram to or from host0 pass (or lets them pass again); TCP goes on.
fn cut(relays: &[Relay], ports: &[u16], on: bool) {
    for port in &ports[1..] {
        relays[0].deafen(*port, on);
    }
    for relay in &relays[1..] {
        relay.deafen(ports[0], on);
    }
}

fn ports(cluster: &Cluster) -> Vec<u16> {
    cluster.hosts.iter().map(|host| host.spec.port).collect()
}

/// After the heal: no call failed or took longer than its deadline, and every increment is in the sums exactly once.
fn heal_and_judge(mut cluster: Cluster, relays: &[Relay], ports: &[u16], control: Control) {
    cut(relays, ports, false);
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    let delays = control.stop();
    cluster.wait_ready();
    let history = history(cluster.path());
    let latencies = Latencies::of(history.calls.iter());
    println!("{}; the control was up to {} ms late", latencies.line(), delays.worst_between(0, u64::MAX) / 1_000_000);
    // A call that goes round in a circle takes its whole deadline and more. Six busy processes share the machine, so
    // single calls may wait for a processor, which the control (it only sleeps) need not see.
    assert!(latencies.within(Duration::from_millis(60)) >= 0.999, "calls took longer than their deadline");
    assert!(latencies.quantile_ms(1.0) < 500.0, "a call took {} ms", latencies.quantile_ms(1.0));
    assert!(history.calls.iter().all(|call| call.ret.is_some()), "no call fails");
    let values = cluster.settled(history.increments().into_keys());
    for (key, calls) in history.increments() {
        let value = values[key];
        nothing_lost(&calls, value).unwrap_or_else(|reason| panic!("{key}: {reason}"));
    }
    println!("{} calls, {} degraded", history.calls.len(), history.calls.iter().filter(|call| call.degraded).count());
    cluster.quit();
}

fn load(seed: u64) -> Load {
    let load = Load::new(2, seed).with("prefix", "cut").with("keys", 12).with("mix", "incr");
    load.with("low", 1).with("high", 9).with("pause_us", 500)
}

#[test]
fn a_host_cut_off_from_gossip_breaks_no_count() {
    let (mut cluster, relays) = relayed();
    let (ports, dir) = (ports(&cluster), cluster.path().to_owned());
    let cut_for = Duration::from_secs(number("EPHPM_KV_TEST_SECONDS", 5));
    load(seed()).lasting(cut_for + Duration::from_secs(4)).start_all(&mut cluster.hosts, &dir);
    let control = Control::start();

    std::thread::sleep(Duration::from_secs(1));
    cut(&relays, &ports, true);
    std::thread::sleep(cut_for);
    for host in &mut cluster.hosts {
        println!("cut: {:?}", host.info());
    }
    heal_and_judge(cluster, &relays, &ports, control);
}

#[test]
fn a_host_that_one_member_cannot_hear_of_breaks_no_count() {
    let (mut cluster, relays) = relayed();
    let (ports, dir, seed) = (ports(&cluster), cluster.path().to_owned(), seed());
    let cut_for = Duration::from_secs(number("EPHPM_KV_TEST_SECONDS", 5));
    // host2 leaves, and comes back while host0 hears nothing: host1 has it in its view, host0 has not.
    let absent = cluster.hosts.pop().expect("host2");
    let spec = absent.spec.clone();
    assert!(absent.quit().success());
    load(seed).lasting(cut_for + Duration::from_secs(5)).start_all(&mut cluster.hosts, &dir);
    let control = Control::start();
    std::thread::sleep(Duration::from_secs(1));
    cut(&relays, &ports, true);
    let mut back = Host::start(&spec);
    load(seed).lasting(cut_for + Duration::from_secs(3)).start(&mut back, 2, &dir);
    cluster.hosts.push(back);
    let seen = |host: &mut Host| host.info().members;
    poll("host1 sees host2", Duration::from_secs(10), || match seen(&mut cluster.hosts[1]) {
        3 => Ok(()),
        members => Err(format!("{members} members")),
    });
    std::thread::sleep(cut_for);
    assert_eq!(seen(&mut cluster.hosts[0]), 2, "host0 has not heard of host2: they disagree");
    heal_and_judge(cluster, &relays, &ports, control);
}
