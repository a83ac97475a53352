//! Scripts as cron starts them, several a second, with the settings of a host.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::hosts::proc;
use crate::shared::cluster::Cluster;
use crate::shared::host::{Spec, php};
use crate::shared::number;
use crate::support::facts::{Facts, PRINT, UNTIL_READY, errors, printed, wait_value};

/// Scripts per second.
const RATE: u32 = 10;

fn two_hosts() -> Cluster {
    Cluster::with(2, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    })
}

fn start(spec: &Spec, code: &str) -> Child {
    let mut command = php(spec);
    command.args(["-r", code, "--", "2"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("php starts")
}

/// Starts scripts for some seconds, each at its time. What they have printed, and the longest time one took.
fn run_all(spec: &Spec, code: &str) -> (Vec<String>, Duration) {
    let count = RATE * number("EPHPM_KV_TEST_SECONDS", 3) as u32;
    let begun = Instant::now();
    let running: Vec<_> = (0..count)
        .map(|number| {
            let due = Duration::from_secs(1) * number / RATE;
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let (started, child) = (Instant::now(), start(spec, code));
            std::thread::spawn(move || {
                let output = child.wait_with_output().expect("its end");
                assert_eq!(errors(&output), "");
                (printed(&output), started.elapsed())
            })
        })
        .collect();
    let (all, times): (Vec<_>, Vec<_>) = running.into_iter().map(|thread| thread.join().expect("a script")).unzip();
    (all, times.into_iter().max().unwrap_or_default())
}

#[test]
fn scripts_of_a_host_that_has_no_node_are_clients_for_themselves() {
    let mut cluster = two_hosts();
    let host = cluster.hosts.remove(0);
    let spec = host.spec.clone();
    assert!(host.quit().success());
    cluster.wait_ready();
    let mut script = spec.clone();
    script.ini.insert("role".into(), "auto".into());
    // The port is somebody else's, and stays so.
    let taken = std::net::TcpListener::bind(("127.0.0.1", spec.port)).expect("the host's port");
    let (all, longest) = run_all(&script, &format!("ephpm_kv_incr('cron'); echo getmypid(), ' '; {PRINT}"));
    println!("the slowest took {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    for text in &all {
        let (pid, facts) = text.split_once(' ').expect("a number first");
        assert_eq!(Facts::read(facts).node_id, format!("host0#{pid}"));
    }
    drop(taken);
    let peer = &mut cluster.hosts[0];
    peer.wait_ready(1);
    assert!(proc::port_is_free(spec.port));
    // What was counted by scripts that ended long before they were part of the cluster has come home, too.
    wait_value(&mut [peer], "cron", |value| value == all.len() as i64);
    cluster.quit();
}

#[test]
fn scripts_of_a_host_with_a_node_are_part_of_it() {
    let mut cluster = two_hosts();
    let before: Vec<Facts> = cluster.hosts.iter_mut().map(Facts::of).collect();
    let mut script = cluster.hosts[0].spec.clone();
    script.ini.insert("role".into(), "auto".into());
    let [own, others] = ["host0", "host1"].map(|owner| cluster.keys_owned_by(owner, "cron", 1).remove(0));
    let (all, _) = run_all(
        &script,
        &format!(
            "foreach (['{own}', '{others}'] as $key) {{ ephpm_kv_incr($key); if (ephpm_kv_degraded()) {{ echo 'degraded '; }} }} {PRINT}"
        ),
    );
    for text in &all {
        assert_eq!(Facts::read(text), before[0]);
    }
    let [one, two] = &mut cluster.hosts[..] else { unreachable!() };
    for key in [own, others] {
        wait_value(&mut [one, two], &key, |value| value == all.len() as i64);
    }
    let after: Vec<Facts> = cluster.hosts.iter_mut().map(Facts::of).collect();
    assert_eq!(after, before, "nobody came or went");
    cluster.quit();
}

#[test]
fn a_script_that_waits_until_it_is_ready_counts_right() {
    let mut cluster = two_hosts();
    let host = cluster.hosts.remove(0);
    let mut script = host.spec.clone();
    assert!(host.quit().success());
    cluster.wait_ready();
    script.ini.insert("role".into(), "auto".into());
    for round in 1..=3 {
        let code = format!("{UNTIL_READY} echo ephpm_kv_incr('patient'), ' ', (int)ephpm_kv_degraded();");
        let output = start(&script, &code).wait_with_output().expect("its end");
        assert_eq!((printed(&output), errors(&output)), (format!("{round} 0"), String::new()));
    }
    cluster.quit();
}
