//! The data plane between simulated hosts: connections that keep their order, lose nothing while they stand, and break.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use super::random::Random;
use crate::dataplane::Peer;

/// What a line that was cut holds comes this late after it is mended, at most: the kernel sends again by its own timer.
const RETRANSMIT_MAX_MS: u64 = 1_500;

/// Where a node is: the number of its host.
pub type Place = usize;

/// One run of a node.
pub type Life = u32;

/// A connection, numbered in the order in which they were begun.
pub type ConnId = u64;

/// Which way on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the side that dialled.
    There = 0,
    /// To it.
    Back = 1,
}

impl Way {
    fn other(self) -> Self {
        if self == Self::There { Self::Back } else { Self::There }
    }
}

/// What travels on a connection.
#[derive(Debug)]
pub enum Packet {
    /// Who dials.
    Hello(Peer),
    /// Who was reached; `None`: refused.
    Answer(Option<Peer>),
    /// Frames.
    Bytes(BytesMut),
    /// The other side is gone.
    Closed,
}

/// What arrives at a node.
pub struct Arrival {
    /// On which connection.
    pub conn: ConnId,
    /// Which way it came.
    pub way: Way,
    /// What.
    pub packet: Packet,
}

struct Waiting {
    due: u64,
    seq: u64,
    packet: Packet,
}

struct Conn {
    ends: [Place; 2],
    /// Who dialled, and who took it.
    lives: [Option<Life>; 2],
    queues: [VecDeque<Waiting>; 2],
    /// Nothing of a direction comes before this.
    not_before: [u64; 2],
    last_due: [u64; 2],
    /// Takes no more packets.
    closed: bool,
}

impl Conn {
    fn source(&self, way: Way) -> Place {
        self.ends[way as usize]
    }

    fn target(&self, way: Way) -> Place {
        self.ends[way.other() as usize]
    }
}

/// One direction between two hosts.
#[derive(Clone, Copy)]
struct Line {
    cut_since: Option<u64>,
    delay_ms: (u64, u64),
}

/// What answers at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nothing: no machine, or one that is off.
    Nothing,
    /// A machine without a node.
    Machine,
    /// This node.
    Node(Life),
}

/// Everything on its way.
pub struct Network {
    lines: Vec<Vec<Line>>,
    conns: BTreeMap<ConnId, Conn>,
    at: Vec<At>,
    last_conn: ConnId,
    seq: u64,
    random: Random,
    /// Packets sent.
    pub sent: u64,
}

impl Network {
    /// Between `places` hosts that are not there yet.
    pub fn new(places: usize, delay_ms: (u64, u64), random: Random) -> Self {
        Self {
            lines: vec![vec![Line { cut_since: None, delay_ms }; places]; places],
            conns: BTreeMap::new(),
            at: vec![At::Nothing; places],
            last_conn: 0,
            seq: 0,
            random,
            sent: 0,
        }
    }

