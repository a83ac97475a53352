//! One per process: the operations PHP has, and where each of them runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::channel::Asked;
use super::family::Family;
use super::find::{Attempt, Source, attach_to_node, find};
use super::fork::pid;
use super::sapi::Sapi;
use super::socket::HostSocket;
use super::starter::Starter;
use crate::clock::Clock;
use crate::config::{Config, LogTarget, Runtime};
use crate::error::{Refusal, SetupError};
use crate::metrics::{Lost, OpKind, Path};
use crate::node::{Job, LogSink};
use crate::placement;
use crate::record::{Body, Key, KeyBuf, State, Window};
use crate::router::{
    Look, Place, amount, count_here, estimate, has_moved, op_kind, path_of, place, place_read, standing_of_write,
    still_speaks,
};
use crate::segment::Segment;
use crate::segment::table::NodeState;
use crate::store::{Standing, Store, StoreOptions, Ttl, Value, counter_value};
use crate::wire::message::{Call, Op, Outcome, Reply, Request, Response};

/// How long a flush of all owners may take, in deadlines of one operation.
const FLUSH_PATIENCE: u32 = 20;

thread_local! {
    static DEGRADED: Cell<bool> = const { Cell::new(false) };
    static WINDOW: Cell<Window> = const { Cell::new(Window { stamp: 0, origin: 0 }) };
}

/// The extension in this process.
pub struct Host {
    inner: Result<Inner, String>,
}

struct Inner {
    open: Open,
    family: &'static Family,
}

/// A segment, and everything on this side of it.
pub(super) struct Open {
    pub(super) config: Config,
    pub(super) segment: Arc<Segment>,
    pub(super) store: Store,
    /// Absent without a cluster.
    pub(super) starter: Option<Starter>,
    socket: HostSocket,
    /// A cluster is configured, whether or not it may start.
    pub(super) clustered: bool,
    sapi: Sapi,
    log: Option<LogSink>,
    /// The segment has (or has had) a node, or needs none: it stays this process's.
    settled: AtomicBool,
    /// The host's segment, when it turned out later that there is one.
    successor: OnceLock<Box<Open>>,
}

impl Host {
    /// Finds or makes the host segment; starts no thread or process and opens no port. `warn` is told what an operator
    /// should know although it is no reason to fail.
    pub fn open(config: Config, sapi: Sapi, warn: &mut dyn FnMut(&str)) -> Result<Self, SetupError> {
        let log = match (&config.refusal, config.bind) {
            (None, Some(_)) => Some(open_log(&config, &sapi, warn)?),
            _ => None,
        };
        let (segment, source) = find(&config, &sapi, warn)?;
        let forks = sapi.runtime(config.runtime) == Runtime::Process;
        let leave_timeout = Duration::from_millis(config.leave_timeout_ms);
        let family = Family::found(segment.clone(), forks, sapi.executes_itself(), leave_timeout)
            .map_err(|error| SetupError::new("ephpm_kv process family", error))?;
        let open = Open::over(config, sapi, segment, log)?;
        if source == Source::Former && open.starter.is_none() {
            // The cluster is gone from the settings.
            open.segment.table().retire();
        }
        if source == Source::Fresh || open.starter.is_none() {
            open.describe();
        } else if let (Source::Former, Some(starter)) = (source, &open.starter) {
            starter.renew();
        }
        Ok(Self { inner: Ok(Inner { open, family }) })
    }

    /// A host that refuses everything and says why.
    pub fn disabled(reason: String) -> Self {
        Self { inner: Err(reason) }
    }

    /// The segment in use; `Err`: why there is none.
    pub(super) fn current(&self) -> Result<&Open, &str> {
        let mut open = &self.inner.as_ref().map_err(String::as_str)?.open;
        while let Some(successor) = open.successor.get() {
            open = successor;
        }
        Ok(open)
    }

