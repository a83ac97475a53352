//! From what gossip and pings say to the view: who is a member, whether this node has joined, whether its side may
//! speak for the cluster. Pure: no I/O, no clock; times are milliseconds of any monotonic clock the caller likes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::quorum::Voters;
use super::sighting::{Phase, Sighting, Snapshot};
use crate::config::testing_number;

/// A member that is gone is remembered this long, for the quorum, after it was last alive.
pub const REMEMBER_MS: u64 = 10 * 60 * 1000;

/// [`REMEMBER_MS`], unless a test has to see what happens afterwards.
pub fn remember_ms() -> u64 {
    testing_number("EPHPM_KV_TEST_REMEMBER_MS").unwrap_or(REMEMBER_MS)
}

/// A node with our id that was there before us may be a corpse that gossip still takes for alive; after this time it
/// is not.
const NAMESAKE_PATIENCE_MS: u64 = 2_000;

/// This node, as its own view shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// Stable identity.
    pub node_id: String,
    /// Boot time in nanoseconds.
    pub generation: u64,
    /// Where peers dial it.
    pub address: SocketAddr,
    /// It owns nothing.
    pub client: bool,
    /// The origin of its segment.
    pub origin: u64,
    /// The protocol version it speaks.
    pub protocol: u16,
}

/// One member of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Stable identity.
    pub node_id: String,
    /// Boot time in nanoseconds: another number means that the node was started anew.
    pub generation: u64,
    /// Where to dial it.
    pub address: SocketAddr,
    /// How far it is.
    pub phase: Phase,
    /// It owns nothing, whatever its phase.
    pub client: bool,
    /// The origin of its segment.
    pub origin: u64,
    /// The protocol version it speaks.
    pub protocol: u16,
    /// It is this node.
    pub is_me: bool,
    /// When gossip or a ping last said that it lives (the caller's clock). A change makes no new epoch.
    pub last_heard_ms: u64,
}

/// Who is there. Two views of one node with the same epoch differ in `last_heard_ms` at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Raised by one with each change; local to this node and its run, starting at 1.
    pub epoch: u64,
    /// Sorted by node id; this node included.
    pub members: Vec<Member>,
    /// Who counts for the quorum, in the view or not.
    pub voters: Voters,
    /// Another node that may own slots (for a member also: a client that has joined) has been seen alive since the start,
    /// or there is nobody to join.
    pub joined: bool,
    /// This side may speak for the cluster: joined, and more than half of the settled members are alive here, or
    /// exactly half with the lowest node id among them.
    pub quorum: bool,
    /// Why this node must not take part: another node has its id and was there first.
    pub refused: Option<String>,
}

impl View {
    /// The members that may own slots: ready, not clients. A refused node is not among them.
    pub fn owners_eligible(&self) -> Vec<&Member> {
        let may_own = |member: &&Member| {
            member.phase == Phase::Ready && !member.client && !(member.is_me && self.refused.is_some())
        };
        self.members.iter().filter(may_own).collect()
    }

    /// This node.
    pub fn me(&self) -> &Member {
        self.members.iter().find(|member| member.is_me).expect("a view holds its own node")
    }

    /// Whether `node_id` is this node's.
    pub fn is_me(&self, node_id: &str) -> bool {
        self.me().node_id == node_id
    }

    /// The member with this node id.
    pub fn member(&self, node_id: &str) -> Option<&Member> {
        let index = self.members.binary_search_by(|member| member.node_id.as_str().cmp(node_id)).ok()?;
        self.members.get(index)
    }
}

/// A node to be pinged over TCP; the result goes to [`Membership::ping`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Its node id; for a namesake this node's own.
    pub node_id: String,
    /// Its boot time.
    pub generation: u64,
    /// Where to ping it.
    pub address: SocketAddr,
    /// The origin it is known by: a ping succeeds only if the answer carries it.
    pub origin: u64,
}

/// What a quorum that has just lost a member has agreed on is with the others within this.
const ON_ITS_WAY_MS: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Gossip says that it lives.
    Live,
    /// Gossip says that it is dead, no ping has failed since.
    Suspect,
    /// A ping failed after gossip's verdict.
    Dead,
}

#[derive(Debug)]
struct Known {
    sighting: Sighting,
    standing: Standing,
    last_heard_ms: u64,
    /// Seen ready, or when this node and it were founding the cluster, and not a client, and not
    /// known to have left in order since.
    settled: bool,
    /// Since when it is known to leave in order.
    left_ms: Option<u64>,
}

