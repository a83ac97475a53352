//! Settings that change how a host runs: where it logs, where its node runs, how long it waits.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Value};

#[test]
fn every_host_logs_to_its_file_by_its_level() {
    let dir = TempDir::new().expect("a directory");
    let levels = ["error", "warn", "info"];
    let cluster = Cluster::with(3, |spec| {
        let index: usize = spec.name[4..].parse().expect("a number");
        spec.ini.insert("log".into(), dir.path().join(&spec.name).display().to_string());
        spec.ini.insert("log_level".into(), levels[index].into());
    });
    let specs: Vec<_> = cluster.hosts.iter().map(|host| host.spec.clone()).collect();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("a log");
    for (name, hidden) in [("host0", ["WARN", "INFO"].as_slice()), ("host1", &["INFO"])] {
        let log = read(name);
        for level in hidden {
            assert!(!log.contains(&format!(" {level} ")), "{name}: {log}");
        }
    }
    assert!(read("host2").contains(" INFO "), "{}", read("host2"));
    for name in ["host0", "host1", "host2"] {
        for line in read(name).lines() {
            assert!(line.starts_with("ephpm_kv: 2"), "{name}: {line}");
        }
    }
    for spec in &specs {
        assert_eq!(spec.stderr(), "", "{}: the file has it", spec.name);
    }
    cluster.quit();
}

/// `/dev/log`, if nobody has it; gone with the value.
struct DevLog(UnixDatagram);

impl DevLog {
    fn take() -> Option<Self> {
        let socket = UnixDatagram::bind("/dev/log").ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        Some(Self(socket))
    }
}

impl Drop for DevLog {
    fn drop(&mut self) {
        let _ = std::fs::remove_file("/dev/log");
    }
}

#[test]
fn syslog_gets_whole_lines_and_the_lack_of_it_stops_nobody() {
    let dir = TempDir::new().expect("a directory");
    let mut spec = specs(1, dir.path()).remove(0);
    spec.ini.insert("log".into(), "syslog".into());
    spec.ini.insert("join".into(), "no-such-host.invalid:7400".into());
    if !Path::new("/dev/log").exists() {
        let mut host = Host::start(&spec);
        assert_eq!(host.incr("syslog", 1), (1, true), "a script counts wherever it may log");
        assert!(host.quit().success());
    }
    let Some(log) = DevLog::take() else {
        // Somebody else reads it: all that shows is that nothing went wrong.
        let mut host = Host::start(&spec);
        assert_eq!(host.incr("syslog", 1), (1, true));
        assert!(host.quit().success());
        return;
    };
    std::fs::write(spec.stderr_path(), "").expect("an empty file");
    let mut host = Host::start(&spec);
    assert_eq!(host.incr("syslog", 1), (1, true));
    let mut buffer = [0; 2_048];
    let line = loop {
        let length = log.0.recv(&mut buffer).expect("a line");
        let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(line.starts_with(&format!("<28>ephpm_kv[{}]: ", host.pid())), "{line}");
        if line.contains("no-such-host.invalid") {
            break line;
        }
    };
    println!("{line}");
    assert_eq!(spec.stderr(), "");
    assert!(host.quit().success());
}

#[test]
fn a_short_deadline_is_kept_and_a_long_one_is_used() {
    for (timeout_ms, stopped_ms) in [(20_u64, 300_u64), (3_000, 300)] {
        let mut cluster = Cluster::with(2, |spec| {
            spec.ini.insert("timeout_ms".into(), timeout_ms.to_string());
        });
        let key = cluster.keys_owned_by("host1", "deadline", 1).remove(0);
        assert_eq!(cluster.hosts[0].incr(&key, 1), (1, false));
        cluster.hosts[1].stop();
        let group = cluster.hosts[1].pid() as i32;
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(stopped_ms));
            // SAFETY: no memory is involved; the host outlives this thread.
            unsafe { libc::kill(-group, libc::SIGCONT) };
        });
        let answer = cluster.hosts[0].call("ephpm_kv_incr", &[Value::text(&key)]);
        waker.join().expect("the waker");
        assert_eq!(answer.value, Value::Int(2), "{timeout_ms} ms");
        if timeout_ms < stopped_ms {
            assert!(answer.degraded && answer.elapsed < Duration::from_millis(stopped_ms / 2), "{answer:?}");
        } else {
            assert!(!answer.degraded && answer.elapsed < Duration::from_millis(timeout_ms), "{answer:?}");
        }
        cluster.wait_value(&key, 2, Duration::from_secs(5));
        cluster.quit();
    }
}

#[test]
fn degraded_answers_are_worth_a_warning_and_a_start_is_not() {
    let dir = TempDir::new().expect("a directory");
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("log".into(), dir.path().join(&spec.name).display().to_string());
        spec.ini.insert("log_level".into(), "warn".into());
    });
    let read = || std::fs::read_to_string(dir.path().join("host0")).expect("a log");
    assert!(!read().contains("catching up"), "nothing is wrong: {}", read());
    let key = cluster.keys_owned_by("host2", "warn", 1).remove(0);
    let before = read().len();
    cluster.hosts.pop().expect("host2").kill();
    let (_, degraded) = cluster.hosts[0].incr(&key, 1);
    assert!(degraded);
    crate::support::poll("a line warns", Duration::from_secs(10), || {
        let log = read()[before..].to_string();
        if log.contains("WARN") && log.contains("degraded") { Ok(()) } else { Err(log) }
    });
    cluster.quit();
}
