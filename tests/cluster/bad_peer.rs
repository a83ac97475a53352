//! Peers that shake hands properly and then misbehave: malformed frames, other versions, nothing read. And a log that
//! cannot be written.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use ephpm_kv::record::{Key, KeyBuf};
use ephpm_kv::wire::frame::time_of;
use ephpm_kv::wire::hello::{HelloAnswer, LocalHello, PROTOCOL, Settings, decode_answer, encode_hello};
use ephpm_kv::wire::message::{Call, Op, Request, Response};
use ephpm_kv::wire::{decode_frame, decode_response, encode_request};

use crate::support::cluster::Cluster;
use crate::support::host::Value;
use crate::support::{poll, seed};

const FRAME_MAX: usize = 4 << 20;

/// A connection that has said hello, as a client of the cluster.
struct Peer {
    stream: TcpStream,
    read: BytesMut,
}

impl Peer {
    fn connect(port: u16, versions: [u16; 2]) -> (Self, HelloAnswer) {
        let hello = LocalHello {
            cluster_id: "ephpm".into(),
            node_id: "raw".into(),
            generation: 7,
            origin: 77,
            address: None,
            client: true,
            settings: Settings { replicas: 2, copy_all_max: 16, slots: 16_384 },
            token: [0; 16],
        };
        let mut hello = hello.hello(99, false);
        [hello.version_oldest, hello.version] = versions;
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut peer = Self { stream, read: BytesMut::new() };
        let mut out = BytesMut::new();
        encode_hello(&hello, &mut out);
        peer.stream.write_all(&out).expect("hello");
        let frame = peer.frame().expect("an answer to hello");
        let answer = decode_answer(frame).expect("an answer to hello");
        (peer, answer)
    }

    /// The next frame that does not only tell the time; `None`: the connection was closed.
    fn frame(&mut self) -> Option<ephpm_kv::wire::Frame> {
        loop {
            if let Some(frame) = decode_frame(&mut self.read, FRAME_MAX).expect("a sound frame") {
                if time_of(&frame).is_none() {
                    return Some(frame);
                }
                continue;
            }
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.read.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame: {error}"),
            }
        }
    }

    fn ask(&mut self, id: u64, request: &Request) -> Option<Response> {
        let mut out = BytesMut::new();
        encode_request(id, request, &mut out);
        self.stream.write_all(&out).ok()?;
        self.frame().map(|frame| decode_response(frame).expect("a response").1)
    }

    /// Sends a frame as it is and gives the response, if the connection lives.
    fn send_raw(&mut self, kind: u8, body: &[u8]) -> Option<Response> {
        let mut out = BytesMut::new();
        out.put_u32_le(body.len() as u32 + 9);
        out.put_u8(kind);
        out.put_u64_le(1);
        out.put_slice(body);
        self.stream.write_all(&out).ok()?;
        self.frame().map(|frame| decode_response(frame).expect("a response").1)
    }
}

/// The hosts count on, together.
fn undisturbed(cluster: &mut Cluster, key: &str) {
    for (index, host) in cluster.hosts.iter_mut().enumerate() {
        host.wait_ready(3);
        assert_eq!(host.incr(key, 1), (index as i64 + 1, false), "{}", host.spec.name);
    }
}

#[test]
fn malformed_messages_of_a_peer_disturb_nobody() {
    let mut state = seed() | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut cluster = Cluster::new(3);
    let port = cluster.hosts[0].spec.port;
    let (mut peer, answer) = Peer::connect(port, [PROTOCOL, PROTOCOL]);
    assert_eq!(answer.expect("let in").node_id, "host0");
    // A type that nobody knows is answered, and the connection goes on.
    assert!(matches!(peer.send_raw(0x7e, b"later release"), Some(Response::Error(_))));
    assert_eq!(peer.ask(2, &Request::Ping), Some(Response::Pong { vouches: false }));
    let mut survived = 0;
    for round in 0..300 {
        let (mut peer, _) = Peer::connect(port, [PROTOCOL, PROTOCOL]);
        let body: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        // Every type of request in turn, with a body that means nothing; then one that is cut off.
        survived += usize::from(peer.send_raw((round % 0x24) as u8, &body).is_some());
        let _ = peer.stream.write_all(&[200, 0, 0, 0, 2, 1]);
    }
    println!("{survived} of 300 were answered");
    undisturbed(&mut cluster, "malformed");
    cluster.quit();
}

