//! What this host did with keys that others own: shares that it counted go home, and changes that it made without an
//! owner are replayed, until an owner has answered for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::dataplane::age::CHANGE_AGE_MAX;
use crate::peers::Peers;
use crate::placement;
use crate::plant::Plant;
use crate::record::{Body, Copy, Key, KeyBuf, Share, State};
use crate::replicator::{BATCH_BYTES_MAX, weight};
use crate::segment::table::{Owner, SLOTS};
use crate::store::{Joined, Replayed, Standing, Store};
use crate::wire::message::{Homecoming, Request, Response};

/// Most shares in one request.
const SHARES_MAX: usize = 512;

/// Bytes of entries looked at in one go.
const SCAN_BYTES: usize = 256 * 1024;

/// Most keys that are listed as waiting.
const PARKED_MAX: usize = 10_000;

/// Most keys that are tried again at a time.
const RETRY_MAX: usize = 1_000;

/// Pause after an attempt that found no owner.
const PAUSE: Duration = Duration::from_millis(50);

/// Pause after an attempt that an owner could not take.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// How a key's state goes to its owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Its shares join the owner's.
    Share,
    /// It is a change made without an owner.
    Replay,
}

/// Sends shares home and replays changes.
pub struct Homeward {
    store: Store,
    peers: Arc<Peers>,
    plant: Plant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Keys whose share has nowhere to go yet, and when to try again at the earliest. At most [`PARKED_MAX`]: the truth
    /// is the flag in the store, and what is not listed here is found again by its next rescan.
    parked: BTreeMap<KeyBuf, Instant>,
    /// Shares on their way.
    sent: u64,
}

impl Homeward {
    /// Over this host's store and its peers.
    pub fn new(store: Store, peers: Arc<Peers>) -> Self {
        Self { store, peers, plant: Plant::from_environment(), inner: Mutex::default() }
    }

    /// Takes entries that changed here and belong to others: those with a share of this host go home, and changes that
    /// were made without an owner are replayed.
    pub fn take(self: &Arc<Self>, copies: Vec<Copy>) {
        let mut by_owner: BTreeMap<(String, Way), Vec<Copy>> = BTreeMap::new();
        for copy in copies {
            let way = match (copy.state.diverged, self.own_share(&copy)) {
                (Some(_), _) => Way::Replay,
                (None, Some(_)) => Way::Share,
                (None, None) => continue,
            };
            match self.reachable_owner(&copy.key) {
                Some(owner) => by_owner.entry((owner, way)).or_default().push(copy),
                None => self.park(copy.key, Duration::ZERO),
            }
        }
        for ((owner, way), copies) in by_owner {
            for chunk in chunks(copies) {
                self.inner.lock().sent += chunk.len() as u64;
                let (homeward, owner) = (self.clone(), owner.clone());
                tokio::spawn(async move { homeward.send(&owner, way, chunk).await });
            }
        }
        self.publish();
    }

    /// Tries again for keys whose owner can be reached by now.
    pub fn retry(&self) {
        let ready: Vec<KeyBuf> = {
            let mut inner = self.inner.lock();
            let now = Instant::now();
            let due = inner.parked.iter().filter(|(key, at)| **at <= now && self.has_route(key));
            let ready: Vec<KeyBuf> = due.map(|(key, _)| key.clone()).take(RETRY_MAX).collect();
            for key in &ready {
                inner.parked.remove(key);
            }
            ready
        };
        for key in ready {
            self.store.mark_pending(key.as_key());
        }
        self.publish();
    }

    /// Whether every share of this host is with an owner.
    pub fn all_home(&self) -> bool {
        let inner = self.inner.lock();
        inner.parked.is_empty() && inner.sent == 0
    }

    /// One whose share has nowhere to go yet.
    #[cfg(test)]
    pub fn any_parked(&self) -> Option<KeyBuf> {
        self.inner.lock().parked.keys().next().cloned()
    }

    fn park(&self, key: KeyBuf, pause: Duration) {
        // A share that was counted as the owner is pending only from now on.
        self.store.mark_pending(key.as_key());
        let mut inner = self.inner.lock();
        if inner.parked.len() < PARKED_MAX {
            inner.parked.insert(key, Instant::now() + pause);
        }
    }

    fn publish(&self) {
        let inner = self.inner.lock();
        let pending = inner.parked.len() as u64 + inner.sent;
        self.peers.table().shares_pending.store(pending, Ordering::Relaxed);
    }

    fn own_share(&self, copy: &Copy) -> Option<Share> {
        let origin = self.store.segment().origin();
        match &copy.state.body {
            Body::Counter(shares) => shares.iter().find(|share| share.origin == origin && !share.is_fold()).copied(),
            Body::Bytes(_) | Body::Elsewhere { .. } | Body::Tombstone(_) => None,
        }
    }

    fn reachable_owner(&self, key: &KeyBuf) -> Option<String> {
        let owner = self.peers.owner_of(placement::slot(key.as_key().name))?;
        self.peers.is_up(&owner).then_some(owner)
    }