impl Known {
    fn in_view(&self) -> bool {
        self.standing != Standing::Dead
    }

    /// Takes over what the node says of itself. `founding`: see [`Membership::is_founding`].
    fn learn(&mut self, sighting: &Sighting, founding: bool) {
        self.settled = match sighting.phase {
            _ if sighting.client => false,
            Phase::Ready => true,
            // A settled member that was started anew is expected back.
            Phase::Joining => self.settled || founding,
            Phase::Leaving | Phase::Gone => self.settled,
        };
        self.sighting = sighting.clone();
    }
}

#[derive(Debug)]
struct Namesake {
    sighting: Sighting,
    /// It was there before us. Decided when it is first seen, since both sides' phases change later.
    precedes: bool,
    since_ms: u64,
    answered: bool,
}

/// The state behind the view.
#[derive(Debug)]
pub struct Membership {
    me: Me,
    phase: Phase,
    joined: bool,
    known: BTreeMap<String, Known>,
    namesakes: BTreeMap<SocketAddr, Namesake>,
    view: Option<Arc<View>>,
    remember_ms: u64,
    /// As of when this node has all that the members own; `None`: it lacks something.
    in_sync_ms: Option<u64>,
}

impl Membership {
    /// A membership that knows only this node, joining. `seeds_others`: there is somebody to join
    /// (see [`names_others`](super::names_others)).
    pub fn new(me: Me, seeds_others: bool) -> Self {
        Self {
            me,
            phase: Phase::Joining,
            joined: !seeds_others,
            known: BTreeMap::new(),
            namesakes: BTreeMap::new(),
            view: None,
            remember_ms: remember_ms(),
            in_sync_ms: None,
        }
    }

    /// As of when this node has all that the ready members own, by what each of them has answered; `None`: it lacks
    /// something.
    pub fn set_in_sync(&mut self, as_of_ms: Option<u64>) {
        self.in_sync_ms = as_of_ms;
    }

    /// Takes in what gossip knows.
    pub fn observe(&mut self, snapshot: &Snapshot, now_ms: u64) {
        self.joined |= snapshot.seeds_are_me;
        self.observe_namesakes(&snapshot.namesakes, now_ms);
        let mut by_id: BTreeMap<&str, Vec<&Sighting>> = BTreeMap::new();
        for sighting in snapshot.sightings.iter().filter(|sighting| sighting.node_id != self.me.node_id) {
            by_id.entry(&sighting.node_id).or_default().push(sighting);
        }
        // Those gossip has forgotten, too, are not live.
        for known in self.known.values_mut() {
            known.sighting.live = false;
        }
        let founding = self.is_founding(&by_id);
        for (node_id, sightings) in by_id {
            let Some(chosen) = choose(self.known.get(node_id), &sightings) else { continue };
            // A client that has not joined may be as lost as this node: scripts come in crowds.
            let knows_more = !chosen.client || chosen.phase == Phase::Ready && !self.me.client;
            self.joined |= chosen.live && knows_more;
            let known = self.known.entry(node_id.to_owned()).or_insert_with(|| Known {
                sighting: chosen.clone(),
                standing: Standing::Live,
                last_heard_ms: now_ms,
                settled: false,
                left_ms: None,
            });
            let moved = known.sighting.address != chosen.address;
            if moved && known.in_view() {
                tracing::warn!(node_id, from = %known.sighting.address, to = %chosen.address, "a member has moved");
            }
            known.learn(chosen, founding);
        }
        for known in self.known.values_mut() {
            let leaves = known.sighting.phase.leaves();
            known.left_ms = known.left_ms.filter(|_| leaves).or(leaves.then_some(now_ms));
            if known.sighting.live {
                known.standing = Standing::Live;
                known.last_heard_ms = now_ms;
            } else if known.standing == Standing::Live {
                known.standing = Standing::Suspect;
            }
        }
        self.release_those_who_left();
        let remember_ms = self.remember_ms;
        self.known.retain(|_, known| known.in_view() || now_ms.saturating_sub(known.last_heard_ms) < remember_ms);
    }

