//! Who hears what of whom: heartbeats that are passed on, a failure detector, and what a node says of itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::network::{Life, Place};
use super::random::Random;
use crate::cluster::{Phase, Sighting, Snapshot, Voice};

/// Nodes that one tells in a round.
const FANOUT: usize = 3;

/// A node of which nothing new was heard for this long, and a little that differs from node to node, is dead.
const DEAD_AFTER_MS: u64 = 900;
const DEAD_AFTER_SPREAD_MS: u64 = 200;

/// One that is dead is forgotten after this.
const FORGET_AFTER_MS: u64 = 20_000;

/// What a node says of itself.
#[derive(Clone)]
struct Said {
    phase: Phase,
    numbers: BTreeMap<String, u64>,
    /// To be told at once.
    urgent: bool,
}

/// A node's own part in the gossip.
pub struct SimulatedVoice {
    said: Arc<Mutex<Said>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
}

#[async_trait]
impl Voice for SimulatedVoice {
    fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    async fn set_phase(&self, phase: Phase) {
        let mut said = self.said.lock();
        (said.phase, said.urgent) = (phase, true);
    }

    async fn set_number(&self, name: &str, value: u64) {
        self.said.lock().numbers.insert(name.to_owned(), value);
    }
}

#[derive(Clone)]
struct Heard {
    sighting: Sighting,
    heartbeat: u64,
    advanced_at: u64,
}

struct Talker {
    life: Life,
    me: Sighting,
    said: Arc<Mutex<Said>>,
    publish: watch::Sender<Arc<Snapshot>>,
    heartbeat: u64,
    next_at: u64,
    dead_after: u64,
    heard: BTreeMap<(Place, u64), Heard>,
    shown: Arc<Snapshot>,
}

impl Talker {
    /// Whether it takes the one it has heard of for alive.
    fn hears(&self, heard: &Heard, now: u64) -> bool {
        now - heard.advanced_at < self.dead_after
    }
}

struct Letter {
    due: u64,
    from: Place,
    to: Place,
    news: Vec<(Place, Heard)>,
    is_answer: bool,
}

/// The gossip of all places.
pub struct Gossips {
    talkers: Vec<Option<Talker>>,
    /// Directed lines that are cut.
    cut: Vec<Vec<bool>>,
    letters: Vec<Letter>,
    interval_ms: u64,
    seeds: usize,
    /// Of 100 datagrams.
    lost_percent: u64,
    random: Random,
}

impl Gossips {
    /// Between `places` hosts, the first `seeds` of which are named to all.
    pub fn new(places: usize, seeds: usize, interval_ms: u64, lost_percent: u64, random: Random) -> Self {
        Self {
            talkers: (0..places).map(|_| None).collect(),
            cut: vec![vec![false; places]; places],
            letters: Vec::new(),
            interval_ms,
            seeds,
            lost_percent,
            random,
        }
    }

    /// A node begins to talk.
    pub fn begin(&mut self, place: Place, life: Life, me: Sighting, now: u64) -> Arc<SimulatedVoice> {
        let (publish, snapshots) = watch::channel(Arc::default());
        let said = Said { phase: me.phase, numbers: BTreeMap::new(), urgent: false };
        let said = Arc::new(Mutex::new(said));
        self.talkers[place] = Some(Talker {
            life,
            me,
            said: said.clone(),
            publish,
            heartbeat: 0,
            next_at: now + self.random.between(0, self.interval_ms),
            dead_after: DEAD_AFTER_MS + self.random.between(0, DEAD_AFTER_SPREAD_MS),
            heard: BTreeMap::new(),
            shown: Arc::default(),
        });
        Arc::new(SimulatedVoice { said, snapshots })
    }

    /// A node is gone.
    pub fn end(&mut self, place: Place, life: Life) {
        self.talkers[place].take_if(|talker| talker.life == life);
    }

    /// Cuts or mends a directed line.
    pub fn set_cut(&mut self, from: Place, to: Place, cut: bool) {
        self.cut[from][to] = cut;
    }

    /// One step, of the places that are `awake`. Those whose node has something new to see are named.
    pub fn step(&mut self, now: u64, awake: &[bool]) -> Vec<Place> {
        let mut news = vec![false; self.talkers.len()];
        let due: Vec<Letter> = {
            let (due, later) = std::mem::take(&mut self.letters).into_iter().partition(|letter| letter.due <= now);
            self.letters = later;
            due
        };
        for letter in due {
            if self.cut[letter.from][letter.to] || !awake[letter.to] || self.talkers[letter.to].is_none() {
                continue;
            }
            self.take(&letter, now);
            news[letter.to] = true;
            if !letter.is_answer {
                self.tell(letter.to, letter.from, true, now);
            }
        }
        for place in 0..self.talkers.len() {
            let Some(talker) = self.talkers[place].as_mut().filter(|_| awake[place]) else { continue };
            let urgent = std::mem::take(&mut talker.said.lock().urgent);
            if !urgent && now < talker.next_at {
                continue;
            }
            news[place] = true;
            talker.heartbeat += 1;
            if !urgent {
                talker.next_at = now + self.interval_ms;
            }
            for target in self.targets(place, urgent, now) {
                self.tell(place, target, false, now);
            }
        }
        let places = (0..self.talkers.len()).filter(|place| news[*place]);
        places.filter(|place| self.show(*place, now)).collect()
    }