    pub(super) fn open_host(&self) -> Result<&Open, Refusal> {
        let Ok(open) = self.current() else {
            DEGRADED.set(false);
            return Err(Refusal::Disabled);
        };
        if open.settled.load(Ordering::Relaxed) { Ok(open) } else { Ok(self.settle(open)) }
    }

    /// As long as this process's segment has never had a node, the host's node may be another segment's (two servers
    /// that start at once, say): then that one is the host's, and this process moves there.
    #[cold]
    fn settle<'a>(&'a self, open: &'a Open) -> &'a Open {
        let Some(starter) = open.starter.as_ref().filter(|_| !open.segment.table().has_had_node()) else {
            open.settled.store(true, Ordering::Relaxed);
            return open;
        };
        let now = open.store.clock().now_ms();
        if !starter.is_missing(now) {
            return open;
        }
        match attach_to_node(&open.config) {
            Attempt::Attached(segment) => {
                if let Ok(found) = Open::over(open.config.clone(), open.sapi.clone(), segment, open.log.clone()) {
                    found.enter();
                    if open.successor.set(Box::new(found)).is_ok() {
                        self.bring_along(&open.store);
                    }
                    return open.successor.get().map_or(open, |found| found);
                }
            }
            Attempt::Refused(why) => {
                starter.be_guest(&why);
                starter.start(now);
            }
            Attempt::Nobody => starter.start(now),
        }
        open
    }

