//! Scripts on the command line that fork, with the node in a process of its own, and what scripts leave running.

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::hosts::proc::{self, Sleepers};
use crate::shared::cluster::specs;
use crate::shared::host::{Host, Spec, php, root};
use crate::shared::poll;
use crate::support::facts::printed;

/// A cluster of one, with a name that no other host has: its processes are looked for.
fn alone(dir: &TempDir, runtime: &str) -> Spec {
    let mut spec = specs(1, dir.path()).remove(0);
    spec.name = format!("fork-{}", spec.port);
    spec.ini.insert("node_id".into(), spec.name.clone());
    spec.ini.insert("runtime".into(), runtime.into());
    spec
}

/// No node of this host runs, and its port and socket can be had.
fn nothing_left(spec: &Spec) {
    poll("nothing is left", Duration::from_secs(5), || {
        let nodes = proc::nodes(&spec.name);
        let sockets = proc::unix_sockets(&format!("@ephpm_kv/ephpm/127.0.0.1:{}", spec.port));
        let free = proc::port_is_free(spec.port);
        if sockets.is_empty() && free && nodes.is_empty() {
            Ok(())
        } else {
            Err(format!("{nodes:?} {sockets:?} {free}"))
        }
    });
}

#[test]
fn a_script_that_forks_has_its_node_in_a_process_and_ends_with_it() {
    let dir = TempDir::new().expect("a directory");
    let spec = alone(&dir, "process");
    let scripts = [
        ("fork_after.php", vec!["after", "500"], "RESULT 2001 0 0,0,0\n"),
        ("fork_before.php", vec!["before"], "RESULT 5 12 1 0\n"),
    ];
    for (script, arguments, expected) in scripts {
        let mut command = php(&spec);
        command.arg(root().join("tests/php").join(script)).args(arguments).stdin(Stdio::null());
        let output = command.output().expect("php runs");
        let text = printed(&output);
        assert!(text.ends_with(expected), "{script}: {text}");
        nothing_left(&spec);
    }
}

#[test]
fn what_a_script_leaves_running_keeps_neither_node_nor_segment() {
    for runtime in ["thread", "process"] {
        let dir = TempDir::new().expect("a directory");
        let spec = alone(&dir, runtime);
        let mut host = Host::start(&spec);
        host.wait_ready(1);
        let code = "echo exec('sleep 60 >/dev/null 2>&1 </dev/null & echo $!'), ' ';
            $process = proc_open(['sh', '-c', 'sleep 60 >/dev/null 2>&1 </dev/null & echo $!'], [1 => ['pipe', 'w']], $pipes);
            echo trim(stream_get_contents($pipes[1]));
            proc_close($process);";
        let sleepers = Sleepers::read(&host.run(code));
        assert_eq!(sleepers.0.len(), 2);
        for pid in &sleepers.0 {
            poll("it sleeps", Duration::from_secs(5), || {
                let comm = proc::comm(*pid);
                if comm == "sleep" { Ok(()) } else { Err(comm) }
            });
            for (number, link) in proc::descriptors(*pid) {
                assert!(
                    !link.contains("memfd:") && !link.starts_with("socket:"),
                    "{pid}: descriptor {number} is {link}"
                );
            }
        }
        assert!(host.quit().success());
        nothing_left(&spec);
        assert!(sleepers.0.iter().all(|pid| proc::alive(*pid)), "they were to outlive the host");
    }
}
