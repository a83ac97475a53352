//! Promise 6: any process may be killed at any instruction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ephpm_kv::clock::Clock;
use ephpm_kv::store::{Store, StoreOptions};

use crate::shared::{number, poll, seed};
use crate::support::client::{Client, Request};
use crate::support::fcgi::Failure;
use crate::support::fpm::{Fpm, Plan};
use crate::support::load::{Load, PAUSE, Work};
use crate::support::random::Random;
use crate::support::{metric_sum, plans, proc, ready, settled, start_all};

/// No request may take longer, whoever was killed meanwhile.
const LIMIT: Duration = Duration::from_secs(5);

/// Operations of one request on keys that come and go.
const CHURN: u64 = 400;

/// Makes and breaks keys until stopped; gives the number of increments that it may have made, and what took too long.
fn churn(client: &Client, stop: &AtomicBool, mut random: Random) -> (u64, Vec<String>) {
    let (mut increments, mut wrong) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let request = Request::new("churn.php").arg("seed", random.below(1 << 31)).arg("n", CHURN);
        match client.send(request) {
            Ok(reply) => match reply.body.parse::<u64>() {
                Ok(count) => increments += count,
                Err(_) => wrong.push(format!("{reply:?}")),
            },
            Err(Failure::TimedOut(after)) => wrong.push(format!("not within {after:?}")),
            Err(Failure::Cut(_)) => increments += CHURN,
            Err(Failure::Refused(_)) => {}
        }
    }
    (increments, wrong)
}

