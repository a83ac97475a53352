//! Who owns which slot: placement says who should, this module makes it so, one term at a time.
//!
//! A node that should own slots claims them from every live member. Whoever owns one freezes it, sends what it has
//! not sent yet, and lets go; after a death there is nobody to let go, so the claimant waits out the dead owner's
//! lease and takes the newest copies that the others hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::bytes::Missing;
use super::shares::Homeward;
use crate::cluster::membership::View;
use crate::dataplane::Peer;
use crate::peers::{NoAnswer, Peers, TAKEOVER_MAX};
use crate::placement::Placement;
use crate::record::{Copy, term_after};
use crate::replicator::{Pulled, Replicator, ranges_of, slots_of};
use crate::segment::table::{MemberCell, Owner, SLOTS};
use crate::store::Store;
use crate::wire::message::{Request, Response, SlotRange};

/// How long inline operations of a node that is gone may still speak for the cluster, in milliseconds.
pub const LEASE_MS: u64 = 1_000;

/// When a node has left the view for this long it speaks for the cluster no more. Until then it may: it finds out that
/// it is alone about when others find out that it is gone, but not before, and its lease runs on from there.
const LEASE_OVER_MS: u64 = LEASE_MS + 250;

/// Deadline of one claim at one member.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);

/// How long an owner tries to send its last changes to a claimant.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a member that does not answer claims may hold a takeover up.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// Time between two looks at every slot when nothing has changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The ownership of slots on this node.
pub struct Ownership {
    pub(super) store: Store,
    pub(super) peers: Arc<Peers>,
    replicator: Arc<Replicator>,
    homeward: Arc<Homeward>,
    claiming: AtomicBool,
    /// The node goes: what it could not hand over is nobody's to change any more.
    closed: AtomicBool,
    /// The bytes of what this node owns are being fetched.
    pub(super) bringing: AtomicBool,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    /// Who should own each slot: computed from `eligible`.
    placement: Option<Placement>,
    eligible: Vec<String>,
    /// This node's place in `eligible`.
    me_at: Option<u16>,
    /// When nodes left the view, in coarse monotonic milliseconds.
    gone: BTreeMap<String, u64>,
    /// Slots that both we and another node own.
    pub(super) contested: BTreeSet<u16>,
    /// Something has changed since the slots were last looked at, and when that was.
    pub(super) stale: bool,
    looked: Instant,
    /// Nodes that an announcement did not reach.
    pub(super) untold: BTreeSet<String>,
    /// Since when claims meet silence.
    silent_since: Option<Instant>,
    pub(super) reminded: Instant,
    /// Since when slots that should be others' have had no owner here.
    pub(super) leaderless_since: Option<Instant>,
    /// When those who claimed what we own were last told so.
    pub(super) told_back: BTreeMap<String, Instant>,
    pub(super) voice: Voice,
    /// Slots that were taken over without a quorum that answered: others may have changed them with the cluster's word.
    pub(super) provisional: BTreeSet<u16>,
}

/// Whether this node may speak for what it owns.
#[derive(Default)]
pub(super) struct Voice {
    /// It speaks, or did until its lease ran out.
    pub(super) spoke: bool,
    /// Every member has agreed to what it owns.
    pub(super) confirmed: bool,
    /// They are being asked.
    pub(super) asking: bool,
    /// Answers to questions of an earlier round do not count any more.
    pub(super) round: u64,
}

impl Voice {
    pub(super) fn fall_silent(&mut self) {
        (self.spoke, self.confirmed, self.round) = (false, false, self.round + 1);
    }
}

/// What the members answered to a claim.
#[derive(Default)]
struct Claims {
    /// Largest term that any of them knows.
    term: u64,
    /// Slots that one of them owned and let go. Any others had no living owner.
    released: BTreeSet<u16>,
    /// Those that own none of the slots now.
    answered: Vec<String>,
    /// One of them keeps some, or somebody does whom this node cannot ask.
    kept: bool,
    /// Members that own some by another's word.
    others: BTreeSet<String>,
    /// Those that did not answer, or of which this host does not have everything yet.
    silent: Vec<String>,
    /// The latter of them.
    unsynced: Vec<String>,
}