    /// Counts here what was counted in a segment that nobody but this family has ever seen.
    fn bring_along(&self, from: &Store) {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (copies, next) = from.scan(at, 256 * 1024, &|_| true);
            for copy in copies.into_iter().filter(|copy| matches!(copy.state.body, Body::Counter(_))) {
                let key = copy.key.as_key();
                let counted = from.read(key, |value| match value {
                    Value::Int(amount) => amount,
                    Value::Bytes(_) | Value::Elsewhere(_) => 0,
                });
                let amount = counted.ok().flatten().unwrap_or(0);
                // Others may still count there: what is taken out is exactly what is counted here.
                let taken = amount != 0
                    && amount.checked_neg().is_some_and(|by| from.incr(key, by, None, Standing::Degraded).is_ok());
                if taken && self.incr(key, amount, copy.state.ttl_ms).is_err() {
                    let _ = from.incr(key, amount, None, Standing::Degraded);
                }
            }
            cursor = next;
        }
    }

    /// At the start of a request (`real`: not the one in which opcache preloads): under a server the node starts here,
    /// under the CLI with the first operation.
    pub fn request_start(&self, real: bool) {
        let (Ok(inner), Ok(open)) = (&self.inner, self.current()) else { return };
        if real && inner.family.enter() {
            open.enter();
        }
        if !open.sapi.is_cli() {
            let open = self.open_host().unwrap_or(open);
            // Also while the lease holds: it outlives a node that is killed by a second.
            open.ensure_node(open.store.clock().now_ms());
        }
        open.sweep();
    }

    /// At the end of a request.
    pub fn request_end(&self) {
        if let Ok(open) = self.current() {
            open.sweep();
        }
    }

    /// At the end of the process (or before the module starts anew in it): the node leaves in order.
    pub fn shutdown(&self) {
        if let Ok(Open { starter: Some(starter), .. }) = self.current() {
            starter.stop();
        }
    }

    /// Adds `by`; a counter that is created gets `ttl_ms`. The new value.
    #[inline]
    pub fn incr(&self, key: Key<'_>, by: i64, ttl_ms: Option<u64>) -> Result<i64, Refusal> {
        let open = self.open_host()?;
        match open.place(key) {
            Place::Here(standing, speaks) => {
                let counted = open.store.incr(key, by, ttl_ms, standing);
                open.record(OpKind::Incr, speaks && open.still_speaks(key, standing));
                let counted = counted?;
                remember(counted.window);
                Ok(counted.value)
            }
            Place::Node => {
                let reply = open.ask(key, Op::Incr { deltas: vec![by], ttl_ms });
                remember(reply.state.as_ref().map(|state| state.window).unwrap_or_default());
                value(reply)
            }
        }
    }

    /// Replaces the value.
    pub fn set(&self, key: Key<'_>, value: &[u8], ttl_ms: Option<u64>) -> Result<(), Refusal> {
        let open = self.open_host()?;
        if value.len() > open.config.value_max as usize {
            return Err(Refusal::ValueTooLarge);
        }
        let inline = |store: &Store, standing| store.set(key, value, ttl_ms, standing);
        let op = || Op::Set { value: bytes::Bytes::copy_from_slice(value), ttl_ms };
        open.write(key, OpKind::Set, inline, op, |reply, _| done(reply).map(|_| ()))
    }

    /// Sets the value unless the key is there; whether it did. Without an owner: [`Refusal::NoOwner`], nothing changed.
    pub fn set_nx(&self, key: Key<'_>, value: &[u8], ttl_ms: Option<u64>) -> Result<bool, Refusal> {
        let inline = |store: &Store, standing| store.set_nx(key, value, ttl_ms, standing);
        let op = || Op::SetNx { value: bytes::Bytes::copy_from_slice(value), ttl_ms };
        self.conditional(key, OpKind::SetNx, inline, op, done)
    }

    /// Adds bytes at the end of the value; the new length. Without an owner: [`Refusal::NoOwner`], nothing changed.
    pub fn append(&self, key: Key<'_>, more: &[u8]) -> Result<usize, Refusal> {
        let inline = |store: &Store, standing| store.append(key, more, standing);
        let op = || Op::Append { value: bytes::Bytes::copy_from_slice(more) };
        self.conditional(key, OpKind::Append, inline, op, |reply| value(reply).map(|len| len as usize))
    }

    /// Replaces the value (`None`: deletes it) if it is the expected one (`None`: absent); whether it was. Without an
    /// owner: [`Refusal::NoOwner`], nothing changed.
    pub fn cas(
        &self,
        key: Key<'_>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        ttl_ms: Option<u64>,
    ) -> Result<bool, Refusal> {
        let inline = |store: &Store, standing| store.cas(key, expected, new, ttl_ms, standing);
        let owned = |bytes: Option<&[u8]>| bytes.map(bytes::Bytes::copy_from_slice);
        let op = || Op::Cas { expected: owned(expected), new: owned(new), ttl_ms };
        self.conditional(key, OpKind::Cas, inline, op, done)
    }

    /// An operation whose effect depends on what is there. In a cluster the node decides it, also where this host owns the
    /// key: its answer waits for other members.
    fn conditional<T>(
        &self,
        key: Key<'_>,
        kind: OpKind,
        inline: impl FnOnce(&Store, Standing) -> Result<T, Refusal>,
        op: impl FnOnce() -> Op,
        result: impl FnOnce(Reply) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let open = self.open_host()?;
        match open.place(key) {
            Place::Here(standing, speaks) if !open.clustered => {
                open.record(kind, speaks);
                inline(&open.store, standing)
            }
            Place::Here(_, false) => {
                open.record(kind, false);
                Err(Refusal::NoOwner)
            }
            Place::Here(_, true) | Place::Node => result(open.ask(key, op())),
        }
    }

    /// Deletes the key; whether it was there.
    pub fn del(&self, key: Key<'_>) -> Result<bool, Refusal> {
        let inline = |store: &Store, standing| store.del(key, standing);
        let asked = |reply, was_there: Option<bool>| done(reply).map(|there| there || was_there == Some(true));
        self.open_host()?.write(key, OpKind::Del, inline, || Op::Del, asked)
    }

    /// Sets the deadline (`None` removes it); whether the key is there.
    pub fn expire(&self, key: Key<'_>, ttl_ms: Option<u64>) -> Result<bool, Refusal> {
        let inline = |store: &Store, standing| store.expire(key, ttl_ms, standing);
        self.open_host()?.write(key, OpKind::Expire, inline, || Op::Expire { ttl_ms }, |reply, _| done(reply))
    }

    /// Hands the value to `f`, outside of every lock; `None`: no such key.
    pub fn get<R>(&self, key: Key<'_>, f: impl FnOnce(Value<'_>) -> R) -> Result<Option<R>, Refusal> {
        let open = self.open_host()?;
        let mut f = Some(f);
        let mut whole = |value: Value<'_>| match value {
            Value::Elsewhere(_) => None,
            value => f.take().map(|f| f(value)),
        };
        if let Look::Here { speaks } = open.look(key) {
            match open.store.read(key, &mut whole)? {
                Some(None) if open.can_ask() => {}
                Some(None) => {
                    open.record(OpKind::Get, false);
                    return Ok(None);
                }
                found => {
                    open.record(OpKind::Get, speaks);
                    return Ok(found.flatten());
                }
            }
        }
        let reply = open.ask(key, Op::Get { bytes: true });
        match reply.state {
            Some(State { body: Body::Bytes(bytes), .. }) => Ok(whole(Value::Bytes(&bytes))),
            Some(state) => Ok(counter_value(&state).and_then(|value| whole(Value::Int(value)))),
            None if reply.degraded => Ok(open.store.read(key, whole)?.flatten()),
            None => Ok(None),
        }
    }

    /// Whether the key is there.
    pub fn exists(&self, key: Key<'_>) -> Result<bool, Refusal> {
        Ok(self.ttl(key)? != Ttl::NoKey)
    }

    /// The remaining time to live.
    pub fn ttl(&self, key: Key<'_>) -> Result<Ttl, Refusal> {
        let open = self.open_host()?;
        if let Look::Here { speaks } = open.look(key) {
            open.record(OpKind::Get, speaks);
            return open.store.ttl(key);
        }
        let reply = open.ask(key, Op::Get { bytes: false });
        match reply.state {
            Some(State { body: Body::Tombstone(_), .. }) => Ok(Ttl::NoKey),
            Some(state) => Ok(state.ttl_ms.map_or(Ttl::NoDeadline, |left| Ttl::Ms(left.max(1)))),
            None if reply.degraded => open.store.ttl(key),
            None => Ok(Ttl::NoKey),
        }
    }

    /// Ends every window of `namespace` on the whole cluster; `false`: an owner was out of reach and kept its keys.
    pub fn flush_all(&self, namespace: &[u8]) -> Result<bool, Refusal> {
        let open = self.open_host()?;
        if !open.clustered {
            open.record(OpKind::Del, true);
            open.store.flush(namespace, &|_| true, Standing::Owner { term: 0 });
            return Ok(true);
        }
        let now = open.store.clock().now_ms();
        if !open.segment.table().lease_holds(now) {
            open.ensure_node(now);
        }
        let deadline = Instant::now() + FLUSH_PATIENCE * Duration::from_millis(open.config.timeout_ms);
        let flushed = match open.starter.as_ref().map(Starter::channel) {
            Some(Some(channel)) => {
                let namespace = namespace.to_vec();
                matches!(channel.ask(deadline, |done| Job::Flush { namespace, deadline, done }), Asked::Answered(true))
            }
            Some(None) => {
                let request = Request::Flush { namespace: bytes::Bytes::copy_from_slice(namespace) };
                matches!(open.socket.ask(&request, deadline), Asked::Answered(Response::Done))
            }
            None => false,
        };
        DEGRADED.set(!flushed);
        open.segment.metrics().count(pid() as usize, OpKind::Del, if flushed { Path::Remote } else { Path::Degraded });
        Ok(flushed)
    }

    /// Whether this thread's last operation was answered without the owner.
    pub fn degraded(&self) -> bool {
        DEGRADED.get()
    }

    /// Window of this thread's last increment: stamp and origin.
    #[cfg(feature = "testing")]
    pub fn last_window(&self) -> (u64, u64) {
        let window = WINDOW.get();
        (window.stamp, window.origin)
    }
}

