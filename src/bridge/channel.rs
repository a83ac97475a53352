//! To a node that is a thread of this process: a bounded queue, a bell, and a slot to wait in.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::error::SetupError;
use crate::node::Job;

/// Most calls that wait for the node to look at them.
const JOBS_MAX: usize = 1_024;

/// The PHP side of the queue.
pub(super) struct Channel {
    jobs: Sender<Job>,
    bell: OwnedFd,
}

/// What came of a question to the node.
pub(super) enum Asked<T> {
    /// Decided.
    Answered(T),
    /// Not taken: nothing was decided, the caller may count for itself.
    NotTaken,
    /// Taken, not decided in time: the node will decide, the caller must not.
    Undecided,
    /// Taken by a node that died over it: nobody can tell.
    Lost,
}

impl Channel {
    /// A queue and its node side.
    pub(super) fn new() -> Result<(Self, Receiver<Job>), SetupError> {
        let bell =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .map_err(|error| SetupError::new("eventfd", error))?;
        let (jobs, receiver) = crossbeam_channel::bounded(JOBS_MAX);
        Ok((Self { jobs, bell }, receiver))
    }

    /// The descriptor that rings.
    pub(super) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Queues `job`; `false`: full, or the node has ended.
    pub(super) fn post(&self, job: Job) -> bool {
        let posted = self.jobs.try_send(job).is_ok();
        // An eventfd that is already ringing refuses more: that is as good.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        posted
    }

    /// Posts the job that `make` builds around a way to answer, and waits until `deadline`.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        deadline: Instant,
        make: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Job,
    ) -> Asked<T> {
        let slot = Arc::new(Slot { state: Mutex::new(State::Waiting), filled: Condvar::new() });
        let answer = Answer(Some(slot.clone()));
        if !self.post(make(Box::new(move |value| answer.give(value)))) {
            return Asked::NotTaken;
        }
        slot.wait(deadline)
    }
}

enum State<T> {
    Waiting,
    Filled(T),
    Dropped,
}

/// Where one caller waits.
struct Slot<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
}

impl<T> Slot<T> {
    fn wait(&self, deadline: Instant) -> Asked<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *state, State::Waiting) {
                State::Filled(value) => return Asked::Answered(value),
                State::Dropped => return Asked::NotTaken,
                State::Waiting => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Asked::Undecided;
            }
            (state, _) = self.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fill(&self, with: State<T>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = with;
        self.filled.notify_one();
    }
}

/// The node's way to answer; dropping it unused says that nothing was decided.
struct Answer<T>(Option<Arc<Slot<T>>>);

impl<T> Answer<T> {
    fn give(mut self, value: T) {
        if let Some(slot) = self.0.take() {
            slot.fill(State::Filled(value));
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.fill(State::Dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(done: Box<dyn FnOnce(bool) + Send>) -> Job {
        Job::Flush { namespace: Vec::new(), deadline: Instant::now(), done }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn an_answer_reaches_the_one_that_waits() {
        let (channel, jobs) = Channel::new().unwrap();
        let node = std::thread::spawn(move || match jobs.recv().unwrap() {
            Job::Flush { done, .. } => done(true),
            _ => unreachable!("only a flush was posted"),
        });
        assert!(matches!(channel.ask(soon(), flush), Asked::Answered(true)));
        node.join().unwrap();
    }

    #[test]
    fn a_job_that_is_dropped_was_not_taken() {
        let (channel, jobs) = Channel::new().unwrap();
        let node = std::thread::spawn(move || drop(jobs.recv()));
        assert!(matches!(channel.ask(soon(), flush), Asked::NotTaken));
        node.join().unwrap();
        assert!(matches!(channel.ask(soon(), flush), Asked::NotTaken), "the node has ended");
    }

    #[test]
    fn silence_ends_at_the_deadline_undecided() {
        let (channel, _jobs) = Channel::new().unwrap();
        assert!(matches!(channel.ask(Instant::now() + Duration::from_millis(20), flush), Asked::Undecided));
    }

    #[test]
    fn a_full_queue_takes_nothing_more() {
        let (channel, _jobs) = Channel::new().unwrap();
        for _ in 0..JOBS_MAX {
            assert!(channel.post(flush(Box::new(|_| ()))));
        }
        assert!(!channel.post(flush(Box::new(|_| ()))));
    }
}
