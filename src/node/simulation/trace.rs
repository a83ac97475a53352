//! What the nodes of a run log, with the simulation's time and the node's place.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::network::Place;

thread_local! {
    static HERE: Cell<(u64, Place)> = const { Cell::new((0, 0)) };
}

/// What runs on this thread from now on is a node's.
pub fn here(now: u64, place: Place) {
    HERE.set((now, place));
}

/// The lines of a run: events and logs.
pub struct Trace {
    lines: Lines,
    _guard: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(u64, String)>>>);

impl Trace {
    /// Takes down what is logged on this thread from now on.
    pub fn begin() -> Self {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_writer(lines.clone())
            .finish();
        Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// One event.
    pub fn tell(&self, now: u64, what: &str) {
        self.lines.0.lock().push((now, what.to_owned()));
    }

    /// All so far.
    pub fn lines(&self) -> Vec<(u64, String)> {
        self.lines.0.lock().clone()
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (now, place) = HERE.get();
        let line = String::from_utf8_lossy(bytes);
        self.0.lock().push((now, format!("    n{place} logs {}", line.trim())));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
