//! Faults planted on purpose, so that a checker can be seen to catch them. Inert without the `testing` feature.

#[cfg(feature = "testing")]
use std::collections::HashMap;

#[cfg(feature = "testing")]
use crate::record::Body;
use crate::record::Copy;
#[cfg(feature = "testing")]
use crate::record::KeyBuf;

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `drop`: an owner answers a call from another host as if counted.
    Drop,
    /// `repeat`: an owner answers a call from another host with the value as it stands.
    Repeat,
    /// `slip`: an owner whose slot is frozen, and sent off, answers a call from another host as if counted.
    Slip,
    /// `share-dropped`: a share that comes home counts nothing.
    ShareDropped,
    /// `share-twice`: a share that comes home counts twice.
    ShareTwice,
    /// `stale`: a copy of bytes keeps what it held, though it says that it has what is newer.
    Stale,
    /// `lose`: a copy that comes in a batch is acknowledged and forgotten.
    Lose,
    /// `resurrect`: what an owner has deleted for another host comes back.
    Resurrect,
}

/// The fault that `EPHPM_KV_PLANT=NAME:N` names, on every N-th occasion.
#[derive(Default)]
pub struct Plant {
    #[cfg(feature = "testing")]
    fault: Option<(Fault, u64)>,
    #[cfg(feature = "testing")]
    occasions: std::sync::atomic::AtomicU64,
    /// Bytes that copies held before.
    #[cfg(feature = "testing")]
    before: parking_lot::Mutex<HashMap<KeyBuf, bytes::Bytes>>,
}

#[cfg(not(feature = "testing"))]
impl Plant {
    /// No fault.
    pub fn from_environment() -> Self {
        Self {}
    }

    /// Never.
    pub fn strikes(&self, _: Fault) -> bool {
        false
    }

    /// Nothing.
    pub fn spoil_shares(&self, _: &Copy, _: u64) -> Option<Copy> {
        None
    }

    /// Nothing.
    pub fn spoil_bytes(&self, _: &Copy) -> Option<Copy> {
        None
    }
}

#[cfg(feature = "testing")]
impl Plant {
    /// As the environment says.
    pub fn from_environment() -> Self {
        let fault = std::env::var("EPHPM_KV_PLANT").ok().and_then(|text| {
            let (name, every) = text.split_once(':')?;
            let fault = match name {
                "drop" => Fault::Drop,
                "repeat" => Fault::Repeat,
                "slip" => Fault::Slip,
                "share-dropped" => Fault::ShareDropped,
                "share-twice" => Fault::ShareTwice,
                "stale" => Fault::Stale,
                "lose" => Fault::Lose,
                "resurrect" => Fault::Resurrect,
                _ => return None,
            };
            Some((fault, every.parse().ok().filter(|every| *every > 0)?))
        });
        Self { fault, ..Self::default() }
    }

    /// Whether this is an occasion for `fault`, and its turn.
    pub fn strikes(&self, fault: Fault) -> bool {
        self.fault.is_some_and(|(planted, every)| {
            let occasion = || self.occasions.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            planted == fault && occasion().is_multiple_of(every)
        })
    }

    /// What comes home instead of this copy to the segment `home`: shares of others that count nothing, or twice.
    pub fn spoil_shares(&self, copy: &Copy, home: u64) -> Option<Copy> {
        let times = if self.strikes(Fault::ShareDropped) {
            0
        } else if self.strikes(Fault::ShareTwice) {
            2
        } else {
            return None;
        };
        let mut spoiled = copy.clone();
        if let Body::Counter(shares) = &mut spoiled.state.body {
            for share in shares.iter_mut().filter(|share| share.origin != home && share.origin != 0) {
                // A later sequence, or it would lose to the same share on the way of another.
                (share.amount, share.sequence) = (share.amount.wrapping_mul(times), share.sequence + 1);
            }
        }
        Some(spoiled)
    }

    /// What is to be kept instead of this copy.
    pub fn spoil_bytes(&self, copy: &Copy) -> Option<Copy> {
        let (Some((Fault::Stale, _)), Body::Bytes(bytes)) = (self.fault, &copy.state.body) else { return None };
        let old = self.before.lock().insert(copy.key.clone(), bytes.clone())?;
        if old == *bytes || !self.strikes(Fault::Stale) {
            return None;
        }
        let mut kept = copy.clone();
        kept.state.body = Body::Bytes(old);
        Some(kept)
    }
}
