//! A network of nodes that are honest, late, silent, behind, or lying, under random schedules. The chain
//! found is always the best of the honest ones.

use super::*;
use crate::headers::tests::testing::{mine_on, retargeting};
use apus_testkit::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;

/// Time limit of a simulation, in simulated milliseconds.
const END_MS: u64 = 3_600_000;

/// The nodes' chains. Honest headers have several times the work of the liar's.
struct Chains {
    params: Params,
    epoch: i64,
    best: Node,
    fork: Node,
    behind: Node,
    early: Node,
    liar: Node,
    endless: Node,
}

fn chains() -> &'static Chains {
    static CHAINS: OnceLock<Chains> = OnceLock::new();
    CHAINS.get_or_init(|| {
        let easy = retargeting(0);
        let mut trunk = Vec::new();
        mine_on(&easy, &mut trunk, 100, 3, 1);
        mine_on(&easy, &mut trunk, 6, 1, 1);
        mine_on(&easy, &mut trunk, 4882, 3, 1);
        let (mut best, mut fork) = (trunk.clone(), trunk.clone());
        mine_on(&easy, &mut best, 112, 3, 2);
        mine_on(&easy, &mut fork, 110, 3, 3);
        let mut endless = trunk[..100].to_vec();
        mine_on(&easy, &mut endless, 13_000, 3, 4);
        let work = |chain: &[[u8; 80]]| {
            chain.iter().map(|raw| block_work(Header::parse(raw).bits)).sum::<u128>()
        };
        let minimum = work(&trunk[..4500]);
        assert!(work(&endless) < minimum);
        let params = retargeting(minimum);
        let node = |chain: &[[u8; 80]]| Node::new(&params, chain);
        Chains {
            epoch: clock(&best, true),
            best: node(&best),
            fork: node(&fork),
            behind: node(&best[..4950]),
            early: node(&trunk[..3000]),
            liar: node(&endless[..7000]),
            endless: node(&endless),
            params,
        }
    })
}

/// How a peer behaves.
struct Actor {
    node: &'static Node,
    /// Shortest and longest time to an answer, in milliseconds. `None` for a silent peer.
    delay_ms: Option<(u64, u64)>,
}

enum Event {
    Connect,
    Answer(PeerId, Vec<[u8; 80]>),
    Announce(PeerId),
    Vanish(PeerId),
    Tick,
}

