//! Promise 3: answers that come too late are nobody else's answers, and what they stood for is counted exactly once.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::accounts::{growing, nothing_lost};
use crate::support::cluster::Cluster;
use crate::support::load::{Load, history, wait};
use crate::support::ports::free_ports;
use crate::support::relay::Relay;
use crate::support::{number, seed};

/// Deltas that tell the keys apart: every value of a key is a multiple of its own prime.
const PRIMES: [i64; 6] = [7, 11, 13, 17, 19, 23];

/// Three hosts; the third is reached by the others through a relay.
fn behind_a_relay() -> (Cluster, Relay) {
    let relay_port = free_ports(1)[0];
    let mut relay = None;
    let cluster = Cluster::with(3, |spec| {
        if spec.name == "host2" {
            spec.ini.insert("advertise".into(), format!("127.0.0.1:{relay_port}"));
            relay = Some(Relay::start(relay_port, spec.port));
        }
    });
    (cluster, relay.expect("host2"))
}

fn load(keys: &[String], seed: u64) -> Load {
    let primes: Vec<String> = PRIMES.iter().map(i64::to_string).collect();
    Load::new(2, seed).keys(keys).with("mix", "incr").with("perkey", primes.join(",")).with("pause_us", 300)
}

fn judge(cluster: &mut Cluster, keys: &[String], one_owner: bool) {
    let history = history(cluster.path());
    let increments = history.increments();
    let values = cluster.settled(keys.iter().map(String::as_str));
    for (key, prime) in keys.iter().zip(PRIMES) {
        let calls = &increments[key.as_str()];
        for call in calls {
            let ret = call.ret.expect("no call fails");
            assert_eq!(ret % prime, 0, "an answer to a call for another key: {call:?}");
        }
        let value = values[key];
        let account = nothing_lost(calls, value).unwrap_or_else(|reason| panic!("{key}: {reason}"));
        println!("{key}: {value} = {} acknowledged + {} degraded", account.acknowledged, account.degraded);
        if one_owner {
            growing(calls, account.degraded).unwrap_or_else(|reason| panic!("{key}: {reason}"));
        }
    }
    let degraded = history.calls.iter().filter(|call| call.degraded).count();
    println!("{} calls, {degraded} degraded", history.calls.len());
    assert!(degraded > 0, "the fault did nothing");
    assert!(degraded < history.calls.len() / 2, "the cluster did nothing else");
    let count =
        |cluster: &mut Cluster, name: &str| -> f64 { cluster.hosts.iter_mut().map(|host| host.metric(name)).sum() };
    assert_eq!(count(cluster, "ephpm_kv_lost_total{reason=\"unresolved\"}"), 0.0, "everybody was there to ask");
    assert_eq!(count(cluster, "ephpm_kv_shares_pending"), 0.0, "every share has come home");
}

#[test]
fn answers_delayed_past_the_deadline_are_counted_once_and_never_given_to_another_call() {
    let seed = seed();
    let (mut cluster, relay) = behind_a_relay();
    let keys = cluster.keys_owned_by("host2", "late", PRIMES.len());
    let dir = cluster.path().to_owned();
    let time = Duration::from_secs(number("EPHPM_KV_TEST_SECONDS", 5));
    load(&keys, seed).lasting(time).start_all(&mut cluster.hosts[..2], &dir);
    // Late now and then, in both directions: a request that arrives late, an answer that does.
    let end = Instant::now() + time;
    let mut round = 0;
    while Instant::now() < end {
        let faults = if round % 2 == 0 { &relay.faults.answer_delay_ms } else { &relay.faults.request_delay_ms };
        faults.store(70 + (seed + round * 37) % 150, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(60));
        faults.store(0, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(500));
        round += 1;
    }
    for host in &mut cluster.hosts[..2] {
        wait(host, Duration::from_secs(30));
    }
    judge(&mut cluster, &keys, true);
    cluster.quit();
}

#[test]
fn a_stopped_owner_that_goes_on_is_counted_once() {
    let seed = seed();
    let mut cluster = Cluster::new(3);
    let keys = cluster.keys_owned_by("host2", "stop", PRIMES.len());
    let dir = cluster.path().to_owned();
    let time = Duration::from_secs(8);
    load(&keys, seed).lasting(time).start_all(&mut cluster.hosts, &dir);
    // Short enough to be tolerated, then long enough to be taken for dead.
    for stopped_ms in [150, 3_000] {
        std::thread::sleep(Duration::from_millis(1_000));
        cluster.hosts[2].signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(stopped_ms));
        cluster.hosts[2].signal(libc::SIGCONT);
    }
    for host in &mut cluster.hosts {
        wait(host, time + Duration::from_secs(30));
    }
    cluster.wait_ready();
    judge(&mut cluster, &keys, false);
    cluster.quit();
}
