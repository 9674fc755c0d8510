//! What a message of headers means, which peer to ask next, and when to give up on an answer.

use super::candidate::{CandidateChain, HeaderSequence, headers_max};
use super::{HeaderSync, work_of, *};
use apus_chain::{Header, HeaderTree, Height, KnownBlock, is_too_new};

/// Messages in a row that follow nothing known, while our tip is recent, before the peer is given up
/// (Core 27 `net_processing.cpp`, `MAX_NUM_UNCONNECTING_HEADERS_MSGS`).
const UNCONNECTING_MAX: u32 = 10;

/// The same while our tip is old, and what peers announce cannot follow it.
const UNCONNECTING_OLD_MAX: u32 = 1000;

impl HeaderSync {
    /// A peer sent headers, asked or not. An error means that the peer is to be disconnected and not
    /// asked again; it is forgotten here already.
    pub fn headers(
        &mut self,
        peer: PeerId,
        raw: &[[u8; Header::SIZE]],
        now_ms: u64,
    ) -> Result<Learned, Misbehaviour> {
        self.tree.set_now(self.now(now_ms));
        let before = self.new.len();
        let mut learned = Learned::default();
        let verdict = self.take(peer, raw, now_ms, &mut learned);
        learned.new_headers = self.new.len().saturating_sub(before);
        learned.best_changed = self.best.follow(&self.tree);
        match verdict {
            Ok(AnswerStep::On(from)) => self.go_on(peer, from, now_ms),
            Ok(AnswerStep::Among(asked_from)) => self.ask_lower(peer, asked_from, now_ms),
            Ok(AnswerStep::Ended) => self.ended(peer, learned.too_new),
            Ok(AnswerStep::Nowhere) => {}
            Err(_) => self.remove(peer),
        }
        self.schedule(now_ms);
        verdict.map(|_| learned)
    }

    fn take(
        &mut self,
        peer: PeerId,
        raw: &[[u8; Header::SIZE]],
        now_ms: u64,
        learned: &mut Learned,
    ) -> Result<AnswerStep, Misbehaviour> {
        let Some(state) = self.peers.get_mut(&peer) else { return Ok(AnswerStep::Nowhere) };
        let Some(stretch) = HeaderSequence::check(self.tree.params(), raw)? else {
            let answered = state.asked_ms.take().is_some();
            let (best, asked_from) = (state.best, state.asked_from);
            return Ok(match answered {
                true => self.nothing_more(best, asked_from),
                false => AnswerStep::Nowhere,
            });
        };
        let has_run = self.run.is_some_and(|run| run.peer == peer);
        let candidate = self.candidate.as_ref().map(CandidateChain::last);
        if has_run && candidate == Some(stretch.parent()) {
            self.answered(peer);
            return self.on_trial(peer, &stretch, 0, learned);
        }
        match self.tree.find(&stretch.parent()) {
            Some(parent) => {
                self.answered(peer);
                self.connecting(peer, &stretch, parent, now_ms, learned)
            }
            None => self.unconnecting(peer, now_ms),
        }
    }

    /// An answer without headers: the last block of the peer's chain is one that our request named
    /// (Core `net_processing.cpp`, `NetMsgType::GETHEADERS`), or the peer's chain is so short that it
    /// keeps it to itself. Which of them it is matters only if nothing better is known of the peer;
    /// then a request that starts below it tells.
    fn nothing_more(&self, best: HeaderId, asked_from: Height) -> AnswerStep {
        let nothing_known = best == self.best.ids()[0];
        // What is on trial is no chain of ours to go down.
        if nothing_known && asked_from > 0 && self.candidate.is_none() {
            AnswerStep::Among(asked_from)
        } else {
            AnswerStep::Ended
        }
    }