    /// An owner that can be reached, or this host itself.
    fn has_route(&self, key: &KeyBuf) -> bool {
        let table = self.peers.table();
        match table.owner(placement::slot(key.as_key().name)) {
            Owner::Member(index) if Some(index) == table.self_index() => true,
            _ => self.reachable_owner(key).is_some(),
        }
    }

    async fn send(self: Arc<Self>, owner: &str, way: Way, copies: Vec<Copy>) {
        let count = copies.len() as u64;
        let request = match way {
            Way::Share => Request::Share(copies.clone()),
            Way::Replay => Request::Replay(copies.clone()),
        };
        match self.peers.ask(owner, request, CHANGE_AGE_MAX).await {
            Ok(Response::Shares(results)) if results.len() == copies.len() => {
                for (copy, result) in copies.into_iter().zip(results) {
                    self.settle(copy, result);
                }
            }
            _ => copies.into_iter().for_each(|copy| self.park(copy.key, PAUSE)),
        }
        self.inner.lock().sent -= count;
        self.publish();
    }

    fn settle(&self, sent: Copy, result: Homecoming) {
        let applied = matches!(result, Homecoming::Merged(_));
        match result {
            Homecoming::Merged(state) | Homecoming::Ended(Some(state)) => self.settle_with(sent, state, applied),
            // Where this side does not speak for the cluster either, nobody will for a while.
            Homecoming::NotOwner if self.speaks() => self.park(sent.key, PAUSE),
            Homecoming::NotOwner | Homecoming::Ended(None) | Homecoming::Full => self.park(sent.key, LONG_PAUSE),
        }
    }

    /// The owner has answered with its state.
    fn settle_with(&self, sent: Copy, state: State, applied: bool) {
        let share = self.own_share(&sent);
        let answer = Copy { key: sent.key, state };
        if let Some(diverged) = sent.state.diverged {
            self.store.settle_replay(&answer, diverged, applied);
        }
        match share {
            Some(share) if applied => self.store.acknowledge_share(answer.key.as_key(), &share, &answer.state),
            _ => _ = self.store.apply_copy(&answer, true),
        }
    }

    fn speaks(&self) -> bool {
        self.peers.table().lease_holds(self.store.clock().now_ms())
    }

    /// This host as the owner: shares of another host.
    pub fn receive(&self, copies: Vec<Copy>) -> Response {
        let home = self.store.segment().origin();
        self.answer_each(copies, |copy, term| {
            let spoiled = self.plant.spoil_shares(copy, home);
            match self.store.join_home(spoiled.as_ref().unwrap_or(copy), term) {
                Joined::Merged(state) => Homecoming::Merged(state),
                Joined::Ended(state) => Homecoming::Ended(state),
                // It stays with its host, and comes again.
                Joined::Early => Homecoming::NotOwner,
                Joined::Full => Homecoming::Full,
            }
        })
    }

    /// This host as the owner: changes that another host made without one.
    pub fn replay(&self, copies: Vec<Copy>) -> Response {
        self.answer_each(copies, |copy, term| {
            if !self.speaks() {
                return Homecoming::NotOwner;
            }
            match self.store.replay(copy, term) {
                Replayed::Applied(state) => Homecoming::Merged(state),
                Replayed::Yielded(state) => Homecoming::Ended(state),
                Replayed::Full => Homecoming::Full,
            }
        })
    }

    fn answer_each(&self, copies: Vec<Copy>, answer: impl Fn(&Copy, u64) -> Homecoming) -> Response {
        let table = self.peers.table();
        let answer = |copy: &Copy| match table.ownership(placement::slot(copy.key.as_key().name)) {
            (Owner::Member(index), term) if Some(index) == table.self_index() => answer(copy, term),
            _ => Homecoming::NotOwner,
        };
        Response::Shares(copies.iter().map(answer).collect())
    }

    /// Ends every window of `namespace` in the slots this host owns. `false`: some are changing hands.
    pub async fn flush_owned(&self, namespace: &[u8]) -> bool {
        let table = self.peers.table();
        let own = |slot: u16| {
            let (owner, term) = table.ownership(slot);
            matches!(owner, Owner::Member(index) if Some(index) == table.self_index()).then_some(term)
        };
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let in_it = |key: Key<'_>| key.namespace == namespace && own(placement::slot(key.name)).is_some();
            let (copies, next) = self.store.scan(from, SCAN_BYTES, &in_it);
            for copy in copies {
                let key = copy.key.as_key();
                if let Some(term) = own(placement::slot(key.name)) {
                    let _ = self.store.del(key, Standing::Owner { term });
                }
            }
            cursor = next;
            // Everything else of the node runs on this thread, too.
            tokio::task::yield_now().await;
        }
        (0..SLOTS as u16).all(|slot| table.owner(slot) != Owner::Frozen)
    }
}

/// Requests' worth of copies.
fn chunks(copies: Vec<Copy>) -> Vec<Vec<Copy>> {
    let (mut chunks, mut bytes) = (Vec::<Vec<Copy>>::new(), 0);
    for copy in copies {
        bytes += weight(&copy);
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < SHARES_MAX && bytes <= BATCH_BYTES_MAX => chunk.push(copy),
            _ => {
                bytes = weight(&copy);
                chunks.push(vec![copy]);
            }
        }
    }
    chunks
}