/// `ephpm_kv.log`, or stderr where that cannot be opened: counting matters more than where it is logged. A script,
/// which logs errors only and may run as any user, says nothing.
fn open_log(config: &Config, sapi: &Sapi, warn: &mut dyn FnMut(&str)) -> Result<LogSink, SetupError> {
    LogSink::open(&config.log, config.log_level).or_else(|error| {
        if !sapi.is_cli() {
            warn(&format!("logging to stderr instead: {error}"));
        }
        LogSink::open(&LogTarget::Stderr, config.log_level)
    })
}

/// Keeps the window of an increment for the test build.
#[inline]
fn remember(window: Window) {
    if cfg!(feature = "testing") {
        WINDOW.set(window);
    }
}

fn done(reply: Reply) -> Result<bool, Refusal> {
    match reply.outcome {
        Outcome::Done(done) => Ok(done),
        Outcome::Refused(refusal) => Err(refusal),
        Outcome::Values(_) => Err(Refusal::NoOwner),
    }
}

/// The value of a reply that has one.
fn value(reply: Reply) -> Result<i64, Refusal> {
    match reply.outcome {
        Outcome::Values(values) => values.into_iter().next().unwrap_or(Err(Refusal::NoOwner)),
        Outcome::Refused(refusal) => Err(refusal),
        Outcome::Done(_) => Err(Refusal::NoOwner),
    }
}