#[test]
fn kill_storm() {
    let kills = number("EPHPM_KV_KILLS", 150);
    let seed = seed();
    let plans: Vec<_> = plans(2).into_iter().map(|plan| plan.set("memory", "4M").set("timeout_ms", "500")).collect();
    let hosts = start_all(&plans);
    let clients: Vec<Client> = hosts.iter().map(|host| host.client(0)).collect();
    let quick: Vec<Client> = clients.iter().map(|client| client.clone().within(LIMIT)).collect();

    let keys: Vec<String> = (0..4).map(|number| format!("storm:{number}")).collect();
    let load = Load::start(&[quick.clone(), quick.clone()].concat(), &Work { keys, per_request: 20, seed });
    // They are there, on both hosts, before memory gets scarce.
    load.wait_for(500);
    let stop = Arc::new(AtomicBool::new(false));
    let churners = quick.iter().zip(100..).map(|(client, number)| {
        let (client, stop) = (client.clone(), stop.clone());
        std::thread::spawn(move || churn(&client, &stop, Random::new(seed, number)))
    });
    let churners: Vec<_> = churners.collect();

    let mut random = Random::new(seed, 99);
    let mut killed = (0, 0);
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(200_000)));
        let host = random.pick(&hosts);
        let workers = host.workers();
        if !workers.is_empty() {
            proc::signal(*random.pick(&workers), libc::SIGKILL);
            killed.0 += 1;
        }
        if round % 10 == 9 {
            // The one before may have been killed just now: it comes back by itself, and only then can be killed again.
            let node = poll("a node lives", Duration::from_secs(10), || {
                host.nodes().first().copied().ok_or_else(|| "none".to_owned())
            });
            std::thread::sleep(Duration::from_millis(random.below(300)));
            proc::signal(node, libc::SIGKILL);
            killed.1 += 1;
            if killed.1 % 3 == 0 {
                // Under load it becomes whole again, and the next workers are killed in the middle of healthy calls.
                ready(&clients, 2);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let churned: Vec<_> = churners.into_iter().map(|thread| thread.join().expect("a thread")).collect();
    let increments: u64 = churned.iter().map(|(increments, _)| increments).sum();
    let wrong: Vec<&String> = churned.iter().flat_map(|(_, wrong)| wrong).collect();
    let ledger = load.stop();
    println!("killed {} workers and {} nodes; {}", killed.0, killed.1, ledger.line());
    assert!(wrong.is_empty(), "{wrong:#?}");

    for client in &clients {
        let info = client.info();
        println!("{}: {} bytes used by {} entries", client.name, info.memory_used, client.metric("ephpm_kv_entries"));
    }
    ready(&clients, 2);
    let finals = settled(&clients, &ledger.keys());
    let lost = |reason: &str| metric_sum(&clients, &format!("ephpm_kv_lost_total{{reason=\"{reason}\"}}"));
    let [ended, unresolved, full] = ["window_ended", "unresolved", "memory_full"].map(lost);
    println!("lost: {ended} in windows that ended, {unresolved} unresolved, {full} for want of memory");
    println!("of {increments} increments in windows that end");
    let recoveries = metric_sum(&clients, "ephpm_kv_lock_recoveries_total");
    println!("lock recoveries: {recoveries}");
    // A few in a thousand workers die with a lock: in a short storm it may be none.
    assert!(kills < 1_000 || recoveries > 0.0, "no worker was killed where it matters");
    println!("writes refused for want of memory: {}", metric_sum(&clients, "ephpm_kv_memory_full_total"));
    println!("values evicted: {}", metric_sum(&clients, "ephpm_kv_evictions_total"));
    // The load's counters never end: of these only what a killed node took with it may be missing.
    ledger.check(&finals, (unresolved + full) as i64);
    assert!(ended <= increments as f64, "more lost than there was");
    for (host, client) in hosts.iter().zip(&clients) {
        assert_eq!(host.nodes(), [client.node_pid()], "{}", host.plan.name);
        assert!(!host.log().contains("as a client"), "{}: no other segment has ever had its place", host.plan.name);
    }
    for host in hosts {
        let segment = host.segment();
        host.stop(libc::SIGQUIT);
        let options = StoreOptions { clustered: true, value_max: 1 << 20 };
        let store = Store::try_open(segment, Clock::System, options).expect("a store");
        store.verify().expect("everything in the store fits together");
    }
}

/// Needs php8.2-apcu. For comparison only: nothing of ours is in it.
#[test]
#[ignore = "the same storm on APCu: cargo nextest run --run-ignored only --no-capture --test fpm apcu"]
fn the_same_storm_on_apcu() {
    let kills = number("EPHPM_KV_KILLS", 1_000);
    let seed = seed();
    let plan = Plan::new("apcu", 1, &[]).php(&["extension=apcu.so", "apc.enabled=1", "apc.shm_size=4M"]);
    // Loaded, and does nothing.
    let host = Fpm::start(&plan.set("enabled", "0"));
    let client = host.client(0).within(LIMIT);
    let request = || Request::new("apcu.php").arg("seed", 1).arg("n", 50);
    assert_eq!(client.body(request()), "done", "APCu is there");
    let (stop, hung) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let callers = (0..4).map(|number| {
        let (client, stop, hung) = (client.clone(), stop.clone(), hung.clone());
        let mut random = Random::new(seed, number);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
                let request = Request::new("apcu.php").arg("seed", random.below(1 << 31)).arg("n", CHURN);
                if let Err(Failure::TimedOut(_)) = client.send(request) {
                    hung.store(true, Ordering::Relaxed);
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut random = Random::new(seed, 99);
    let mut killed = 0;
    while killed < kills && !hung.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(random.below(200_000)));
        let workers = host.workers();
        if !workers.is_empty() {
            proc::signal(*random.pick(&workers), libc::SIGKILL);
            killed += 1;
        }
        // A worker that hangs is not seen to when it is killed next.
        if killed % 20 == 0 && matches!(client.send(request()), Err(Failure::TimedOut(_))) {
            hung.store(true, Ordering::Relaxed);
        }
    }
    let hangs = hung.load(Ordering::Relaxed);
    println!("APCu: {killed} workers killed, {}", if hangs { "then a request hung" } else { "no request hung" });
    if hangs {
        // Nobody else gets on either, and nobody will.
        let answered = (0..4).filter(|_| client.send(request()).is_ok()).count();
        println!("APCu: of 4 requests after that {answered} were answered within {LIMIT:?}");
    }
    stop.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().expect("a thread"));
}
