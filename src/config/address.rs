//! From what was written to what can be bound and dialled, or the reason why no cluster may start.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::HostPort;

/// What the machine knows about addresses.
pub trait Network {
    /// All addresses of a name, or of an address written as text.
    fn resolve(&self, target: &HostPort) -> io::Result<Vec<SocketAddr>>;
    /// The addresses of this machine's interfaces, in their order.
    fn addresses(&self) -> Vec<IpAddr>;
}

/// The machine this process runs on.
pub struct System;

impl Network for System {
    fn resolve(&self, target: &HostPort) -> io::Result<Vec<SocketAddr>> {
        Ok((target.host.as_str(), target.port).to_socket_addrs()?.collect())
    }

    fn addresses(&self) -> Vec<IpAddr> {
        interface_addresses()
    }
}

/// The addresses to bind and to advertise, or why the cluster must not start.
pub fn plan(
    bind: &HostPort,
    advertise: Option<&HostPort>,
    secret: bool,
    insecure: bool,
    network: &dyn Network,
) -> Result<(SocketAddr, SocketAddr), String> {
    if secret {
        return Err("a secret is set, but this version cannot seal its traffic yet; \
                    without ephpm_kv.secret and ephpm_kv.secret_file a cluster may start on loopback"
            .into());
    }
    let bind = resolve("ephpm_kv.bind", bind, network)?;
    let advertise = match advertise {
        Some(target) => resolve("ephpm_kv.advertise", target, network)?,
        None if bind.ip().is_unspecified() => SocketAddr::new(own_address(bind, network)?, bind.port()),
        None => bind,
    };
    for (name, address) in [("ephpm_kv.bind", bind), ("ephpm_kv.advertise", advertise)] {
        if !address.ip().to_canonical().is_loopback() && !insecure {
            return Err(format!(
                "{name} is {address}, beyond loopback, and there is no ephpm_kv.secret; \
                 set ephpm_kv.insecure=1 only where nobody else can reach this port"
            ));
        }
    }
    Ok((bind, advertise))
}

/// The first address, IPv4 before IPv6, so that all processes of a host choose alike.
fn resolve(name: &str, target: &HostPort, network: &dyn Network) -> Result<SocketAddr, String> {
    let HostPort { host, port } = target;
    let found =
        network.resolve(target).map_err(|error| format!("{name}: {host}:{port} cannot be resolved: {error}"))?;
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("{name}: {host}:{port} resolves to nothing"))
}

fn own_address(bind: SocketAddr, network: &dyn Network) -> Result<IpAddr, String> {
    let candidates: Vec<IpAddr> = network.addresses().into_iter().filter(|ip| reachable(*ip)).collect();
    let v4 = candidates.iter().find(|ip| ip.is_ipv4());
    let v6 = candidates.iter().find(|ip| ip.is_ipv6());
    let chosen = if bind.is_ipv4() { v4 } else { v6.or(v4) };
    chosen.copied().ok_or_else(|| {
        format!(
            "ephpm_kv.bind is {bind} and this machine has no other address than loopback's; \
             set ephpm_kv.advertise to the address that peers dial"
        )
    })
}

/// Whether a peer on another machine could dial it without knowing an interface.
fn reachable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !link_local
}

fn interface_addresses() -> Vec<IpAddr> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the result, which freeifaddrs below gives back.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: getifaddrs made the list, and `next` is one of its nodes, live until freeifaddrs.
        let (address, flags) = unsafe { ((*next).ifa_addr, (*next).ifa_flags) };
        if !address.is_null() && flags & libc::IFF_UP as u32 != 0 {
            // SAFETY: `address` is a socket address of this list.
            found.extend(unsafe { ip_of(address) });
        }
        // SAFETY: as above.
        next = unsafe { (*next).ifa_next };
    }
    // SAFETY: `list` came from getifaddrs and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The IP address in a socket address; `None` for other families.
