//! What goes wrong in a run, and when: all of it follows from the seed.

use super::network::Place;
use super::random::Random;

/// One thing that happens to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// These directed lines pass nothing.
    Cut { lines: Vec<(Place, Place)>, data: bool, gossip: bool },
    /// They pass again.
    Mend { lines: Vec<(Place, Place)> },
    /// What stands between two hosts breaks.
    Break(Place, Place),
    /// Lines from and to a host are slow (again).
    Slow { place: Place, delay_ms: (u64, u64) },
    /// The node does not run for a while.
    StopNode { place: Place, until: u64 },
    /// Nor does anything else of its host.
    StopHost { place: Place, until: u64 },
    /// The node's process is killed; the segment lives on.
    KillNode(Place),
    /// The machine is gone, and the segment with it.
    KillHost(Place),
    /// A node starts: on the machine that is there, or on a new one.
    Start(Place),
    /// A host leaves in order.
    Leave(Place),
}

/// What kinds of faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing goes wrong; hosts come and go in order.
    Calm,
    /// Lines are cut, broken and slow.
    Lines,
    /// Nodes and hosts stop for a while, and lines are cut.
    Stops,
    /// Nodes are killed, besides.
    Kills,
    /// Everything, hosts killed included.
    All,
}

/// A run's plan.
#[derive(Clone, Debug)]
pub struct Plan {
    pub weather: Weather,
    /// Hosts from the start; more places are for those that join later.
    pub hosts: usize,
    pub places: usize,
    /// The place of a client, if there is one.
    pub client: Option<Place>,
    /// When faults begin.
    pub begin: u64,
    /// When everything is whole again.
    pub heal: u64,
    /// In order of time.
    pub faults: Vec<(u64, Fault)>,
    /// When something is wrong with what a host exchanges with others, from and until.
    pub troubles: Vec<(Place, u64, u64)>,
}

/// What was held up has arrived this long after the end of a trouble.
const TROUBLE_OVER_MS: u64 = 2_500;

/// A node that starts is known to all within this.
const MEET_MS: u64 = 1_000;

/// The hosts of the beginning have met.
const FOUNDED_MS: u64 = 300 + MEET_MS;

/// Usual delays of a line.
pub const DELAY_MS: (u64, u64) = (1, 3);

