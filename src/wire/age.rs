//! What was on its way for long has less time to live.

use super::message::{Homecoming, Request, Response};
use crate::record::{Copy, State};

fn shorten(state: &mut State, ms: u64) {
    state.ttl_ms = state.ttl_ms.map(|ttl_ms| ttl_ms.saturating_sub(ms));
}

fn shorten_all(copies: &mut [Copy], ms: u64) {
    copies.iter_mut().for_each(|copy| shorten(&mut copy.state, ms));
}

impl Request {
    /// Takes `ms` off the remaining times of the copies in it.
    pub fn grow_old(&mut self, ms: u64) {
        match self {
            Self::Replicate(batch) => shorten_all(&mut batch.copies, ms),
            Self::Share(copies) | Self::Replay(copies) | Self::Offer(copies) => shorten_all(copies, ms),
            _ => {}
        }
    }
}

impl Response {
    /// The same.
    pub fn grow_old(&mut self, ms: u64) {
        match self {
            Self::Page { copies, .. } => shorten_all(copies, ms),
            Self::Reply(reply) => reply.state.iter_mut().for_each(|state| shorten(state, ms)),
            Self::Shares(results) => {
                for result in results {
                    if let Homecoming::Merged(state) | Homecoming::Ended(Some(state)) = result {
                        shorten(state, ms);
                    }
                }
            }
            _ => {}
        }
    }
}
