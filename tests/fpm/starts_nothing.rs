//! What asks PHP about itself serves nothing, and so starts nothing.

use std::net::{TcpListener, UdpSocket};
use std::process::Command;

use tempfile::TempDir;

use crate::support::fpm::{php, php_fpm};
use crate::support::{plans, proc, start_all};

fn commands(dir: &std::path::Path) -> Vec<(Command, &'static str)> {
    let mut commands = vec![];
    for option in ["-t", "-m", "-i"] {
        commands.push((php_fpm(dir), option));
    }
    for option in ["-m", "-i"] {
        commands.push((php(dir), option));
    }
    commands
}

/// Runs them all; gives what they have printed.
fn run(dir: &std::path::Path) -> Vec<String> {
    let run = |(mut command, option): (Command, &str)| {
        let output = command.arg(option).output().expect("it runs");
        let [printed, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{command:?}: {}: {printed}{said}", output.status);
        assert!(!said.contains("ephpm_kv"), "{command:?}: {said}");
        if option == "-m" {
            assert!(printed.contains("ephpm_kv"), "{command:?}: {printed}");
        }
        printed
    };
    commands(dir).into_iter().map(run).collect()
}

#[test]
fn a_configured_cluster_is_not_started_by_questions() {
    let plan = plans(1).remove(0);
    let dir = TempDir::new().expect("a directory");
    plan.write(dir.path());
    {
        // The port is taken: whoever binds it has to say so.
        let _tcp = TcpListener::bind(("127.0.0.1", plan.port)).expect("the port");
        let _udp = UdpSocket::bind(("127.0.0.1", plan.port)).expect("the port");
        run(dir.path());
    }
    assert_eq!(proc::nodes(&plan.name), [0; 0]);
    assert!(proc::port_is_free(plan.port) && proc::unix_sockets(&plan.host_socket()).is_empty());
}

#[test]
fn questions_do_not_disturb_a_host_that_runs() {
    let hosts = start_all(&plans(2));
    let clients = [hosts[0].client(0), hosts[1].client(0)];
    let before = clients.each_ref().map(|client| client.info());
    run(hosts[0].path());
    for (client, before) in clients.iter().zip(before) {
        let after = client.info();
        assert_eq!((after.node_pid, after.epoch, after.live), (before.node_pid, before.epoch, before.live));
    }
    for host in hosts {
        host.stop(libc::SIGQUIT);
    }
}
