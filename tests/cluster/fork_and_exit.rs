//! Forks before and after the first use, the death of the process that runs the node, and clean ends.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::cluster::specs;
use crate::support::host::{Host, Spec, php, root};
use crate::support::poll;

/// A host in a cluster of one: it joins nobody, so it owns everything.
fn alone(dir: &TempDir) -> Spec {
    specs(1, dir.path()).remove(0)
}

fn script(spec: &Spec, name: &str, arguments: &[&str]) -> Command {
    let mut command = php(spec);
    command.arg(root().join("tests/php").join(name)).args(arguments).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The numbers after RESULT; the script must have ended with 0.
fn result(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT ")).unwrap_or_else(|| panic!("{text}{errors}"));
    line.split(' ').map(str::to_owned).collect()
}

/// Nobody of a process group lives, and both ports can be had again.
fn nothing_left(group: u32, port: u16) {
    poll("nothing is left", Duration::from_secs(5), || {
        // SAFETY: signal 0 only asks whether the group exists.
        let lives = unsafe { libc::kill(-(group as i32), 0) } == 0;
        let free = TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if !lives && free { Ok(()) } else { Err(format!("lives: {lives}, ports free: {free}")) }
    });
}

#[test]
fn children_forked_after_the_first_use_share_one_count() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir);
    let child = script(&spec, "fork_after.php", &["after", "500"]).spawn().expect("php starts");
    let group = child.id();
    assert_eq!(result(&child.wait_with_output().expect("its end")), ["2001", "0", "0,0,0"]);
    nothing_left(group, spec.port);
}

#[test]
fn a_child_forked_before_the_first_use_starts_the_node_for_all() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir);
    let child = script(&spec, "fork_before.php", &["before"]).spawn().expect("php starts");
    let group = child.id();
    assert_eq!(result(&child.wait_with_output().expect("its end")), ["5", "12", "1", "0"]);
    nothing_left(group, spec.port);
}

#[test]
fn a_child_takes_the_node_over_when_its_parent_is_killed() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir);
    let file = dir.path().join("result");
    let mut child =
        script(&spec, "parent_dies.php", &["dies", &file.display().to_string()]).spawn().expect("php starts");
    let group = child.id();
    assert!(!child.wait().expect("its end").success(), "the parent was to be killed");
    let text = poll("the child's result", Duration::from_secs(20), || {
        std::fs::read_to_string(&file).map_err(|error| error.to_string())
    });
    assert_eq!(text, "11 exact 0 1 1");
    nothing_left(group, spec.port);
}

#[test]
fn a_script_that_counts_ends_with_status_0_and_leaves_nothing() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir);
    for round in 0..15 {
        let mut command = php(&spec);
        let code = "$v = ephpm_kv_incr('exit'); echo 'RESULT ', $v, ' ', ephpm_kv_get('exit');";
        command.args(["-r", code]).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("php starts");
        let group = child.id();
        let output = child.wait_with_output().expect("its end");
        assert_eq!(result(&output), ["1", "1"], "round {round}");
        nothing_left(group, spec.port);
    }
}

#[test]
fn what_starts_no_request_starts_no_node() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir);
    // The port is taken: a node that started would have to say so.
    let _taken = TcpListener::bind(("127.0.0.1", spec.port)).expect("the port");
    for arguments in [["-m"].as_slice(), &["-i"], &["-r", "echo 1;"]] {
        let output = php(&spec).args(arguments).output().expect("php runs");
        assert!(output.status.success(), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}

#[test]
fn a_killed_worker_of_a_host_hurts_nobody() {
    const KEYS: [&str; 3] = ["killed:0", "killed:1", "killed:2"];
    let dir = TempDir::new().expect("a directory");
    let mut host = Host::start(&alone(&dir));
    host.wait_ready(1);
    for round in 0..10 {
        let before: i64 = KEYS.iter().map(|key| host.get(key)).sum();
        let pids = host.ask(&["load", "procs=2", "seed=1", "prefix=killed", "keys=3", "mix=incr", "calls=0"]);
        poll("they are counting", Duration::from_secs(10), || {
            let now: i64 = KEYS.iter().map(|key| host.get(key)).sum();
            if now > before + 100 { Ok(()) } else { Err(format!("{now}")) }
        });
        for pid in pids[0].split(',') {
            // SAFETY: the process is a child of our host that has not been waited for, so the number is still its own.
            unsafe { libc::kill(pid.parse().expect("a pid"), libc::SIGKILL) };
        }
        host.ask(&["wait"]);
        for key in KEYS {
            let before = host.get(key);
            assert_eq!(host.incr(key, 1), (before + 1, false), "round {round}");
        }
    }
    assert!(host.quit().success());
}
