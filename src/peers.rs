//! The links to the members of the view, and what the host's table says of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::cluster::{Member, Phase, Suspect, View};
use crate::dataplane::Peer;
use crate::dataplane::link::{Dialer, InFlight, LinkEvent, LinkTarget, NotSent, PeerLink};
use crate::segment::Segment;
use crate::segment::table::{MEMBERS_MAX, MemberCell, Owner, Table};
use crate::wire::message::{Request, Response};

/// Timeouts in a row that open a member's breaker.
const TIMEOUTS_TO_OPEN: u32 = 3;

/// Time between two lines about the breaker of one member.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Time between two lines about a peer that refuses us for one reason.
const REFUSED_WARN_EVERY: Duration = Duration::from_secs(60);

/// Why [`Peers::ask`] has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nothing was sent: no link, or it is down or full.
    NotSent,
    /// Sent; the connection was lost before the answer.
    Lost,
    /// Sent; no answer in time.
    TimedOut,
}

/// News of a link.
#[derive(Debug)]
pub enum PeerEvent {
    /// The connection stands (again).
    Up,
    /// The connection is gone.
    Lost,
    /// It could not be made.
    Down,
}

/// One link per member of the view other than this node.
pub struct Peers {
    segment: Arc<Segment>,
    dialer: Arc<dyn Dialer>,
    events: mpsc::UnboundedSender<(String, PeerEvent)>,
    inner: Mutex<Inner>,
    /// Woken when owners or the view change: calls that wait for an owner look again.
    pub changed: Notify,
}

/// How long a claimant may take to say that it has taken over from an owner that was passed over.
pub const TAKEOVER_MAX: Duration = Duration::from_secs(3);

struct Inner {
    view: Arc<View>,
    /// By node id: its index in the table.
    indices: BTreeMap<String, u16>,
    /// When an open breaker was last logged.
    warned: BTreeMap<String, Instant>,
    /// Members that have left in order, and their segments.
    left: BTreeMap<String, u64>,
    /// Owners that a claimant was told to be gone: the owner and its generation, the claimant, and when that was.
    passed_over: BTreeMap<(String, u64, String), Instant>,
    /// By node id: when the latest of the requests was sent that it has answered.
    answered: BTreeMap<String, Instant>,
    /// By index: the generation it leads to, and the link.
    links: BTreeMap<u16, (u64, Arc<dyn PeerLink>)>,
}

