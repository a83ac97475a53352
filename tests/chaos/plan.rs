//! What happens in a run, as data: drawn from the seed, so that the seed repeats it.

use std::fmt;

/// A stream of numbers that a seed repeats (splitmix64).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True so often in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.within(1, 100) <= chance
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0, from.len() as u64 - 1) as usize]
    }
}

/// Which packets do not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// None between these hosts and the others.
    Halves(Vec<usize>),
    /// None from these hosts to the others; the other way they pass.
    OneWay(Vec<usize>),
    /// None between these two; all others reach both.
    Pair(usize, usize),
    /// No datagram to or from this host.
    Gossip(usize),
    /// No stream to or from this host.
    Data(usize),
}

/// One thing that goes wrong, or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to one PHP process of a host that calls the module.
    KillWorker(usize),
    /// SIGKILL to a host's node, which is a process of its own.
    KillNode(usize),
    /// SIGKILL to every process of a host, whose segment is gone with them; it is started again afterwards.
    KillHost(usize),
    /// SIGSTOP to a host's node, which is a process of its own.
    StopNode(usize),
    /// SIGSTOP to every process of a host.
    StopHost(usize),
    /// A partition.
    Partition(Cut),
    /// Every packet to and from a host is this much later, in ms.
    Slow(usize, u64),
    /// Packets to and from a host are up to this much later, in ms, each by itself, and overtake each other.
    Reorder(usize, u64),
    /// A host's wall clock jumps to this offset, in seconds.
    ClockStep(usize, i64),
    /// A host ends in order and is started again at once.
    Restart(usize),
    /// Every host ends in order and is started again, one after the other.
    Rolling,
    /// A host more joins, and leaves in order at the end.
    Guest,
}

impl Fault {
    /// The kind, in one word, for the report.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::KillWorker(_) => "kill-worker",
            Self::KillNode(_) => "kill-node",
            Self::KillHost(_) => "kill-host",
            Self::StopNode(_) => "stop-node",
            Self::StopHost(_) => "stop-host",
            Self::Partition(Cut::Halves(_)) => "partition",
            Self::Partition(Cut::OneWay(_)) => "one-way",
            Self::Partition(Cut::Pair(..)) => "pair-cut",
            Self::Partition(Cut::Gossip(_)) => "gossip-cut",
            Self::Partition(Cut::Data(_)) => "data-cut",
            Self::Slow(..) => "slow",
            Self::Reorder(..) => "reorder",
            Self::ClockStep(..) => "clock-step",
            Self::Restart(_) => "restart",
            Self::Rolling => "rolling",
            Self::Guest => "guest",
        }
    }

    /// Whether acknowledged increments may be lost by it.
    pub fn may_lose(&self) -> bool {
        matches!(self, Self::KillNode(_) | Self::KillHost(_))
    }

    /// Whether an owner may be replaced without having handed anything over.
    pub fn is_hard(&self) -> bool {
        match self {
            Self::Slow(_, ms) | Self::Reorder(_, ms) => *ms >= 200,
            Self::KillWorker(_) | Self::ClockStep(..) | Self::Restart(_) | Self::Rolling | Self::Guest => false,
            _ => true,
        }
    }

    /// The hosts that it befalls; empty: all, or none in particular.
    pub fn hosts(&self) -> Vec<usize> {
        match self {
            Self::KillWorker(host) | Self::KillNode(host) | Self::KillHost(host) | Self::StopNode(host) => vec![*host],
            Self::StopHost(host) | Self::Slow(host, _) | Self::Reorder(host, _) | Self::ClockStep(host, _) => {
                vec![*host]
            }
            Self::Restart(host) => vec![*host],
            Self::Partition(Cut::Halves(side) | Cut::OneWay(side)) => side.clone(),
            Self::Partition(Cut::Pair(one, other)) => vec![*one, *other],
            Self::Partition(Cut::Gossip(host) | Cut::Data(host)) => vec![*host],
            Self::Rolling | Self::Guest => Vec::new(),
        }
    }

    /// Needs a network and hosts that are well: an orderly end that nobody hears of is no orderly end.
    pub fn is_orderly(&self) -> bool {
        matches!(self, Self::Restart(_) | Self::Rolling | Self::Guest)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Slow(host, ms) => write!(out, "{kind} host{host} by {ms} ms"),
            Self::Reorder(host, ms) => write!(out, "{kind} host{host} within {ms} ms"),
            Self::ClockStep(host, seconds) => write!(out, "{kind} host{host} to {seconds:+} s"),
            _ => {
                write!(out, "{kind}")?;
                self.hosts().iter().try_for_each(|host| write!(out, " host{host}"))
            }
        }
    }
}

