//! Many small hosts, members and clients mixed: they form one cluster, count right, and go on when a third of them is
//! killed at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ephpm_kv::placement;

use tempfile::TempDir;

use crate::support::accounts::{after_kill, reconcile};
use crate::support::cluster::specs;
use crate::support::host::{Host, Spec};
use crate::support::load::{Load, history, wait};
use crate::support::{now_ns, number, poll, seed};

/// `ephpm_kv.replicas`.
const REPLICAS: usize = 2;

/// Up to this many members everyone has every counter.
const COPY_ALL_MAX: usize = 16;

/// What the dead may have acknowledged and not yet replicated: on a machine with many more nodes than cores.
const LAG_MS: u64 = 1_000;

/// Time for so many nodes to get somewhere on a small machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Every third host is a client, which owns nothing.
fn is_client(index: usize) -> bool {
    index % 3 == 2
}

fn small(count: usize, dir: &std::path::Path) -> Vec<Spec> {
    let mut specs = specs(count, dir);
    let seeds: Vec<String> = specs.iter().take(3).map(|spec| spec.ini["bind"].clone()).collect();
    for (index, spec) in specs.iter_mut().enumerate() {
        spec.ini.insert("join".into(), seeds.join(","));
        spec.ini.insert("memory".into(), "4M".into());
        spec.ini.insert("log_level".into(), "warn".into());
        // Nothing here is about answers that come late.
        spec.ini.insert("timeout_ms".into(), "1000".into());
        if is_client(index) {
            spec.ini.insert("role".into(), "client".into());
        }
    }
    specs
}

/// Makes calls, so that nodes start, until every host is ready and sees all.
fn wait_ready(hosts: &mut [Host]) {
    let count = hosts.len() as u64;
    for host in hosts.iter_mut() {
        host.run("ephpm_kv_get('warm');");
    }
    for host in hosts {
        poll(&format!("{} is ready with {count}", host.spec.name), PATIENCE, || {
            host.run("ephpm_kv_get('warm');");
            let info = host.info();
            if info.state == "ready" && info.members == count { Ok(()) } else { Err(format!("{info:?}")) }
        });
    }
}

/// Seconds of processor time that a process has used.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// What the nodes cost while nobody calls.
fn show_cost(hosts: &mut [Host]) {
    let time = Duration::from_secs(3);
    let before: Vec<f64> = hosts.iter().map(|host| cpu(host.pid())).collect();
    std::thread::sleep(time);
    let spent: Vec<f64> =
        hosts.iter().zip(before).map(|(host, then)| (cpu(host.pid()) - then) / time.as_secs_f64() * 100.0).collect();
    let rss: Vec<f64> = hosts.iter_mut().map(|host| host.usage()[0].rss_kib as f64 / 1024.0).collect();
    let line = |what: &str, values: &[f64]| {
        let most = values.iter().copied().fold(0.0, f64::max);
        println!("{what}: mean {:.2}, most {most:.2}", values.iter().sum::<f64>() / values.len() as f64);
    };
    line("idle, % of one core per host", &spent);
    line("resident MiB per host, PHP included", &rss);
}

/// The counters as one host sees them.
fn seen(host: &mut Host, keys: &[String]) -> Vec<i64> {
    let names: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
    let code = format!("foreach ([{}] as $key) {{ echo (int)ephpm_kv_get($key), \"\\n\"; }}", names.join(","));
    host.run(&code).lines().map(|line| line.parse().expect("a number")).collect()
}

/// The counters once all hosts see the same.
fn agreed(hosts: &mut [Host], keys: &[String]) -> BTreeMap<String, i64> {
    let values = poll("the hosts agree", PATIENCE, || {
        let first = seen(&mut hosts[0], keys);
        for host in &mut hosts[1..] {
            let other = seen(host, keys);
            if let Some(index) = first.iter().zip(&other).position(|(one, two)| one != two) {
                let (key, one, two) = (&keys[index], first[index], other[index]);
                return Err(format!("{key} is {one} on the first host, {two} on {}", host.spec.name));
            }
        }
        Ok(first)
    });
    keys.iter().cloned().zip(values).collect()
}

/// The keys of which somebody who lives on has a copy: with many members only the owner and its replicas do.
fn survive(keys: Vec<String>, members: &[&str], dead: impl Fn(&str) -> bool) -> Vec<String> {
    let holders = if members.len() <= COPY_ALL_MAX { members.len() } else { 1 + REPLICAS };
    let lives = |key: &String| {
        let order = placement::order(placement::slot(key.as_bytes()), members);
        order.into_iter().take(holders).any(|index| !dead(members[index]))
    };
    keys.into_iter().filter(lives).collect()
}

fn sum(hosts: &mut [Host], metric: &str) -> i128 {
    hosts.iter_mut().map(|host| host.metric(metric) as i128).sum()
}

