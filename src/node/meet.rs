//! Where the processes of a host meet: the socket on which the node hands its segment out to further processes, and
//! the one on which processes of the segment call it.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, SocketName};
use crate::dataplane::UnixAddr;
use crate::dataplane::attach::{self, Caller};
use crate::dataplane::server::{self, HostListener};
use crate::segment::Segment;
use crate::segment::descriptors::Descriptors;

/// The host's socket, by `ephpm_kv.socket`; `None`: this host's processes do not meet.
pub fn host_address(config: &Config) -> Option<UnixAddr> {
    let bind = config.bind?;
    match &config.socket {
        SocketName::Auto => Some(UnixAddr::Abstract(format!("ephpm_kv/{}/{bind}", config.cluster_id).into_bytes())),
        SocketName::Path(path) => Some(UnixAddr::Path(path.clone())),
        SocketName::Off => None,
    }
}

/// Where processes of `segment` call their node: an abstract socket named after the segment.
pub fn calls_address(segment: &Segment) -> UnixAddr {
    UnixAddr::Abstract(format!("ephpm_kv/{:016x}", segment.origin()).into_bytes())
}

/// The host's socket, while the node hands its segment out there.
pub(super) struct Meeting {
    task: tokio::task::JoinHandle<()>,
    path: Option<PathBuf>,
}

impl Meeting {
    /// Listens at `address`. Errors: as [`server::bind_unix`].
    pub(super) fn listen(address: &UnixAddr) -> std::io::Result<HostListener> {
        server::bind_unix(address)
    }

    /// Hands out `segment` to whom it may concern. `own_process`: the node must hold no write end of the lifeline.
    pub(super) fn begin(listener: HostListener, address: &UnixAddr, segment: Arc<Segment>, own_process: bool) -> Self {
        let serving = attach::serve(listener, move |caller| {
            admit(&segment, caller)?;
            duplicate(&segment, own_process).map_err(|error| error.to_string())
        });
        let path = match address {
            UnixAddr::Path(path) => Some(path.clone()),
            UnixAddr::Abstract(_) => None,
        };
        Self { task: tokio::spawn(serving), path }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn duplicate(segment: &Segment, own_process: bool) -> std::io::Result<Descriptors> {
    let all = segment.descriptors();
    if !own_process {
        return all.duplicate();
    }
    let again = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3);
    let (memory, hangup) = (again(all.memory.as_fd())?, again(all.hangup.as_fd())?);
    Ok(Descriptors { memory, alive: Descriptors::revive(hangup.as_fd())?, hangup })
}

/// Who may have the segment: root, its owner, this node's user, and users whose PHP processes have it anyway.
fn admit(segment: &Segment, caller: Caller) -> Result<(), String> {
    if caller.pid == 0 {
        return Err("it is in another pid namespace, and locks are held by numbers of this one".to_string());
    }
    let me = rustix::process::geteuid().as_raw();
    let owner = segment.descriptors().owner().unwrap_or(me);
    if [0, me, owner].contains(&caller.uid) || segment.table().has_user(caller.uid) {
        return Ok(());
    }
    Err(format!(
        "user {} has no PHP process here: the segment is shared with root, user {owner} and the pools' users only",
        caller.uid
    ))
}
