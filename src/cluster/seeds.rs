//! The seeds of `ephpm_kv.join`: names looked up in the background, this node's own address left out.
//!
//! chitchat's own look-up runs at its start, which it delays, and then once a minute. A name that appears a moment after
//! the first node (a container's, say) would cost up to that minute, so names are looked up here, every
//! [`RETRY`] until they are known, and the gossip is told addresses.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::transport::is_local;
use crate::config::HostPort;
use crate::quiet::Quiet;

/// Between two attempts for a name that is not known yet.
pub(super) const RETRY: Duration = Duration::from_secs(2);
/// Between two look-ups of a known name: its addresses may change while the node runs.
const REFRESH: Duration = Duration::from_secs(30);

/// Resolves one name.
pub(super) type Lookup =
    Arc<dyn Fn(HostPort) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> + Send + Sync>;

/// The system's resolver, on a blocking thread of the runtime.
pub(super) fn system_lookup() -> Lookup {
    Arc::new(|seed: HostPort| {
        Box::pin(async move { Ok(tokio::net::lookup_host((seed.host.as_str(), seed.port)).await?.collect()) })
    })
}

/// Whether `seeds` name anybody but this node, as far as can be said without looking names up: a name counts as
/// somebody else, except `localhost` with this node's port. Once names are known,
/// [`Snapshot::seeds_are_me`](super::Snapshot::seeds_are_me) says it exactly.
pub fn names_others(seeds: &[HostPort], listen: SocketAddr, advertise: SocketAddr) -> bool {
    let own = Own { listen, advertise };
    seeds.iter().any(|seed| match literal(seed) {
        Some(address) => !own.is(address),
        None => {
            !(seed.host.eq_ignore_ascii_case("localhost") && own.is((IpAddr::from([127, 0, 0, 1]), seed.port).into()))
        }
    })
}

fn literal(seed: &HostPort) -> Option<SocketAddr> {
    seed.host.parse::<IpAddr>().ok().map(|ip| (ip, seed.port).into())
}

/// This node's own addresses.
#[derive(Clone, Copy)]
struct Own {
    listen: SocketAddr,
    advertise: SocketAddr,
}

impl Own {
    fn is(self, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let listens = self.listen.ip().to_canonical();
        (ip, port) == (self.advertise.ip().to_canonical(), self.advertise.port())
            || port == self.listen.port() && (ip == listens || listens.is_unspecified() && is_local(ip))
    }

    /// An IPv4 socket cannot send to IPv6 addresses.
    fn can_reach(self, address: SocketAddr) -> bool {
        self.listen.is_ipv6() || address.ip().to_canonical().is_ipv4()
    }
}

/// The addresses of the seeds, as they become known. Look-ups end when it is dropped.
pub(super) struct Seeds {
    /// Per seed `None` while unknown, then its addresses without this node's own.
    others: Arc<Mutex<Vec<Option<Vec<SocketAddr>>>>>,
    _lookups: JoinSet<()>,
}

impl Seeds {
    /// Starts the look-ups, those that fail every `retry` again; never blocks. To be called inside a tokio runtime.
    pub fn start(
        seeds: &[HostPort],
        listen: SocketAddr,
        advertise: SocketAddr,
        lookup: &Lookup,
        retry: Duration,
    ) -> Self {
        let own = Own { listen, advertise };
        let mut lookups = JoinSet::new();
        let others = Arc::new(Mutex::new(vec![None; seeds.len()]));
        for (index, seed) in seeds.iter().enumerate() {
            match literal(seed) {
                Some(address) => others.lock()[index] = Some(without_own(own, &[address])),
                None => {
                    lookups.spawn(keep_looking_up(seed.clone(), index, own, others.clone(), lookup.clone(), retry));
                }
            }
        }
        Self { others, _lookups: lookups }
    }

