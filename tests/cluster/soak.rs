//! The one-count load for half an hour (`make soak`), with memory, descriptors and threads of every process sampled.

use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::host::Usage;
use crate::support::load::Load;
use crate::support::{number, seed};

const SAMPLE: Duration = Duration::from_secs(10);

/// KiB that a process's resident memory may differ by between the second fifth of the run (pages are touched when
/// first used) and the last.
const SLACK_KIB: u64 = 2_048;

#[test]
#[ignore = "half an hour; make soak"]
fn memory_descriptors_and_threads_stay_flat() {
    let time = Duration::from_secs(number("EPHPM_KV_SOAK_SECONDS", 1_800));
    let seed = seed();
    let mut cluster = Cluster::new(3);
    let load = Load::new(4, seed).with("prefix", "soak").with("keys", 50).with("low", -5).with("high", 9);
    let load = load.with("mix", "incr,incr_ttl,incr_by").with("ttl", 60).with("pause_us", 500).lasting(time);
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        // No log: it would grow by gigabytes.
        load.start_without_log(host, index);
    }
    let started = Instant::now();
    let mut samples: Vec<Vec<Usage>> = Vec::new();
    println!(
        "{:>7}  {:>12}  {:>8}  {:>12}  {:>14}",
        "seconds", "max RSS KiB", "threads", "descriptors", "segment bytes"
    );
    while started.elapsed() + SAMPLE < time {
        std::thread::sleep(SAMPLE.min(time / 20));
        let sample: Vec<Usage> = cluster.hosts.iter_mut().flat_map(|host| host.usage()).collect();
        let used: u64 = cluster.hosts.iter_mut().map(|host| host.info().memory_used).sum();
        let most = |field: fn(&Usage) -> u64| sample.iter().map(field).max().unwrap_or(0);
        let sum = |field: fn(&Usage) -> u64| -> u64 { sample.iter().map(field).sum() };
        println!(
            "{:>7}  {:>12}  {:>8}  {:>12}  {used:>14}",
            started.elapsed().as_secs(),
            most(|usage| usage.rss_kib),
            sum(|usage| usage.threads),
            sum(|usage| usage.descriptors)
        );
        samples.push(sample);
    }
    // Single samples catch passing states, so the most of a stretch is compared with the most of another.
    let parts = samples.len() / 5;
    assert!(parts > 0, "too short to judge");
    let (warm, last) = (&samples[parts..2 * parts], &samples[samples.len() - parts..]);
    let most = |stretch: &[Vec<Usage>], process: usize| {
        let of = |field: fn(&Usage) -> u64| stretch.iter().map(|sample| field(&sample[process])).max().unwrap_or(0);
        (of(|usage| usage.rss_kib), of(|usage| usage.threads), of(|usage| usage.descriptors))
    };
    let mut verdict = Vec::new();
    for (process, first) in samples[0].iter().enumerate() {
        let (before, after) = (most(warm, process), most(last, process));
        if after.0 > before.0 + SLACK_KIB || after.1 > before.1 || after.2 > before.2 {
            let pid = first.pid;
            verdict.push(format!("{pid}: (KiB, threads, descriptors) {before:?} became {after:?}"));
        }
    }
    for host in &mut cluster.hosts {
        crate::support::load::wait(host, Duration::from_secs(60));
        // On a machine that does other work meanwhile some calls miss their deadline: that is not what this is about.
        let ops = |path: &str| format!("ephpm_kv_ops_total{{op=\"incr\",path=\"{path}\"}}");
        let [local, remote, degraded] = ["local", "remote", "degraded"].map(|path| host.metric(&ops(path)));
        println!("{}: {local} local, {remote} remote, {degraded} degraded increments", host.spec.name);
    }
    println!("verdict: {}", if verdict.is_empty() { "flat" } else { "not flat" });
    assert!(verdict.is_empty(), "not flat: {verdict:#?}");
    cluster.quit();
}
