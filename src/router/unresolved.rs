//! Calls that timed out or lost their connection: asked after until someone can tell, and counted at most once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{Attempt, Pending, Router};
use crate::cluster::membership::remember_ms;
use crate::metrics::Lost;
use crate::placement;
use crate::record::Fate;
use crate::store::Standing;
use crate::wire::message::{Call, Op, Reply, Request, Response};

/// How long a late answer is waited for before its call is asked after: over a partition it may never come.
const REPLY_FOR: Duration = Duration::from_secs(2);

/// Time between two questions, at first and once the first [`ASK_OFTEN_FOR`] are over.
const ASK_EVERY: Duration = Duration::from_millis(100);
const ASK_LATER_EVERY: Duration = Duration::from_secs(1);
const ASK_OFTEN_FOR: Duration = Duration::from_secs(20);

/// Deadline of one question.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

impl Router {
    /// Answers the caller now and finds out in the background what became of its call.
    pub(super) fn leave_unresolved(self: &Arc<Self>, call: Call, pending: Pending) -> Reply {
        let reply = super::estimate(&self.store, &call);
        // Only increments are counted: the other operations left this host's copy as the caller sees it.
        if matches!(call.op, Op::Incr { .. }) {
            let router = self.clone();
            let (amount, asked_at) = (amount(&call), Instant::now());
            self.peers.table().unresolved.fetch_add(amount, Ordering::Relaxed);
            tokio::spawn(async move {
                router.clone().resolve(call, pending, asked_at).await;
                // The node may have given up meanwhile.
                let open = &router.peers.table().unresolved;
                let _ = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| sum.checked_sub(amount));
            });
        }
        reply
    }

    async fn resolve(self: Arc<Self>, call: Call, mut pending: Pending, asked_at: Instant) {
        if let Some(reply) = pending.reply.take()
            && let Ok(Ok(Ok(response))) = tokio::time::timeout(REPLY_FOR, reply).await
        {
            let slot = placement::slot(call.key.as_key().name);
            if !matches!(self.understand(response, slot, &call), Attempt::Answered(_)) {
                self.count_late(&call, asked_at);
            }
            return;
        }
        // As long as the member that was asked is remembered: one that is cut off comes back and can tell.
        let ask_for = Duration::from_millis(remember_ms());
        while asked_at.elapsed() < ask_for {
            match self.ask_fate(&call, &pending).await {
                Some(Fate::Applied) => return,
                Some(Fate::NotApplied) => return self.count_late(&call, asked_at),
                Some(Fate::Unknown) => break,
                None if asked_at.elapsed() < ASK_OFTEN_FOR => tokio::time::sleep(ASK_EVERY).await,
                None => tokio::time::sleep(ASK_LATER_EVERY).await,
            }
        }
        self.lose(&call, Lost::Unresolved);
    }

    /// Asks whoever can tell. The node itself while its segment lives: of others "applied" can be believed (the mark
    /// travels with the copy), but a node that is merely cut off may have applied the call, and will bring its share home.
    /// Once that segment is gone for good all members are asked. If none of them has the mark and it has left in order, as
    /// one of them knows (this one may have been cut off then), the call was not applied. If it was killed nobody can tell: a copy may have come by a pull, whose marks come later.
    async fn ask_fate(&self, call: &Call, pending: &Pending) -> Option<Fate> {
        let cell = self.peers.cell(&pending.node_id)?;
        let same_segment = cell.origin.load(Ordering::Acquire) == pending.origin;
        let present = cell.presence.load(Ordering::Acquire) == 1;
        if same_segment && present {
            return Some(self.fate_at(&pending.node_id, pending).await?.fate);
        }
        let owner = self.peers.owner_of(placement::slot(call.key.as_key().name))?;
        let known = self.fate_at(&owner, pending).await?;
        let killed = present && !same_segment;
        let view = self.peers.view();
        if known.fate == Fate::Applied || !(known.left || killed) || !view.quorum {
            return (known.fate == Fate::Applied).then_some(known.fate);
        }
        let (mut left, mut unknown) = (known.left, known.fate == Fate::Unknown);
        for member in view.members.iter().filter(|member| !member.client && member.node_id != owner) {
            let known = self.fate_at(&member.node_id, pending).await?;
            if known.fate == Fate::Applied {
                return Some(Fate::Applied);
            }
            (left, unknown) = (left || known.left, unknown || known.fate == Fate::Unknown);
        }
        Some(if left && !unknown { Fate::NotApplied } else { Fate::Unknown })
    }

    /// What a member knows of the call, and of who was asked.
    async fn fate_at(&self, node_id: &str, pending: &Pending) -> Option<Known> {
        let left = self.peers.has_left(&pending.node_id, pending.origin);
        if self.peers.view().is_me(node_id) {
            return Some(Known { fate: self.store.resolve(pending.stream, pending.id), left });
        }
        let of = (pending.node_id.clone(), pending.origin);
        let request = Request::Resolve { stream: pending.stream, ids: vec![pending.id], of };
        let known = known(self.peers.ask(node_id, request, ASK_TIMEOUT).await.ok()?)?;
        Some(Known { left: left || known.left, ..known })
    }

    /// The owner did not apply it: it becomes this host's share, unless its window would be over by now.
    fn count_late(&self, call: &Call, asked_at: Instant) {
        let Op::Incr { deltas, ttl_ms } = &call.op else { return };
        if self.gave_up.load(Ordering::Relaxed) {
            return;
        }
        if ttl_ms.is_some_and(|ttl_ms| asked_at.elapsed() >= Duration::from_millis(ttl_ms)) {
            return self.lose(call, Lost::WindowEnded);
        }
        for delta in deltas {
            if self.store.incr(call.key.as_key(), *delta, *ttl_ms, Standing::Degraded).is_err() {
                self.store.segment().metrics().lose(Lost::MemoryFull, delta.unsigned_abs());
            }
        }
    }

    fn lose(&self, call: &Call, reason: Lost) {
        if !self.gave_up.load(Ordering::Relaxed) {
            self.store.segment().metrics().lose(reason, amount(call));
        }
    }
}

/// What a call would add, signs apart: the unit of `ephpm_kv_lost_total`.
pub fn amount(call: &Call) -> u64 {
    match &call.op {
        Op::Incr { deltas, .. } => deltas.iter().map(|delta| delta.unsigned_abs()).sum(),
        _ => 0,
    }
}

/// What somebody knows of a call.
struct Known {
    fate: Fate,
    /// Who was asked has left in order.
    left: bool,
}

fn known(response: Response) -> Option<Known> {
    match response {
        Response::Fates { fates, left } => Some(Known { fate: *fates.first()?, left }),
        _ => None,
    }
}