impl Plan {
    /// The plan of a seed.
    pub fn new(random: &mut Random) -> Self {
        let weather = *random.pick(&[
            Weather::Calm,
            Weather::Lines,
            Weather::Lines,
            Weather::Stops,
            Weather::Stops,
            Weather::Kills,
            Weather::All,
            Weather::All,
        ]);
        let hosts = random.between(3, 7) as usize;
        let joiners = if random.chance(50) { random.between(1, 2) as usize } else { 0 };
        let client = random.chance(15).then_some(hosts - 1);
        let begin = if random.chance(15) { 200 } else { 1_500 };
        // Long enough for both sides of a split to take over what the other owned, and to count it.
        let long = weather != Weather::Calm && random.chance(20);
        let heal = begin + if long { random.between(5_000, 7_000) } else { random.between(1_500, 4_000) };
        let places = hosts + joiners;
        let mut plan = Self { weather, hosts, places, client, begin, heal, faults: Vec::new(), troubles: Vec::new() };
        for place in 0..hosts {
            plan.faults.push((random.between(0, 300), Fault::Start(place)));
        }
        for place in hosts..places {
            plan.faults.push((random.between(begin, heal), Fault::Start(place)));
        }
        if random.chance(if weather == Weather::Calm { 70 } else { 30 }) && hosts > 3 {
            // Not the first two, through which others join.
            let at = random.between(begin, heal);
            plan.faults.push((at, Fault::Leave(random.between(2, hosts as u64 - 1) as usize)));
        }
        if long {
            plan.split(random);
        }
        if weather != Weather::Calm {
            for _ in 0..random.between(1, 6) {
                plan.add(random);
            }
        }
        plan.keep_joiners_out_of_splits();
        plan.cut_no_founders_apart();
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    fn between(hosts: usize, begin: u64, heal: u64, random: &mut Random) -> Self {
        let faults = (0..hosts).map(|place| (random.between(0, 300), Fault::Start(place))).collect();
        Self { weather: Weather::Lines, hosts, places: hosts, client: None, begin, heal, faults, troubles: Vec::new() }
    }

    /// Two of three hosts cannot reach each other, and the third, which both can reach, leaves in order: what it and one of
    /// the two have agreed on the other one lacks.
    pub fn of_a_leaver_between(random: &mut Random) -> Self {
        let begin = FOUNDED_MS + random.between(0, 300);
        let mut plan = Self::between(3, begin, begin + 6_000, random);
        // Nothing may be lost: everybody can answer for the leaver's calls in the end.
        plan.weather = Weather::Calm;
        let leaver = random.below(3);
        let (from, to) = (begin, plan.heal - random.between(0, 500));
        plan.cut_between(|a, b| a != leaver && b != leaver, (true, true), from, to);
        plan.faults.push((begin + random.between(500, 1_500), Fault::Leave(leaver)));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// A host leaves that nobody hears, although it hears the others and counts for them, and it has gone before one that was
    /// cut off meanwhile is back: what it applied of that one's calls nobody can say.
    pub fn of_a_leaver_unheard(random: &mut Random) -> Self {
        let begin = FOUNDED_MS + random.between(0, 300);
        let mut plan = Self::between(5, begin, begin + 2_800, random);
        let leaver = random.below(5);
        let away = (leaver + 1 + random.below(4)) % 5;
        let leaves = begin + 200;
        plan.cut_between(|a, _| a == leaver, (true, true), leaves + 30, leaves + 1_500);
        let from = leaves + random.between(1_000, 1_300);
        plan.cut_between(|a, b| a == away || b == away, (true, true), from, plan.heal - random.between(0, 300));
        plan.faults.push((leaves, Fault::Leave(leaver)));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// One host is reached by gossip alone, and so keeps old copies; then another stops for long enough that its slots are
    /// taken over, some of them by the former.
    pub fn of_old_copies(random: &mut Random) -> Self {
        let (hosts, begin) = (5, FOUNDED_MS + random.between(0, 300));
        let heal = begin + 7_000;
        let mut plan = Self::between(hosts, begin, heal, random);
        let cut_off = random.below(hosts);
        let stopped = (cut_off + 1 + random.below(hosts - 1)) % hosts;
        let (at, until) = (begin + random.between(800, 1_500), heal - random.between(300, 1_000));
        plan.cut_between(|a, b| a == cut_off || b == cut_off, (true, false), begin, until - random.between(0, 1_000));
        plan.faults.push((at, Fault::StopHost { place: stopped, until }));
        plan.troubles.push((stopped, at, until));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// A node that joins one side of a split in halves can make a majority of it while the other side, which has not
    /// heard of the newcomer, still is one. Nothing short of consensus prevents that, so it is not asked for.
    fn keep_joiners_out_of_splits(&mut self) {
        let cut = |at: u64| {
            let met_by = at + MEET_MS;
            self.troubles.iter().any(|(_, from, until)| *from <= met_by && at <= *until + TROUBLE_OVER_MS)
        };
        let joins_in_split = |(at, fault): &(u64, Fault)| {
            cut(*at) && matches!(fault, Fault::Start(place) if *place >= self.hosts)
                || self.is_anew_in_a_split(*at, fault)
        };
        let later: Vec<bool> = self.faults.iter().map(joins_in_split).collect();
        for ((at, _), later) in self.faults.iter_mut().zip(later) {
            if later {
                *at = self.heal;
            }
        }
    }

    /// Whether this starts a machine anew, which knows nobody any more, while a line of its is cut: a newcomer, too.
    fn is_anew_in_a_split(&self, at: u64, fault: &Fault) -> bool {
        let Fault::Start(place) = fault else { return false };
        let killed = |by: &u64, fault: &Fault| *by < at && matches!(fault, Fault::KillHost(it) if it == place);
        let of_its = |lines: &[(Place, Place)]| lines.iter().any(|(a, b)| a == place || b == place);
        let cut = self.faults.iter().any(|(from, fault)| {
            let Fault::Cut { lines, .. } = fault else { return false };
            let mended = |(to, fault): &(u64, Fault)| {
                matches!(fault, Fault::Mend { lines: mended } if mended == lines) && (*from..=at).contains(to)
            };
            of_its(lines) && *from <= at + MEET_MS && !self.faults.iter().any(mended)
        });
        cut && self.faults.iter().any(|(by, fault)| killed(by, fault))
    }

    /// Hosts that start together and are cut off from each other before all have heard of all may found a cluster on each
    /// side, as those do that never meet. Nothing short of consensus on who is to come prevents that, either.
    fn cut_no_founders_apart(&mut self) {
        for (at, fault) in &mut self.faults {
            match fault {
                Fault::Cut { .. } => *at = (*at).max(FOUNDED_MS),
                Fault::Mend { .. } => *at = (*at).max(FOUNDED_MS + 1),
                _ => {}
            }
        }
    }

    fn add(&mut self, random: &mut Random) {
        let at = random.between(self.begin, self.heal - 300);
        let place = random.below(self.hosts);
        let lasting = (at + random.between(50, 2_500)).min(self.heal);
        let kind = match self.weather {
            Weather::Calm => return,
            Weather::Lines => random.below(50),
            Weather::Stops => random.below(75),
            Weather::Kills => random.below(90),
            Weather::All => random.below(100),
        };
        match kind {
            0..30 => self.cut(at, lasting, random),
            30..40 => {
                for _ in 0..random.between(1, 5) {
                    let (a, b) = (random.below(self.hosts), random.below(self.hosts));
                    let at = random.between(at, lasting);
                    self.faults.push((at, Fault::Break(a, b)));
                    self.troubles.extend([(a, at, at), (b, at, at)]);
                }
            }
            40..50 => {
                let high = *random.pick(&[12, 40, 90]);
                self.faults.push((at, Fault::Slow { place, delay_ms: (1, high) }));
                self.faults.push((lasting, Fault::Slow { place, delay_ms: DELAY_MS }));
                self.troubles.push((place, at, lasting));
            }
            50..75 => {
                let until = lasting;
                let stop = if kind < 65 { Fault::StopNode { place, until } } else { Fault::StopHost { place, until } };
                self.faults.push((at, stop));
                self.troubles.push((place, at, until));
            }
            75..90 => self.kill(at, Fault::KillNode(place), place, random.between(5, 700)),
            _ => self.kill(at, Fault::KillHost(place), place, random.between(300, 2_500)),
        }
    }

    fn kill(&mut self, at: u64, kill: Fault, place: Place, pause: u64) {
        let again = (at + pause).min(self.heal);
        // Until then scripts go on with the segment, and nobody hears of it.
        self.troubles.push((place, at, again));
        self.faults.extend([(at, kill), (again, Fault::Start(place))]);
    }

    /// A partition in two halves that lasts nearly to the end.
    fn split(&mut self, random: &mut Random) {
        let from = random.between(self.begin, self.begin + 500);
        let to = random.between(self.heal - 500, self.heal);
        let sides: Vec<bool> = (0..self.places).map(|_| random.chance(50)).collect();
        self.cut_between(|a, b| sides[a] != sides[b], (true, true), from, to);
    }

    /// A partition: in two halves, of one host, one way, of a single line; of both planes or one.
    fn cut(&mut self, from: u64, to: u64, random: &mut Random) {
        let place = random.below(self.hosts);
        let sides: Vec<bool> = (0..self.places).map(|_| random.chance(50)).collect();
        let other = random.below(self.hosts);
        let kind = random.below(6);
        let planes = *random.pick(&[(true, true), (true, true), (true, true), (true, false), (false, true)]);
        let is_cut = |a: Place, b: Place| match kind {
            0..3 => sides[a] != sides[b],
            3 => a == place || b == place,
            4 => a == place,
            _ => (a, b) == (place, other) || (a, b) == (other, place),
        };
        self.cut_between(is_cut, planes, from, to);
    }

    fn cut_between(&mut self, is_cut: impl Fn(Place, Place) -> bool, (data, gossip): (bool, bool), from: u64, to: u64) {
        let all = (0..self.places).flat_map(|a| (0..self.places).map(move |b| (a, b)));
        let lines: Vec<(Place, Place)> = all.filter(|(a, b)| a != b && is_cut(*a, *b)).collect();
        self.troubles.extend(lines.iter().flat_map(|(a, b)| [(*a, from, to), (*b, from, to)]));
        self.faults.push((from, Fault::Cut { lines: lines.clone(), data, gossip }));
        self.faults.push((to, Fault::Mend { lines }));
    }

    /// Since when what `place` did until `at` may not have reached the others, of whom those that have left are no help.
    pub fn apart_since(&self, place: Place, at: u64) -> u64 {
        let troubled = |of: Place, now: u64| {
            let over = |until: u64| until + TROUBLE_OVER_MS;
            self.troubles.iter().any(|(at, from, until)| *at == of && (*from..=over(*until)).contains(&now))
        };
        let left = |by: &u64, fault: &Fault, of: Place| *by <= at && matches!(fault, Fault::Leave(it) if *it == of);
        let has_left = |of: Place| self.faults.iter().any(|(by, fault)| left(by, fault, of));
        let others: Vec<Place> = (0..self.hosts).filter(|other| *other != place && !has_left(*other)).collect();
        let apart = |now: &u64| troubled(place, *now) || others.iter().all(|other| troubled(*other, *now));
        (0..=at).rev().take_while(apart).last().unwrap_or(at)
    }

    /// Whether something was wrong anywhere at that time, or had been a moment before. What one side of a split
    /// acknowledges before it finds out, the other may replace.
    pub fn is_troubled(&self, at: u64) -> bool {
        self.troubles.iter().any(|(_, from, until)| *from <= at + TROUBLE_OVER_MS && at <= *until + TROUBLE_OVER_MS)
    }

    /// Whether a machine or a node is killed: only then may anything be lost.
    pub fn kills(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::KillNode(_) | Fault::KillHost(_)))
    }
}