    fn answered(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.asked_ms = None;
            state.has_answered = true;
            state.unconnecting = 0;
        }
    }

    /// Headers that follow nothing known are no answer: our locators end in the genesis block. They
    /// announce something, so the peer is asked how it comes to that.
    fn unconnecting(&mut self, peer: PeerId, now_ms: u64) -> Result<AnswerStep, Misbehaviour> {
        let max = if self.is_recent(now_ms) { UNCONNECTING_MAX } else { UNCONNECTING_OLD_MAX };
        if let Some(state) = self.peers.get_mut(&peer) {
            state.unconnecting += 1;
            if state.unconnecting > max {
                return Err(Misbehaviour::Unconnecting { count: state.unconnecting });
            }
            if state.want == HeaderWant::Nothing {
                state.want = HeaderWant::News;
            }
        }
        Ok(AnswerStep::Nowhere)
    }

    /// Headers whose first one is a child of `parent`.
    fn connecting(
        &mut self,
        peer: PeerId,
        stretch: &HeaderSequence<'_>,
        parent: HeaderId,
        now_ms: u64,
        learned: &mut Learned,
    ) -> Result<AnswerStep, Misbehaviour> {
        let hashes = stretch.hashes().iter();
        let known: Vec<HeaderId> = hashes.map_while(|hash| self.tree.find(hash)).collect();
        let first = known.len();
        let last_known = known.last().copied().unwrap_or(parent);
        let before = self.peer_best(peer);
        self.peer_has(peer, last_known);
        if first == stretch.hashes().len() {
            // One that tells the same again and again is not asked for more.
            let further = self.peer_best(peer) != before;
            return Ok(if stretch.is_full() && further {
                AnswerStep::On(last_known)
            } else {
                AnswerStep::Ended
            });
        }
        let work = work_of(&self.tree, last_known).saturating_add(stretch.work_from(first));
        let is_best = work > work_of(&self.tree, self.tree.tip());
        let stale = self.tree.len().saturating_sub(self.best.ids().len());
        if work >= self.work_required() && (is_best || stale < STALE_HEADERS_MAX) {
            let headers = stretch.raw()[first..].iter().map(|raw| (peer, *raw));
            return self.accept_all(peer, headers, stretch.is_full(), learned);
        }
        if !stretch.is_full() {
            return Ok(AnswerStep::Ended);
        }
        if self.run.is_none() {
            self.start_run(peer, now_ms);
        }
        if self.run.is_some_and(|run| run.peer == peer) {
            let params = self.tree.params();
            let max = self.candidate_max.unwrap_or_else(|| headers_max(params, self.now(now_ms)));
            self.candidate = Some(CandidateChain::above(&self.tree, last_known, max));
            return self.on_trial(peer, stretch, first, learned);
        }
        Ok(AnswerStep::On(last_known))
    }

    /// Headers, from the `first` on, that go on with the candidate.
    fn on_trial(
        &mut self,
        peer: PeerId,
        stretch: &HeaderSequence<'_>,
        first: usize,
        learned: &mut Learned,
    ) -> Result<AnswerStep, Misbehaviour> {
        let required = self.work_required();
        let Some(mut candidate) = self.candidate.take() else { return Ok(AnswerStep::Nowhere) };
        candidate.extend(self.tree.params(), peer, stretch, first)?;
        if candidate.work() >= required {
            return self.accept_all(peer, candidate.into_headers(), stretch.is_full(), learned);
        }
        let start = candidate.start();
        self.candidate = Some(candidate);
        Ok(if stretch.is_full() { AnswerStep::On(start) } else { AnswerStep::Ended })
    }

    /// Headers of enough work, with the peers that sent them, of which `peer` sent the last.
    fn accept_all(
        &mut self,
        peer: PeerId,
        headers: impl Iterator<Item = (PeerId, [u8; Header::SIZE])>,
        is_full: bool,
        learned: &mut Learned,
    ) -> Result<AnswerStep, Misbehaviour> {
        let (mut last, mut early) = (None, None);
        let mut headers = headers;
        while let Some((sender, raw)) = headers.next() {
            let before = self.tree.len();
            match self.tree.accept(&raw) {
                Ok(accepted) => last = Some(accepted.id()),
                // Good later, perhaps (Core `net_processing.cpp`, `MaybePunishNodeForBlock`).
                Err(HeaderError::TimeTooNew { .. }) => {
                    learned.too_new = true;
                    let above = std::iter::once(raw).chain(headers.by_ref().map(|(_, raw)| raw));
                    early = EarlyChain::of(&mut self.tree, &raw, above);
                    break;
                }
                Err(error) if sender == peer => return Err(error.into()),
                Err(_) => {
                    self.disconnect(sender, DisconnectReason::InvalidHeaders);
                    break;
                }
            }
            if self.tree.len() > before {
                self.new.push(raw);
            }
        }
        if let Some(last) = last {
            self.peer_has(peer, last);
        }
        if let Some(state) = self.peers.get_mut(&peer) {
            state.early = early.map(Box::new);
        }
        Ok(match last {
            Some(last) if is_full && !learned.too_new => AnswerStep::On(last),
            _ => AnswerStep::Ended,
        })
    }

    /// The peer has more above `from`: it is asked for that if it has the run or can have it.
    fn go_on(&mut self, peer: PeerId, from: HeaderId, now_ms: u64) {
        if self.run.is_none() {
            self.start_run(peer, now_ms);
        }
        if self.run.is_some_and(|run| run.peer == peer) {
            self.ask(peer, from, now_ms);
        } else if let Some(state) = self.peers.get_mut(&peer) {
            state.want = HeaderWant::Run;
        }
    }

    /// The peer has told all that it has.
    fn ended(&mut self, peer: PeerId, too_new: bool) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.caught_up = true;
        state.has_answered = true;
        let best = state.best;
        if self.run.take_if(|run| run.peer == peer).is_some() {
            self.ran |= self.has_minimum_work();
        }
        let minimum = self.tree.params().minimum_chain_work;
        if work_of(&self.tree, best) < minimum && !too_new {
            self.disconnect(peer, DisconnectReason::LowWork);
        }
    }
}