/// A fault with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins, in ms from the start of the load.
    pub at_ms: u64,
    /// How long it lasts, in ms; how long the host stays away for [`Fault::KillHost`], how long it stays for
    /// [`Fault::Guest`].
    pub for_ms: u64,
    /// What happens.
    pub fault: Fault,
}

/// Which faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Menu {
    /// All.
    All,
    /// All but SIGKILL of a node or host: nothing may be lost.
    NothingLost,
    /// Hosts come and go in order, links are slow, clocks jump.
    Orderly,
    /// No fault at all.
    Nothing,
    /// One host is cut off, again and again.
    CutOff,
    /// Every host is restarted in order, again and again.
    Rolling,
}

/// Everything about a run that is drawn.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// Hosts that are there all the time; one more may come as a guest.
    pub hosts: usize,
    /// How long the load lasts, in ms.
    pub load_ms: u64,
    /// When everything is healed at the latest, in ms.
    pub heal_ms: u64,
    /// Which faults were to be had.
    pub menu: Menu,
    /// Hosts whose node is a process of its own.
    pub own_process: Vec<bool>,
    /// The host whose wall clock can be moved.
    pub clock_host: usize,
    /// Load processes on each host.
    pub processes: usize,
    /// Mean pause of a load process between two calls, microseconds.
    pub pause_us: u64,
    /// What happens, in the order of time.
    pub faults: Vec<Planned>,
}

/// Before the first fault, ms.
const WARM_UP_MS: u64 = 1_500;

/// Between the heal and the end of the load, ms: a start, joining, and calls that must be right again.
const CALM_MS: u64 = 8_000;

/// Between two faults of one host: each is played by a thread of its own, and a node that is still stopped cannot leave.
const BETWEEN_MS: u64 = 200;

/// After a host was started anew before it is touched again, ms.
const REJOIN_MS: u64 = 3_500;

impl Plan {
    /// Draws a plan.
    pub fn draw(seed: u64, hosts: usize, seconds: u64, menu: Menu) -> Self {
        let mut random = Random::new(seed);
        let load_ms = seconds * 1_000;
        let calm_ms = CALM_MS.min(load_ms / 2);
        let mut plan = Self {
            seed,
            hosts,
            load_ms,
            heal_ms: load_ms - calm_ms,
            menu,
            own_process: (0..=hosts).map(|_| random.percent(50)).collect(),
            clock_host: random.within(0, hosts as u64 - 1) as usize,
            processes: 2,
            pause_us: if hosts > 3 { 6_000 } else { 4_000 },
            faults: Vec::new(),
        };
        if menu != Menu::Nothing {
            plan.fill(&mut random);
        }
        plan
    }

    fn fill(&mut self, random: &mut Random) {
        // Until when something lasts: on each host, on the network or any host, and among orderly changes.
        let mut busy = vec![0; self.hosts];
        let (mut troubled, mut moving, mut at) = (0, 0, WARM_UP_MS);
        while at + 500 < self.heal_ms {
            let fault = self.fault(random);
            let mut for_ms = duration(&fault, self.hosts, random).min(self.heal_ms - at);
            match self.menu {
                Menu::CutOff => for_ms = for_ms.clamp(1_500, 2_500),
                Menu::Rolling => for_ms = 2_000,
                _ => {}
            }
            let hosts = fault.hosts();
            let mut from = hosts.iter().map(|host| busy[*host]).max().unwrap_or(0).max(at);
            if fault.is_orderly() {
                from = from.max(troubled).max(moving);
            } else if !matches!(fault, Fault::KillWorker(_) | Fault::ClockStep(..)) {
                from = from.max(moving);
            }
            // A killed host, and a whole partition, one at a time: what no host is left to know is not a finding.
            if matches!(fault, Fault::KillHost(_) | Fault::Partition(_)) {
                from = from.max(troubled);
            }
            if from + 300 >= self.heal_ms {
                at += 500;
                continue;
            }
            let for_ms = for_ms.min(self.heal_ms - from);
            let end = from + for_ms + if matches!(fault, Fault::KillHost(_)) { REJOIN_MS } else { 0 };
            for host in hosts {
                busy[host] = busy[host].max(end + BETWEEN_MS);
            }
            match &fault {
                // Leaving takes a while on a busy machine, and nothing may cut it short.
                fault if fault.is_orderly() => moving = end + REJOIN_MS,
                Fault::KillWorker(_) | Fault::ClockStep(..) => {}
                _ => troubled = troubled.max(end),
            }
            self.faults.push(Planned { at_ms: from, for_ms, fault });
            // Some overlap, some follow on each other's heels, some get time to settle.
            at = match random.within(0, 9) {
                0..=2 => from + for_ms / 2,
                3..=5 => from + for_ms + random.within(50, 800),
                _ => from + for_ms + random.within(1_000, 3_000),
            };
        }
        self.faults.sort_by_key(|planned| planned.at_ms);
    }

