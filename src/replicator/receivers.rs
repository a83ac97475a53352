//! What goes to whom: batches of what changed, each receiver's part of them, and where receivers have come to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::scope::{Scope, Wanted};
use super::turns::Waiting;
use super::{Inner, Replicator, weight};
use crate::placement;
use crate::record::{Body, Copy, KeyBuf};
use crate::wire::message::{AppliedIds, Batch, Request, Response};

/// Most bytes of keys and values in a batch or page (a single larger value travels alone).
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// Batches on their way to one peer; more, and the peer is left behind to pull later.
const UNACKED_MAX: usize = 64;

/// How long a peer that had no room for the bytes of a value is passed over as a replica.
const NO_ROOM_FOR: Duration = Duration::from_secs(10);

/// How long a receiver that nothing was sent to goes without being told our position.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Passes over the store whose request ids may show the effect of a copy: the one that sent it and the next.
const PASSES_TO_TELL: u8 = 2;

/// A peer that takes our batches.
#[derive(Default)]
pub(super) struct Receiver {
    pub unacked: VecDeque<(u64, Instant)>,
    /// What is to be sent to it when its turn comes.
    pub waiting: Waiting,
    /// It missed a batch, or may have: it is told our number so that it sees the gap.
    pub behind: bool,
    /// Every batch after this position that is for it was sent to it.
    pub complete_since: u64,
    /// Position of the last batch that it took, but without vouching for this host, or without room for all of it.
    pub unvouched: u64,
    /// Position of the last batch that was sent to it, or waits for its turn, and when it was sent one.
    pub last: u64,
    told: Option<Instant>,
    /// What it has asked for; `None`: nothing yet.
    pub wants: Option<Wanted>,
    /// Request ids are its business for so many more passes.
    ids_for: u8,
    /// It has pulled, and is to be told of the requests whose effect that shows.
    pub owed_marks: bool,
    /// Until then it is no replica for large values.
    no_room_until: Option<Instant>,
}

impl Receiver {
    fn at(position: u64) -> Self {
        Self { complete_since: position, last: position, ..Self::default() }
    }

    /// Its part of `copies`; `keepers` says of the large ones who keeps their bytes.
    fn part_of(&self, node_id: &str, copies: &[Copy], keepers: &[Option<Vec<&str>>]) -> Vec<Copy> {
        match &self.wants {
            Some(Wanted::Slots(set)) => {
                let wanted = |copy: &&Copy| set.contains(placement::slot(copy.key.as_key().name));
                copies.iter().filter(wanted).cloned().collect()
            }
            Some(Wanted::All) | None => copies
                .iter()
                .zip(keepers)
                .map(|(copy, keepers)| match keepers {
                    Some(keepers) if !keepers.contains(&node_id) => as_stub(copy),
                    _ => copy.clone(),
                })
                .collect(),
        }
    }
}

/// A copy without the bytes.
pub(super) fn as_stub(copy: &Copy) -> Copy {
    let mut state = copy.state.clone();
    if let Body::Bytes(bytes) = &state.body {
        state.body = Body::Elsewhere { len: bytes.len() as u32 };
    }
    Copy { key: copy.key.clone(), state }
}

/// The bytes of a large value, if these are.
pub(super) fn is_large(scope: &Scope, copy: &Copy) -> bool {
    matches!(&copy.state.body, Body::Bytes(bytes) if scope.is_large(bytes.len()))
}

impl Inner {
    /// The receiver of this name, made anew if need be: it does not know what was sent up to `position`.
    pub(super) fn receiver(&mut self, node_id: &str, position: u64) -> &mut Receiver {
        self.receivers.entry(node_id.to_string()).or_insert_with(|| Receiver::at(position))
    }

    /// Peers that are passed over as replicas.
    pub(super) fn without_room(&self) -> BTreeSet<String> {
        let now = Instant::now();
        let full = |receiver: &Receiver| receiver.no_room_until.is_some_and(|until| now < until);
        self.receivers.iter().filter(|(_, receiver)| full(receiver)).map(|(node_id, _)| node_id.clone()).collect()
    }
}

impl Replicator {
    pub(super) fn send(self: &Arc<Self>, mut copies: Vec<Copy>, applied: Vec<(u64, u64)>) {
        // Without its bytes an owner has nothing to send yet; whoever has them keeps them.
        copies.retain(|copy| !matches!(copy.state.body, Body::Elsewhere { .. }));
        if copies.is_empty() && !applied.is_empty() {
            self.send_batch(Vec::new(), by_stream(&applied));
        }
        while !copies.is_empty() {
            let mut bytes = 0;
            let fits = copies
                .iter()
                .take_while(|copy| {
                    let first = bytes == 0;
                    bytes += weight(copy);
                    first || bytes <= BATCH_BYTES_MAX
                })
                .count();
            let rest = copies.split_off(fits);
            let batch = std::mem::replace(&mut copies, rest);
            // The ids go with the last batch: never before a state that shows their effect.
            let ids = if copies.is_empty() { by_stream(&applied) } else { Vec::new() };
            self.send_batch(batch, ids);
        }
    }

