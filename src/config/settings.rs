//! The table of all settings: name, default, meaning, what is allowed, and how a value gets into a [`Config`].

use super::address::{self, Network};
use super::{Config, HostPort, parse};

/// One entry of php.ini.
pub struct Setting {
    /// The full name, `ephpm_kv.` included.
    pub name: &'static str,
    /// The default, as it would be written in php.ini.
    pub default: &'static str,
    /// What it is for, in one sentence without a full stop.
    pub meaning: &'static str,
    /// What is allowed, as the warning about a bad value names it.
    pub allowed: &'static str,
    /// Never shown, neither by phpinfo nor in a warning.
    pub hidden: bool,
    apply: fn(&mut Draft, &str) -> Option<()>,
}

impl Setting {
    /// Whether `value` is allowed.
    pub fn allows(&self, value: &str) -> bool {
        (self.apply)(&mut Draft::default(), value).is_some()
    }

    /// The warning about a value that is not allowed: entry, value, what is allowed, what is used instead.
    pub fn complaint(&self, value: &str) -> String {
        let Self { name, default, allowed, hidden, .. } = self;
        if *hidden {
            return format!("{name}: the value is not allowed ({allowed}); no cluster is started");
        }
        let shown: String = value.chars().take(80).flat_map(char::escape_default).collect();
        let used = if default.is_empty() { "none".to_owned() } else { format!("\"{default}\"") };
        format!("{name}: \"{shown}\" is not allowed ({allowed}); the default is used: {used}")
    }
}

/// Settings while they are being read: addresses are still as they were written.
#[derive(Default)]
struct Draft {
    config: Config,
    bind: Option<HostPort>,
    advertise: Option<HostPort>,
}

macro_rules! settings {
    ($($name:literal, $default:literal, $meaning:literal, $allowed:literal, $apply:expr;)*) => {
        [$(Setting {
            name: concat!("ephpm_kv.", $name),
            default: $default,
            meaning: $meaning,
            allowed: $allowed,
            hidden: false,
            apply: $apply,
        }),*]
    };
}

fn put<T>(slot: &mut T, value: Option<T>) -> Option<()> {
    *slot = value?;
    Some(())
}

/// An address that may be left out.
fn optional(value: &str, parser: fn(&str) -> Option<HostPort>) -> Option<Option<HostPort>> {
    if value.is_empty() { Some(None) } else { parser(value).map(Some) }
}