struct World {
    rng: Rng,
    sync: HeaderSync,
    actors: BTreeMap<PeerId, Actor>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    next_peer: u32,
    refused: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut sync = HeaderSync::new(&chains().params, chains().epoch);
        sync.set_candidate_max(12_000);
        let mut world = Self {
            rng: Rng::new(seed),
            sync,
            actors: BTreeMap::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_peer: 0,
            refused: 0,
        };
        if world.rng.one_in(3) {
            let known = world.rng.index(4990);
            world.sync.restore(chains().best.chain[..known].iter().copied());
        }
        for _ in 0..6 {
            let at = world.rng.below(3000);
            world.at(at, Event::Connect);
        }
        world.at(1000, Event::Tick);
        world
    }

    fn at(&mut self, ms: u64, event: Event) {
        self.queue.push(Reverse((ms, self.next_event)));
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }

    /// One actor in three has the best chain and answers.
    fn actor(&mut self) -> Actor {
        let all = chains();
        let quick = Some((20, 900));
        let (node, delay_ms) = match self.rng.below(12) {
            0..=3 => (&all.best, quick),
            4 => (&all.best, Some((2000, 12_000))),
            5 => (&all.best, None),
            6 | 7 => (&all.fork, quick),
            8 => (&all.behind, quick),
            9 => (&all.early, quick),
            10 => (&all.liar, quick),
            _ => (&all.endless, Some((20, 4000))),
        };
        Actor { node, delay_ms }
    }

    fn connect(&mut self, now_ms: u64) {
        let peer = PeerId(self.next_peer);
        self.next_peer += 1;
        let actor = self.actor();
        self.actors.insert(peer, actor);
        self.sync.peer_connected(peer, now_ms);
        if self.rng.one_in(4) {
            let at = now_ms + self.rng.below(8000);
            self.at(at, Event::Vanish(peer));
        }
        if self.rng.one_in(2) {
            let at = now_ms + self.rng.below(8000);
            self.at(at, Event::Announce(peer));
        }
    }

    fn lose(&mut self, peer: PeerId, now_ms: u64) {
        if self.actors.remove(&peer).is_some() {
            self.sync.peer_gone(peer, now_ms);
            let at = now_ms + self.rng.below(2000);
            self.at(at, Event::Connect);
        }
    }

    fn hear(&mut self, peer: PeerId, headers: &[[u8; 80]], now_ms: u64) {
        if self.actors.contains_key(&peer)
            && let Err(error) = self.sync.headers(peer, headers, now_ms)
        {
            assert_eq!(error, Misbehaviour::EndlessChain { limit: 12_000 });
            self.refused += 1;
            self.lose(peer, now_ms);
        }
    }

    fn happens(&mut self, event: Event, now_ms: u64) {
        match event {
            Event::Connect => self.connect(now_ms),
            Event::Answer(peer, headers) => self.hear(peer, &headers, now_ms),
            Event::Vanish(peer) => self.lose(peer, now_ms),
            Event::Announce(peer) => {
                let Some(actor) = self.actors.get(&peer) else { return };
                if self.rng.one_in(2) {
                    self.sync.announced(peer, &actor.node.tip(), now_ms);
                } else {
                    let tip = actor.node.chain.last().copied();
                    self.hear(peer, &Vec::from_iter(tip), now_ms);
                }
            }
            Event::Tick => {
                self.sync.tick(now_ms);
                self.at(now_ms + 1000, Event::Tick);
            }
        }
    }

    fn obey(&mut self, now_ms: u64) {
        for action in self.sync.actions() {
            match action {
                HeaderAction::GetHeaders { peer, locator, .. } => {
                    let Some(actor) = self.actors.get(&peer) else { continue };
                    let Some((least, most)) = actor.delay_ms else { continue };
                    let answer = actor.node.answer(&locator);
                    let at = now_ms + self.rng.between(least, most);
                    self.at(at, Event::Answer(peer, answer));
                }
                HeaderAction::Disconnect { peer, .. } => self.lose(peer, now_ms),
            }
        }
    }

    /// Runs until the sync is done and an honest peer with the best chain is connected. Returns the time.
    fn run(&mut self) -> u64 {
        while let Some(Reverse((now_ms, number))) = self.queue.pop() {
            assert!(now_ms < END_MS, "no end: {:?}", self.sync.peers);
            let event = self.events.remove(&number).unwrap();
            self.happens(event, now_ms);
            self.obey(now_ms);
            let candidate = self.sync.candidate.as_ref().map_or(0, CandidateChain::bytes);
            assert!(candidate <= 12_000 * 48);
            let honest = |peer: &PeerId| {
                let actor = &self.actors[peer];
                std::ptr::eq(actor.node, &chains().best) && actor.delay_ms.is_some()
            };
            if self.sync.is_synced(now_ms) && self.actors.keys().any(honest) {
                return now_ms;
            }
        }
        unreachable!("there is always a next tick");
    }
}

#[test]
fn the_sync_finds_the_best_honest_chain() {
    let (mut longest, mut refused) = (0, 0);
    for seed in 0..apus_testkit::effort::rounds(50, 4_000) {
        let mut world = World::new(seed);
        let took_ms = world.run();
        let tip = *world.sync.tree().hash(world.sync.best());
        assert_eq!(tip, chains().best.tip(), "seed {seed}");
        // The tree has honest headers only: trunk, best and fork.
        assert!(world.sync.tree().len() <= 1 + 4988 + 112 + 110, "seed {seed}");
        for (peer, actor) in &world.actors {
            let height = world.sync.peer_height(*peer).unwrap() as usize;
            assert!(height <= actor.node.chain.len(), "seed {seed}");
        }
        longest = longest.max(took_ms);
        refused += world.refused;
    }
    assert!(longest < 900_000, "{longest} ms");
    assert!(refused > 5, "the endless chain was never met");
}
