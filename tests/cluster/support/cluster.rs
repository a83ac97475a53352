//! Several hosts that join each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::host::{Host, Spec};
use super::{poll, ports};

/// A cluster and the directory that its logs are in.
pub struct Cluster {
    /// The hosts, in the order of their names host0, host1, ...
    pub hosts: Vec<Host>,
    /// Dropped after the hosts, which show the ends of their logs when a test has failed.
    dir: TempDir,
}

/// The settings that tests start from; more are added by name.
pub fn settings(port: u16, name: &str, join: &str) -> BTreeMap<String, String> {
    let bind = format!("127.0.0.1:{port}");
    [
        ("bind", bind.as_str()),
        ("join", join),
        ("node_id", name),
        ("role", "member"),
        ("memory", "16M"),
        ("log", "stderr"),
        ("log_level", "info"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// The settings of `count` hosts that name each other as seeds, logging to `dir`.
pub fn specs(count: usize, dir: &Path) -> Vec<Spec> {
    let ports = ports::free_ports(count);
    let join: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let spec = |(index, port): (usize, &u16)| {
        let name = format!("host{index}");
        let ini = settings(*port, &name, &join.join(","));
        Spec { name, port: *port, ini, env: BTreeMap::new(), dir: dir.to_owned() }
    };
    ports.iter().enumerate().map(spec).collect()
}

impl Cluster {
    /// `count` hosts, ready, each seeing all.
    pub fn new(count: usize) -> Self {
        Self::with(count, |_| ())
    }

    /// The same, each host's settings changed by `change` first.
    pub fn with(count: usize, mut change: impl FnMut(&mut Spec)) -> Self {
        let dir = TempDir::new().expect("a directory");
        let mut specs = specs(count, dir.path());
        specs.iter_mut().for_each(&mut change);
        let mut cluster = Self { hosts: specs.iter().map(Host::start).collect(), dir };
        cluster.wait_ready();
        cluster
    }

    /// Where logs go.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until every host is ready and sees all the others.
    pub fn wait_ready(&mut self) {
        let count = self.hosts.len() as u64;
        for host in &mut self.hosts {
            // A call starts each node before any is waited for.
            host.call("ephpm_kv_get", &[super::host::Value::text("warm")]);
        }
        for host in &mut self.hosts {
            host.wait_ready(count);
        }
    }

    /// Waits until every host gives this value for the key, as it must within 5 s of the last fault.
    pub fn wait_value(&mut self, key: &str, value: i64, limit: Duration) {
        poll(&format!("every host has {key} = {value}"), limit, || {
            let values: Vec<i64> = self.hosts.iter_mut().map(|host| host.get(key)).collect();
            if values.iter().all(|found| *found == value) { Ok(()) } else { Err(format!("{values:?}")) }
        });
    }

    /// Waits until all hosts agree about these keys and have stayed so for a second; gives the values.
    pub fn settled<'a>(&mut self, keys: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, i64> {
        let keys: Vec<&str> = keys.into_iter().collect();
        let mut since: Option<(Vec<i64>, Instant)> = None;
        let values = poll("the hosts agree", Duration::from_secs(10), || {
            let mut all = self.hosts.iter_mut().map(|host| keys.iter().map(|key| host.get(key)).collect::<Vec<i64>>());
            let first = all.next().unwrap_or_default();
            for (other, host) in all.zip(1..) {
                if let Some(index) = first.iter().zip(&other).position(|(one, two)| one != two) {
                    since = None;
                    let (key, one, two) = (keys[index], first[index], other[index]);
                    return Err(format!("{key} is {one} on the first host, {two} on number {host} after it"));
                }
            }
            match &since {
                Some((values, at)) if *values == first && at.elapsed() > Duration::from_secs(1) => Ok(first),
                Some((values, _)) if *values == first => Err("they have not agreed for a second yet".into()),
                _ => {
                    since = Some((first, Instant::now()));
                    Err("they agree only just now".into())
                }
            }
        });
        keys.into_iter().map(str::to_owned).zip(values).collect()
    }

    /// Names of so many counters owned by this host.
    pub fn keys_owned_by(&mut self, owner: &str, prefix: &str, count: usize) -> Vec<String> {
        let names = (0..10_000).map(|number| format!("{prefix}:{number}"));
        let keys: Vec<String> = names.filter(|key| self.hosts[0].owner(key) == owner).take(count).collect();
        assert_eq!(keys.len(), count, "{owner} owns too little");
        keys
    }

    /// Ends every host in order; each must end with status 0.
    pub fn quit(self) {
        let Self { hosts, dir } = self;
        for host in hosts {
            let name = host.spec.name.clone();
            let status = host.quit();
            assert!(status.success(), "{name} ended with {status}");
        }
        drop(dir);
    }
}
