//! What a value in php.ini may look like. Every parser returns `None` for a value that is not allowed.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::{HostPort, LogTarget, Role, Runtime, SocketName};
use crate::record::NAMESPACE_LEN_MAX;

/// Longest node or cluster id in bytes.
pub const ID_LEN_MAX: usize = 64;

/// Longest host name in bytes (RFC 1035).
const HOST_LEN_MAX: usize = 253;

/// Longest path of a Unix socket in bytes, its terminating NUL not counted.
const SOCKET_PATH_LEN_MAX: usize = 107;

/// A switch: php.ini's own parser has already made `1` of on, yes and true, and nothing of off, no, false and none.
pub fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Some(true),
        "" | "0" | "off" | "no" | "false" | "none" => Some(false),
        _ => None,
    }
}

/// A whole number within `range`.
pub fn integer(value: &str, range: RangeInclusive<u64>) -> Option<u64> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    value.parse().ok().filter(|number| range.contains(number))
}

/// A number of bytes within `range`, with an optional suffix K, M or G (powers of 1,024).
pub fn size(value: &str, range: RangeInclusive<u64>) -> Option<u64> {
    let (digits, shift) = match value.as_bytes().last()? {
        b'k' | b'K' => (&value[..value.len() - 1], 10),
        b'm' | b'M' => (&value[..value.len() - 1], 20),
        b'g' | b'G' => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    let bytes = integer(digits, 0..=u64::MAX)?.checked_mul(1 << shift)?;
    range.contains(&bytes).then_some(bytes)
}

/// An id: 1 to [`ID_LEN_MAX`] printable ASCII bytes without spaces.
pub fn id(value: &str) -> Option<String> {
    let fits = (1..=ID_LEN_MAX).contains(&value.len());
    (fits && value.bytes().all(|byte| byte.is_ascii_graphic())).then(|| value.to_owned())
}

/// A namespace: up to [`NAMESPACE_LEN_MAX`] bytes.
pub fn namespace(value: &str) -> Option<String> {
    (value.len() <= NAMESPACE_LEN_MAX).then(|| value.to_owned())
}

/// `host:port`: a name, an IPv4 address or an IPv6 address in brackets, and a port from 1 to 65535.
pub fn host_port(value: &str) -> Option<HostPort> {
    let (host, port) = value.rsplit_once(':')?;
    let port = integer(port, 1..=65535)? as u16;
    let host = match host.strip_prefix('[') {
        Some(rest) => {
            let address: std::net::Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            address.to_string()
        }
        None => host_name(host)?,
    };
    Some(HostPort { host, port })
}

/// As [`host_port`], but not a wildcard address: something that can be dialled.
pub fn dialable(value: &str) -> Option<HostPort> {
    host_port(value).filter(|parsed| !parsed.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()))
}

/// Comma-separated [`dialable`] addresses; blanks around them and empty items are allowed.
pub fn seeds(value: &str) -> Option<Vec<HostPort>> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(dialable).collect()
}

fn host_name(host: &str) -> Option<String> {
    if host.is_empty() || host.len() > HOST_LEN_MAX {
        return None;
    }
    let numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if numeric {
        return host.parse::<std::net::Ipv4Addr>().ok().map(|address| address.to_string());
    }
    let valid = host.split('.').all(|label| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    });
    valid.then(|| host.to_owned())
}

/// `auto`, `member` or `client`.
pub fn role(value: &str) -> Option<Role> {
    match value {
        "auto" => Some(Role::Auto),
        "member" => Some(Role::Member),
        "client" => Some(Role::Client),
        _ => None,
    }
}

/// `auto`, `thread` or `process`.
pub fn runtime(value: &str) -> Option<Runtime> {
    match value {
        "auto" => Some(Runtime::Auto),
        "thread" => Some(Runtime::Thread),
        "process" => Some(Runtime::Process),
        _ => None,
    }
}

/// `auto`, `off` (which php.ini's own parser turns into nothing) or an absolute path of at most 107 bytes.
pub fn socket(value: &str) -> Option<SocketName> {
    match value {
        "auto" => Some(SocketName::Auto),
        "off" | "" => Some(SocketName::Off),
        _ => absolute(value).filter(|_| value.len() <= SOCKET_PATH_LEN_MAX).map(SocketName::Path),
    }
}

/// `stderr`, `syslog` or an absolute path.
pub fn log(value: &str) -> Option<LogTarget> {
    match value {
        "stderr" => Some(LogTarget::Stderr),
        "syslog" => Some(LogTarget::Syslog),
        _ => absolute(value).map(LogTarget::File),
    }
}