impl Open {
    fn over(config: Config, sapi: Sapi, segment: Arc<Segment>, log: Option<LogSink>) -> Result<Self, SetupError> {
        let clustered = config.bind.is_some() || config.refusal.is_some();
        let options = StoreOptions { clustered, value_max: config.value_max };
        let store = Store::try_open(segment.clone(), Clock::System, options)?;
        let starter = log.clone().map(|log| Starter::new(config.clone(), &sapi, segment.clone(), log));
        let socket = HostSocket::new(&config, &segment);
        let (settled, successor) = (AtomicBool::new(starter.is_none()), OnceLock::new());
        Ok(Self { config, segment, store, starter, socket, clustered, sapi, log, settled, successor })
    }

    /// A request has begun in this process: it may start the node, and its user's processes may attach.
    fn enter(&self) {
        self.segment.table().add_user(rustix::process::geteuid().as_raw());
        if let Some(starter) = &self.starter {
            starter.arm();
        }
    }

    /// Publishes what a segment without a node has to say of itself.
    fn describe(&self) {
        let (state, reason) = match (&self.config.refusal, &self.starter) {
            (Some(refusal), _) => (NodeState::Alone, refusal.as_str()),
            (None, Some(_)) => (NodeState::Joining, "not started yet: it starts at the first use"),
            (None, None) => (NodeState::Alone, "no cluster is configured"),
        };
        self.segment.table().set_state(state, reason);
    }

    /// Whether what this host says of its own keys is the cluster's word.
    pub(super) fn speaks(&self) -> bool {
        if !self.clustered {
            return true;
        }
        let now = self.store.clock().now_ms();
        let speaks = self.segment.table().lease_holds(now);
        if !speaks {
            self.ensure_node(now);
        }
        speaks
    }

    /// Where a read of `key` runs.
    #[inline]
    fn look(&self, key: Key<'_>) -> Look {
        if !self.clustered {
            return Look::Here { speaks: true };
        }
        let now = self.store.clock().now_ms();
        let table = self.segment.table();
        if !table.lease_holds(now) {
            self.ensure_node(now);
        }
        place_read(table, placement::slot(key.name), now)
    }

    /// Whether there is a node that may find what is not here.
    fn can_ask(&self) -> bool {
        let table = self.segment.table();
        self.clustered && table.state() != NodeState::Alone && !table.node_is_silent(self.store.clock().now_ms())
    }

    #[inline]
    fn place(&self, key: Key<'_>) -> Place {
        if !self.clustered {
            return Place::Here(Standing::Owner { term: 0 }, true);
        }
        let now = self.store.clock().now_ms();
        let table = self.segment.table();
        if !table.lease_holds(now) {
            self.ensure_node(now);
        }
        place(table, placement::slot(key.name), now)
    }