#[test]
fn a_peer_of_an_older_or_a_newer_release_is_spoken_to_or_told_why_not() {
    let mut cluster = Cluster::new(3);
    let port = cluster.hosts[0].spec.port;
    for versions in [[PROTOCOL - 1, PROTOCOL - 1], [PROTOCOL - 1, PROTOCOL], [PROTOCOL, PROTOCOL + 1]] {
        let (mut peer, answer) = Peer::connect(port, versions);
        answer.unwrap_or_else(|refused| panic!("{versions:?}: {refused}"));
        assert_eq!(peer.ask(1, &Request::Ping), Some(Response::Pong { vouches: false }), "{versions:?}");
    }
    for versions in [[PROTOCOL + 1, PROTOCOL + 2], [900, 901]] {
        let (mut peer, answer) = Peer::connect(port, versions);
        let refused = answer.expect_err("no version in common");
        assert!(refused.reason.starts_with("protocol versions "), "{refused}");
        assert!(peer.frame().is_none(), "and the connection is closed");
    }
    undisturbed(&mut cluster, "versions");
    cluster.quit();
}

#[test]
fn a_peer_that_stops_reading_is_cut_off_and_costs_the_others_nothing() {
    let mut cluster = Cluster::new(3);
    let key = cluster.keys_owned_by("host0", "large", 1).remove(0);
    let made = cluster.hosts[0].run(&format!("var_dump(ephpm_kv_set('{key}', str_repeat('x', 1 << 20)));"));
    assert!(made.contains("bool(true)"), "{made}");
    let before = cluster.hosts[0].usage()[0].rss_kib;
    let (mut peer, answer) = Peer::connect(cluster.hosts[0].spec.port, [PROTOCOL, PROTOCOL]);
    answer.expect("let in");
    peer.stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut out = BytesMut::new();
    for id in 1..=200 {
        let key = KeyBuf::new(Key { namespace: b"", name: key.as_bytes() });
        encode_request(id, &Request::Call(Call { key, op: Op::Get { bytes: true } }), &mut out);
    }
    // 200 MiB are asked for, and none is read.
    let _ = peer.stream.write_all(&out);
    let begun = Instant::now();
    let mut worst = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(3) {
        for host in &mut cluster.hosts {
            let answer = host.call("ephpm_kv_incr", &[Value::text("meanwhile")]);
            assert!(!answer.degraded, "{}", host.spec.name);
            worst = worst.max(answer.elapsed);
        }
    }
    let after = cluster.hosts[0].usage()[0].rss_kib;
    println!("the slowest call took {worst:?}; {before} KiB before, {after} KiB after");
    assert!(after < before + 64 * 1_024, "{before} KiB before, {after} KiB after");
    poll("it is cut off", Duration::from_secs(20), || {
        let mut one = BytesMut::new();
        encode_request(900, &Request::Ping, &mut one);
        match peer.stream.write_all(&one) {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            result => Err(format!("{result:?}")),
        }
    });
    undisturbed(&mut cluster, "unread");
    cluster.quit();
}

#[test]
fn a_full_disk_under_the_log_stops_no_counting() {
    let mut cluster = Cluster::with(3, |spec| {
        spec.ini.insert("log".into(), "/dev/full".into());
        // Not what is looked at here.
        spec.ini.insert("timeout_ms".into(), "500".into());
    });
    undisturbed(&mut cluster, "full");
    let lost = cluster.hosts.pop().expect("host2").kill();
    for host in &mut cluster.hosts {
        host.wait_ready(2);
    }
    cluster.hosts.push(crate::support::host::Host::start(&lost));
    cluster.wait_ready();
    cluster.wait_value("full", 3, Duration::from_secs(5));
    undisturbed(&mut cluster, "full again");
    cluster.quit();
}