    /// The known addresses of seeds that are not this node, each once.
    pub fn others(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self.others.lock().iter().flatten().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether every seed is known, and `is_heard` is true of all its addresses but this node's own.
    pub fn are_heard(&self, is_heard: impl Fn(SocketAddr) -> bool) -> bool {
        let all_heard = |addresses: &Vec<SocketAddr>| addresses.iter().copied().all(&is_heard);
        self.others.lock().iter().all(|seed| seed.as_ref().is_some_and(all_heard))
    }

    /// Whether every seed is known and none of them is another node.
    pub fn are_me(&self) -> bool {
        self.others.lock().iter().all(|seed| seed.as_ref().is_some_and(Vec::is_empty))
    }
}

fn without_own(own: Own, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    addresses.iter().copied().filter(|address| !own.is(*address)).collect()
}

async fn keep_looking_up(
    seed: HostPort,
    index: usize,
    own: Own,
    others: Arc<Mutex<Vec<Option<Vec<SocketAddr>>>>>,
    lookup: Lookup,
    retry: Duration,
) {
    let mut quiet = Quiet::default();
    loop {
        let usable = lookup(seed.clone()).await.and_then(|found| {
            let usable: Vec<_> = found.into_iter().filter(|address| own.can_reach(*address)).collect();
            if usable.is_empty() {
                Err(io::Error::other("it has no address that this node can reach"))
            } else {
                Ok(usable)
            }
        });
        let pause = match usable {
            Ok(addresses) => {
                others.lock()[index] = Some(without_own(own, &addresses));
                REFRESH
            }
            Err(error) => {
                // Addresses known from before stay: a name server that fails must not cost the cluster.
                if quiet.due() {
                    tracing::warn!(name = %seed.host, port = seed.port, %error,
                        "a seed in ephpm_kv.join does not resolve; trying again");
                }
                retry
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(host: &str, port: u16) -> HostPort {
        HostPort { host: host.into(), port }
    }

    #[test]
    fn own_addresses_are_recognised() {
        let plain = Own { listen: "10.0.0.1:7".parse().unwrap(), advertise: "198.51.100.9:70".parse().unwrap() };
        assert!(plain.is("10.0.0.1:7".parse().unwrap()));
        assert!(plain.is("198.51.100.9:70".parse().unwrap()));
        assert!(!plain.is("198.51.100.9:7".parse().unwrap()));
        assert!(!plain.is("10.0.0.2:7".parse().unwrap()));
        let wildcard = Own { listen: "0.0.0.0:7".parse().unwrap(), advertise: "198.51.100.9:7".parse().unwrap() };
        assert!(wildcard.is("127.0.0.1:7".parse().unwrap()));
        assert!(!wildcard.is("192.0.2.1:7".parse().unwrap()));
    }

    #[test]
    fn joining_only_oneself_names_nobody_else() {
        let me = "127.0.0.1:7".parse().unwrap();
        assert!(!names_others(&[], me, me));
        assert!(!names_others(&[seed("127.0.0.1", 7), seed("localhost", 7)], me, me));
        assert!(names_others(&[seed("127.0.0.1", 7), seed("127.0.0.1", 8)], me, me));
        assert!(names_others(&[seed("web2.example", 7)], me, me));
    }

    #[tokio::test]
    async fn names_are_retried_and_own_addresses_left_out() {
        let known = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let lookup: Lookup = {
            let known = known.clone();
            Arc::new(move |_| {
                let _ = asks.send(());
                let known = known.load(std::sync::atomic::Ordering::Relaxed);
                Box::pin(async move {
                    if !known {
                        return Err(io::Error::other("no such name"));
                    }
                    Ok(["127.0.0.1:7", "127.0.0.1:8", "[2001:db8::1]:8"].map(|text| text.parse().unwrap()).into())
                })
            })
        };
        let me = "127.0.0.1:7".parse().unwrap();
        let seeds =
            Seeds::start(&[seed("web.example", 7), seed("127.0.0.1", 7)], me, me, &lookup, Duration::from_millis(5));
        asked.recv().await.unwrap();
        asked.recv().await.unwrap();
        assert!(seeds.others().is_empty());
        assert!(!seeds.are_me());
        assert!(!seeds.are_heard(|_| true), "one is not known yet");
        known.store(true, std::sync::atomic::Ordering::Relaxed);
        let resolved = async {
            while seeds.others().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), resolved).await.unwrap();
        let other = "127.0.0.1:8".parse().unwrap();
        assert_eq!(seeds.others(), [other]);
        assert!(!seeds.are_me());
        assert!(seeds.are_heard(|address| address == other) && !seeds.are_heard(|_| false));
    }

    #[tokio::test]
    async fn seeds_that_are_all_this_node_are_known_at_once() {
        let me = "127.0.0.1:7".parse().unwrap();
        let seeds = Seeds::start(&[seed("127.0.0.1", 7)], me, me, &system_lookup(), RETRY);
        assert!(seeds.are_me());
        assert!(seeds.others().is_empty());
    }
}