/// All settings but the two secrets, which [`all`] adds.
static PLAIN: [Setting; 22] = settings! {
    "enabled", "1", "whether the extension does anything", "1 or 0",
        |draft, value| put(&mut draft.config.enabled, parse::switch(value));
    "memory", "64M", "size of the host segment", "4M to 64G",
        |draft, value| put(&mut draft.config.memory, parse::size(value, 4 << 20..=64 << 30));
    "bind", "", "address of the node, UDP and TCP; empty for no cluster", "host:port or empty",
        |draft, value| put(&mut draft.bind, optional(value, parse::host_port));
    "advertise", "", "address that peers dial; empty for the one of bind", "host:port without wildcard, or empty",
        |draft, value| put(&mut draft.advertise, optional(value, parse::dialable));
    "join", "", "seed nodes, comma separated", "host:port,host:port... or empty",
        |draft, value| put(&mut draft.config.join, parse::seeds(value));
    "node_id", "", "stable identity of this host; empty for host name and port",
        "1 to 64 printable ASCII characters without spaces, or empty",
        |draft, value| {
            let id = if value.is_empty() { Some(String::new()) } else { parse::id(value) };
            put(&mut draft.config.node_id, id)
        };
    "cluster_id", "ephpm", "nodes of other clusters are ignored", "1 to 64 printable ASCII characters without spaces",
        |draft, value| put(&mut draft.config.cluster_id, parse::id(value));
    "insecure", "0", "allows a cluster beyond loopback without a secret", "1 or 0",
        |draft, value| put(&mut draft.config.insecure, parse::switch(value));
    "role", "auto", "whether this node owns keys", "auto, member or client",
        |draft, value| put(&mut draft.config.role, parse::role(value));
    "runtime", "auto", "where the node runs", "auto, thread or process",
        |draft, value| put(&mut draft.config.runtime, parse::runtime(value));
    "timeout_ms", "50", "deadline of one remote operation in milliseconds", "1 to 60000",
        |draft, value| put(&mut draft.config.timeout_ms, parse::integer(value, 1..=60_000));
    "gossip_interval_ms", "100", "time between two gossip rounds in milliseconds", "20 to 10000",
        |draft, value| put(&mut draft.config.gossip_interval_ms, parse::integer(value, 20..=10_000));
    "replicate_ms", "10", "time between two batches of changes to a peer in milliseconds", "1 to 1000",
        |draft, value| put(&mut draft.config.replicate_ms, parse::integer(value, 1..=1000));
    "replicas", "2", "copies of large values", "0 to 16",
        |draft, value| put(&mut draft.config.replicas, parse::integer(value, 0..=16).map(|n| n as u32));
    "copy_all_max", "16", "up to this many members every one holds every small entry", "1 to 256",
        |draft, value| put(&mut draft.config.copy_all_max, parse::integer(value, 1..=256).map(|n| n as u32));
    "small_value_max", "512", "longest value that counts as small, in bytes", "0 to 64K",
        |draft, value| put(&mut draft.config.small_value_max, parse::size(value, 0..=65_536).map(|n| n as u32));
    "value_max", "1M", "longest value, in bytes", "1K to 16M",
        |draft, value| put(&mut draft.config.value_max, parse::size(value, 1 << 10..=16 << 20).map(|n| n as u32));
    "sweep_interval", "10", "time in which all expired entries are found, in seconds", "1 to 3600",
        |draft, value| put(&mut draft.config.sweep_interval_s, parse::integer(value, 1..=3600));
    "socket", "auto", "where the processes of this host meet", "auto, off or an absolute path of at most 107 bytes",
        |draft, value| put(&mut draft.config.socket, parse::socket(value));
    "leave_timeout_ms", "2000", "how long a stop waits for an orderly leave, in milliseconds", "0 to 60000",
        |draft, value| put(&mut draft.config.leave_timeout_ms, parse::integer(value, 0..=60_000));
    "namespace", "", "prefix of all keys", "at most 64 bytes",
        |draft, value| put(&mut draft.config.namespace, parse::namespace(value));
    "log", "stderr", "where the node logs", "stderr, syslog or an absolute path",
        |draft, value| put(&mut draft.config.log, parse::log(value));
};

static LOG_LEVEL: Setting = Setting {
    name: "ephpm_kv.log_level",
    default: "warn",
    meaning: "least severe message that is logged",
    allowed: "error, warn, info, debug or trace",
    hidden: false,
    apply: |draft, value| put(&mut draft.config.log_level, parse::log_level(value)),
};

static SECRET: Setting = Setting {
    name: "ephpm_kv.secret",
    default: "",
    meaning: "shared secret of the cluster; several, comma separated, for rotation",
    allowed: "secrets separated by commas, none of them empty",
    hidden: true,
    apply: |draft, value| secret(draft, parse::secret(value)),
};

static SECRET_FILE: Setting = Setting {
    name: "ephpm_kv.secret_file",
    default: "",
    meaning: "file that holds the secret",
    allowed: "an absolute path",
    hidden: true,
    apply: |draft, value| secret(draft, parse::secret_file(value)),
};

/// A secret that is not understood is still a secret: nothing may start without sealing because of a slip.
fn secret(draft: &mut Draft, value: Option<bool>) -> Option<()> {
    draft.config.secret |= value.unwrap_or(true);
    value.map(|_| ())
}

/// All settings, in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static Setting> {
    PLAIN.iter().chain([&LOG_LEVEL, &SECRET, &SECRET_FILE])
}

