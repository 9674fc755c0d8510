//! [`Simulation`]: a [`Download`] with peers, a network and a consumer, in simulated time.
//!
//! It advances in steps of a millisecond. Peers answer in order, at their own rates, over one shared line;
//! requests and answers take the latency each way. Every step checks the download's invariants and panics if
//! one is broken. The seed determines everything.

use super::*;
use apus_testkit::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A node's misbehaviour, besides sending what it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Behaviour {
    Steady,
    /// It never answers.
    Silent,
    /// It falls silent at a time, for a while; both in milliseconds.
    Pauses {
        at: u64,
        length: u64,
    },
    /// It closes the connection at a time, in milliseconds.
    Dies(u64),
    /// It sends a damaged copy of one block in n.
    Damages(u64),
    /// It says that it lacks one block in n.
    Refuses(u64),
    /// It silently leaves out one block in n.
    LeavesOut(u64),
    /// It replaces one block in n with another block.
    Chatters(u64),
}

/// A node to connect to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// Bytes per millisecond.
    pub(super) rate: f64,
    /// One-way delay, in milliseconds.
    pub(super) latency: u64,
    pub(super) behaviour: Behaviour,
    pub(super) services: Services,
    /// Height of its last block.
    pub(super) best: Height,
}

impl Node {
    pub(super) fn steady(mbit: f64, latency: u64) -> Self {
        let services = Services::NETWORK.with(Services::WITNESS);
        let behaviour = Behaviour::Steady;
        Self { rate: mbit * 125.0, latency, behaviour, services, best: Height::MAX - 1 }
    }

    pub(super) fn with(self, behaviour: Behaviour) -> Self {
        Self { behaviour, ..self }
    }
}

/// The consumer of the blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consumer {
    pub(super) in_order: bool,
    /// Heights per range.
    pub(super) segment: u32,
    /// How many ranges it wants at a time.
    pub(super) segments: usize,
    /// Bytes per millisecond.
    pub(super) rate: f64,
}

enum Event {
    Partial(u64),
    Whole { hash: BlockHash, damaged: bool },
    NotFound(BlockHash),
}

struct Connection {
    node: Node,
    usable_at: u64,
    greeted: bool,
    requests: VecDeque<(u64, BlockHash)>,
    /// Bytes sent of the block in front, and when progress was last reported.
    sent: f64,
    reported_at: u64,
    wire: VecDeque<(u64, Event)>,
    /// Blocks it owes, according to the download's own requests.
    owed: BTreeSet<BlockHash>,
    refused: BTreeSet<BlockHash>,
}

/// A download with simulated nodes, network and consumer.
pub(super) struct Simulation {
    pub(super) download: Download,
    pub(super) now: u64,
    rng: Rng,
    sizes: Vec<u64>,
    size_max: u64,
    line: f64,
    connections: BTreeMap<PeerId, Connection>,
    /// Nodes to connect to when others are gone.
    pub(super) spare: VecDeque<Node>,
    peers_max: usize,
    next_peer: u32,
    consumer: Consumer,
    /// Ranges that are not wanted yet, and wanted ranges with their missing blocks.
    ranges: VecDeque<HeightRange>,
    open: Vec<(HeightRange, u32)>,
    /// Blocks handed to the consumer, by height; true if damaged.
    handed_out: BTreeMap<Height, bool>,
    held: u64,
    arrived: VecDeque<Height>,
    consumed: BTreeSet<Height>,
    appetite: f64,
    /// Why peers were dropped.
    pub(super) dropped: Vec<(PeerId, Blame)>,
    /// The limits seen, sampled ten times a second.
    pub(super) limits: Vec<Limit>,
}

pub(super) fn hash(height: Height) -> BlockHash {
    let mut bytes = [0xb1; 32];
    bytes[..4].copy_from_slice(&height.wrapping_mul(0x9e37_79b1).to_le_bytes());
    bytes[4..8].copy_from_slice(&height.to_le_bytes());
    BlockHash(bytes)
}

pub(super) fn height(hash: &BlockHash) -> Height {
    Height::from_le_bytes(hash.0[4..8].try_into().unwrap())
}