    fn send_batch(self: &Arc<Self>, copies: Vec<Copy>, applied: Vec<AppliedIds>) {
        let view = self.peers.view();
        let mut inner = self.inner.lock();
        inner.position += 1;
        let position = inner.position;
        let (scope, no_room, me) = (inner.scope.clone(), inner.without_room(), &view.me().node_id);
        let keepers: Vec<Option<Vec<&str>>> = copies
            .iter()
            .map(|copy| {
                let slot = placement::slot(copy.key.as_key().name);
                is_large(&scope, copy).then(|| scope.keepers(slot, me, &no_room))
            })
            .collect();
        for member in view.members.iter().filter(|member| !member.is_me) {
            let receiver = inner.receiver(&member.node_id, position - 1);
            let unasked = receiver.wants.is_none() && !scope.copies_all();
            if receiver.behind || unasked || receiver.unacked.len() >= UNACKED_MAX {
                receiver.behind = true;
                continue;
            }
            let part = receiver.part_of(&member.node_id, &copies, &keepers);
            if !part.is_empty() {
                receiver.ids_for = PASSES_TO_TELL;
            }
            let all = matches!(receiver.wants, None | Some(Wanted::All));
            let ids = if all || receiver.ids_for > 0 { applied.clone() } else { Vec::new() };
            receiver.ids_for = receiver.ids_for.saturating_sub(u8::from(!applied.is_empty()));
            if part.is_empty() && ids.is_empty() {
                continue;
            }
            let batch = Batch { position, after: receiver.last, copies: part, applied: ids };
            self.put_off(&scope, receiver, &member.node_id, batch);
        }
    }

    /// Tells peers that may have missed something where we are, and those for whom there was nothing.
    pub(super) fn nudge(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        let (position, scope) = (inner.position, inner.scope.clone());
        for (node_id, receiver) in inner.receivers.iter_mut() {
            if !receiver.unacked.is_empty() || !self.peers.is_up(node_id) {
                continue;
            }
            let quiet = receiver.last < position
                && receiver.waiting.since().is_none()
                && receiver.told.is_none_or(|at| at.elapsed() >= TELL_EVERY);
            let after = if receiver.behind {
                // It pulls, and what waits is in that.
                receiver.waiting = Waiting::default();
                (receiver.behind, receiver.complete_since) = (false, position);
                // One that has not said what it wants has to say so, even if it lacks nothing.
                if receiver.wants.is_none() && !scope.copies_all() { u64::MAX } else { position }
            } else if quiet {
                receiver.last
            } else {
                continue;
            };
            let batch = Batch { position, after, copies: Vec::new(), applied: Vec::new() };
            self.post(&scope, receiver, node_id, batch);
        }
    }

    pub(super) fn post(self: &Arc<Self>, scope: &Scope, receiver: &mut Receiver, node_id: &str, batch: Batch) {
        let (position, sent) = (batch.position, Instant::now());
        let large = (0..).zip(&batch.copies).filter(|(_, copy)| is_large(scope, copy));
        let large: BTreeMap<u32, KeyBuf> = large.map(|(place, copy)| (place, copy.key.clone())).collect();
        let Ok(in_flight) = self.peers.send(node_id, Request::Replicate(batch)) else {
            receiver.behind = true;
            return;
        };
        (receiver.last, receiver.told) = (position, Some(sent));
        receiver.unacked.push_back((position, sent));
        let (replicator, node_id) = (self.clone(), node_id.to_string());
        tokio::spawn(async move {
            let answer = in_flight.reply.await;
            let (mut acked, mut vouched) = (false, false);
            if let Ok(Ok(Response::Acked { full, vouches, .. })) = answer {
                if vouches {
                    replicator.peers.note_answer(&node_id, sent);
                }
                replicator.refused(&node_id, &full, &large);
                // Of a large value whose bytes found no room it has the stub.
                (acked, vouched) = (true, vouches && full.iter().all(|place| large.contains_key(place)));
            }
            let mut inner = replicator.inner.lock();
            if let Some(receiver) = inner.receivers.get_mut(&node_id) {
                receiver.unacked.retain(|(sent, _)| *sent != position);
                receiver.behind |= !acked;
                if !vouched {
                    receiver.unvouched = receiver.unvouched.max(position);
                }
            }
            drop(inner);
            replicator.acked.notify_waiters();
        });
    }