    /// Whether this node and those that it sees are about to become a cluster together: all of them count for its
    /// quorum, so that a cut before they are ready does not make several clusters of them. Where there is a cluster,
    /// only its members count: one that starts and fails again and again must not outvote them.
    fn is_founding(&self, sightings: &BTreeMap<&str, Vec<&Sighting>>) -> bool {
        let is_ready = |sighting: &Sighting| sighting.phase == Phase::Ready && !sighting.client;
        let seen = sightings.values().flatten().copied();
        let mut all = seen.chain(self.known.values().map(|known| &known.sighting));
        self.phase == Phase::Joining && !all.any(is_ready)
    }

    /// Who leaves in order counts no more, but only once this node has all that the others have agreed on with it: two
    /// quorums, one with it and one without, may have nobody in common. So as long as another is missing, or has not answered
    /// since, the leaver still counts.
    fn release_those_who_left(&mut self) {
        let left = |known: &Known| known.sighting.phase.leaves();
        let missing = |known: &Known| known.settled && !known.in_view() && !left(known);
        let Some(in_sync_ms) = self.in_sync_ms.filter(|_| !self.known.values().any(missing)) else { return };
        let since = |left_ms: u64| in_sync_ms >= left_ms + ON_ITS_WAY_MS;
        let released = |known: &&mut Known| left(known) && known.left_ms.is_some_and(since);
        self.known.values_mut().filter(released).for_each(|known| known.settled = false);
    }

    fn observe_namesakes(&mut self, sightings: &[Sighting], now_ms: u64) {
        // At our address, or with our segment, it is this host's previous life, which gossip does not know dead yet.
        let is_other = |s: &&Sighting| s.live && s.address != self.me.address && s.origin != self.me.origin;
        let others: BTreeMap<SocketAddr, &Sighting> =
            sightings.iter().filter(is_other).map(|sighting| (sighting.address, sighting)).collect();
        self.namesakes.retain(|address, _| others.contains_key(address));
        for (address, sighting) in others {
            if let Some(namesake) = self.namesakes.get_mut(&address) {
                namesake.sighting = sighting.clone();
                continue;
            }
            // Clocks differ by minutes, so boot times decide only between two that are equally far.
            let precedes = match (sighting.phase == Phase::Ready, self.phase == Phase::Ready) {
                (true, false) => true,
                (false, true) => false,
                _ => (sighting.generation, sighting.address) < (self.me.generation, self.me.address),
            };
            tracing::error!(node_id = %self.me.node_id, %address, stays = !precedes,
                "another node has this node's id (ephpm_kv.node_id)");
            let namesake = Namesake { sighting: sighting.clone(), precedes, since_ms: now_ms, answered: false };
            self.namesakes.insert(address, namesake);
        }
    }

    /// Takes in the result of a TCP ping, or other news of a connection (made: ok, lost: not). Only a failure after
    /// gossip's verdict counts, so report failures of pings that were begun after [`Self::suspects`] named the node.
    /// For a namesake (this node's own id) `ok` means that it answered with its own origin.
    pub fn ping(&mut self, node_id: &str, ok: bool, now_ms: u64) {
        if node_id == self.me.node_id {
            for namesake in self.namesakes.values_mut() {
                namesake.answered |= ok;
            }
        } else if let Some(known) = self.known.get_mut(node_id) {
            if ok {
                known.last_heard_ms = now_ms;
                if known.standing == Standing::Dead {
                    known.standing = Standing::Suspect;
                }
            } else if known.standing == Standing::Suspect {
                known.standing = Standing::Dead;
            }
        }
    }

    /// Nodes to be pinged now: members that gossip calls dead while no ping has failed since (they stay members until
    /// one does), and nodes that have our id and were there before us.
    pub fn suspects(&self) -> Vec<Suspect> {
        let silent = self.known.values().filter(|known| known.standing == Standing::Suspect);
        let namesakes = self.namesakes.values().filter(|namesake| namesake.precedes && !namesake.answered);
        silent.map(|known| &known.sighting).chain(namesakes.map(|n| &n.sighting)).map(suspect).collect()
    }

    /// Members that are gone and remembered. A ping now and then brings one back that TCP reaches and gossip does not.
    pub fn lost(&self) -> Vec<Suspect> {
        let dead = self.known.values().filter(|known| known.standing == Standing::Dead && known.settled);
        dead.map(|known| suspect(&known.sighting)).collect()
    }

    /// Whether a settled member is away: it may come back with copies of what is deleted meanwhile.
    pub fn anyone_away(&self, now_ms: u64) -> bool {
        let remembered = |known: &Known| now_ms.saturating_sub(known.last_heard_ms) < self.remember_ms;
        self.known.values().any(|known| known.settled && !known.in_view() && remembered(known))
    }

