//! Where the node logs. One line per event, written with one system call, so that lines of several processes and a
//! fork at any moment do no harm.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};

use crate::config::LogTarget;
use crate::error::SetupError;

/// The descriptor of the module's last start in this process.
static LAST: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

/// A destination that is opened once, in MINIT.
#[derive(Clone)]
pub struct LogSink {
    descriptor: Arc<OwnedFd>,
    syslog: bool,
    level: tracing::Level,
}

/// `daemon.warning`, as syslog's datagrams begin.
const SYSLOG_PRIORITY: &str = "<28>";

impl LogSink {
    /// Opens `target`; events up to `level` are written.
    pub fn open(target: &LogTarget, level: tracing::Level) -> Result<Self, SetupError> {
        let setup = |error: &dyn std::fmt::Display| SetupError::new(format!("ephpm_kv.log ({target:?})"), error);
        let descriptor = match target {
            // Descriptor 2 as it is now: a worker's own may be /dev/null later.
            LogTarget::Stderr => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).map_err(|e| setup(&e))?,
            LogTarget::File(path) => {
                OpenOptions::new().create(true).append(true).open(path).map_err(|e| setup(&e))?.into()
            }
            // Not libc's syslog(): it keeps a descriptor for the whole process, and the node has a table of its own.
            LogTarget::Syslog => {
                let socket = UnixDatagram::unbound().map_err(|e| setup(&e))?;
                socket.connect("/dev/log").map_err(|e| setup(&e))?;
                socket.into()
            }
        };
        Ok(Self { descriptor: replace_last(descriptor), syslog: *target == LogTarget::Syslog, level })
    }

    /// The same destination for errors only.
    pub fn errors_only(mut self) -> Self {
        self.level = tracing::Level::ERROR;
        self
    }

    /// The descriptor to keep open for it.
    pub fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Makes it this thread's destination until the guard is dropped.
    pub fn install(&self) -> tracing::subscriber::DefaultGuard {
        let layer = tracing_subscriber::fmt::layer().with_writer(self.clone()).with_ansi(false).with_target(false);
        let level = self.level;
        // What chitchat has to say is said by `cluster`, rate limited.
        let wanted = move |event: &tracing::Metadata<'_>| {
            let most = if event.target().starts_with("chitchat") { tracing::Level::ERROR } else { level };
            *event.level() <= most
        };
        let filter = tracing_subscriber::filter::FilterFn::new(wanted).with_max_level_hint(level);
        tracing::subscriber::set_default(tracing_subscriber::registry().with(layer.with_filter(filter)))
    }
}

/// Where a server starts the module anew in one process, what is open from before leads to the new place: what still
/// logs there follows (the file may have been rotated), and descriptors do not pile up.
fn replace_last(descriptor: OwnedFd) -> Arc<OwnedFd> {
    let mut last = LAST.lock();
    if let Some(kept) = &*last {
        // SAFETY: both are open; that what the second one led to is closed in the same step is what is wanted.
        if unsafe { libc::dup3(descriptor.as_raw_fd(), kept.as_raw_fd(), libc::O_CLOEXEC) } >= 0 {
            return kept.clone();
        }
    }
    last.insert(Arc::new(descriptor)).clone()
}

impl<'a> MakeWriter<'a> for LogSink {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        let start = if self.syslog {
            format!("{SYSLOG_PRIORITY}ephpm_kv[{}]: ", std::process::id())
        } else {
            "ephpm_kv: ".to_string()
        };
        Line { descriptor: self.descriptor.clone(), bytes: start.into_bytes() }
    }
}

/// One line, written when it is complete.
pub struct Line {
    descriptor: Arc<OwnedFd>,
    bytes: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // A full disk or a closed pipe loses the line, nothing else.
        let _ = rustix::io::write(&*self.descriptor, &self.bytes);
    }
}