/// Where a message leaves its peer.
#[derive(Debug, Clone, Copy)]
enum AnswerStep {
    /// There is more to be had from it, above this header or above the candidate.
    On(HeaderId),
    /// Its last block is one that the request named, of which this height is the highest.
    Among(Height),
    /// It has no more.
    Ended,
    /// The message says nothing about that.
    Nowhere,
}

/// How long the peer with the run may take for an answer while there are others, in milliseconds;
/// and any peer before it is counted as silent. Core allows two minutes (`net_processing.cpp`,
/// `HEADERS_RESPONSE_TIME`) before it asks again.
const STALL_MS: u64 = 20_000;

/// How long an answer may take at most, in milliseconds.
const SILENCE_MS: u64 = 120_000;

/// What a run may take: this, and [`RUN_HEADER_US`] for each block due since our tip (Core allows 15
/// minutes and 1 ms: `net_processing.cpp`, `HEADERS_DOWNLOAD_TIMEOUT_BASE`). All main chain headers
/// in that time are 130 KB/s. A slower peer is tried again with more time if all are slower.
const RUN_BASE_MS: u64 = 60_000;

/// Microseconds for each header that a run is expected to bring.
const RUN_HEADER_US: u64 = 500;

/// Each lapse doubles what the next run may take, so often.
const LAPSES_MAX: u32 = 2;

impl HeaderSync {
    /// Time went by: gives up on peers that do not answer. To be called about once a second.
    pub fn tick(&mut self, now_ms: u64) {
        self.check_run(now_ms);
        let run = self.run.map(|run| run.peer);
        let overdue = |asked_ms: Option<u64>| {
            asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= SILENCE_MS)
        };
        let mut silent = Vec::new();
        for (&id, peer) in &mut self.peers {
            if run == Some(id) || !overdue(peer.asked_ms) {
                continue;
            }
            if peer.has_answered {
                // It may be busy with blocks. What it has to add is missed, or announced later.
                peer.asked_ms = None;
                peer.caught_up = true;
            } else {
                silent.push(id);
            }
        }
        for peer in silent {
            self.disconnect(peer, DisconnectReason::Stalled { seconds: SILENCE_MS / 1000 });
        }
        self.schedule(now_ms);
    }

    /// Takes the run from a peer that stalls or is too slow.
    fn check_run(&mut self, now_ms: u64) {
        let Some(run) = self.run else { return };
        let others = self.peers.len() > 1;
        let asked_ms = self.peers.get(&run.peer).and_then(|peer| peer.asked_ms);
        let stall_ms = if others { STALL_MS } else { SILENCE_MS };
        if asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= stall_ms) {
            self.disconnect(run.peer, DisconnectReason::Stalled { seconds: stall_ms / 1000 });
        } else if others && now_ms.saturating_sub(run.started_ms) >= run.allowance_ms {
            self.lapses = self.lapses.saturating_add(1);
            let seconds = run.allowance_ms / 1000;
            self.disconnect(run.peer, DisconnectReason::TooSlow { seconds });
        }
    }

    /// Whether the peers have told what they have: our chain has the work that the network is known
    /// to have, none has the run or waits for it, and each has answered to the end at least once or
    /// had 20 seconds to answer. Never true before one has.
    pub fn is_synced(&self, now_ms: u64) -> bool {
        let silent = |peer: &HeaderPeer| {
            peer.asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= STALL_MS)
        };
        self.run.is_none()
            && self.has_minimum_work()
            && self.peers.values().any(|peer| peer.caught_up)
            && self
                .peers
                .values()
                .all(|peer| peer.want != HeaderWant::Run && (peer.caught_up || silent(peer)))
    }

    /// Asks every peer that is to be asked and may be now.
    pub(super) fn schedule(&mut self, now_ms: u64) {
        // Until the first run is over only one peer is asked: the others would send the same.
        let all = self.ran || self.is_recent(now_ms);
        let idle: Vec<(PeerId, HeaderWant)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.asked_ms.is_none() && peer.want != HeaderWant::Nothing)
            .map(|(&id, peer)| (id, peer.want))
            .collect();
        for (peer, want) in idle {
            if want == HeaderWant::Run || !all {
                if self.run.is_some_and(|run| run.peer != peer) {
                    continue;
                }
                if self.run.is_none() {
                    self.start_run(peer, now_ms);
                }
            }
            let ids = self.best.ids();
            let tip_height = height_of(&self.tree, self.tree.tip());
            let from = ids[tip_height.saturating_sub(LOCATOR_OVERLAP) as usize];
            self.ask(peer, from, now_ms);
        }
        // A chain on trial that no peer goes on with is kept only while there is no better one.
        if self.run.is_none() && self.has_minimum_work() {
            self.candidate = None;
        }
    }

    pub(super) fn start_run(&mut self, peer: PeerId, now_ms: u64) {
        let params = self.tree.params();
        let tip_time = self.tree.connected(self.tree.tip()).map_or(0, |tip| tip.time);
        let behind = self.now(now_ms).saturating_sub(i64::from(tip_time)).max(0);
        let due = behind / i64::from(params.pow_target_spacing_seconds.get());
        let due_ms = u64::try_from(due).unwrap_or(0).saturating_mul(RUN_HEADER_US) / 1000;
        let allowance_ms =
            RUN_BASE_MS.saturating_add(due_ms).saturating_mul(1 << self.lapses.min(LAPSES_MAX));
        self.run = Some(HeaderRun { peer, started_ms: now_ms, allowance_ms });
    }

    /// Asks from further down, twice as far below our tip as before.
    pub(super) fn ask_lower(&mut self, peer: PeerId, asked_from: Height, now_ms: u64) {
        let ids = self.best.ids();
        let tip_height = height_of(&self.tree, self.tree.tip());
        let below = tip_height.saturating_sub(asked_from).max(LOCATOR_OVERLAP);
        // Since the request our chain may have become shorter, if the new one has more work.
        let from = ids.get(asked_from.saturating_sub(below) as usize).unwrap_or(&ids[0]);
        let from = *from;
        self.ask(peer, from, now_ms);
    }

    /// Sends a request for what follows `from`, or the candidate if the peer has the run.
    pub(super) fn ask(&mut self, peer: PeerId, from: HeaderId, now_ms: u64) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.asked_ms = Some(now_ms);
        state.want = HeaderWant::Nothing;
        state.asked_from = height_of(&self.tree, from);
        let has_run = self.run.is_some_and(|run| run.peer == peer);
        let mut locator = Vec::new();
        if let Some(candidate) = self.candidate.as_ref().filter(|_| has_run) {
            locator.push(candidate.last());
        }
        locator.extend(self.best.locator(&self.tree, from));
        self.actions.push(HeaderAction::GetHeaders { peer, locator, stop: BlockHash::ZERO });
    }
}

