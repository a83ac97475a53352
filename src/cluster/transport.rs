//! The UDP socket under chitchat. Whatever a datagram holds, it cannot end the gossip from here: what does not decode
//! is dropped and counted, and a send that fails is a datagram lost, as on any network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};

use crate::error::SetupError;
use crate::quiet::Quiet;

/// Largest datagram in bytes, sent or accepted: what UDP over IPv4 carries.
pub(super) const DATAGRAM_MAX: usize = 65_507;

/// Receive buffer asked for, in bytes: a burst of saturated replies from many nodes must not be dropped by the kernel.
const RECEIVE_BUFFER: usize = 4 << 20;

/// So many receive errors in a row mean that the socket is broken.
const ERRORS_IN_A_ROW_MAX: u32 = 100;

/// Counters of the gossip socket since the node started.
#[derive(Debug, Default)]
pub struct GossipStats {
    /// Datagrams that were decoded and handed on.
    pub received: AtomicU64,
    /// Datagrams dropped: too long, not decodable, or with bytes left over.
    pub undecodable: AtomicU64,
    /// Datagrams dropped because they belong to another cluster.
    pub foreign: AtomicU64,
    /// Datagrams that could not be sent.
    pub send_errors: AtomicU64,
    /// Starts of the gossip task after the first.
    pub restarts: AtomicU64,
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Binds the gossip socket. Fails when the address cannot be had.
pub fn bind(listen: SocketAddr) -> Result<UdpSocket, SetupError> {
    UdpSocket::bind(listen).map_err(|error| SetupError::new(format!("ephpm_kv.bind (UDP {listen})"), error))
}

/// Makes a bound socket fit for gossip: non-blocking, with a large receive buffer where the system allows one.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // Beyond net.core.rmem_max only with CAP_NET_ADMIN; without it the kernel caps what it grants.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER);
    }
    Ok(())
}

/// Whether `ip` is an address of this host: to those, and only to those, one sends from the same address. (That it can
/// be bound proves nothing: `net.ipv4.ip_nonlocal_bind`.) Sends nothing.
pub(super) fn is_local(ip: IpAddr) -> bool {
    let source = || {
        let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    ip.is_loopback() || source().is_ok_and(|source| source.ip() == ip)
}

/// Opens gossip sockets on one bound UDP socket. Each is a duplicate, so that the port stays ours while the gossip task
/// is started again.
pub(super) struct UdpTransport {
    socket: UdpSocket,
    cluster_id: String,
    stats: Arc<GossipStats>,
}

impl UdpTransport {
    /// `socket` has been through [`prepare`].
    pub fn new(socket: UdpSocket, cluster_id: String, stats: Arc<GossipStats>) -> Self {
        Self { socket, cluster_id, stats }
    }
}

#[async_trait]
impl Transport for UdpTransport {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(GossipSocket {
            socket: tokio::net::UdpSocket::from_std(self.socket.try_clone()?)?,
            cluster_id: self.cluster_id.clone(),
            stats: self.stats.clone(),
            incoming: vec![0; DATAGRAM_MAX + 1].into(),
            outgoing: Vec::with_capacity(4096),
            foreign: Quiet::default(),
            oversized: Quiet::default(),
        }))
    }
}

struct GossipSocket {
    socket: tokio::net::UdpSocket,
    cluster_id: String,
    stats: Arc<GossipStats>,
    /// One byte longer than a datagram may be, so that a longer one is seen to be.
    incoming: Box<[u8]>,
    outgoing: Vec<u8>,
    foreign: Quiet,
    oversized: Quiet,
}

#[async_trait]
impl Socket for GossipSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.outgoing.clear();
        message.serialize(&mut self.outgoing);
        if self.outgoing.len() > DATAGRAM_MAX {
            bump(&self.stats.send_errors);
            if self.oversized.due() {
                tracing::error!(bytes = self.outgoing.len(), "the gossip state does not fit a datagram");
            }
        } else if let Err(error) = self.socket.send_to(&self.outgoing, to).await {
            // An unreachable peer is the failure detector's business; an error here would only be logged at each tick.
            bump(&self.stats.send_errors);
            tracing::debug!(%to, %error, "a gossip datagram was not sent");
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        let mut errors = 0;
        loop {
            let (len, from) = match self.socket.recv_from(&mut self.incoming).await {
                Ok(received) => received,
                Err(error) if errors < ERRORS_IN_A_ROW_MAX => {
                    errors += 1;
                    tracing::debug!(%error, "receiving a gossip datagram failed");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            errors = 0;
            let Some(message) = decode(&self.incoming[..len]) else {
                bump(&self.stats.undecodable);
                continue;
            };
            if self.is_ours(from, &message) {
                bump(&self.stats.received);
                return Ok((from, message));
            }
            bump(&self.stats.foreign);
        }
    }
}

impl GossipSocket {
    /// Answers and logs here what chitchat would answer and log at every datagram of another cluster.
    fn is_ours(&mut self, from: SocketAddr, message: &ChitchatMessage) -> bool {
        match message {
            ChitchatMessage::Syn { cluster_id, .. } if *cluster_id != self.cluster_id => {
                let _ = self.socket.try_send_to(&ChitchatMessage::BadCluster.serialize_to_vec(), from);
                if self.foreign.due() {
                    tracing::warn!(%from, theirs = %cluster_id, ours = %self.cluster_id,
                        "a node of another cluster (ephpm_kv.cluster_id) gossips with this one");
                }
                false
            }
            ChitchatMessage::BadCluster => {
                if self.foreign.due() {
                    tracing::warn!(%from, ours = %self.cluster_id,
                        "the node there belongs to another cluster (ephpm_kv.cluster_id)");
                }
                false
            }
            _ => true,
        }
    }
}

/// The message in a datagram; `None` when it is not exactly one. A panic in the decoder costs the datagram only.
fn decode(datagram: &[u8]) -> Option<ChitchatMessage> {
    if datagram.len() > DATAGRAM_MAX {
        return None;
    }
    let mut rest = datagram;
    let message = catch_unwind(AssertUnwindSafe(|| ChitchatMessage::deserialize(&mut rest))).ok()?.ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_datagrams_decode() {
        let good = ChitchatMessage::BadCluster.serialize_to_vec();
        assert!(matches!(decode(&good), Some(ChitchatMessage::BadCluster)));
        assert!(decode(&[good.as_slice(), b"x"].concat()).is_none());
        assert!(decode(&good[..good.len() - 1]).is_none());
        assert!(decode(b"").is_none());
        assert!(decode(&vec![0; DATAGRAM_MAX + 1]).is_none());
    }

    #[test]
    fn the_receive_buffer_grows_where_allowed() {
        let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let before = rustix::net::sockopt::socket_recv_buffer_size(&socket).unwrap();
        prepare(&socket).unwrap();
        assert!(rustix::net::sockopt::socket_recv_buffer_size(&socket).unwrap() >= before);
    }

    #[test]
    fn a_port_in_use_says_which() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }

    #[test]
    fn local_addresses_are_told_from_others() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            assert!(is_local(socket.local_addr().unwrap().ip()));
        }
        // TEST-NET-1 belongs to no host.
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
