//! To a node in another process of the segment: the host's socket, one connection per thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::channel::Asked;
use super::fork::OfProcess;
use crate::config::Config;
use crate::dataplane::client_blocking::{Blocking, BlockingError};
use crate::dataplane::{Limits, UnixAddr};
use crate::node::{calls_address, settings_of};
use crate::segment::Segment;
use crate::wire::hello::LocalHello;
use crate::wire::message::{Request, Response};

thread_local! {
    static CONNECTION: RefCell<Option<OfProcess<Connection>>> = const { RefCell::new(None) };
}

struct Connection {
    origin: u64,
    node_pid: u32,
    blocking: Blocking,
}

/// The way to the node of a segment.
pub(super) struct HostSocket {
    segment: Arc<Segment>,
    address: UnixAddr,
    hello: LocalHello,
    frame_max: usize,
}

impl HostSocket {
    /// Connects to nothing yet.
    pub(super) fn new(config: &Config, segment: &Arc<Segment>) -> Self {
        Self {
            segment: segment.clone(),
            address: calls_address(segment),
            hello: LocalHello {
                cluster_id: config.cluster_id.clone(),
                node_id: String::new(),
                generation: 0,
                origin: segment.origin(),
                address: None,
                client: true,
                settings: settings_of(config),
                token: segment.token(),
            },
            frame_max: Limits::new(config.value_max).frame_max,
        }
    }

    /// Asks the segment's node and waits until `deadline`.
    pub(super) fn ask(&self, request: &Request, deadline: Instant) -> Asked<Response> {
        // A thread that is being torn down has no connection any more: it counts for itself.
        CONNECTION.try_with(|connection| self.ask_on(connection, request, deadline)).unwrap_or(Asked::NotTaken)
    }

    fn ask_on(
        &self,
        connection: &RefCell<Option<OfProcess<Connection>>>,
        request: &Request,
        deadline: Instant,
    ) -> Asked<Response> {
        let Ok(mut connection) = connection.try_borrow_mut() else { return Asked::NotTaken };
        // A node that is not there refuses at once; one that is busy is waited for as its answer would be.
        let patience = deadline.saturating_duration_since(Instant::now());
        let (origin, node_pid) = (self.hello.origin, self.segment.table().node_pid.load(Ordering::Acquire));
        let leads_there = |held: &Connection| (held.origin, held.node_pid) == (origin, node_pid);
        let usable = connection.as_ref().and_then(OfProcess::get);
        if !usable.is_some_and(|held| leads_there(held) && !held.blocking.is_lost()) {
            // In a child this closes the child's end of the parent's connection, and takes nothing from the parent.
            *connection = None;
            if node_pid == 0 {
                return Asked::NotTaken;
            }
            let blocking = Blocking::connect(&self.address, node_pid, &self.hello, self.frame_max, patience);
            let Ok(blocking) = blocking else { return Asked::NotTaken };
            *connection = Some(OfProcess::new(Connection { origin, node_pid, blocking }));
        }
        let Some(held) = connection.as_mut().and_then(OfProcess::get_mut) else { return Asked::NotTaken };
        match held.blocking.call(request, deadline) {
            Ok(response) => Asked::Answered(response),
            Err(BlockingError::NotSent(_)) => Asked::NotTaken,
            Err(BlockingError::TimedOut) => Asked::Undecided,
            Err(BlockingError::Lost(_)) => Asked::Lost,
        }
    }
}
