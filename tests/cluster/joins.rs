//! A host that joins and leaves in order, again and again, while all count: nothing is lost, and only what must move
//! moves.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::accounts::{growing, nothing_lost};
use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Spec};
use crate::support::load::{Load, history, wait};
use crate::support::{number, poll, seed};

/// Keys whose owners are compared.
const KEYS: usize = 10_000;

/// Beyond one part in N, of the keys: the slots are drawn by a hash.
const POINTS: f64 = 0.02;

/// What the rounds came to.
#[derive(Default)]
struct Figures {
    calls: usize,
    degraded: usize,
    joined: Vec<f64>,
    left: Vec<f64>,
    join_ms: Vec<f64>,
    leave_ms: Vec<f64>,
}

impl Figures {
    fn show(&self, rounds: u64, members: usize) {
        let line = |what: &str, values: &[f64], scale: f64, unit: &str| {
            let most = values.iter().copied().fold(0.0, f64::max);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            println!("{what}: mean {:.2}{unit}, most {:.2}{unit}", mean * scale, most * scale);
        };
        println!("{rounds} joins and leaves, {} calls, {} of them degraded, none lost", self.calls, self.degraded);
        line("keys moved by a join", &self.joined, 100.0, "%");
        line("keys moved by a leave", &self.left, 100.0, "%");
        println!("  (1/N is {:.2}%, {KEYS} keys)", 100.0 / members as f64);
        line("start to ready", &self.join_ms, 1.0, " ms");
        line("leave", &self.leave_ms, 1.0, " ms");
    }
}

/// Every key's owner, as this host's table says.
fn owners(host: &mut Host) -> Vec<String> {
    let code = format!("for ($i = 0; $i < {KEYS}; $i++) {{ echo ephpm_kv_owner(\"owned:$i\"), \"\\n\"; }}");
    host.run(&code).lines().map(str::to_owned).collect()
}

/// The owners once all hosts name the same, and the newcomer (or not) among them.
fn settled_owners(hosts: &mut [Host], with: &str, among: bool) -> Vec<String> {
    poll("all know the owners", Duration::from_secs(10), || {
        let first = owners(&mut hosts[0]);
        if first.iter().any(|owner| owner == with) != among || first.iter().any(String::is_empty) {
            return Err(format!("{with} owns something: not {among}"));
        }
        for host in &mut hosts[1..] {
            if owners(host) != first {
                return Err(format!("{} knows others than {}", host.spec.name, "host0"));
            }
        }
        Ok(first)
    })
}

fn moved(before: &[String], after: &[String]) -> f64 {
    before.iter().zip(after).filter(|(one, two)| one != two).count() as f64 / before.len() as f64
}

fn lost(host: &mut Host) -> f64 {
    let of = |reason: &str| format!("ephpm_kv_lost_total{{reason=\"{reason}\"}}");
    ["window_ended", "memory_full", "unresolved"].iter().map(|reason| host.metric(&of(reason))).sum()
}

/// One join and one orderly leave, under load from beginning to end.
fn round(cluster: &mut Cluster, extra: &Spec, dir: &Path, load: &Load, figures: &mut Figures) {
    let stop = dir.join("stop");
    let load = load.clone().with("stop", stop.display());
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        load.start(host, index, dir);
    }
    let members = cluster.hosts.len() + 1;
    let before = settled_owners(&mut cluster.hosts, &extra.name, false);

    let begun = Instant::now();
    let mut newcomer = Host::start(extra);
    newcomer.wait_ready(members as u64);
    figures.join_ms.push(begun.elapsed().as_secs_f64() * 1_000.0);
    cluster.hosts.push(newcomer);
    let during = settled_owners(&mut cluster.hosts, &extra.name, true);
    let mut newcomer = cluster.hosts.pop().expect("the newcomer");
    // It counts to the last moment, too.
    load.clone().with("calls", 300).start(&mut newcomer, members, dir);
    wait(&mut newcomer, Duration::from_secs(60));
    assert_eq!(lost(&mut newcomer), 0.0, "{}", extra.name);
    let begun = Instant::now();
    let status = newcomer.quit();
    assert!(status.success(), "{status}");
    figures.leave_ms.push(begun.elapsed().as_secs_f64() * 1_000.0);
    let after = settled_owners(&mut cluster.hosts, &extra.name, false);

    std::fs::write(&stop, "").expect("a file");
    for host in &mut cluster.hosts {
        wait(host, Duration::from_secs(60));
    }
    assert_eq!(before, after, "who owned a key before owns it again");
    let strangers = before.iter().zip(&during).filter(|(one, two)| one != two && **two != extra.name).count();
    assert_eq!(strangers, 0, "keys moved between hosts that stayed");
    let most = 1.0 / members as f64 + POINTS;
    for (part, all) in [(moved(&before, &during), &mut figures.joined), (moved(&during, &after), &mut figures.left)] {
        assert!(part <= most, "{part} of the keys moved, {most} at most should have");
        all.push(part);
    }
}

/// Every increment of the round is in its counter exactly once, on every host.
fn account(cluster: &mut Cluster, dir: &Path, figures: &mut Figures) {
    let history = history(dir);
    let increments = history.increments();
    let values = cluster.settled(increments.keys().copied());
    for (key, calls) in &increments {
        assert!(calls.iter().all(|call| call.ret.is_some()), "{key}: a call failed");
        let account = nothing_lost(calls, values[*key]).unwrap_or_else(|reason| panic!("{key}: {reason}"));
        growing(calls, account.degraded).unwrap_or_else(|reason| panic!("{key}: {reason}"));
    }
    for host in &mut cluster.hosts {
        assert_eq!(lost(host), 0.0, "{}", host.spec.name);
        assert_eq!(host.metric("ephpm_kv_unresolved"), 0.0, "{}", host.spec.name);
    }
    figures.calls += history.calls.len();
    figures.degraded += history.calls.iter().filter(|call| call.degraded).count();
}

#[test]
fn joins_and_orderly_leaves_under_load_lose_nothing_and_move_little() {
    let seed = seed();
    let rounds = number("EPHPM_KV_JOINS", 3);
    let mut cluster = Cluster::new(3);
    // The newcomer's seeds are the others and itself.
    let mut extra = specs(1, cluster.path()).remove(0);
    let join = format!("{},{}", cluster.hosts[0].spec.ini["join"], extra.ini["bind"]);
    extra.name = "extra".into();
    extra.ini.insert("node_id".into(), extra.name.clone());
    extra.ini.insert("join".into(), join);
    let mut figures = Figures::default();
    for number in 0..rounds {
        let dir = cluster.path().join(format!("round{number}"));
        std::fs::create_dir(&dir).expect("a directory");
        let load = Load::new(2, seed + number).with("prefix", format!("round{number}")).with("keys", 40);
        let load = load.with("mix", "incr").with("low", 1).with("high", 9);
        round(&mut cluster, &extra, &dir, &load, &mut figures);
        account(&mut cluster, &dir, &mut figures);
        std::fs::remove_dir_all(&dir).expect("its logs");
    }
    figures.show(rounds, cluster.hosts.len() + 1);
    cluster.quit();
}