///
/// # Safety
/// `address` points to a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller vouches for the pointer; the family says which structure it is.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = std::ptr::read_unaligned(address.cast::<libc::sockaddr_in>());
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = std::ptr::read_unaligned(address.cast::<libc::sockaddr_in6>());
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse::host_port;

    struct Machine(Vec<IpAddr>);

    impl Network for Machine {
        fn resolve(&self, target: &HostPort) -> io::Result<Vec<SocketAddr>> {
            match target.host.as_str() {
                "localhost" => Ok(vec!["[::1]:7".parse().unwrap(), "127.0.0.1:7".parse().unwrap()]),
                "void" => Ok(vec![]),
                host => match host.parse() {
                    Ok(ip) => Ok(vec![SocketAddr::new(ip, target.port)]),
                    Err(_) => Err(io::Error::other("no such host")),
                },
            }
        }

        fn addresses(&self) -> Vec<IpAddr> {
            self.0.clone()
        }
    }

    fn try_plan(bind: &str, advertise: Option<&str>, insecure: bool) -> Result<(String, String), String> {
        let addresses = ["127.0.0.1", "169.254.1.1", "fe80::1", "10.0.0.7", "2001:db8::7"];
        let machine = Machine(addresses.iter().map(|ip| ip.parse().unwrap()).collect());
        let bind = host_port(bind).unwrap();
        let advertise = advertise.map(|text| host_port(text).unwrap());
        plan(&bind, advertise.as_ref(), false, insecure, &machine).map(|(b, a)| (b.to_string(), a.to_string()))
    }

    #[test]
    fn loopback_starts_without_a_secret() {
        assert_eq!(try_plan("127.0.0.1:7", None, false).unwrap(), ("127.0.0.1:7".into(), "127.0.0.1:7".into()));
        assert_eq!(try_plan("localhost:7", None, false).unwrap().0, "127.0.0.1:7", "IPv4 first");
        assert!(try_plan("127.0.0.1:7", Some("10.0.0.7:7"), false).unwrap_err().contains("advertise is 10.0.0.7:7"));
    }

    #[test]
    fn beyond_loopback_a_secret_is_asked_for() {
        let refusal = try_plan("10.0.0.7:7", None, false).unwrap_err();
        assert!(refusal.contains("ephpm_kv.secret") && refusal.contains("insecure=1"), "{refusal}");
        assert!(try_plan("10.0.0.7:7", None, true).is_ok());
        assert!(try_plan("0.0.0.0:7", Some("127.0.0.1:7"), false).is_err(), "a wildcard reaches beyond loopback");
    }

    #[test]
    fn a_wildcard_advertises_the_first_address_that_others_can_dial() {
        assert_eq!(try_plan("0.0.0.0:7", None, true).unwrap().1, "10.0.0.7:7");
        assert_eq!(try_plan("[::]:7", None, true).unwrap().1, "[2001:db8::7]:7");
        let lonely = Machine(vec!["127.0.0.1".parse().unwrap()]);
        let refusal = plan(&host_port("0.0.0.0:7").unwrap(), None, false, true, &lonely).unwrap_err();
        assert!(refusal.contains("set ephpm_kv.advertise"), "{refusal}");
    }

    #[test]
    fn what_cannot_be_resolved_or_sealed_is_refused() {
        assert!(
            try_plan("nowhere.invalid:7", None, true).unwrap_err().contains("nowhere.invalid:7 cannot be resolved")
        );
        assert!(try_plan("void:7", None, true).unwrap_err().contains("nothing"));
        let refusal = plan(&host_port("127.0.0.1:7").unwrap(), None, true, true, &Machine(vec![])).unwrap_err();
        assert!(refusal.contains("cannot seal"), "{refusal}");
    }

    #[test]
    fn this_machine_has_addresses() {
        let found = System.addresses();
        assert!(found.iter().any(|ip| ip.is_loopback()), "{found:?}");
    }
}
