//! Plain validated settings. Reading php.ini is `php::ini`'s business; what is allowed is decided here.
//!
//! [`settings`] is the table of all entries, [`parse`] knows what a value may look like, and [`address`] turns what
//! was written into what can be bound and dialled, or says why no cluster may start.

pub mod address;
pub mod parse;
pub mod settings;

use std::net::SocketAddr;
use std::path::PathBuf;

/// A number in the environment that only a build for tests looks at: times that nobody can wait for, mostly.
pub fn testing_number(name: &str) -> Option<u64> {
    if cfg!(feature = "testing") { std::env::var(name).ok()?.parse().ok() } else { None }
}

/// Whether this node owns slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns slots.
    Member,
    /// Owns nothing.
    Client,
    /// Member, but client for a node that a CLI script had to start itself.
    Auto,
}

/// Where the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// What fits the SAPI.
    Auto,
    /// A background thread of the process that starts it.
    Thread,
    /// A process of its own.
    Process,
}

/// Where the node logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Descriptor 2 as it was in MINIT.
    Stderr,
    /// Appended to this file.
    File(PathBuf),
    /// The system log.
    Syslog,
}

/// Where the host's processes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketName {
    /// An abstract Unix socket.
    Auto,
    /// A Unix socket at this path.
    Path(PathBuf),
    /// None.
    Off,
}

/// `host:port`, the host a name or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address (IPv6 without brackets).
    pub host: String,
    /// UDP and TCP port.
    pub port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// All settings. Times are milliseconds unless the name says otherwise, sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `ephpm_kv.enabled`
    pub enabled: bool,
    /// `ephpm_kv.memory`: size of the host segment.
    pub memory: u64,
    /// `ephpm_kv.bind`; `None`: no cluster.
    pub bind: Option<SocketAddr>,
    /// `ephpm_kv.advertise`; `None`: as `bind`.
    pub advertise: Option<SocketAddr>,
    /// `ephpm_kv.join`
    pub join: Vec<HostPort>,
    /// `ephpm_kv.node_id`; empty: host name and port.
    pub node_id: String,
    /// `ephpm_kv.cluster_id`
    pub cluster_id: String,
    /// `ephpm_kv.secret` or `secret_file` is set. (Sealing is not built yet: the cluster refuses to start with one.)
    pub secret: bool,
    /// `ephpm_kv.insecure`: beyond loopback without a secret.
    pub insecure: bool,
    /// `ephpm_kv.role`
    pub role: Role,
    /// `ephpm_kv.runtime`
    pub runtime: Runtime,
    /// `ephpm_kv.timeout_ms`: deadline of one remote operation.
    pub timeout_ms: u64,
    /// `ephpm_kv.gossip_interval_ms`
    pub gossip_interval_ms: u64,
    /// `ephpm_kv.replicate_ms`: time between two batches to a peer.
    pub replicate_ms: u64,
    /// `ephpm_kv.replicas`: copies of large values.
    pub replicas: u32,
    /// `ephpm_kv.copy_all_max`: up to this many members everyone holds every small entry.
    pub copy_all_max: u32,
    /// `ephpm_kv.small_value_max`
    pub small_value_max: u32,
    /// `ephpm_kv.value_max`
    pub value_max: u32,
    /// `ephpm_kv.sweep_interval`, in seconds.
    pub sweep_interval_s: u64,
    /// `ephpm_kv.socket`
    pub socket: SocketName,
    /// `ephpm_kv.leave_timeout_ms`
    pub leave_timeout_ms: u64,
    /// `ephpm_kv.namespace`
    pub namespace: String,
    /// `ephpm_kv.log`
    pub log: LogTarget,
    /// `ephpm_kv.log_level`
    pub log_level: tracing::Level,
    /// Why no cluster may start although one is configured, in words for an operator. Then the host counts alone and
    /// every answer is degraded, whatever `bind` says.
    pub refusal: Option<String>,
}

impl Default for Config {
    /// What an empty php.ini gives: no cluster, 64 MiB.
    fn default() -> Self {
        Self {
            enabled: true,
            memory: 64 << 20,
            bind: None,
            advertise: None,
            join: Vec::new(),
            node_id: String::new(),
            cluster_id: "ephpm".into(),
            secret: false,
            insecure: false,
            role: Role::Auto,
            runtime: Runtime::Auto,
            timeout_ms: 50,
            gossip_interval_ms: 100,
            replicate_ms: 10,
            replicas: 2,
            copy_all_max: 16,
            small_value_max: 512,
            value_max: 1 << 20,
            sweep_interval_s: 10,
            socket: SocketName::Auto,
            leave_timeout_ms: 2000,
            namespace: String::new(),
            log: LogTarget::Stderr,
            log_level: tracing::Level::WARN,
            refusal: None,
        }
    }
}