impl Ownership {
    /// Over this host's store, its peers and the ways its state travels.
    pub fn new(store: Store, peers: Arc<Peers>, replicator: Arc<Replicator>, homeward: Arc<Homeward>) -> Self {
        let inner = Inner {
            placement: None,
            eligible: Vec::new(),
            me_at: None,
            gone: BTreeMap::new(),
            contested: BTreeSet::new(),
            stale: true,
            looked: Instant::now(),
            untold: BTreeSet::new(),
            silent_since: None,
            reminded: Instant::now(),
            leaderless_since: None,
            told_back: BTreeMap::new(),
            voice: Voice::default(),
            provisional: BTreeSet::new(),
        };
        Self {
            store,
            peers,
            replicator,
            homeward,
            claiming: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            bringing: AtomicBool::new(false),
            inner: Mutex::new(inner),
        }
    }

    /// A new view: who should own what changes with the members that are eligible.
    pub fn set_view(&self, before: &View, view: &View) {
        let now_ms = self.store.clock().now_ms();
        let mut inner = self.inner.lock();
        for member in before.members.iter().filter(|member| view.member(&member.node_id).is_none()) {
            inner.gone.insert(member.node_id.clone(), now_ms);
        }
        // One that is not listed may be claimed from: its lease has run out.
        inner.gone.retain(|node_id, gone_ms| view.member(node_id).is_none() && now_ms < *gone_ms + LEASE_OVER_MS);
        inner.untold.retain(|node_id| view.member(node_id).is_some());
        inner.told_back.retain(|node_id, _| view.member(node_id).is_some());
        inner.stale = true;
        let eligible: Vec<String> = view.owners_eligible().iter().map(|member| member.node_id.clone()).collect();
        if eligible != inner.eligible || inner.placement.is_none() {
            inner.placement = Some(Placement::compute(&eligible));
            inner.me_at = eligible.iter().position(|node_id| view.is_me(node_id)).map(|at| at as u16);
            inner.eligible = eligible;
        }
    }

    /// Whether this node should own `slot`.
    pub(super) fn is_for_me(inner: &Inner, slot: u16) -> bool {
        inner.me_at.is_some() && inner.placement.as_ref().is_some_and(|placement| placement.owner(slot) == inner.me_at)
    }

    /// Who should own `slot`.
    pub(super) fn wanted(inner: &Inner, slot: u16) -> Option<&str> {
        inner.placement.as_ref()?.owner_id(slot)
    }

    pub(super) fn is_mine(&self, slot: u16) -> bool {
        let table = self.peers.table();
        matches!(table.owner(slot), Owner::Member(index) if Some(index) == table.self_index())
    }

    /// Whether this node has slots, some of which it may just be handing over.
    pub fn holds_any(&self) -> bool {
        (0..SLOTS as u16).any(|slot| self.holds(slot))
    }

    /// Whether `slot` is this node's, or is just being handed over: only this node freezes slots of its table.
    pub(super) fn holds(&self, slot: u16) -> bool {
        self.is_mine(slot) || self.peers.table().owner(slot) == Owner::Frozen
    }