    fn fault(&self, random: &mut Random) -> Fault {
        let host = random.within(0, self.hosts as u64 - 1) as usize;
        let own = self.own_process[host];
        match (self.menu, random.within(0, 99)) {
            (Menu::CutOff, _) => Fault::Partition(Cut::Halves(vec![host])),
            (Menu::Rolling, _) => Fault::Rolling,
            (Menu::Orderly, 0..=29) => Fault::Restart(host),
            (Menu::Orderly, 30..=54) => Fault::Rolling,
            (Menu::Orderly, 55..=79) => Fault::Guest,
            (Menu::Orderly, 80..=89) => Fault::Slow(host, random.within(5, 40)),
            (Menu::Orderly, _) => Fault::ClockStep(self.clock_host, clock(random)),
            (_, 0..=9) => Fault::KillWorker(host),
            (Menu::All, 10..=17) if own => Fault::KillNode(host),
            (Menu::All, 10..=29) => Fault::KillHost(host),
            (_, 10..=34) if own && random.percent(50) => Fault::StopNode(host),
            (_, 10..=39) => Fault::StopHost(host),
            (_, 40..=64) => Fault::Partition(self.cut(random)),
            (_, 65..=72) => Fault::Slow(host, *random.pick(&[10, 30, 60, 150, 400])),
            (_, 73..=79) => Fault::Reorder(host, *random.pick(&[5, 20, 60, 150, 400])),
            (_, 80..=84) => Fault::ClockStep(self.clock_host, clock(random)),
            (_, 85..=90) => Fault::Restart(host),
            (_, 91..=93) => Fault::Rolling,
            _ => Fault::Guest,
        }
    }

    fn cut(&self, random: &mut Random) -> Cut {
        let host = random.within(0, self.hosts as u64 - 1) as usize;
        // Any minority and, as often, its complement.
        let size = random.within(1, self.hosts as u64 - 1) as usize;
        let side: Vec<usize> = (0..size).map(|step| (host + step) % self.hosts).collect();
        match random.within(0, 6) {
            6 => Cut::Pair(host, (host + 1) % self.hosts),
            0 | 1 => Cut::Halves(side),
            2 => Cut::Halves(vec![host]),
            3 => Cut::OneWay(side),
            4 => Cut::Gossip(host),
            _ => Cut::Data(host),
        }
    }
}

fn duration(fault: &Fault, hosts: usize, random: &mut Random) -> u64 {
    match fault {
        Fault::KillWorker(_) | Fault::ClockStep(..) => 0,
        Fault::KillNode(_) => 500,
        Fault::KillHost(_) => random.within(0, 6_000),
        Fault::StopNode(_) | Fault::StopHost(_) => random.within(200, 5_000),
        Fault::Partition(_) => random.within(1_000, 15_000),
        Fault::Slow(..) | Fault::Reorder(..) => random.within(1_000, 8_000),
        Fault::Restart(_) => 4_000,
        Fault::Rolling => 4_000 * hosts as u64,
        Fault::Guest => 3_000 + random.within(2_000, 6_000),
    }
}

fn clock(random: &mut Random) -> i64 {
    *random.pick(&[-300, -61, -2, 2, 61, 300])
}
