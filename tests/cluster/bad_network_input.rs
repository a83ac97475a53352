//! What a network may bring: garbage, strangers, names that do not resolve, ports that are taken, seeds that are not up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::cluster::{Cluster, specs};
use crate::support::host::{Host, Info, Value};
use crate::support::{poll, seed};

/// A host keeps counting, undisturbed, with all its members.
fn undisturbed(cluster: &mut Cluster, key: &str, value: i64) {
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        host.wait_ready(3);
        assert_eq!(host.incr(key, 1), (value + index as i64 + 1, false), "{}", host.spec.name);
    }
}

/// Makes a call, so that the node starts or tries again, and gives the state.
fn nudge(host: &mut Host) -> Info {
    host.call("ephpm_kv_get", &[Value::text("warm")]);
    host.info()
}

#[test]
fn a_frame_of_4_gib_is_refused_at_once() {
    let mut cluster = Cluster::new(3);
    let before: u64 = cluster.hosts[0].usage()[0].rss_kib;
    for announced in [u32::MAX, 1 << 31, 64 << 20] {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.hosts[0].spec.port)).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        stream.write_all(&announced.to_le_bytes()).expect("the length");
        let _ = stream.write_all(&[1; 64]);
        // Closed, with or without an answer first.
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        let timed_out = closed.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "{announced}: the connection was kept open");
        assert!(answer.len() < 4_096, "{announced}: {} bytes", answer.len());
    }
    let after = cluster.hosts[0].usage()[0].rss_kib;
    assert!(after < before + 32 * 1_024, "{before} KiB before, {after} KiB after");
    undisturbed(&mut cluster, "frame", 0);
    cluster.quit();
}

#[test]
fn random_bytes_on_both_ports_disturb_nobody() {
    let mut state = seed() | 1;
    let mut random = move |length: usize| -> Vec<u8> {
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..length).map(byte).collect()
    };
    let mut cluster = Cluster::new(3);
    let port = cluster.hosts[0].spec.port;
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for round in 0..5_000usize {
        socket.send_to(&random(round % 1_400), ("127.0.0.1", port)).expect("a datagram");
    }
    let mut refused = 0;
    for round in 0..100usize {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let mut bytes = random(1 + round * 7);
        if round % 2 == 0 && bytes.len() >= 4 {
            // A believable length, so that what follows is looked at.
            let length = (bytes.len() - 4) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        // It may be closed half-way.
        refused += usize::from(stream.write_all(&bytes).is_err());
    }
    println!("{refused} of 100 were closed while writing");
    undisturbed(&mut cluster, "noise", 0);
    cluster.quit();
}

#[test]
fn a_node_of_another_cluster_is_not_let_in() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.hosts[0].incr("stranger", 1), (1, false));
    let mut spec = specs(1, cluster.path()).remove(0);
    spec.name = "stranger".into();
    spec.ini.insert("node_id".into(), "stranger".into());
    spec.ini.insert("cluster_id".into(), "other".into());
    spec.ini.insert("join".into(), cluster.hosts[0].spec.ini["join"].clone());
    let mut stranger = Host::start(&spec);
    let deadline = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < deadline {
        let info = nudge(&mut stranger);
        assert_ne!(info.state, "ready", "{info:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(stranger.incr("stranger", 1), (1, true), "it counts alone, and says so");
    for host in &mut cluster.hosts {
        assert_eq!(host.info().members, 3, "{}", host.spec.name);
        assert_ne!(host.owner("stranger"), "stranger");
    }
    undisturbed(&mut cluster, "stranger", 1);
    assert!(stranger.quit().success());
    cluster.quit();
}

#[test]
fn a_seed_that_does_not_resolve_leaves_the_host_alone_flagged_and_told() {
    let dir = TempDir::new().expect("a directory");
    let mut spec = specs(1, dir.path()).remove(0);
    spec.ini.insert("join".into(), "no-such-host.invalid:7400".into());
    let mut host = Host::start(&spec);
    for expected in 1..=20 {
        let answer = host.call("ephpm_kv_incr", &[Value::text("alone")]);
        assert_eq!((answer.value, answer.degraded), (Value::Int(expected), true));
        assert!(answer.elapsed < Duration::from_secs(1), "call {expected} took {:?}", answer.elapsed);
    }
    let info = host.info();
    assert_eq!(info.state, "joining", "{info:?}");
    poll("the log names the host", Duration::from_secs(15), || {
        let log = spec.stderr();
        if log.contains("no-such-host.invalid") { Ok(()) } else { Err(log) }
    });
    assert!(host.quit().success());
}

#[test]
fn a_port_in_use_leaves_the_host_alone_until_it_is_free() {
    let dir = TempDir::new().expect("a directory");
    let specs = specs(2, dir.path());
    let tcp = TcpListener::bind(("127.0.0.1", specs[1].port)).expect("the port");
    let udp = UdpSocket::bind(("127.0.0.1", specs[1].port)).expect("the port");
    let mut seed = Host::start(&specs[0]);
    assert_eq!(nudge(&mut seed).state, "joining");
    let mut host = Host::start(&specs[1]);
    for expected in 1..=5 {
        assert_eq!(host.incr("port", 1), (expected, true));
    }
    let info = poll("it says why", Duration::from_secs(10), || {
        let info = nudge(&mut host);
        let said = format!("{} {}", info.reason, specs[1].stderr());
        if info.state != "ready" && said.contains(&specs[1].port.to_string()) { Ok(info) } else { Err(said) }
    });
    println!("{info:?}");
    drop((tcp, udp));
    poll("it joins when the port is free", Duration::from_secs(30), || {
        let (here, there) = (nudge(&mut host), nudge(&mut seed));
        if here.state == "ready" && there.state == "ready" && there.members == 2 {
            Ok(())
        } else {
            Err(format!("{here:?} {there:?}"))
        }
    });
    // What it counted alone came along.
    poll("its count came along", Duration::from_secs(10), || match (host.get("port"), seed.get("port")) {
        (5, 5) => Ok(()),
        values => Err(format!("{values:?}")),
    });
    assert_eq!(seed.incr("port", 1), (6, false));
    assert!(host.quit().success());
    assert!(seed.quit().success());
}

#[test]
fn a_host_whose_seed_is_not_up_counts_alone_and_joins_when_it_is() {
    let dir = TempDir::new().expect("a directory");
    let specs = specs(2, dir.path());
    let mut early = Host::start(&specs[1]);
    for expected in 1..=10 {
        assert_eq!(early.incr("early", 1), (expected, true), "alone, and says so");
    }
    assert_eq!(early.info().state, "joining");
    let mut seed = Host::start(&specs[0]);
    seed.call("ephpm_kv_get", &[Value::text("warm")]);
    for host in [&mut early, &mut seed] {
        host.wait_ready(2);
    }
    poll("the count came along", Duration::from_secs(10), || match (early.get("early"), seed.get("early")) {
        (10, 10) => Ok(()),
        values => Err(format!("{values:?}")),
    });
    assert_eq!(seed.incr("early", 1), (11, false));
    assert_eq!(early.incr("early", 1), (12, false));
    assert!(early.quit().success());
    assert!(seed.quit().success());
}
