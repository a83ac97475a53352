//! What can be asked of a pool. The scripts are in `tests/php/fpm`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::fcgi::{Failure, Reply};
use crate::shared::host::{escape, unescape};

/// How long a request may take, unless the caller knows better.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What serves the scripts.
pub trait Server: Debug + Send + Sync {
    /// Makes one request.
    fn send(&self, request: &Request, limit: Duration) -> Result<Reply, Failure>;
}

/// Makes requests to one pool; cheap to clone, good for any thread.
#[derive(Clone, Debug)]
pub struct Client {
    /// Host and pool, for messages.
    pub name: String,
    /// Node id of the host.
    pub host: String,
    server: Arc<dyn Server>,
    limit: Duration,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// File name of the script.
    pub script: String,
    query: Vec<String>,
    /// FastCGI parameters.
    pub params: Vec<(String, String)>,
}

/// The part of `ephpm_kv_info()` that tests look at, and which process gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Process that served the request.
    pub pid: u32,
    /// disabled, alone, joining, ready or leaving.
    pub state: String,
    /// Why.
    pub reason: String,
    /// This host's.
    pub node_id: String,
    /// Process of the node.
    pub node_pid: u32,
    /// Number of the view.
    pub epoch: u64,
    /// Bytes of the segment in use.
    pub memory_used: u64,
    /// Names the segment.
    pub origin: String,
    /// Node ids of the live members.
    pub live: Vec<String>,
}

/// What a request's increments returned.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Process that counted.
    pub pid: u32,
    /// The longest call.
    pub slowest: Duration,
    /// The whole request.
    pub elapsed: Duration,
    /// Value (`None`: false) and whether degraded, in order.
    pub answers: Vec<(Option<i64>, bool)>,
    /// What PHP logged during the request.
    pub errors: String,
}

impl Request {
    /// For a script.
    pub fn new(script: &str) -> Self {
        Self { script: script.to_owned(), query: Vec::new(), params: Vec::new() }
    }

    /// A question that `ask.php` answers.
    pub fn ask(what: &str) -> Self {
        Self::new("ask.php").arg("do", what)
    }

    /// A query parameter.
    pub fn arg(mut self, name: &str, value: impl ToString) -> Self {
        self.query.push(format!("{name}={}", escape(&value.to_string())));
        self
    }

    /// The query string.
    pub fn query(&self) -> String {
        self.query.join("&")
    }

    /// A FastCGI parameter.
    pub fn param(mut self, name: &str, value: impl ToString) -> Self {
        self.params.push((name.to_owned(), value.to_string()));
        self
    }
}

impl Client {
    /// For a pool of this host.
    pub fn new(host: &str, pool: &str, server: impl Server + 'static) -> Self {
        let name = format!("{host}/{pool}");
        Self { name, host: host.to_owned(), server: Arc::new(server), limit: ANSWER_LIMIT }
    }

    /// The same with another deadline.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Makes a request.
    pub fn send(&self, request: Request) -> Result<Reply, Failure> {
        self.server.send(&request, self.limit)
    }

    /// Makes a request that must succeed, without a line in the log; gives the body.
    pub fn body(&self, request: Request) -> String {
        let shown = format!("{}: {request:?}", self.name);
        let reply = self.send(request).unwrap_or_else(|failure| panic!("{shown}: {failure:?}"));
        assert!(reply.status == 200 && reply.errors.is_empty(), "{shown}: {reply:?}");
        reply.body
    }

    /// Adds 1 to a counter `n` times in one request.
    pub fn try_incr(&self, key: &str, n: usize) -> Result<Counted, Failure> {
        self.counted(Request::new("incr.php").arg("key", key).arg("n", n))
    }

    /// A request to a script that prints what `incr.php` prints.
    pub fn counted(&self, request: Request) -> Result<Counted, Failure> {
        let reply = self.send(request)?;
        assert_eq!(reply.status, 200, "{}: {reply:?}", self.name);
        let mut lines = reply.body.lines();
        let (pid, slowest) = lines.next().and_then(|line| line.split_once(' ')).expect("a first line");
        let answer = |line: &str| {
            let (value, degraded) = line.split_once(' ').expect("two fields");
            (value.parse().ok(), degraded == "1")
        };
        Ok(Counted {
            pid: pid.parse().expect("a pid"),
            slowest: Duration::from_nanos(slowest.parse().expect("nanoseconds")),
            elapsed: reply.elapsed,
            answers: lines.map(answer).collect(),
            errors: reply.errors,
        })
    }

    /// Adds 1 to a counter once: the new value, and whether degraded.
    pub fn incr(&self, key: &str) -> (i64, bool) {
        let counted = self.try_incr(key, 1).unwrap_or_else(|failure| panic!("{}: {failure:?}", self.name));
        match counted.answers[0] {
            (Some(value), degraded) => (value, degraded),
            (None, _) => panic!("{}: ephpm_kv_incr({key}) was refused: {}", self.name, counted.errors),
        }
    }

    /// The values of these counters, 0 where there is none.
    pub fn counts(&self, keys: &[String]) -> Vec<i64> {
        let body = self.body(Request::ask("get").arg("keys", keys.join(",")));
        body.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{}: {line}", self.name))).collect()
    }

    /// The value of one counter, 0 when there is none.
    pub fn count(&self, key: &str) -> i64 {
        self.counts(&[key.to_owned()])[0]
    }

    /// The state of the host.
    pub fn info(&self) -> Info {
        let body = self.body(Request::ask("info"));
        let fields: BTreeMap<&str, String> =
            body.lines().filter_map(|line| line.split_once(' ')).map(|(name, text)| (name, unescape(text))).collect();
        let text = |name: &str| fields.get(name).cloned().unwrap_or_else(|| panic!("no {name}: {body}"));
        let number = |name: &str| text(name).parse().unwrap_or_else(|_| panic!("{name}: {body}"));
        Info {
            pid: number("pid") as u32,
            state: text("state"),
            reason: text("reason"),
            node_id: text("node_id"),
            node_pid: number("node_pid") as u32,
            epoch: number("epoch"),
            memory_used: number("memory_used"),
            origin: text("origin"),
            live: text("live").split(' ').filter(|id| !id.is_empty()).map(str::to_owned).collect(),
        }
    }

    /// Process of the node; 0: none.
    pub fn node_pid(&self) -> u32 {
        self.info().node_pid
    }

    /// The value of one metric (name and labels); 0 when it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.body(Request::ask("metrics"));
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// The sum of a metric over its labels.
    pub fn metric_sum(&self, name: &str) -> f64 {
        let text = self.body(Request::ask("metrics"));
        let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit_once(' '));
        values.map(|(_, value)| value.trim().parse::<f64>().expect("a number")).sum()
    }

    /// Names of so many counters owned by this node.
    pub fn keys_owned_by(&self, owner: &str, prefix: &str, count: usize) -> Vec<String> {
        let body = self.body(Request::ask("owned").arg("owner", owner).arg("prefix", prefix).arg("count", count));
        let keys: Vec<String> = body.lines().map(str::to_owned).collect();
        assert_eq!(keys.len(), count, "{owner} owns too little");
        keys
    }
}