    /// Names of streams and the like.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// What is at `place` from now on. A node that was there before is gone: a machine that is still there tells its
    /// peers.
    pub fn put(&mut self, place: Place, at: At, now: u64) {
        let before = std::mem::replace(&mut self.at[place], at);
        let At::Node(life) = before else { return };
        let ends = |conn: &Conn| (0..2).find(|end| (conn.ends[*end], conn.lives[*end]) == (place, Some(life)));
        let of_it: Vec<(ConnId, usize)> = self.conns.iter().filter_map(|(id, conn)| Some((*id, ends(conn)?))).collect();
        for (id, end) in of_it {
            let way = if end == 0 { Way::There } else { Way::Back };
            if at == At::Nothing {
                // Nobody is told; what was on its way from it still arrives.
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.queues[way.other() as usize].clear();
                }
            } else {
                self.close(id, way, now);
            }
        }
    }

    /// Begins a connection; `peer` says who dials.
    pub fn dial(&mut self, from: (Place, Life), to: Place, peer: Peer, now: u64) -> ConnId {
        self.last_conn += 1;
        let conn = Conn {
            ends: [from.0, to],
            lives: [Some(from.1), None],
            queues: Default::default(),
            not_before: [0, 0],
            last_due: [0, 0],
            closed: false,
        };
        self.conns.insert(self.last_conn, conn);
        self.send(self.last_conn, Way::There, Packet::Hello(peer), now);
        self.last_conn
    }

    /// Sends on a connection, behind what was sent before. Nothing happens when it is gone.
    pub fn send(&mut self, id: ConnId, way: Way, packet: Packet, now: u64) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.closed) else { return };
        let (low, high) = self.lines[conn.source(way)][conn.target(way)].delay_ms;
        self.seq += 1;
        self.sent += 1;
        // In the order in which it was sent.
        let due = (now + self.random.between(low, high)).max(conn.last_due[way as usize]);
        conn.last_due[way as usize] = due;
        conn.queues[way as usize].push_back(Waiting { due, seq: self.seq, packet });
    }

    /// The side that sends `way` closes, or is dead: the other side learns it behind what was sent before.
    pub fn close(&mut self, id: ConnId, way: Way, now: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if way == Way::There && conn.lives[1].is_none() {
            // Nobody has taken it.
            self.conns.remove(&id);
            return;
        }
        conn.queues[way.other() as usize].clear();
        self.send(id, way, Packet::Closed, now);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.closed = true;
        }
    }

    /// Breaks what stands between two places: both sides learn it, what was on its way is lost.
    pub fn break_between(&mut self, a: Place, b: Place, now: u64) {
        for conn in self.conns.values_mut().filter(|conn| conn.ends == [a, b] || conn.ends == [b, a]) {
            conn.closed = true;
            for queue in &mut conn.queues {
                queue.clear();
                self.seq += 1;
                queue.push_back(Waiting { due: now + 1, seq: self.seq, packet: Packet::Closed });
            }
        }
    }

    /// Nothing passes from `from` to `to` any more: what is sent waits.
    pub fn cut(&mut self, from: Place, to: Place, now: u64) {
        self.lines[from][to].cut_since.get_or_insert(now);
    }

    /// It passes again.
    pub fn mend(&mut self, from: Place, to: Place, now: u64) {
        let Some(since) = self.lines[from][to].cut_since.take() else { return };
        let late = (now - since).min(RETRANSMIT_MAX_MS);
        for conn in self.conns.values_mut() {
            for way in [Way::There, Way::Back] {
                let held = (conn.source(way), conn.target(way)) == (from, to) && !conn.queues[way as usize].is_empty();
                if held {
                    let at = now + self.random.between(0, late);
                    conn.not_before[way as usize] = conn.not_before[way as usize].max(at);
                }
            }
        }
    }

    /// Delays of a line from now on.
    pub fn slow(&mut self, from: Place, to: Place, delay_ms: (u64, u64)) {
        self.lines[from][to].delay_ms = delay_ms;
    }

    /// What has arrived by `now`, in order, and where. For places that are not `awake` it waits.
    pub fn arrivals(&mut self, now: u64, awake: &[bool]) -> Vec<(Place, Arrival)> {
        let mut out: Vec<(u64, u64, Place, Arrival)> = Vec::new();
        let (mut over, mut unheard) = (Vec::new(), Vec::new());
        for (id, conn) in &mut self.conns {
            for way in [Way::There, Way::Back] {
                let (source, target) = (conn.source(way), conn.target(way));
                let passes = self.lines[source][target].cut_since.is_none() && now >= conn.not_before[way as usize];
                while passes && conn.queues[way as usize].front().is_some_and(|first| first.due <= now) {
                    let taken = match (self.at[target], conn.lives[way.other() as usize]) {
                        (At::Node(life), Some(mine)) => life == mine,
                        (At::Node(life), None) => {
                            if awake[target] {
                                conn.lives[way.other() as usize] = Some(life);
                            }
                            true
                        }
                        (At::Machine | At::Nothing, _) => false,
                    };
                    if taken && !awake[target] {
                        break;
                    }
                    let Some(Waiting { due, seq, packet }) = conn.queues[way as usize].pop_front() else { break };
                    if taken {
                        out.push((due, seq, target, Arrival { conn: *id, way, packet }));
                    } else if self.at[target] != At::Nothing && !conn.closed {
                        // The machine says that nobody there has this connection.
                        unheard.push((*id, way.other(), matches!(packet, Packet::Hello(_))));
                        break;
                    }
                }
            }
            if conn.closed && conn.queues.iter().all(VecDeque::is_empty) {
                over.push(*id);
            }
        }
        for (id, way, dialling) in unheard {
            if dialling {
                self.send(id, way, Packet::Answer(None), now);
            } else {
                self.close(id, way, now);
            }
        }
        over.iter().for_each(|id| drop(self.conns.remove(id)));
        out.sort_by_key(|(due, seq, ..)| (*due, *seq));
        out.into_iter().map(|(_, _, place, arrival)| (place, arrival)).collect()
    }
}
