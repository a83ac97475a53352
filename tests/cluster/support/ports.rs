//! Ports that are free on TCP and UDP at once.

use std::net::{TcpListener, UdpSocket};

/// A port of 127.0.0.1 that is free on both protocols now.
///
/// The kernel proposes it. Proposals lie in the range of outgoing connections, so the tests that start processes
/// run one after the other (see `.config/nextest.toml`).
pub fn free_port() -> u16 {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a TCP port");
        let port = listener.local_addr().expect("its address").port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free on both TCP and UDP");
}

/// `count` different ports.
pub fn free_ports(count: usize) -> Vec<u16> {
    let mut ports: Vec<u16> = Vec::new();
    while ports.len() < count {
        let port = free_port();
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}