impl Simulation {
    pub(super) fn new(
        seed: u64,
        options: DownloadOptions,
        sizes: Vec<u64>,
        line: f64,
        nodes: Vec<Node>,
        consumer: Consumer,
    ) -> Self {
        let ends = (0..sizes.len() as u32).step_by(consumer.segment as usize);
        let count = sizes.len() as u32;
        let range = |start| HeightRange::new(start, count.min(start + consumer.segment));
        let peers_max = nodes.len();
        Self {
            download: Download::new(options),
            now: 0,
            rng: Rng::new(seed),
            size_max: sizes.iter().copied().max().unwrap(),
            sizes,
            line,
            connections: BTreeMap::new(),
            spare: nodes.into(),
            peers_max,
            next_peer: 0,
            consumer,
            ranges: ends.map(range).collect(),
            open: Vec::new(),
            handed_out: BTreeMap::new(),
            held: 0,
            arrived: VecDeque::new(),
            consumed: BTreeSet::new(),
            appetite: 0.0,
            dropped: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// Runs until everything is consumed. Returns the time it took, in milliseconds.
    pub(super) fn run(&mut self, deadline: u64) -> u64 {
        while self.consumed.len() < self.sizes.len() {
            self.step();
            if self.now > deadline {
                let status = self.download.status(self.now);
                panic!(
                    "{} of {} after {deadline} ms: {status:#?}",
                    self.consumed.len(),
                    self.sizes.len()
                );
            }
        }
        self.now
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub(super) fn step(&mut self) {
        self.now += 1;
        self.connect();
        self.want();
        self.transmit();
        self.arrive();
        self.consume();
        if self.now.is_multiple_of(100) {
            self.limits.push(self.download.limited_by());
        }
        for action in self.download.tick(self.now) {
            self.act(action);
        }
    }

    fn connect(&mut self) {
        while self.connections.len() < self.peers_max
            && let Some(node) = self.spare.pop_front()
        {
            let delay = if self.next_peer < self.peers_max as u32 { 0 } else { 1_000 };
            let connection = Connection {
                node,
                usable_at: self.now + delay,
                greeted: false,
                requests: VecDeque::new(),
                sent: 0.0,
                reported_at: 0,
                wire: VecDeque::new(),
                owed: BTreeSet::new(),
                refused: BTreeSet::new(),
            };
            self.connections.insert(PeerId(self.next_peer), connection);
            self.next_peer += 1;
        }
        self.download.replacements(self.spare.len());
        let last = self.sizes.len() as u32 - 1;
        for (id, connection) in &mut self.connections {
            if !connection.greeted && connection.usable_at <= self.now {
                connection.greeted = true;
                self.download.peer_added(*id, connection.node.services, self.now);
                let best = connection.node.best.min(last);
                self.download.peer_has(*id, best, best);
            }
        }
        let dead =
            |c: &Connection| matches!(c.node.behaviour, Behaviour::Dies(at) if at <= self.now);
        let dead: Vec<_> =
            self.connections.iter().filter(|(_, c)| dead(c)).map(|(id, _)| *id).collect();
        for id in dead {
            let gone = self.connections.remove(&id).unwrap();
            self.download.peer_gone(id);
            self.spare.push_back(gone.node.with(Behaviour::Steady));
        }
    }

    fn want(&mut self) {
        self.open.retain(|(_, missing)| *missing > 0);
        while self.open.len() < self.consumer.segments
            && let Some(range) = self.ranges.pop_front()
        {
            assert_eq!(self.download.want(range, &|height| Some(hash(height))), range.count());
            self.open.push((range, range.count()));
        }
    }

    fn transmit(&mut self) {
        let now = self.now;
        let busy = |c: &Connection| {
            let paused = match c.node.behaviour {
                Behaviour::Silent => true,
                Behaviour::Pauses { at, length } => (at..at + length).contains(&now),
                _ => false,
            };
            !paused && c.requests.front().is_some_and(|(at, _)| *at <= now)
        };
        let demand: f64 = self.connections.values().filter(|c| busy(c)).map(|c| c.node.rate).sum();
        let scale = (self.line / demand.max(1e-9)).min(1.0);
        for connection in self.connections.values_mut().filter(|c| busy(c)) {
            connection.send(connection.node.rate * scale, now, &self.sizes, &mut self.rng);
        }
    }

    fn arrive(&mut self) {
        let ids: Vec<_> = self.connections.keys().copied().collect();
        for id in ids {
            while let Some(connection) = self.connections.get_mut(&id)
                && connection.wire.front().is_some_and(|(at, _)| *at <= self.now)
            {
                let (_, event) = connection.wire.pop_front().unwrap();
                match event {
                    Event::Partial(bytes) => self.download.progress(id, bytes, self.now),
                    Event::NotFound(hash) => {
                        connection.owed.remove(&hash);
                        connection.refused.insert(hash);
                        self.download.not_found(id, &hash, self.now);
                    }
                    Event::Whole { hash, damaged } => self.whole(id, hash, damaged),
                }
            }
        }
    }

    fn whole(&mut self, id: PeerId, hash: BlockHash, damaged: bool) {
        let at = height(&hash);
        let size = self.sizes[at as usize];
        let connection = self.connections.get_mut(&id).unwrap();
        let asked = connection.owed.remove(&hash);
        let received = self.download.block(id, &hash, size, self.now);
        match received {
            BlockReceipt::Wanted(height) => {
                assert!(asked && height == at);
                assert!(!self.consumed.contains(&at), "{at} after it was consumed");
                assert!(self.handed_out.insert(at, damaged).is_none(), "{at} twice");
                self.arrived.push_back(at);
                self.held += size;
                let held = self.held;
                let bound = self.download.options.bytes_max.max(SIZE_MAX) + self.size_max;
                assert!(held <= bound, "{held} bytes held of {bound}");
            }
            BlockReceipt::Unrequested => {
                // It may be dropped already while the connection is not closed yet.
                let known = self.download.peers.contains_key(&id);
                assert!(!(asked && known), "{id:?} was asked for {at}");
            }
            BlockReceipt::Duplicate(height) | BlockReceipt::NoRoom(height) => {
                assert!(asked && height == at);
            }
        }
    }

    fn consume(&mut self) {
        self.appetite = (self.appetite + self.consumer.rate).min(self.consumer.rate.max(8e6));
        loop {
            // An in-order consumer takes the block whose height equals the number consumed.
            let next = match self.consumer.in_order {
                true => self.arrived.iter().position(|h| *h as usize == self.consumed.len()),
                false => (!self.arrived.is_empty()).then_some(0),
            };
            let Some(place) = next else { return };
            let size = self.sizes[self.arrived[place] as usize] as f64;
            if self.appetite < size {
                return;
            }
            self.appetite -= size;
            let at = self.arrived.remove(place).unwrap();
            self.held -= self.sizes[at as usize];
            if self.handed_out.remove(&at).unwrap() {
                assert!(self.download.damaged(&hash(at)).is_some());
                continue;
            }
            assert!(self.download.consumed(&hash(at)));
            assert!(self.consumed.insert(at), "{at} consumed twice");
            let open = self.open.iter_mut().find(|(range, _)| range.contains(at)).unwrap();
            open.1 -= 1;
        }
    }

    fn act(&mut self, action: DownloadAction) {
        match action {
            DownloadAction::Request { peer, blocks } => {
                let connection = self.connections.get_mut(&peer).expect("it is connected");
                assert!(blocks.len() <= self.download.options.in_flight_max);
                for (at, hash) in blocks {
                    assert_eq!(height(&hash), at);
                    assert!(at <= connection.node.best, "{peer:?} has no block {at}");
                    assert!(!connection.refused.contains(&hash), "{peer:?} said it has no {at}");
                    assert!(connection.owed.insert(hash), "{peer:?} asked twice for {at}");
                    connection.requests.push_back((self.now + connection.node.latency, hash));
                }
            }
            DownloadAction::Disconnect { peer, why } => {
                self.connections.remove(&peer).expect("it is connected");
                self.dropped.push((peer, why));
            }
        }
    }
}

impl Connection {
    /// Sends for one millisecond.
    fn send(&mut self, mut budget: f64, now: u64, sizes: &[u64], rng: &mut Rng) {
        let arrives = now + self.node.latency;
        while budget > 0.0
            && let Some((at, hash)) = self.requests.front().copied()
            && at <= now
        {
            let mut hash = hash;
            let mut damaged = false;
            if self.sent == 0.0 {
                let (skip, event) = match self.node.behaviour {
                    Behaviour::Refuses(n) => (rng.one_in(n), Some(Event::NotFound(hash))),
                    Behaviour::LeavesOut(n) => (rng.one_in(n), None),
                    _ => (false, None),
                };
                if skip {
                    self.requests.pop_front();
                    self.wire.extend(event.map(|event| (arrives, event)));
                    continue;
                }
                self.reported_at = now;
            }
            let size = sizes[height(&hash) as usize];
            let part = budget.min(size as f64 - self.sent);
            self.sent += part;
            budget -= part;
            if self.sent < size as f64 {
                if now >= self.reported_at + 50 {
                    self.reported_at = now;
                    self.wire.push_back((arrives, Event::Partial(self.sent as u64)));
                }
                return;
            }
            match self.node.behaviour {
                Behaviour::Damages(n) => damaged = rng.one_in(n),
                Behaviour::Chatters(n) if rng.one_in(n) => {
                    hash = self::hash(rng.index(sizes.len()) as u32);
                }
                _ => {}
            }
            self.requests.pop_front();
            self.sent = 0.0;
            self.wire.push_back((arrives, Event::Whole { hash, damaged }));
        }
    }
}