/// `error`, `warn`, `info`, `debug` or `trace`.
pub fn log_level(value: &str) -> Option<tracing::Level> {
    match value {
        "error" => Some(tracing::Level::ERROR),
        "warn" => Some(tracing::Level::WARN),
        "info" => Some(tracing::Level::INFO),
        "debug" => Some(tracing::Level::DEBUG),
        "trace" => Some(tracing::Level::TRACE),
        _ => None,
    }
}

/// Comma-separated secrets, none of them empty; the whole may be empty. Says whether there is one.
pub fn secret(value: &str) -> Option<bool> {
    match value {
        "" => Some(false),
        _ => value.split(',').all(|item| !item.trim().is_empty()).then_some(true),
    }
}

/// Nothing, or an absolute path. Says whether there is one.
pub fn secret_file(value: &str) -> Option<bool> {
    match value {
        "" => Some(false),
        _ => absolute(value).map(|_| true),
    }
}

fn absolute(value: &str) -> Option<PathBuf> {
    value.starts_with('/').then(|| PathBuf::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_and_keep_their_range() {
        let range = 4096..=(64 << 30);
        for (text, bytes) in [("4096", 4096), ("4k", 4096), ("64M", 64 << 20), ("64G", 64 << 30), ("1g", 1 << 30)] {
            assert_eq!(size(text, range.clone()), Some(bytes), "{text}");
        }
        for text in ["", "M", "4095", "65G", "-4M", "4.5M", "4 M", "4MB", "0x1000", "99999999999999999999", "é"] {
            assert_eq!(size(text, range.clone()), None, "{text}");
        }
        assert_eq!(size("18446744073709551615G", 0..=u64::MAX), None, "the product does not fit");
    }

    #[test]
    fn integers_are_digits_only() {
        assert_eq!(integer("50", 1..=60_000), Some(50));
        for text in ["", "0", "60001", "+5", "-5", " 5", "5 ", "5.0", "5ms", "1e3", "abc"] {
            assert_eq!(integer(text, 1..=60_000), None, "{text:?}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses_with_a_port() {
        for (text, host, port) in [
            ("127.0.0.1:7946", "127.0.0.1", 7946),
            ("[::1]:1", "::1", 1),
            ("[::]:65535", "::", 65535),
            ("web-1.example.org:80", "web-1.example.org", 80),
            ("kv_seed:9", "kv_seed", 9),
        ] {
            assert_eq!(host_port(text), Some(HostPort { host: host.into(), port }), "{text}");
        }
        for text in [
            "",
            "7946",
            ":7946",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "::1:7946",
            "[::1]",
            "[::1:7946",
            "[127.0.0.1]:1",
            "1.2.3:1",
            "1.2.3.256:1",
            "ho st:1",
            "a..b:1",
            "-a:1",
            "tcp://a:1",
        ] {
            assert_eq!(host_port(text), None, "{text:?}");
        }
        assert!(host_port(&format!("{}:1", "a.".repeat(130))).is_none());
    }

    #[test]
    fn a_wildcard_cannot_be_dialled() {
        assert!(host_port("0.0.0.0:1").is_some() && dialable("0.0.0.0:1").is_none());
        assert!(dialable("[::]:1").is_none());
        assert_eq!(seeds(" a:1, b:2,,").map(|list| list.len()), Some(2));
        assert_eq!(seeds(""), Some(vec![]));
        assert_eq!(seeds("a:1,b"), None, "one bad seed spoils the list");
    }

    #[test]
    fn words_and_paths() {
        assert_eq!(switch("On"), Some(true));
        assert_eq!(switch(""), Some(false));
        assert_eq!(switch("2"), None);
        assert_eq!(socket(""), Some(SocketName::Off));
        assert_eq!(socket("/run/kv.sock"), Some(SocketName::Path("/run/kv.sock".into())));
        assert_eq!(socket("kv.sock"), None);
        assert_eq!(socket(&format!("/{}", "x".repeat(107))), None);
        assert_eq!(log("syslog"), Some(LogTarget::Syslog));
        assert_eq!(log(""), None);
        assert_eq!(log_level("warn"), Some(tracing::Level::WARN));
        assert_eq!(log_level("WARNING"), None);
        assert_eq!(role("owner"), None);
        assert_eq!(runtime("fiber"), None);
        assert_eq!(id(&"n".repeat(64)).map(|id| id.len()), Some(64));
        for text in ["", "two words", "tab\t", "ü", &"n".repeat(65)] {
            assert_eq!(id(text), None, "{text:?}");
        }
        assert_eq!(namespace(&"n".repeat(65)), None);
        assert_eq!(secret("a,b"), Some(true));
        assert_eq!(secret("a,,b"), None);
        assert_eq!(secret_file("secret.txt"), None);
    }
}