    /// What this node owns yet is changed no more from now on: it ends with its segment.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let table = self.peers.table();
        for slot in (0..SLOTS as u16).filter(|slot| self.is_mine(*slot)) {
            table.set_owner(slot, Owner::Frozen, table.term(slot));
        }
    }

    /// Whether every slot is where it should be, as far as this node knows.
    pub fn is_settled(&self) -> bool {
        let table = self.peers.table();
        let inner = self.inner.lock();
        (0..SLOTS as u16).all(|slot| match table.owner(slot) {
            Owner::Member(index) => {
                Self::wanted(&inner, slot).is_some_and(|wanted| self.peers.index_of(wanted) == Some(index))
            }
            Owner::Nobody | Owner::Frozen => false,
        })
    }

    /// Claims what this node should own and does not, and reminds others of what they should claim from it.
    pub async fn tick(self: &Arc<Self>) {
        // Looking at every slot is for when something has changed, and now and then.
        let due = {
            let inner = self.inner.lock();
            inner.stale || inner.looked.elapsed() >= LOOK_EVERY
        };
        if due && !self.claiming.swap(true, Ordering::AcqRel) {
            {
                let mut inner = self.inner.lock();
                (inner.stale, inner.looked) = (false, Instant::now());
            }
            let settled = self.acquire().await;
            self.inner.lock().stale |= !settled;
            self.claiming.store(false, Ordering::Release);
        }
        self.remind();
        self.retell();
    }

    /// `false`: there is more to do, or one of those asked has to be asked again.
    async fn acquire(self: &Arc<Self>) -> bool {
        let view = self.peers.view();
        let slots = self.to_claim();
        if slots.is_empty() {
            let now_ms = self.store.clock().now_ms();
            let mut inner = self.inner.lock();
            inner.silent_since = None;
            inner.gone.retain(|_, gone_ms| now_ms < *gone_ms + LEASE_OVER_MS);
            return inner.gone.is_empty();
        }
        let ranges = ranges_of(&slots);
        // Until this node has the bytes, too, calls are better off with the owner that has them.
        let in_order: BTreeSet<u16> = slots.iter().copied().filter(|slot| self.has_owner(*slot)).collect();
        self.fetch_bytes(&|slot| in_order.contains(&slot), Missing::new()).await;
        let owners: BTreeMap<u16, (Owner, u64)> =
            slots.iter().map(|slot| (*slot, self.peers.table().ownership(*slot))).collect();
        let asked_at = Instant::now();
        let claims = self.claim_from_all(&view, &ranges).await;
        let slots = self.granted(slots, &claims);
        if slots.is_empty() {
            return false;
        }
        let ranges = ranges_of(&slots);
        let orphans = slots.iter().any(|slot| !claims.released.contains(slot));
        let mut sure = true;
        if orphans {
            let can_tell = claims.unsynced.iter().filter(|node_id| self.peers.is_up(node_id));
            let members: Vec<String> = claims.answered.iter().chain(can_tell).cloned().collect();
            let Some(asked) = self.collect_copies(&members, &ranges).await else { return false };
            // What the cluster has agreed on is with one of a quorum. But only who has said first that nobody owns the slots
            // agrees to nothing more with an owner that this node does not see.
            let agrees =
                |node_id: &str| asked.contains(node_id) && claims.answered.iter().any(|other| other == node_id);
            sure = view.voters.is_quorum(|node_id| view.is_me(node_id) || agrees(node_id));
            // Nor for longer than they remember it.
            sure &= asked_at.elapsed() < TAKEOVER_MAX / 2;
        }
        let table = self.peers.table();
        let Some(index) = table.self_index() else { return false };
        // The view may have changed meanwhile: another node may have claimed what it now should own, and an owner that was
        // gone may be back, and speak.
        let is_back = |slot: u16| match table.owner(slot) {
            Owner::Member(owner) if owner != index => {
                let cell = table.member(owner);
                cell.is_present() && view.member(&cell.node_id.get()).is_none()
            }
            _ => false,
        };
        // Or one may have announced itself.
        let is_news = |slot: u16| owners.get(&slot) != Some(&table.ownership(slot));
        let may_take = |slot: &u16| Self::is_for_me(&self.inner.lock(), *slot) && !is_back(*slot) && !is_news(*slot);
        let slots: Vec<u16> = slots.into_iter().filter(may_take).collect();
        if slots.is_empty() {
            return false;
        }
        let ranges = ranges_of(&slots);
        let known = slots.iter().map(|slot| table.term(*slot)).max().unwrap_or(0);
        let term = term_after(claims.term.max(known), self.store.segment().origin());
        // Those who have come meanwhile, too: when their connection came up there was nothing to tell them.
        let view = self.peers.view();
        // One that was stopped in the middle may take what others have taken long since.
        let answered = self.peers.quorum_answered_ago().is_some_and(|ago| ago < Duration::from_millis(LEASE_MS));
        sure &= view.quorum && answered;
        self.note_taken(&slots, sure);
        for slot in &slots {
            table.set_owner(*slot, Owner::Member(index), term);
        }
        tracing::info!(slots = slots.len(), term = term >> 32, "owner of slots");
        for member in view.members.iter().filter(|member| !member.is_me) {
            self.announce(&member.node_id, &ranges, term);
        }
        // A copy may have been made from the owner before while the slots were moving, or from nobody: all get all.
        self.peers.changed.notify_waiters();
        self.settle(&slots, term, sure).await;
        self.bring_bytes();
        false
    }

    /// Slots become this node's. Unless it is `sure` that it has the newest of them, it speaks for none until it is.
    fn note_taken(&self, slots: &[u16], sure: bool) {
        let mut inner = self.inner.lock();
        inner.silent_since = None;
        for slot in slots {
            inner.contested.remove(slot);
            if sure { _ = inner.provisional.remove(slot) } else { _ = inner.provisional.insert(*slot) }
        }
        if !sure {
            inner.voice.fall_silent();
            // For the host's processes from now on, not only when the lease is looked at next.
            self.peers.table().lease_until_ms.store(0, Ordering::Release);
        }
    }

    /// Whether a member of the view other than this node owns `slot`.
    pub(super) fn has_owner(&self, slot: u16) -> bool {
        let table = self.peers.table();
        matches!(table.owner(slot), Owner::Member(index)
            if Some(index) != table.self_index() && table.member(index).is_present())
    }

    /// The entries of slots taken over: this host's shares in them are home now, and everyone gets all of them. Unless this
    /// host is `sure` that it has the newest, they outrank no copy of others.
    pub(super) async fn settle(&self, slots: &[u16], term: u64, sure: bool) {
        self.visit(slots, |copy| {
            // This marks it as changed, too.
            self.store.settle_own(copy.key.as_key(), term, sure);
        })
        .await;
    }

    /// The slots to claim. Those whose owner is gone, but whose lease may still run, are left out.
    fn to_claim(&self) -> Vec<u16> {
        let table = self.peers.table();
        let now_ms = self.store.clock().now_ms();
        let mut inner = self.inner.lock();
        inner.contested.retain(|slot| self.is_mine(*slot));
        let mut slots = Vec::new();
        for slot in 0..SLOTS as u16 {
            if !Self::is_for_me(&inner, slot) {
                continue;
            }
            match table.owner(slot) {
                Owner::Member(index) if Some(index) == table.self_index() => {
                    if inner.contested.contains(&slot) {
                        slots.push(slot);
                    }
                }
                Owner::Member(index) if table.member(index).presence.load(Ordering::Acquire) != 1 => {
                    let gone = inner.gone.get(&table.member(index).node_id.get());
                    if gone.is_none_or(|gone_ms| now_ms >= gone_ms + LEASE_OVER_MS) {
                        slots.push(slot);
                    }
                }
                Owner::Frozen => {}
                Owner::Member(_) | Owner::Nobody => slots.push(slot),
            }
        }
        slots
    }

    /// Asks every member to let go of the slots.
    async fn claim_from_all(&self, view: &View, ranges: &[SlotRange]) -> Claims {
        let (mut claims, mut asked) = (Claims::default(), tokio::task::JoinSet::new());
        // A client owns nothing, but may be the only one that remembers an owner that was killed, and its term.
        let contested = !self.inner.lock().contested.is_empty();
        for member in view.members.iter().filter(|member| !member.is_me && (contested || !member.client)) {
            let synced_to = || self.replicator.synced_to(&member.node_id, member.generation, ranges);
            let Some(synced_to) = member.client.then_some(0).or_else(synced_to) else {
                claims.silent.push(member.node_id.clone());
                claims.unsynced.push(member.node_id.clone());
                continue;
            };
            let (peers, node_id) = (self.peers.clone(), member.node_id.clone());
            let request = Request::Claim { slots: ranges.to_vec(), synced_to };
            asked.spawn(async move {
                let answer = peers.ask(&node_id, request, CLAIM_TIMEOUT).await;
                (node_id, answer)
            });
        }
        while let Some(Ok((node_id, answer))) = asked.join_next().await {
            let is_client = view.member(&node_id).is_some_and(|member| member.client);
            match answer {
                Ok(Response::Claimed { term, .. }) if is_client => {
                    claims.term = claims.term.max(term);
                    claims.answered.push(node_id);
                }
                _ if is_client => {}
                Ok(Response::Claimed { term, released, owners }) => {
                    claims.term = claims.term.max(term);
                    claims.others.extend(owners);
                    claims.released.extend(released.iter().flat_map(slots_of));
                    claims.answered.push(node_id);
                }
                Ok(Response::NotOwner { term, .. }) => {
                    claims.term = claims.term.max(term);
                    claims.kept = true;
                }
                Ok(_) => claims.kept = true,
                Err(NoAnswer::NotSent | NoAnswer::Lost | NoAnswer::TimedOut) => claims.silent.push(node_id),
            }
        }
        // Who owns slots by another's word has to say so itself, or be gone from that one's view, too: a member that this
        // node alone cannot reach may still speak for its slots.
        claims.kept |= claims.others.iter().any(|owner| !claims.answered.contains(owner) && !view.is_me(owner));
        claims
    }

    /// The slots that may be taken after these answers. What a member let go belongs to nobody else. The others only
    /// if nobody keeps any; and when a member stays silent for long, only those that it does not own: by this node's
    /// table, which does not say who else owns a contested slot.
    fn granted(&self, slots: Vec<u16>, claims: &Claims) -> Vec<u16> {
        let (patient, contested) = {
            let mut inner = self.inner.lock();
            if claims.silent.is_empty() {
                inner.silent_since = None;
                (false, BTreeSet::new())
            } else {
                let patient = inner.silent_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
                (patient, inner.contested.clone())
            }
        };
        let silent: Vec<u16> = claims.silent.iter().filter_map(|node_id| self.peers.index_of(node_id)).collect();
        let table = self.peers.table();
        let free = |slot: &u16| {
            let owner_is_silent = matches!(table.owner(*slot), Owner::Member(index) if silent.contains(&index));
            let theirs = owner_is_silent || contested.contains(slot);
            claims.released.contains(slot) || !claims.kept && !patient && !theirs
        };
        slots.into_iter().filter(free).collect()
    }

    /// Takes the copies that `members` hold of the slots; those that had all of them taken. `None`: one that can be reached
    /// did not get through; try again.
    pub(super) async fn collect_copies(&self, members: &[String], ranges: &[SlotRange]) -> Option<BTreeSet<String>> {
        let mut asked = BTreeSet::new();
        for node_id in members {
            match self.replicator.pull(node_id, ranges.to_vec()).await {
                // What finds no room is lost to this owner; refusing to own the slots would lose all.
                Pulled::All | Pulled::NoRoom => _ = asked.insert(node_id.clone()),
                Pulled::Interrupted if self.peers.is_up(node_id) => return None,
                Pulled::Interrupted => {}
            }
        }
        Some(asked)
    }

    /// Visits the entries of `slots`.
    pub(super) async fn visit(&self, slots: &[u16], mut visit: impl FnMut(&Copy)) {
        let wanted: BTreeSet<u16> = slots.iter().copied().collect();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let (copies, next) = self
                .store
                .scan_up_to(from, 256 * 1024, &|key| wanted.contains(&crate::placement::slot(key.name)).then_some(0));
            copies.iter().for_each(&mut visit);
            cursor = next;
            // Everything else of the node runs on this thread, too.
            tokio::task::yield_now().await;
        }
    }

    /// The members other than this node and the `claimant` that own some of the slots: those that are in this node's view
    /// or have left it so lately that they may still speak, and the others.
    fn owners_but(&self, claimant: &str, slots: &[u16]) -> (Vec<String>, Vec<String>) {
        let table = self.peers.table();
        let owners: BTreeSet<u16> = slots
            .iter()
            .filter_map(|slot| match table.owner(*slot) {
                Owner::Member(index) if Some(index) != table.self_index() => Some(index),
                _ => None,
            })
            .collect();
        let now_ms = self.store.clock().now_ms();
        let inner = self.inner.lock();
        let may_speak = |node_id: &String| {
            let lately = || inner.gone.get(node_id).is_some_and(|heard_ms| now_ms < heard_ms + LEASE_MS);
            self.peers.cell(node_id).is_some_and(MemberCell::is_present) || lately()
        };
        let node_ids = owners.into_iter().map(|index| table.member(index).node_id.get());
        node_ids.filter(|node_id| node_id != claimant).partition(may_speak)
    }

    /// `peer` claims slots: those we own are frozen, flushed to it and let go, if it should own them.
    pub async fn hand_over(self: Arc<Self>, peer: Peer, ranges: Vec<SlotRange>, synced_to: u64) -> Response {
        let table = self.peers.table();
        let me = self.peers.view().me().node_id.clone();
        let slots: Vec<u16> = ranges.iter().flat_map(slots_of).collect();
        let term = slots.iter().map(|slot| table.term(*slot)).max().unwrap_or(0);
        if slots.iter().any(|slot| table.owner(*slot) == Owner::Frozen) {
            return Response::NotOwner { owner: None, term };
        }
        let mine: Vec<u16> = slots.iter().copied().filter(|slot| self.is_mine(*slot)).collect();
        {
            let inner = self.inner.lock();
            // By our view we should own one of them ourselves, and may be claiming it right now: two claims that cross
            // must not both succeed.
            let ours = slots.iter().any(|slot| Self::is_for_me(&inner, *slot));
            let others = mine.iter().any(|slot| Self::wanted(&inner, *slot) != Some(peer.node_id.as_str()));
            if ours || others {
                return Response::NotOwner { owner: Some(me), term };
            }
        }
        let (owners, gone) = self.owners_but(&peer.node_id, &slots);
        // Should one of them be there again before the claimant has taken over, nothing more is agreed on with it.
        gone.iter().for_each(|node_id| self.peers.pass_over(node_id, &peer.node_id));
        if mine.is_empty() {
            return Response::Claimed { term, released: Vec::new(), owners };
        }
        for slot in &mine {
            table.set_owner(*slot, Owner::Frozen, table.term(*slot));
        }
        let (flushed, foreign) = self.replicator.flush_to(&peer.node_id, synced_to, FLUSH_TIMEOUT).await;
        self.homeward.take(foreign);
        let heir = if flushed { self.peers.index_of(&peer.node_id) } else { None };
        let next = match heir.or_else(|| table.self_index()) {
            None => Owner::Nobody,
            Some(_) if heir.is_none() && self.closed.load(Ordering::Acquire) => Owner::Frozen,
            Some(index) => Owner::Member(index),
        };
        // An announcement may have given some to another owner meanwhile.
        let released: Vec<u16> = mine.into_iter().filter(|slot| table.owner(*slot) == Owner::Frozen).collect();
        for slot in &released {
            table.set_owner(*slot, next, table.term(*slot));
        }
        // Of what this node owned without a quorum others may know more: its heir asks them.
        let stale = !table.lease_holds(self.store.clock().now_ms());
        let doubtful = |inner: &Inner, slot: &u16| inner.provisional.contains(slot) || inner.contested.contains(slot);
        let (unsure, released) = {
            let mut inner = self.inner.lock();
            let (unsure, sure): (Vec<u16>, Vec<u16>) =
                released.into_iter().partition(|slot| stale || doubtful(&inner, slot));
            if heir.is_some() {
                unsure.iter().for_each(|slot| _ = inner.provisional.remove(slot));
            }
            (unsure.len(), sure)
        };
        self.peers.changed.notify_waiters();
        if heir.is_some() {
            tracing::info!(peer = %peer.node_id, slots = released.len() + unsure, "handed slots over");
            Response::Claimed { term, released: ranges_of(&released), owners }
        } else {
            Response::NotOwner { owner: Some(me), term }
        }
    }
}
