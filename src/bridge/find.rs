//! Which segment this process belongs to: the one it had before, one that its former self left to it, that of the
//! host's node, or a fresh one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::sapi::Sapi;
use crate::config::Config;
use crate::dataplane::attach::{Attached, attach};
use crate::error::SetupError;
use crate::node::host_address;
use crate::segment::Segment;
use crate::segment::descriptors::Descriptors;
use crate::segment::limit::memory_limit;

/// How php-fpm's master tells its next self which descriptors are the segment's.
pub(super) const HANDED_ON: &str = "EPHPM_KV_SEGMENT";

/// How long the host's node may take to hand its segment out.
const ATTACH_TIMEOUT: Duration = Duration::from_millis(250);

/// The segment of the last start of the module in this process: it outlives the module (Apache's graceful restart,
/// a reload of FrankenPHP).
static KEPT: Mutex<Option<Arc<Segment>>> = Mutex::new(None);

/// Where the segment comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Made here.
    Fresh,
    /// Left by this process's former life: the settings may have changed since.
    Former,
    /// That of the host's node.
    Node,
}

/// The segment for this start of the module. `warn` is told why what was there could not be kept. Errors: a fresh
/// segment cannot be made.
pub(super) fn find(
    config: &Config,
    sapi: &Sapi,
    warn: &mut dyn FnMut(&str),
) -> Result<(Arc<Segment>, Source), SetupError> {
    let (segment, source) = match former(config, sapi, warn) {
        Some(segment) => (segment, Source::Former),
        None => match attach_to_node(config) {
            Attempt::Attached(segment) => (segment, Source::Node),
            Attempt::Nobody | Attempt::Refused(_) => (fresh(config, warn)?, Source::Fresh),
        },
    };
    *KEPT.lock() = Some(segment.clone());
    Ok((segment, source))
}

fn fresh(config: &Config, warn: &mut dyn FnMut(&str)) -> Result<Arc<Segment>, SetupError> {
    if let Some(limit) = memory_limit().filter(|limit| *limit < config.memory) {
        let memory = config.memory;
        warn(&format!(
            "ephpm_kv.memory is {memory} bytes, but the processes here may have {limit} bytes of memory together (cgroup): \
             before the segment is full, the kernel will kill some of them"
        ));
    }
    Segment::create(config.memory)
}

fn former(config: &Config, sapi: &Sapi, warn: &mut dyn FnMut(&str)) -> Option<Arc<Segment>> {
    let kept = KEPT.lock().take();
    let handed_on = sapi.executes_itself().then(|| std::env::var(HANDED_ON).ok()).flatten();
    let segment = match (kept, handed_on) {
        (Some(segment), _) => segment,
        (None, Some(text)) => {
            let inherited = Descriptors::inherit(&text).map_err(|why| SetupError::new(HANDED_ON, why));
            match inherited.and_then(Segment::join) {
                Ok(segment) => segment,
                Err(error) => {
                    warn(&format!("the counters from before the reload are gone, this start begins empty: {error}"));
                    return None;
                }
            }
        }
        (None, None) => return None,
    };
    let wanted = Segment::size_of(config.memory);
    if segment.size() != wanted {
        let had = segment.size();
        warn(&format!("ephpm_kv.memory has changed ({had} bytes before, {wanted} now): this start begins empty"));
        make_room(&segment, Duration::from_millis(config.leave_timeout_ms));
        return None;
    }
    Some(segment)
}

/// Has the node of a segment that is given up leave, and waits for that: the host's place is the next one's.
fn make_room(segment: &Segment, patience: Duration) {
    let begun = Instant::now();
    segment.table().retire();
    while segment.has_node() && begun.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What came of asking the host's node for its segment.
pub(super) enum Attempt {
    /// This is it.
    Attached(Arc<Segment>),
    /// The host has no node, or its processes do not meet.
    Nobody,
    /// There is a node, but its segment is not for this process; in words for an operator.
    Refused(String),
}

/// Asks the node of this host, if one serves, for its segment.
pub(super) fn attach_to_node(config: &Config) -> Attempt {
    let Some(address) = host_address(config) else { return Attempt::Nobody };
    match attach(&address, ATTACH_TIMEOUT) {
        Attached::Segment(descriptors) => match Segment::join(descriptors) {
            Ok(segment) => Attempt::Attached(segment),
            Err(error) => Attempt::Refused(error.to_string()),
        },
        Attached::Nobody => Attempt::Nobody,
        Attached::Refused(why) => Attempt::Refused(why),
    }
}