/// Headers of a peer that the clock alone keeps out.
#[derive(Debug, Clone, Copy)]
pub(super) struct EarlyChain {
    first: KnownBlock,
    /// The first one's time.
    time: u32,
    /// Height of the last.
    height: Height,
    chain_work: u128,
}

impl EarlyChain {
    /// Of `headers`, which begin with the one that was refused.
    pub(super) fn of(
        tree: &mut HeaderTree,
        first: &[u8; Header::SIZE],
        headers: impl Iterator<Item = [u8; Header::SIZE]>,
    ) -> Option<Self> {
        let header = Header::parse(first);
        let parent = tree.find(&header.prev).and_then(|parent| tree.connected(parent))?;
        let (_, last) = tree.without_clock(headers)?;
        let first = KnownBlock { height: parent.height + 1, hash: header.hash() };
        let (height, chain_work) = (last.height, last.chain_work);
        Some(Self { first, time: header.time, height, chain_work })
    }
}

/// The best of such chains, and who has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooNew {
    /// The first block of the future.
    pub first: KnownBlock,
    /// Its time.
    pub time: u32,
    /// Height of the last that is known.
    pub height: Height,
    /// How many peers have such a chain.
    pub peers: usize,
    /// How many peers told all that they have, and have none.
    pub others: usize,
}

impl HeaderSync {
    /// The best chain with more work than ours that the clock alone keeps out, if a connected peer has one.
    pub fn too_new(&self, now_ms: u64) -> Option<TooNew> {
        let (now, work) = (self.now(now_ms), work_of(&self.tree, self.tree.tip()));
        let is_better = |early: &EarlyChain| early.chain_work > work && is_too_new(early.time, now);
        let early =
            self.peers.values().filter_map(|peer| peer.early.as_deref().copied().filter(is_better));
        let best = early.clone().max_by_key(|early| early.chain_work)?;
        let peers = early.count();
        let told_all = self.peers.values().filter(|peer| peer.caught_up);
        let others = told_all
            .filter(|peer| peer.early.as_deref().copied().filter(is_better).is_none())
            .count();
        let EarlyChain { first, time, height, .. } = best;
        Some(TooNew { first, time, height, peers, others })
    }
}