    /// Whether the slot changed hands while this thread changed the key as its owner: then the change, which can be
    /// repeated, is made again where the owner is now. (An increment is not: it goes home as a share.)
    fn has_moved(&self, key: Key<'_>, standing: Standing) -> bool {
        self.clustered && has_moved(self.segment.table(), placement::slot(key.name), standing)
    }

    /// A set, delete or new deadline. `asked` makes the result of the node's reply, and of what was done here before, if
    /// anything was.
    fn write<T>(
        &self,
        key: Key<'_>,
        kind: OpKind,
        inline: impl FnOnce(&Store, Standing) -> Result<T, Refusal>,
        op: impl FnOnce() -> Op,
        asked: impl FnOnce(Reply, Option<T>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Place::Here(standing, speaks) = self.place(key) else { return asked(self.ask(key, op()), None) };
        let standing = standing_of_write(standing, speaks);
        let done = inline(&self.store, standing);
        if done.is_ok() && self.has_moved(key, standing) {
            return asked(self.ask(key, op()), Some(done?));
        }
        self.record(kind, speaks && self.still_speaks(key, standing));
        done
    }

    /// Whether this host spoke for the key all the time since its place was looked up.
    fn still_speaks(&self, key: Key<'_>, standing: Standing) -> bool {
        let speaks = |now_ms| still_speaks(self.segment.table(), placement::slot(key.name), standing, now_ms);
        !self.clustered || speaks(self.store.clock().now_ms())
    }

    fn record(&self, op: OpKind, speaks: bool) {
        DEGRADED.set(!speaks);
        let path = if speaks { Path::Local } else { Path::Degraded };
        self.segment.metrics().count(pid() as usize, op, path);
    }

    pub(super) fn ensure_node(&self, now_ms: u64) {
        if let Some(starter) = &self.starter {
            starter.ensure(now_ms);
        }
    }

    /// A segment with a node is swept by it; one without by whoever passes.
    fn sweep(&self) {
        if self.starter.is_none() {
            self.store.sweep_if_due(self.config.sweep_interval_s * 1_000);
        }
    }

    /// Asks the node, and answers for it when it cannot.
    fn ask(&self, key: Key<'_>, op: Op) -> Reply {
        let call = Call { key: KeyBuf::new(key), op };
        let deadline = Instant::now() + Duration::from_millis(self.config.timeout_ms);
        let kind = op_kind(&call.op);
        let asked = match self.starter.as_ref().and_then(Starter::channel) {
            Some(channel) => {
                let (job, node_deadline) = (call.clone(), node_deadline(deadline, self.config.timeout_ms));
                channel.ask(deadline, move |done| Job::Call { call: job, deadline: node_deadline, done })
            }
            None => match self.socket.ask(&Request::Call(call.clone()), deadline) {
                Asked::Answered(Response::Reply(reply)) => Asked::Answered(reply),
                // The node is ending: it has decided nothing.
                Asked::Answered(_) | Asked::NotTaken => Asked::NotTaken,
                Asked::Undecided => Asked::Undecided,
                Asked::Lost => Asked::Lost,
            },
        };
        let reply = match asked {
            Asked::Answered(reply) => reply,
            Asked::NotTaken => {
                self.ensure_node(self.store.clock().now_ms());
                count_here(&self.store, &call)
            }
            Asked::Undecided => estimate(&self.store, &call),
            Asked::Lost => {
                self.segment.metrics().lose(Lost::Unresolved, amount(&call));
                estimate(&self.store, &call)
            }
        };
        DEGRADED.set(reply.degraded);
        self.segment.metrics().count(pid() as usize, kind, path_of(&reply));
        reply
    }
}

/// The node answers a little before its caller gives up.
fn node_deadline(deadline: Instant, timeout_ms: u64) -> Instant {
    let margin = Duration::from_millis(5).min(Duration::from_millis(timeout_ms) / 2);
    deadline - margin
}