    /// `node_id` had no room for some copies. Of `large` ones it has a stub: the next member keeps their bytes.
    fn refused(&self, node_id: &str, full: &[u32], large: &BTreeMap<u32, KeyBuf>) {
        if full.is_empty() {
            return;
        }
        let elsewhere: Vec<&KeyBuf> = full.iter().filter_map(|place| large.get(place)).collect();
        let mut inner = self.inner.lock();
        if inner.full_told.due() {
            tracing::warn!(peer = %node_id, copies = full.len(), "peer has no room for copies (ephpm_kv.memory)");
        }
        if !elsewhere.is_empty()
            && let Some(receiver) = inner.receivers.get_mut(node_id)
        {
            receiver.no_room_until = Some(Instant::now() + NO_ROOM_FOR);
        }
        drop(inner);
        elsewhere.iter().for_each(|key| self.store.mark_dirty(key.as_key()));
    }

    pub(super) fn publish_lag(&self) {
        let inner = self.inner.lock();
        let oldest_of = |receiver: &Receiver| {
            let unacked = receiver.unacked.front().map(|(_, at)| *at);
            unacked.into_iter().chain(receiver.waiting.since()).min()
        };
        let oldest = inner.receivers.values().filter_map(oldest_of).min();
        let lag_ms = oldest.map_or(0, |at| at.elapsed().as_millis() as u64);
        self.peers.table().replication_lag_ms.store(lag_ms, Ordering::Relaxed);
    }

    /// Whether `node_id` has acknowledged everything, the requests included whose effect it has pulled.
    pub fn has_told(&self, node_id: &str) -> bool {
        let inner = self.inner.lock();
        let all = |receiver: &Receiver| {
            let sent = receiver.unacked.is_empty() && receiver.waiting.since().is_none();
            sent && !receiver.behind && !receiver.owed_marks
        };
        // Requests in a shard that a stopped process holds are kept back.
        inner.all_drained && inner.receivers.get(node_id).is_some_and(all)
    }

    /// Sends everything that changed and waits until `node_id` has acknowledged it; `false`: not within `timeout`, or
    /// not everything could be sent, or it lacks batches after `synced_to`, up to which it says to have everything. The second part of the answer is
    /// what [`Replicator::tick`] returns.
    pub async fn flush_to(self: &Arc<Self>, node_id: &str, synced_to: u64, timeout: Duration) -> (bool, Vec<Copy>) {
        let (foreign, all) = self.drain_all().await;
        {
            let mut inner = self.inner.lock();
            let scope = inner.scope.clone();
            if let Some(receiver) = inner.receivers.get_mut(node_id) {
                self.post_waiting(&scope, receiver, node_id);
            }
        }
        let deadline = Instant::now() + timeout;
        let done = async {
            loop {
                let acked = self.acked.notified();
                let state = {
                    let inner = self.inner.lock();
                    inner.receivers.get(node_id).map(|receiver| {
                        (receiver.behind || synced_to < receiver.complete_since, receiver.unacked.is_empty())
                    })
                };
                match state {
                    Some((false, true)) => return true,
                    // It has to pull first.
                    Some((true, _)) | None => return false,
                    Some(_) => acked.await,
                }
            }
        };
        (tokio::time::timeout_at(deadline, done).await.unwrap_or(false) && all, foreign)
    }

    /// Who keeps the bytes of large values has changed: those of this host's keys that gain or lose a keeper travel
    /// once more, whole to the one and as a stub to the other.
    pub(super) async fn keepers_changed(self: Arc<Self>, before: Arc<Scope>, after: Arc<Scope>) {
        let me = self.peers.view().me().node_id.clone();
        let nobody = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let (values, next) = self.store.values(from, after.small_value_max());
            for held in values.iter().filter(|held| held.whole) {
                let slot = placement::slot(held.key.as_key().name);
                if self.owns(slot) && before.keepers(slot, &me, &nobody) != after.keepers(slot, &me, &nobody) {
                    self.store.mark_dirty(held.key.as_key());
                }
            }
            cursor = next;
            tokio::task::yield_now().await;
        }
    }
}

fn by_stream(applied: &[(u64, u64)]) -> Vec<AppliedIds> {
    let mut streams: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (stream, id) in applied {
        streams.entry(*stream).or_default().push(*id);
    }
    streams.into_iter().map(|(stream, ids)| AppliedIds { stream, ids }).collect()
}