impl Peers {
    /// No links yet; events of links (with their node id) go to `events`.
    pub fn new(
        segment: Arc<Segment>,
        dialer: Arc<dyn Dialer>,
        view: Arc<View>,
        events: mpsc::UnboundedSender<(String, PeerEvent)>,
    ) -> Self {
        Self {
            segment,
            dialer,
            events,
            inner: Mutex::new(Inner {
                view,
                indices: BTreeMap::new(),
                warned: BTreeMap::new(),
                left: BTreeMap::new(),
                passed_over: BTreeMap::new(),
                answered: BTreeMap::new(),
                links: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }
    }

    /// The host's table.
    pub fn table(&self) -> &Table {
        self.segment.table()
    }

    /// The view in force.
    pub fn view(&self) -> Arc<View> {
        self.inner.lock().view.clone()
    }

    /// Takes a new view: publishes its members and makes, keeps or closes links. Must run on the node's runtime.
    pub fn set_view(&self, view: Arc<View>) {
        let table = self.table();
        for cell in &table.members {
            if cell.presence.load(Ordering::Acquire) == 1 && view.member(&cell.node_id.get()).is_none() {
                cell.presence.store(2, Ordering::Release);
            }
        }
        let indices: BTreeMap<String, u16> =
            view.members.iter().filter_map(|member| Some((member.node_id.clone(), publish(table, member)?))).collect();
        table.members_live.store(view.members.len() as u32, Ordering::Release);
        table.epoch.store(view.epoch, Ordering::Release);
        let mut inner = self.inner.lock();
        inner.note_departures(&view);
        let mut links = std::mem::take(&mut inner.links);
        for member in view.members.iter().filter(|member| !member.is_me) {
            let Some(index) = indices.get(&member.node_id) else { continue };
            let kept = links.remove(index).filter(|(generation, _)| *generation == member.generation);
            let link = kept.unwrap_or_else(|| (member.generation, self.dial(member)));
            inner.links.insert(*index, link);
        }
        inner.indices = indices;
        inner.warned.retain(|node_id, _| view.member(node_id).is_some());
        inner.answered.retain(|node_id, _| view.member(node_id).is_some());
        inner.view = view;
        drop(inner);
        self.changed.notify_waiters();
    }

    fn dial(&self, member: &Member) -> Arc<dyn PeerLink> {
        let (link_events, mut link_news) = mpsc::unbounded_channel();
        let target = LinkTarget { address: member.address, expected_node_id: Some(member.node_id.clone()) };
        let link = self.dialer.dial(target, link_events);
        let (node_id, events) = (member.node_id.clone(), self.events.clone());
        tokio::spawn(async move {
            let mut refused: Option<(String, Instant)> = None;
            while let Some(news) = link_news.recv().await {
                let event = match news {
                    LinkEvent::Up { .. } => PeerEvent::Up,
                    LinkEvent::Down { reason, was_up } => {
                        tracing::debug!(peer = %node_id, reason = %reason, was_up, "no connection");
                        if was_up { PeerEvent::Lost } else { PeerEvent::Down }
                    }
                    LinkEvent::Refused { reason, .. } => {
                        // It is asked again every second.
                        let told =
                            |(last, at): &(String, Instant)| *last == reason && at.elapsed() < REFUSED_WARN_EVERY;
                        if !refused.as_ref().is_some_and(told) {
                            tracing::warn!(peer = %node_id, reason = %reason, "peer refused the data plane connection");
                            refused = Some((reason, Instant::now()));
                        }
                        PeerEvent::Down
                    }
                };
                if events.send((node_id.clone(), event)).is_err() {
                    return;
                }
            }
        });
        link
    }

    /// Whether the node with this segment has left in order: it has handed over what it owned, others know which requests
    /// it applied, and its segment is gone.
    pub fn has_left(&self, node_id: &str, origin: u64) -> bool {
        self.inner.lock().left.get(node_id) == Some(&origin)
    }

    /// The members other than this node whose link stands.
    pub fn up(&self) -> Vec<String> {
        let inner = self.inner.lock();
        let is_up = |index: &u16| inner.links.get(index).is_some_and(|(_, link)| link.is_up());
        inner.indices.iter().filter(|(_, index)| is_up(index)).map(|(node_id, _)| node_id.clone()).collect()
    }

    /// Whether the link to `node_id` stands.
    pub fn is_up(&self, node_id: &str) -> bool {
        let inner = self.inner.lock();
        inner.link(node_id).is_some_and(|link| link.is_up())
    }

    /// Whether calls to `node_id` are sent: its link stands and its breaker is closed.
    pub fn is_reachable(&self, node_id: &str) -> bool {
        let Some(index) = self.index_of(node_id) else { return false };
        self.is_up(node_id) && self.table().member(index).breaker_open.load(Ordering::Relaxed) == 0
    }

    /// Sends `request` to `node_id` without waiting.
    pub fn send(&self, node_id: &str, request: Request) -> Result<InFlight, NotSent> {
        let link = self.inner.lock().link(node_id).cloned();
        link.map_or(Err(NotSent::Down), |link| link.call(&request))
    }

    /// The same, to the member at `index` of the table.
    pub fn send_to(&self, index: u16, request: Request) -> Result<InFlight, NotSent> {
        let link = self.inner.lock().links.get(&index).map(|(_, link)| link.clone());
        link.map_or(Err(NotSent::Down), |link| link.call(&request))
    }

    /// Sends `request` to `node_id` and waits for the answer.
    pub async fn ask(&self, node_id: &str, request: Request, timeout: Duration) -> Result<Response, NoAnswer> {
        let sent = Instant::now();
        let in_flight = self.send(node_id, request).map_err(|_| NoAnswer::NotSent)?;
        match tokio::time::timeout(timeout, in_flight.answer()).await {
            Ok(Ok(response)) => {
                if response == (Response::Pong { vouches: true }) {
                    self.note_answer(node_id, sent);
                }
                Ok(response)
            }
            Ok(Err(_)) => Err(NoAnswer::Lost),
            Err(_) => Err(NoAnswer::TimedOut),
        }
    }

    /// `node_id`, which has this node in its view, has answered a request that was sent then.
    pub fn note_answer(&self, node_id: &str, sent: Instant) {
        let mut inner = self.inner.lock();
        if inner.indices.contains_key(node_id) {
            let latest = inner.answered.entry(node_id.to_owned()).or_insert(sent);
            *latest = (*latest).max(sent);
        }
    }

    /// How long ago the latest of the requests was sent that `node_id` has answered while it had this node in its view;
    /// `None`: it has answered none.
    pub fn answered_ago(&self, node_id: &str) -> Option<Duration> {
        self.inner.lock().answered.get(node_id).map(Instant::elapsed)
    }

    /// How long ago the latest of the requests was sent that a quorum has answered while it had this node in its view;
    /// `None`: no quorum has. This side can have spoken for the cluster since then.
    pub fn quorum_answered_ago(&self) -> Option<Duration> {
        let view = self.view();
        let ago = |node_id: &str| if view.is_me(node_id) { Some(Duration::ZERO) } else { self.answered_ago(node_id) };
        view.voters.reached(|node_id| ago(node_id).map(Reverse)).map(|Reverse(ago)| ago)
    }

    /// Index in the table of a member of the view.
    pub fn index_of(&self, node_id: &str) -> Option<u16> {
        self.inner.lock().indices.get(node_id).copied()
    }

    /// Index in the table of this very life of `peer`, if the view shows it. What comes from one that is gone, or that was
    /// started anew, comes too late: others may have taken over what it owned, and have asked everybody for copies before.
    pub fn index_of_life(&self, peer: &Peer) -> Option<u16> {
        let inner = self.inner.lock();
        let member = inner.view.member(&peer.node_id).filter(|member| member.generation == peer.generation)?;
        inner.indices.get(&member.node_id).copied()
    }

    /// Whether the view shows this very life of `peer`.
    pub fn is_member(&self, peer: &Peer) -> bool {
        self.index_of_life(peer).is_some()
    }

    /// Whether this node vouches for what this life of `peer` says as an owner: it is in the view, and nobody may be taking
    /// over from it who was told that it is gone.
    pub fn vouches_for(&self, peer: &Peer) -> bool {
        let inner = self.inner.lock();
        let over = inner.passed_over.iter().any(|((owner, generation, _), at)| {
            (owner, *generation) == (&peer.node_id, peer.generation) && at.elapsed() < TAKEOVER_MAX
        });
        drop(inner);
        !over && self.is_member(peer)
    }

    /// `claimant` is told that `owner`, as the table knows it, is gone.
    pub fn pass_over(&self, owner: &str, claimant: &str) {
        let Some(generation) = self.cell(owner).map(|cell| cell.generation.load(Ordering::Acquire)) else { return };
        let over = (owner.to_string(), generation, claimant.to_string());
        self.inner.lock().passed_over.insert(over, Instant::now());
    }

    /// `claimant` has said what it has taken over.
    pub fn has_taken_over(&self, claimant: &str) {
        let mut inner = self.inner.lock();
        inner.passed_over.retain(|(_, _, by), at| by != claimant && at.elapsed() < TAKEOVER_MAX);
    }

    /// The table's cell of `node_id`.
    pub fn cell(&self, node_id: &str) -> Option<&MemberCell> {
        self.table().index_of(node_id).map(|index| self.table().member(index))
    }

    /// A call to the member at `index` had no answer in time.
    pub fn timed_out(&self, index: u16) {
        let cell = self.table().member(index);
        if cell.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_TO_OPEN {
            self.open(cell, "did not answer in time, three times in a row");
        }
    }

    /// The connection to `node_id` was lost, or cannot be made.
    pub fn no_connection(&self, node_id: &str) {
        if let Some(cell) = self.cell(node_id) {
            self.open(cell, "has no connection");
        }
    }

    /// Opens a breaker, and says so unless that was said a moment ago.
    fn open(&self, cell: &MemberCell, why: &str) {
        if cell.breaker_open.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let peer = cell.node_id.get();
        let mut inner = self.inner.lock();
        // One that leaves in order, or owns nothing, takes nobody's calls with it.
        if inner.view.member(&peer).is_none_or(|member| member.client || member.phase.leaves()) {
            return;
        }
        let warned = inner.warned.insert(peer.clone(), Instant::now());
        if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            tracing::warn!(
                peer,
                "{why}: until it answers, or another owner takes over, its keys count here (degraded)"
            );
        }
    }

    /// A call to the member at `index` was answered.
    pub fn answered(&self, index: u16) {
        let cell = self.table().member(index);
        if cell.timeouts_in_a_row.load(Ordering::Relaxed) != 0 {
            cell.timeouts_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Pings `node_id`; an answer closes its breaker. Returns whether it answered.
    pub async fn ping(&self, node_id: &str, timeout: Duration) -> bool {
        let answered = matches!(self.ask(node_id, Request::Ping, timeout).await, Ok(Response::Pong { .. }));
        if answered && let Some(cell) = self.cell(node_id) {
            cell.timeouts_in_a_row.store(0, Ordering::Relaxed);
            cell.breaker_open.store(0, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
        answered
    }

    /// Whether the node that `suspect` was answers at its address, on a connection made for the question.
    pub async fn still_there(&self, suspect: &Suspect, timeout: Duration) -> bool {
        let (events, mut news) = mpsc::unbounded_channel();
        let target = LinkTarget { address: suspect.address, expected_node_id: Some(suspect.node_id.clone()) };
        let _link = self.dialer.dial(target, events);
        match tokio::time::timeout(timeout, news.recv()).await {
            Ok(Some(LinkEvent::Up { peer })) => peer.origin == suspect.origin,
            _ => false,
        }
    }

    /// Publishes the member at `index` as the owner of `slot` if `term` is news; returns whether it was.
    pub fn learn_owner(&self, slot: u16, index: u16, term: u64) -> bool {
        let table = self.table();
        let known = table.term(slot);
        if term < known || term == known && table.owner(slot) != Owner::Nobody {
            return false;
        }
        table.set_owner(slot, Owner::Member(index), term);
        true
    }

    /// Node id of the owner of `slot`, as the table says.
    pub fn owner_of(&self, slot: u16) -> Option<String> {
        match self.table().owner(slot) {
            Owner::Member(index) => Some(self.table().member(index).node_id.get()),
            Owner::Nobody | Owner::Frozen => None,
        }
    }
}

impl Inner {
    /// Remembers members that have gone after they said that others know all that was asked of them.
    fn note_departures(&mut self, view: &View) {
        let is_there = |node_id: &str, origin: u64| view.member(node_id).is_some_and(|member| member.origin == origin);
        let gone = |member: &&Member| {
            member.phase == Phase::Gone && !member.client && !is_there(&member.node_id, member.origin)
        };
        let before = self.view.clone();
        for member in before.members.iter().filter(gone) {
            if self.left.len() >= MEMBERS_MAX {
                self.left.clear();
            }
            self.left.insert(member.node_id.clone(), member.origin);
        }
        self.left.retain(|node_id, origin| !is_there(node_id, *origin));
    }

    fn link(&self, node_id: &str) -> Option<&Arc<dyn PeerLink>> {
        self.links.get(self.indices.get(node_id)?).map(|(_, link)| link)
    }
}

/// Writes `member` to its cell, taking a free one (or one of a node that is gone and owns nothing) when it has none.
fn publish(table: &Table, member: &Member) -> Option<u16> {
    let known = table.index_of(&member.node_id);
    let index = known.or_else(|| table.free_cell());
    let Some(index) = index else {
        tracing::error!(peer = %member.node_id, max = MEMBERS_MAX, "more members than the table holds: not a member here");
        return None;
    };
    let cell = table.member(index);
    let same_life = known.is_some() && cell.generation.load(Ordering::Acquire) == member.generation;
    cell.node_id.set(&member.node_id);
    cell.address.set(&member.address.to_string());
    cell.origin.store(member.origin, Ordering::Release);
    cell.generation.store(member.generation, Ordering::Release);
    cell.client.store(u32::from(member.client), Ordering::Release);
    if !same_life {
        // A peer is called only once its connection stands: `Up` closes the breaker after a ping.
        cell.breaker_open.store(u32::from(!member.is_me), Ordering::Relaxed);
        cell.timeouts_in_a_row.store(0, Ordering::Relaxed);
    }
    cell.presence.store(1, Ordering::Release);
    if member.is_me {
        table.set_self_index(Some(index));
    }
    Some(index)
}