    /// The segments of this node and of all that it knows, those included that are gone and remembered.
    pub fn origins(&self) -> BTreeSet<u64> {
        self.known.values().map(|known| known.sighting.origin).chain([self.me.origin]).collect()
    }

    /// Sets this node's own phase.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The view of this moment. Its epoch is new only when it differs from the last one.
    pub fn view(&mut self, now_ms: u64) -> Arc<View> {
        let refused = self.refused(now_ms);
        let mut members: Vec<Member> = self.known.values().filter(|known| known.in_view()).map(member).collect();
        members.push(Member {
            node_id: self.me.node_id.clone(),
            generation: self.me.generation,
            address: self.me.address,
            phase: self.phase,
            client: self.me.client,
            origin: self.me.origin,
            protocol: self.me.protocol,
            is_me: true,
            last_heard_ms: now_ms,
        });
        members.sort_by(|a, b| a.node_id.cmp(&b.node_id));
        let voters = self.voters(now_ms);
        let majority = voters.is_quorum(|node_id| members.iter().any(|member| member.node_id == node_id));
        let quorum = self.joined && refused.is_none() && majority;
        let mut view = View { epoch: 1, members, voters, joined: self.joined, quorum, refused };
        if let Some(last) = &self.view {
            view.epoch = last.epoch + u64::from(!same(last, &view));
        }
        self.view.insert(Arc::new(view)).clone()
    }

    fn refused(&self, now_ms: u64) -> Option<String> {
        let certain = |namesake: &&Namesake| {
            namesake.precedes && (namesake.answered || now_ms.saturating_sub(namesake.since_ms) > NAMESAKE_PATIENCE_MS)
        };
        self.namesakes.values().find(certain).map(|namesake| {
            format!(
                "node id \"{}\" is already that of the node at {}: ephpm_kv.node_id must differ between hosts",
                self.me.node_id, namesake.sighting.address
            )
        })
    }

    /// The members that count for the quorum.
    fn voters(&self, now_ms: u64) -> Voters {
        let mine = (self.phase == Phase::Ready && !self.me.client).then_some(&self.me.node_id);
        let remembered =
            |known: &&Known| known.in_view() || now_ms.saturating_sub(known.last_heard_ms) < self.remember_ms;
        let others = self.known.values().filter(|known| known.settled).filter(remembered);
        others.map(|known| &known.sighting.node_id).chain(mine).cloned().collect()
    }
}

/// The sighting that stands for a node id. A node that moved to another address and a second node with the same id
/// look alike at first; whoever is in the view stays until it is dead, as it would itself (`observe_namesakes`).
/// `None`: nothing to take in, such as a node that was never seen live.
fn choose<'a>(known: Option<&Known>, sightings: &[&'a Sighting]) -> Option<&'a Sighting> {
    let seated = known.and_then(|known| sightings.iter().find(|s| s.address == known.sighting.address));
    if known.is_some_and(Known::in_view) || seated.is_some_and(|sighting| sighting.live) {
        return seated.copied();
    }
    let live = sightings.iter().filter(|sighting| sighting.live);
    let first = live.min_by_key(|sighting| (sighting.phase != Phase::Ready, sighting.generation, sighting.address));
    first.or(seated).copied()
}

fn suspect(sighting: &Sighting) -> Suspect {
    Suspect {
        node_id: sighting.node_id.clone(),
        generation: sighting.generation,
        address: sighting.address,
        origin: sighting.origin,
    }
}

fn member(known: &Known) -> Member {
    let Sighting { node_id, generation, address, phase, client, origin, protocol, .. } = known.sighting.clone();
    let last_heard_ms = known.last_heard_ms;
    Member { node_id, generation, address, phase, client, origin, protocol, is_me: false, last_heard_ms }
}

fn same(a: &View, b: &View) -> bool {
    let alike = |a: &Member, b: &Member| *a == Member { last_heard_ms: a.last_heard_ms, ..b.clone() };
    (a.joined, a.quorum, &a.refused, &a.voters) == (b.joined, b.quorum, &b.refused, &b.voters)
        && a.members.len() == b.members.len()
        && a.members.iter().zip(&b.members).all(|(a, b)| alike(a, b))
}

#[cfg(test)]
mod tests;