    fn targets(&mut self, place: Place, all: bool, now: u64) -> Vec<Place> {
        let Some(talker) = &self.talkers[place] else { return Vec::new() };
        let mut live: Vec<Place> =
            talker.heard.iter().filter(|(_, heard)| talker.hears(heard, now)).map(|((place, _), _)| *place).collect();
        live.dedup();
        let silent: Vec<Place> =
            talker.heard.keys().map(|(place, _)| *place).chain(0..self.seeds).filter(|other| *other != place).collect();
        let silent: Vec<Place> = silent.into_iter().filter(|other| !live.contains(other)).collect();
        // As the product greets its seeds.
        let eager = live.is_empty() || talker.said.lock().phase == Phase::Joining;
        let greeted = (0..self.seeds).filter(|seed| eager && silent.contains(seed));
        if !silent.is_empty() && (live.is_empty() || self.random.chance(20)) {
            live.push(*self.random.pick(&silent));
        }
        while live.len() > FANOUT && !all {
            let at = self.random.below(live.len());
            live.remove(at);
        }
        let greeted: Vec<Place> = greeted.filter(|seed| !live.contains(seed)).collect();
        live.extend(greeted);
        live
    }

    fn tell(&mut self, from: Place, to: Place, is_answer: bool, now: u64) {
        let lost = self.random.chance(self.lost_percent);
        let due = now + self.random.between(1, 6);
        let Some(talker) = &self.talkers[from] else { return };
        if lost || self.cut[from][to] {
            return;
        }
        let passed_on = |heard: &Heard| {
            let sighting = Sighting { live: talker.hears(heard, now), ..heard.sighting.clone() };
            Heard { sighting, ..*heard }
        };
        let mut news: Vec<(Place, Heard)> =
            talker.heard.iter().map(|((place, _), heard)| (*place, passed_on(heard))).collect();
        let said = talker.said.lock();
        let me = Sighting { phase: said.phase, numbers: said.numbers.clone(), ..talker.me.clone() };
        news.push((from, Heard { sighting: me, heartbeat: talker.heartbeat, advanced_at: now }));
        drop(said);
        self.letters.push(Letter { due, from, to, news, is_answer });
    }

    fn take(&mut self, letter: &Letter, now: u64) {
        let Some(talker) = &mut self.talkers[letter.to] else { return };
        let dead_since = now.saturating_sub(talker.dead_after);
        for (place, news) in letter.news.iter().filter(|(place, _)| *place != letter.to) {
            let known = talker.heard.entry((*place, news.sighting.generation)).or_insert_with(|| {
                let heartbeat = news.heartbeat.wrapping_sub(1);
                Heard { heartbeat, advanced_at: dead_since, ..news.clone() }
            });
            if known.heartbeat.wrapping_add(1) <= news.heartbeat {
                // What one that is dead has said travels, too, but revives nobody.
                let advanced_at = if news.sighting.live { now } else { known.advanced_at };
                *known = Heard { advanced_at, ..news.clone() };
            } else if known.heartbeat == news.heartbeat {
                known.sighting = news.sighting.clone();
            }
        }
        talker.heard.retain(|_, heard| now - heard.advanced_at < FORGET_AFTER_MS);
    }

    /// Publishes what a node sees, if that is new.
    fn show(&mut self, place: Place, now: u64) -> bool {
        let seeds_are_me = self.seeds == 1 && place == 0;
        let Some(talker) = &mut self.talkers[place] else { return false };
        let mut best: BTreeMap<Place, Sighting> = BTreeMap::new();
        for ((place, _), heard) in &talker.heard {
            let seen = Sighting { live: talker.hears(heard, now), ..heard.sighting.clone() };
            let better = |known: &Sighting| (seen.live, seen.generation) > (known.live, known.generation);
            if best.get(place).is_none_or(better) {
                best.insert(*place, seen);
            }
        }
        let mut sightings: Vec<Sighting> = best.into_values().collect();
        sightings.sort_by(|a, b| a.node_id.cmp(&b.node_id));
        let heard_anyone = sightings.iter().any(|sighting| sighting.live);
        let is_heard = |seed: Place| {
            seed == place || talker.heard.iter().any(|((at, _), heard)| *at == seed && talker.hears(heard, now))
        };
        let seeds_silent = !(0..self.seeds).all(is_heard);
        let snapshot = Snapshot { sightings, heard_anyone, namesakes: Vec::new(), seeds_are_me, seeds_silent };
        if snapshot == *talker.shown {
            return false;
        }
        talker.shown = Arc::new(snapshot);
        talker.publish.send_replace(talker.shown.clone());
        true
    }
}
