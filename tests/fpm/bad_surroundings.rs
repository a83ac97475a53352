//! Surroundings in which a host cannot be whole: PHP serves, counting works, and the log says why.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::shared::poll;
use crate::support::fpm::{Fpm, Plan, Pool};
use crate::support::{is_root, plans, ready};

/// A path for the host socket that everybody may write to.
fn socket_path(dir: &TempDir) -> PathBuf {
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("permissions");
    dir.path().join("host.sock")
}

fn at(path: &Path) -> Plan {
    plans(1).remove(0).set("socket", &path.display().to_string())
}

/// Waits until the log has a line with all of this.
fn log_says(host: &Fpm, words: &[&str]) {
    poll(&format!("the log says {words:?}"), Duration::from_secs(10), || {
        let log = host.log();
        match log.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            Some(line) => {
                println!("{line}");
                Ok(())
            }
            None => Err(log),
        }
    });
}

/// Counts up to 5, whether degraded or not.
fn counts(host: &Fpm) {
    let client = host.client(0);
    let values: Vec<i64> = (0..5).map(|_| client.incr("bad").0).collect();
    assert_eq!(values, [1, 2, 3, 4, 5]);
}

/// A process of user `nobody` that listens on a Unix socket; ends with the value.
struct Squatter(Child);

impl Squatter {
    fn listen(path: &Path) -> Self {
        let code = "$server = stream_socket_server('unix://' . $argv[1]); chmod($argv[1], 0777); sleep(60);";
        let mut command = Command::new(std::env::var("PHP").unwrap_or_else(|_| "php".into()));
        command.args(["-n", "-r", code]).arg(path).uid(65_534).gid(65_534).stdin(Stdio::null());
        let squatter = Self(command.spawn().expect("php starts"));
        poll("it listens", Duration::from_secs(5), || {
            let mode = fs::metadata(path).map(|meta| meta.permissions().mode() & 0o777);
            if mode.as_ref().ok() == Some(&0o777) { Ok(()) } else { Err(format!("{mode:?}")) }
        });
        squatter
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_host_socket_that_another_user_holds() {
    if !is_root() {
        println!("not run: another user needs root");
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let path = socket_path(&dir);
    let squatter = Squatter::listen(&path);
    let host = Fpm::start(&at(&path));
    counts(&host);
    log_says(&host, &[&path.display().to_string()]);
    drop(squatter);
    host.stop(libc::SIGQUIT);
}

#[test]
fn a_host_socket_that_a_dead_process_has_left() {
    let dir = TempDir::new().expect("a directory");
    let path = socket_path(&dir);
    // Everything of a host is killed, so nobody removes its socket.
    let killed = Fpm::start(&at(&path));
    ready(&[killed.client(0)], 1);
    drop(killed);
    assert!(path.exists());
    let host = Fpm::start(&at(&path));
    let client = host.client(0);
    ready(std::slice::from_ref(&client), 1);
    assert_eq!(client.incr("stale"), (1, false));
    // The place is this host's now: a script with the same settings finds it.
    let output = crate::support::fpm::php(host.path())
        .args(["-r", "echo ephpm_kv_incr('stale'), ' ', ephpm_kv_info()['node_pid'];"])
        .output()
        .expect("php runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("2 {}", client.node_pid()));
    host.stop(libc::SIGQUIT);
}

#[test]
fn too_few_descriptors_for_a_node() {
    let plan = plans(1).remove(0).pools([Pool::new("www", 2, "www-data").line("rlimit_files = 12")]);
    let host = Fpm::start(&plan);
    counts(&host);
    log_says(&host, &["open files"]);
    host.stop(libc::SIGQUIT);
}
