//! A thread that does nothing but measure how late the machine wakes it: the yardstick for slow calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::now_ns;

const NAP: Duration = Duration::from_millis(1);

/// Measures until stopped.
pub struct Control {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(u64, u64)>>,
}

/// (when, in monotonic ns; how late, in ns) of each nap.
pub struct Delays(pub Vec<(u64, u64)>);

impl Control {
    /// Starts measuring.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut delays = Vec::new();
            while !flag.load(Ordering::Relaxed) {
                let before = now_ns();
                std::thread::sleep(NAP);
                let now = now_ns();
                delays.push((now, (now - before).saturating_sub(NAP.as_nanos() as u64)));
            }
            delays
        });
        Self { stop, thread }
    }

    /// Stops and gives what was measured.
    pub fn stop(self) -> Delays {
        self.stop.store(true, Ordering::Relaxed);
        Delays(self.thread.join().expect("the control thread"))
    }
}

impl Delays {
    /// The longest delay that overlaps this stretch of time, in ns.
    pub fn worst_between(&self, start: u64, end: u64) -> u64 {
        self.0.iter().filter(|(at, late)| *at >= start && at - late <= end).map(|(_, late)| *late).max().unwrap_or(0)
    }
}