#[test]
fn many_small_hosts_count_right_and_survive_a_third_of_them_killed_at_once() {
    let seed = seed();
    let count = number("EPHPM_KV_NODES", 12) as usize;
    let dir = TempDir::new().expect("a directory");
    let specs = small(count, dir.path());
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    let members: Vec<&str> = (0..count).filter(|index| !is_client(*index)).map(|index| names[index].as_str()).collect();
    let begun = Instant::now();
    let mut hosts: Vec<Host> = specs.iter().map(Host::start).collect();
    wait_ready(&mut hosts);
    let formed = begun.elapsed().as_secs_f64();
    let used: f64 = hosts.iter().map(|host| cpu(host.pid())).sum::<f64>() / count as f64;
    println!(
        "{count} hosts, {} of them members, formed within {formed:.1} s, {used:.2} s of processor time each",
        members.len()
    );
    show_cost(&mut hosts);

    // One counter, counted from everywhere.
    for turn in 0..2 * count {
        assert_eq!(hosts[turn % count].incr("all", 1), (turn as i64 + 1, false), "turn {turn}");
    }
    let all = agreed(&mut hosts, &["all".to_owned()]);
    assert_eq!(all["all"], 2 * count as i64);

    // A third is killed while all count: members and clients, a seed among them.
    let dead = |name: &str| names.iter().position(|one| one == name).is_some_and(|index| index % 3 == (index / 3) % 3);
    let keys: Vec<String> = (0..60).map(|number| format!("many:{number}")).collect();
    let keys = survive(keys, &members, dead);
    println!("{} of 60 keys have a copy outside the third that dies", keys.len());
    let load = Load::new(1, seed).keys(&keys).with("mix", "incr").with("low", 1).with("high", 9);
    let load = load.with("pause_us", 1_000 * count).with("intent", 1).with("stop", dir.path().join("stop").display());
    load.start_all(&mut hosts, dir.path());
    std::thread::sleep(Duration::from_secs(3));
    let (victims, mut hosts): (Vec<Host>, Vec<Host>) = hosts.into_iter().partition(|host| dead(&host.spec.name));
    println!("killed: {}", victims.iter().map(|host| host.spec.name.as_str()).collect::<Vec<_>>().join(" "));
    let killed_at = now_ns();
    let specs = Host::kill_all(victims);
    poll("the others know", PATIENCE, || {
        let views: Vec<u64> = hosts.iter_mut().map(|host| host.info().members).collect();
        if views.iter().all(|view| *view == hosts.len() as u64) { Ok(()) } else { Err(format!("{views:?}")) }
    });
    println!("all survivors see the rest {:.1} s after the kill", (now_ns() - killed_at) as f64 / 1e9);
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(dir.path().join("stop"), "").expect("a file");
    for host in &mut hosts {
        wait(host, PATIENCE);
    }
    agreed(&mut hosts, &keys);

    // What became of the calls that were on their way to them is certain once they are back under their names.
    hosts.extend(specs.iter().map(Host::start));
    wait_ready(&mut hosts);
    poll("no call is unresolved", PATIENCE, || match sum(&mut hosts, "ephpm_kv_unresolved") {
        0 => Ok(()),
        open => Err(format!("{open}")),
    });
    let mut lost = |reason: &str| sum(&mut hosts, &format!("ephpm_kv_lost_total{{reason=\"{reason}\"}}"));
    assert_eq!((lost("window_ended"), lost("memory_full")), (0, 0));
    let dropped = lost("unresolved");
    let values = agreed(&mut hosts, &keys);
    let history = history(dir.path());
    let increments = history.increments();
    let explain = |key: &String| {
        let open = history.unfinished.iter().filter(|open| open.key == *key).map(|open| open.delta);
        let calls = &increments[key.as_str()];
        after_kill(calls, &open.collect::<Vec<i64>>(), values[key], killed_at, LAG_MS, dropped)
            .unwrap_or_else(|reason| panic!("{key}: {reason}"))
    };
    let accounts = reconcile(&keys.iter().map(explain).collect::<Vec<_>>(), dropped).expect("the sums");
    let lost: Vec<_> = accounts.iter().flat_map(|account| &account.lost).collect();
    let oldest = lost.iter().map(|call| killed_at.saturating_sub(call.end) as f64 / 1e6).fold(0.0, f64::max);
    println!(
        "{} calls, {} degraded; {} acknowledged increments lost, the oldest {oldest:.1} ms before the kill; {dropped} dropped",
        history.calls.len(),
        history.calls.iter().filter(|call| call.degraded).count(),
        lost.len(),
    );
    for (turn, key) in keys.iter().enumerate() {
        let host = &mut hosts[turn % count];
        assert_eq!(host.incr(key, 1), (values[key] + 1, false), "{key} on {}", host.spec.name);
    }
    // All at once: in order, one after the other, each would hand its slots to the next.
    Host::kill_all(hosts);
}
