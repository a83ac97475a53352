//! Processes that do not get the segment of their host's node: they take part in the cluster as clients of their own.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::hosts::{is_root, plans, ready};
use crate::shared::cluster::Cluster;
use crate::shared::host::{Spec, php};
use crate::shared::poll;
use crate::support::facts::{Facts, PRINT, UNTIL_READY, another, errors, printed, wait_value};
use crate::support::server::{Kind, WebServer};

const NOBODY: u32 = 65_534;

fn two_hosts() -> Cluster {
    Cluster::with(2, |spec| {
        spec.ini.insert("timeout_ms".into(), "2000".into());
    })
}

/// A script that waits until it sees so many members, counts once with each key, and prints values, whether one was
/// degraded, and its facts.
fn counting(mut command: Command, members: usize, keys: &[String; 2]) -> Command {
    let [own, others] = keys;
    let code = format!(
        "{UNTIL_READY} $d = 0; foreach (['{own}', '{others}'] as $key) {{ echo ephpm_kv_incr($key), ' '; \
         $d += (int)ephpm_kv_degraded(); }} echo $d, ' '; {PRINT}"
    );
    command.arg("-r").arg(code).arg("--").arg(members.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What it has printed: the two values, how many were degraded, and the facts.
fn counted(output: &Output) -> ([i64; 3], Facts) {
    let text = printed(output);
    let fields: Vec<&str> = text.splitn(4, ' ').collect();
    let [own, others, degraded, facts] = fields[..] else { panic!("{text}{}", errors(output)) };
    let numbers =
        [own, others, degraded].map(|field| field.parse().unwrap_or_else(|_| panic!("{text}{}", errors(output))));
    (numbers, Facts::read(facts))
}

/// Runs such scripts while a host of the cluster is there: each is a client with its process in the name, counts right,
/// and says on stderr why it is not attached.
fn counts_as_a_client(command: impl Fn(&Spec) -> Command, why: &str) {
    let mut cluster = two_hosts();
    let keys = ["host0", "host1"].map(|owner| cluster.keys_owned_by(owner, "refused", 1).remove(0));
    let before = Facts::of(&mut cluster.hosts[0]);
    for round in 1..=2 {
        let child = counting(command(&cluster.hosts[0].spec), 3, &keys).spawn().expect("it starts");
        let output = child.wait_with_output().expect("its end");
        let (numbers, facts) = counted(&output);
        println!("{facts:?}\n{}", errors(&output));
        assert_eq!(numbers, [round, round, 0], "{}", errors(&output));
        assert_ne!(facts.origin, before.origin, "a segment of its own");
        assert_eq!(facts.node_id, format!("host0#{}", facts.node_pid));
        assert!(errors(&output).contains(why), "{}", errors(&output));
    }
    let [one, two] = &mut cluster.hosts[..] else { unreachable!() };
    for key in &keys {
        wait_value(&mut [one, two], key, |value| value == 2);
    }
    one.wait_ready(2);
    assert_eq!(Facts::of(one).origin, before.origin);
    cluster.quit();
}

#[test]
fn a_user_that_has_no_process_in_the_segment() {
    if !is_root() {
        println!("not run: another user needs root");
        return;
    }
    let nobody = |spec: &Spec| {
        let mut command = php(spec);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    counts_as_a_client(nobody, "user 65534 has no PHP process here");
}

#[test]
fn a_process_of_another_pid_namespace() {
    if !is_root() {
        println!("not run: a namespace needs root");
        return;
    }
    let contained = |spec: &Spec| {
        let inner = php(spec);
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(inner.get_program())
            .args(inner.get_args());
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command
    };
    counts_as_a_client(contained, "pid namespace");
}

#[test]
fn a_release_with_another_layout() {
    let other_release = |spec: &Spec| {
        let mut command = php(spec);
        command.env("EPHPM_KV_TEST_LAYOUT", "99");
        command
    };
    counts_as_a_client(other_release, "layout");
}

#[test]
fn a_server_that_was_a_guest_becomes_the_host_when_the_place_is_free() {
    let plans = plans(2);
    let peer = WebServer::start(Kind::Apache, &plans[1]);
    let mut first = WebServer::start(Kind::Apache, &plans[0]);
    ready(&[first.client(), peer.client()], 2);
    let guest = WebServer::start_with(Kind::Apache, &plans[0], &[("EPHPM_KV_TEST_LAYOUT", "99")]);
    let name = &plans[0].name;
    let becomes = |what: &str, is_its_name: &dyn Fn(&str) -> bool, members: usize| {
        poll(what, Duration::from_secs(20), || {
            let info = guest.client().info();
            let is_it = is_its_name(&info.node_id) && info.state == "ready" && info.live.len() == members;
            if is_it { Ok(info) } else { Err(format!("{info:?}")) }
        })
    };
    let as_guest = becomes("a guest", &|id| id.starts_with(&format!("{name}#")), 3);
    assert_eq!(guest.client().incr("moves"), (1, false));
    first.signal(libc::SIGTERM);
    assert!(first.wait_for_its_end().success());
    let after = becomes("the host", &|id| id == name, 2);
    assert_eq!(after.origin, as_guest.origin, "the segment stays");
    assert_eq!(guest.client().incr("moves"), (2, false));
    // It stays so.
    let keys = peer.client().keys_owned_by(name, "moves", 1);
    assert_eq!(guest.client().incr(&keys[0]), (1, false));
    assert_eq!(guest.client().node_pid(), after.node_pid);
    guest.stop();
    peer.stop();
}

#[test]
fn a_process_that_is_not_to_meet_others() {
    let mut cluster = two_hosts();
    let keys = ["host0", "host1"].map(|owner| cluster.keys_owned_by(owner, "off", 1).remove(0));
    let mut spec = cluster.hosts[0].spec.clone();
    spec.ini.insert("socket".into(), "off".into());
    spec.ini.insert("role".into(), "auto".into());
    let output = counting(php(&spec), 3, &keys).output().expect("php runs");
    let (numbers, facts) = counted(&output);
    assert_eq!(numbers, [1, 1, 0]);
    assert_eq!(facts.node_id, format!("host0#{}", facts.node_pid));
    assert_ne!(facts.origin, Facts::of(&mut cluster.hosts[0]).origin);
    assert_eq!(errors(&output), "");
    // With the same settings but for that it is part of the host.
    let mut second = another(&cluster.hosts[0], "second");
    second.wait_ready(2);
    assert_eq!(Facts::of(&mut second).origin, Facts::of(&mut cluster.hosts[0]).origin);
    assert!(second.quit().success());
    cluster.quit();
}
