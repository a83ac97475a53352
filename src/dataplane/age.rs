//! How old what arrives is.
//!
//! A connection keeps its order, and holds what it cannot deliver: over a cut line a call, or a copy with its remaining
//! time to live, may arrive seconds after it was sent. So each side says now and then what its clock shows, between the
//! frames. The clocks of two hosts have nothing to do with each other, but their difference stays: what is more than
//! usual is time spent on the way. A call that is too old is refused, since its caller was answered long ago; remaining
//! times are shortened.

use std::time::Duration;

use bytes::BytesMut;

use crate::wire::Frame;
use crate::wire::frame::{encode_time, time_of};
use crate::wire::message::Request;

/// Frames that follow within this time of a clock's are as old as that (milliseconds).
const EVERY_MS: u64 = 10;

/// Clocks drift apart by at most one part in this many.
const DRIFT: u64 = 5_000;

/// What is late for this long is so because one of the clocks stood still, as in a sleep (milliseconds).
const ALWAYS_LATE_MS: u64 = 5_000;

/// Who sends changes, or brings home what was counted or changed apart, waits for an answer so long, and then begins anew:
/// what is still on its way may be of a window that has ended meanwhile and left nothing behind.
pub const CHANGE_AGE_MAX: Duration = Duration::from_secs(1);

/// Says what this side's clock shows.
#[derive(Debug, Default)]
pub struct Stamper {
    last_ms: Option<u64>,
}

impl Stamper {
    /// To be called before a frame is put into `out`; `now_ms` counts on while the host sleeps.
    pub fn stamp(&mut self, now_ms: u64, out: &mut BytesMut) {
        if self.last_ms.is_none_or(|last_ms| now_ms.saturating_sub(last_ms) >= EVERY_MS) {
            self.last_ms = Some(now_ms);
            encode_time(now_ms as u32, out);
        }
    }
}

/// Finds out how late the frames of one connection are.
#[derive(Debug, Default)]
pub struct Ages {
    state: Option<State>,
}

#[derive(Debug)]
struct State {
    /// How much more this side's clock showed than the other's at first; the rest is relative to that.
    base: u32,
    /// The same when nothing was late.
    usual: i64,
    heard_ms: u64,
    late_ms: u64,
    /// Since when the least lateness is watched, and what it was.
    since_ms: u64,
    least: i64,
}

impl Ages {
    /// Takes `frame` if it is the other side's clock.
    pub fn take(&mut self, frame: &Frame, now_ms: u64) -> bool {
        let Some(sent) = time_of(frame) else { return false };
        let apart = (now_ms as u32).wrapping_sub(sent);
        let state = self.state.get_or_insert(State {
            base: apart,
            usual: 0,
            heard_ms: now_ms,
            late_ms: 0,
            since_ms: now_ms,
            least: 0,
        });
        let apart = i64::from(apart.wrapping_sub(state.base) as i32);
        if now_ms.saturating_sub(state.since_ms) >= ALWAYS_LATE_MS {
            state.usual = state.usual.max(state.least);
            (state.since_ms, state.least) = (now_ms, apart);
        }
        state.least = state.least.min(apart);
        let drifted = (now_ms.saturating_sub(state.heard_ms) / DRIFT) as i64;
        state.usual = apart.min(state.usual.saturating_add(drifted));
        (state.heard_ms, state.late_ms) = (now_ms, (apart - state.usual) as u64);
        true
    }

    /// How many milliseconds a frame that is taken now was on the way, beyond the usual.
    pub fn late_ms(&self, now_ms: u64) -> u64 {
        self.state
            .as_ref()
            .map_or(0, |state| state.late_ms + now_ms.saturating_sub(state.heard_ms).saturating_sub(EVERY_MS))
    }
}

/// A request that was on the way for `late_ms`. `None`: one that is too late. A call's (later than `call_max`) caller has
/// been answered, and may have made other calls since; changes have been brought in another way, or will be.
pub fn aged(mut request: Request, late_ms: u64, call_max: Duration) -> Option<Request> {
    let late_max = match request {
        Request::Call(_) => call_max,
        Request::Replicate(_) | Request::Share(_) | Request::Replay(_) | Request::Offer(_) => CHANGE_AGE_MAX,
        _ => Duration::MAX,
    };
    if u128::from(late_ms) > late_max.as_millis() {
        return None;
    }
    request.grow_old(late_ms);
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decode_frame;
    use crate::wire::message::Batch;

    fn hear(ages: &mut Ages, sent: u64, now: u64) -> u64 {
        let mut bytes = BytesMut::new();
        Stamper::default().stamp(sent, &mut bytes);
        let frame = decode_frame(&mut bytes, 100).unwrap().unwrap();
        assert!(ages.take(&frame, now));
        ages.late_ms(now)
    }

    #[test]
    fn what_was_held_up_is_that_much_late() {
        for offset in [0, 1 << 31, (1 << 32) - 3, 77_000_000_000] {
            let mut ages = Ages::default();
            assert_eq!(ages.late_ms(0), 0);
            assert_eq!(hear(&mut ages, 1_000 + offset, 500), 0);
            assert_eq!(hear(&mut ages, 1_020 + offset, 521), 1);
            assert_eq!(hear(&mut ages, 1_040 + offset, 2_540), 2_000);
            assert_eq!(hear(&mut ages, 2_900 + offset, 2_541), 141);
            assert_eq!(hear(&mut ages, 3_100 + offset, 2_601), 1, "and then all is as before");
            assert_eq!(ages.late_ms(2_701), 91, "as old as the time says that came before it, and no younger");
        }
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_refused_unless_it_may_come_at_any_time() {
        let call_max = Duration::from_millis(200);
        let batch = || Request::Replicate(Batch { position: 1, after: 0, applied: Vec::new(), copies: Vec::new() });
        let homecomings =
            || [batch(), Request::Share(Vec::new()), Request::Replay(Vec::new()), Request::Offer(Vec::new())];
        for request in homecomings() {
            assert!(aged(request, 1_000, call_max).is_some());
        }
        for request in homecomings() {
            assert!(aged(request, 1_001, call_max).is_none());
        }
        assert!(aged(Request::Ping, 60_000, call_max).is_some());
    }

    #[test]
    fn clocks_may_drift() {
        let mut ages = Ages::default();
        let day = 86_400_000;
        for round in 0..100 {
            // This one gains a second in three hours.
            let now = round * day / 4;
            assert!(hear(&mut ages, now - now / 10_000, now) < 5);
        }
    }

    #[test]
    fn a_clock_that_stood_still_is_not_held_against_its_host() {
        let mut ages = Ages::default();
        hear(&mut ages, 1_000, 1_000);
        for second in 0..20 {
            let late = hear(&mut ages, 2_000 + second * 1_000, 3_602_000 + second * 1_000);
            assert!(second < 6 || late == 0, "{late} ms late in second {second}");
        }
    }

    #[test]
    fn the_clock_is_not_said_with_every_frame() {
        let (mut stamper, mut bytes) = (Stamper::default(), BytesMut::new());
        for now in 0..100 {
            stamper.stamp(now, &mut bytes);
        }
        assert_eq!(bytes.len(), 10 * (13 + 4));
    }
}