/// Builds the settings from php.ini. `get` returns the text of an entry (full name), `None` where it is not set.
///
/// A value that is not allowed counts as not set; for the secrets it makes the cluster refuse to start. Addresses are
/// resolved through `network`; what stands against starting a cluster is in [`Config::refusal`].
pub fn read(get: impl Fn(&str) -> Option<String>, network: &dyn Network) -> Config {
    let mut draft = Draft::default();
    for setting in all() {
        if let Some(value) = get(setting.name) {
            // A parser that returns None has left the default in place.
            let _ = (setting.apply)(&mut draft, &value);
        }
    }
    let Draft { mut config, bind, advertise } = draft;
    if let Some(bind) = bind {
        let plan = address::plan(&bind, advertise.as_ref(), config.secret, config.insecure, network);
        match plan {
            Ok((bind, advertise)) => (config.bind, config.advertise) = (Some(bind), Some(advertise)),
            Err(refusal) => config.refusal = Some(refusal),
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    struct Nowhere;

    impl Network for Nowhere {
        fn resolve(&self, target: &HostPort) -> std::io::Result<Vec<SocketAddr>> {
            match target.host.parse::<IpAddr>() {
                Ok(ip) => Ok(vec![SocketAddr::new(ip, target.port)]),
                Err(_) => Err(std::io::Error::other("no such host")),
            }
        }

        fn addresses(&self) -> Vec<IpAddr> {
            vec![]
        }
    }

    fn from(pairs: &[(&str, &str)]) -> Config {
        read(|name| pairs.iter().find(|(key, _)| name == *key).map(|(_, value)| (*value).to_owned()), &Nowhere)
    }

    #[test]
    fn the_defaults_of_the_table_are_the_default_config() {
        let table = read(|name| all().find(|s| s.name == name).map(|s| s.default.to_owned()), &Nowhere);
        assert_eq!(table, Config::default());
        assert_eq!(from(&[]), Config::default());
    }

    #[test]
    fn every_setting_is_named_once_and_allows_its_default() {
        let names: std::collections::HashSet<_> = all().map(|setting| setting.name).collect();
        assert_eq!(names.len(), all().count());
        for setting in all() {
            assert!(setting.name.starts_with("ephpm_kv.") && !setting.meaning.is_empty());
            assert!(setting.allows(setting.default), "{}", setting.name);
        }
    }

    #[test]
    fn a_bad_value_leaves_the_default_and_is_explained() {
        let bad = [
            ("enabled", "maybe"),
            ("memory", "1M"),
            ("bind", "nowhere"),
            ("advertise", "0.0.0.0:1"),
            ("join", "a:1,b"),
            ("node_id", "two words"),
            ("cluster_id", ""),
            ("insecure", "2"),
            ("role", "owner"),
            ("runtime", "fiber"),
            ("timeout_ms", "0"),
            ("gossip_interval_ms", "19"),
            ("replicate_ms", "1001"),
            ("replicas", "17"),
            ("copy_all_max", "0"),
            ("small_value_max", "65537"),
            ("value_max", "17M"),
            ("sweep_interval", "1h"),
            ("socket", "kv.sock"),
            ("leave_timeout_ms", "-1"),
            ("log", "file.log"),
            ("log_level", "loud"),
        ];
        for (name, value) in bad {
            let name = format!("ephpm_kv.{name}");
            let setting = all().find(|setting| setting.name == name).expect(&name);
            assert!(!setting.allows(value), "{name}={value}");
            assert_eq!(from(&[(&name, value)]), Config::default(), "{name}={value}");
            let text = setting.complaint(value);
            assert!(text.contains(&name) && text.contains(value) && text.contains(setting.allowed), "{text}");
        }
        let long = "n".repeat(65);
        assert_eq!(from(&[("ephpm_kv.namespace", &long)]).namespace, "");
    }

    #[test]
    fn a_bad_secret_is_not_shown_and_counts_as_one() {
        let config = from(&[("ephpm_kv.bind", "127.0.0.1:7"), ("ephpm_kv.secret", "hush,,hush")]);
        assert!(config.secret && config.bind.is_none() && config.refusal.is_some());
        assert!(!SECRET.complaint("hush,,hush").contains("hush"));
        assert!(from(&[("ephpm_kv.secret_file", "relative")]).secret);
        assert!(from(&[("ephpm_kv.secret", "a"), ("ephpm_kv.secret_file", "")]).secret);
    }

    #[test]
    fn a_cluster_on_loopback_needs_no_more_than_an_address() {
        let config = from(&[("ephpm_kv.bind", "[::1]:7946"), ("ephpm_kv.join", "a:1, 10.0.0.1:2")]);
        assert_eq!(config.bind, Some("[::1]:7946".parse().unwrap()));
        assert_eq!(config.advertise, config.bind);
        assert_eq!(config.join.len(), 2);
        assert_eq!(config.refusal, None);
    }
}
