//! The bytes of large values that come with slots: a new owner that has only stubs gets them from whoever has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::slots::Ownership;
use crate::placement;
use crate::record::{Body, Copy, KeyBuf};
use crate::store::Held;
use crate::wire::message::{Request, Response};

/// Most keys in one request.
const KEYS_MAX: usize = 256;

/// Deadline of one request.
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two rounds of asking everyone: at first, and when that has taken longer than they should be on their way.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASK_LATER_EVERY: Duration = Duration::from_secs(1);

/// How long bytes are asked for that no member has: they may be on their way.
const GIVE_UP_AFTER: Duration = Duration::from_millis(2_000);

/// How long bytes are asked for while some member does not answer, or is away: it may have been stopped only, or cut off.
const GIVE_UP_ON_SILENCE_AFTER: Duration = Duration::from_secs(30);

/// What is known of a value whose bytes are not here.
pub(super) struct Lacking {
    held: Held,
    /// Since when they have been looked for.
    since: Instant,
    /// The newest copy that came whole, or was replaced here, but is not the newest.
    older: Option<Copy>,
}

impl Lacking {
    fn offer(&mut self, copy: Copy) {
        let whole = matches!(copy.state.body, Body::Bytes(_)) && copy.state.diverged.is_none();
        if whole && self.older.as_ref().is_none_or(|older| copy.state.comes_after(&older.state)) {
            self.older = Some(copy);
        }
    }
}

/// Such values, by key.
pub(super) type Missing = BTreeMap<KeyBuf, Lacking>;

impl Ownership {
    /// The stubs in slots that `wanted` picks.
    fn stubs(&self, wanted: &(dyn Fn(u16) -> bool + Sync)) -> BTreeMap<KeyBuf, Held> {
        let (mut stubs, mut cursor) = (BTreeMap::new(), Some(0));
        while let Some(from) = cursor {
            let (values, next) = self.store.values(from, 0);
            let lacking = values.into_iter().filter(|held| !held.whole);
            let lacking = lacking.filter(|held| wanted(placement::slot(held.key.as_key().name)));
            stubs.extend(lacking.map(|held| (held.key.clone(), held)));
            cursor = next;
        }
        stubs
    }

    /// Gets the bytes of stubs in these slots from whichever member has them. Those that none had, with the older copies
    /// that were `known` of them, and whether every member answered, and none that may come back is away.
    pub(super) async fn fetch_bytes(
        &self,
        wanted: &(dyn Fn(u16) -> bool + Sync),
        mut known: Missing,
    ) -> (Missing, bool) {
        let mut lacking = |held: Held| {
            let before = known.remove(&held.key).filter(|lacking| lacking.held == held);
            let mut lacking = before.unwrap_or_else(|| Lacking { held, since: Instant::now(), older: None });
            self.store.replaced(lacking.held.key.as_key()).into_iter().for_each(|copy| lacking.offer(copy));
            lacking
        };
        let stubs = self.stubs(wanted).into_iter();
        let mut missing: Missing = stubs.map(|(key, held)| (key, lacking(held))).collect();
        let view = self.peers.view();
        let mut all_answered = !view.voters.any(|node_id| view.member(node_id).is_none());
        for member in view.members.iter().filter(|member| !member.is_me && !member.client) {
            if missing.is_empty() {
                break;
            }
            all_answered &= self.fetch_from(&member.node_id, &mut missing).await;
        }
        (missing, all_answered)
    }

    /// The same from one member; whether it answered.
    async fn fetch_from(&self, node_id: &str, missing: &mut Missing) -> bool {
        let mut keys: Vec<KeyBuf> = missing.keys().cloned().collect();
        while !keys.is_empty() {
            let asked = keys[..keys.len().min(KEYS_MAX)].to_vec();
            let count = asked.len();
            let answer = self.peers.ask(node_id, Request::Fetch { keys: asked, older: true }, FETCH_TIMEOUT).await;
            let Ok(Response::Page { copies, next }) = answer else { return false };
            for copy in copies {
                let lacks = || self.store.held(copy.key.as_key()).is_some_and(|held| !held.whole);
                // What has ended meanwhile must not begin anew.
                if lacks() {
                    self.store.apply_copy(&copy, false);
                }
                // It may have been replaced meanwhile, or found no room.
                if !lacks() {
                    missing.remove(&copy.key);
                } else if let Some(lacking) = missing.get_mut(&copy.key) {
                    lacking.offer(copy);
                }
            }
            keys.drain(..next.map_or(count, |next| (next as usize).clamp(1, count)));
        }
        true
    }

    /// Gets the bytes that this host lacks of what it owns. A value whose bytes no reachable member has is lost: this host
    /// goes on from the newest copy of it that any has the bytes of. If there is none it is deleted, so that the key can be
    /// used again and no host promises what nobody can read.
    pub fn bring_bytes(self: &Arc<Self>) {
        if !self.bringing.swap(true, Ordering::AcqRel) {
            let ownership = self.clone();
            tokio::spawn(async move {
                ownership.bring_all().await;
                ownership.bringing.store(false, Ordering::Release);
            });
        }
    }

    async fn bring_all(&self) {
        let mut missing = Missing::new();
        loop {
            let all_answered;
            (missing, all_answered) = self.fetch_bytes(&|slot| self.is_mine(slot), missing).await;
            let patience = if all_answered { GIVE_UP_AFTER } else { GIVE_UP_ON_SILENCE_AFTER };
            let (gone, left): (Missing, Missing) =
                missing.into_iter().partition(|(_, lacking)| lacking.since.elapsed() >= patience);
            self.give_up(gone);
            missing = left;
            if missing.is_empty() {
                return;
            }
            // Whoever has an older value sends it each time.
            let soon = missing.values().any(|lacking| lacking.since.elapsed() < GIVE_UP_AFTER);
            tokio::time::sleep(if soon { ASK_EVERY } else { ASK_LATER_EVERY }).await;
        }
    }

    /// Without the majority nothing is given up: the other side may have the bytes.
    fn give_up(&self, missing: Missing) {
        let table = self.peers.table();
        if !self.peers.view().quorum || !table.lease_holds(self.store.clock().now_ms()) {
            return;
        }
        let (mut older, mut deleted) = (0, 0);
        for (key, Lacking { held, older: copy, .. }) in missing {
            let slot = placement::slot(key.as_key().name);
            if self.is_mine(slot) && self.store.give_up(&held, copy.as_ref(), table.term(slot)) {
                *(if copy.is_some() { &mut older } else { &mut deleted }) += 1;
            }
        }
        if older + deleted > 0 {
            self.store.segment().metrics().values_lost.fetch_add(older + deleted, Ordering::Relaxed);
            tracing::error!(
                older,
                deleted,
                "large values are lost: no reachable member has their bytes (ephpm_kv.replicas)"
            );
        }
    }
}
