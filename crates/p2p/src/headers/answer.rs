//! Handles headers messages, selects the next peer to ask, and decides when to give up on an answer.

use super::candidate::{CandidateChain, HeaderSequence, headers_max};
use super::{HeaderSync, work_of, *};
use apus_chain::{Header, HeaderTree, Height, KnownBlock, is_too_new};

/// Maximum number of consecutive messages that connect to nothing known while our tip is recent, before the peer is
/// dropped (Core 27 `net_processing.cpp`, `MAX_NUM_UNCONNECTING_HEADERS_MSGS`).
const UNCONNECTING_MAX: u32 = 10;

/// The same limit while our tip is old, because then no announcement can connect.
const UNCONNECTING_OLD_MAX: u32 = 1000;

impl HeaderSync {
    /// Takes headers from a peer, requested or not. On an error, disconnect the peer and do not connect to it
    /// again; it is already removed here.
    pub fn headers(
        &mut self,
        peer: PeerId,
        raw: &[[u8; Header::SIZE]],
        now_ms: u64,
    ) -> Result<HeaderUpdate, Misbehaviour> {
        self.tree.set_now(self.now(now_ms));
        let before = self.new.len();
        let mut learned = HeaderUpdate::default();
        let step = self.take(peer, raw, now_ms, &mut learned);
        learned.new_headers = self.new.len().saturating_sub(before);
        learned.best_changed = self.best.follow(&self.tree);
        match step {
            Ok(AnswerStep::On(from)) => self.ask_further(peer, from, now_ms),
            Ok(AnswerStep::Among(asked_from)) => self.ask_lower(peer, asked_from, now_ms),
            Ok(AnswerStep::Ended) => self.ended(peer, learned.too_new),
            Ok(AnswerStep::Nowhere) => {}
            Err(_) => self.remove(peer),
        }
        self.schedule(now_ms);
        step.map(|_| learned)
    }

    fn take(
        &mut self,
        peer: PeerId,
        raw: &[[u8; Header::SIZE]],
        now_ms: u64,
        learned: &mut HeaderUpdate,
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
        let has_bulk = self.bulk.is_some_and(|bulk| bulk.peer == peer);
        let candidate = self.candidate.as_ref().map(CandidateChain::last);
        if has_bulk && candidate == Some(stretch.parent()) {
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

    /// Handles an answer without headers. Either the last block of the peer's chain is one that our request
    /// named (Core `net_processing.cpp`, `NetMsgType::GETHEADERS`), or the peer's chain has so little work
    /// that it withholds it. The difference matters only if nothing better is known of the peer; then a
    /// request from further down settles it.
    fn nothing_more(&self, best: HeaderId, asked_from: Height) -> AnswerStep {
        let nothing_known = best == self.best.ids()[0];
        // A candidate is not on our chain, so it has no lower blocks of ours to ask from.
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

    /// Handles headers that connect to nothing known. They are not an answer, because our locators end in the
    /// genesis block. They announce something, so ask the peer for the headers in between.
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

    /// Handles headers whose first one is a child of `parent`.
    fn connecting(
        &mut self,
        peer: PeerId,
        stretch: &HeaderSequence<'_>,
        parent: HeaderId,
        now_ms: u64,
        learned: &mut HeaderUpdate,
    ) -> Result<AnswerStep, Misbehaviour> {
        let hashes = stretch.hashes().iter();
        let known: Vec<HeaderId> = hashes.map_while(|hash| self.tree.find(hash)).collect();
        let first = known.len();
        let last_known = known.last().copied().unwrap_or(parent);
        let before = self.peer_best(peer);
        self.peer_has(peer, last_known);
        if first == stretch.hashes().len() {
            // A peer that repeats itself is not asked for more.
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
        if self.bulk.is_none() {
            self.start_bulk(peer, now_ms);
        }
        if self.bulk.is_some_and(|bulk| bulk.peer == peer) {
            let params = self.tree.params();
            let max = self.candidate_max.unwrap_or_else(|| headers_max(params, self.now(now_ms)));
            self.candidate = Some(CandidateChain::above(&self.tree, last_known, max));
            return self.on_trial(peer, stretch, first, learned);
        }
        Ok(AnswerStep::On(last_known))
    }

    /// Extends the candidate with headers, from the `first` on.
    fn on_trial(
        &mut self,
        peer: PeerId,
        stretch: &HeaderSequence<'_>,
        first: usize,
        learned: &mut HeaderUpdate,
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

    /// Accepts headers with enough work, each with its sender. `peer` sent the last one.
    fn accept_all(
        &mut self,
        peer: PeerId,
        headers: impl Iterator<Item = (PeerId, [u8; Header::SIZE])>,
        is_full: bool,
        learned: &mut HeaderUpdate,
    ) -> Result<AnswerStep, Misbehaviour> {
        let (mut last, mut early) = (None, None);
        let mut headers = headers;
        while let Some((sender, raw)) = headers.next() {
            let before = self.tree.len();
            match self.tree.accept(&raw) {
                Ok(accepted) => last = Some(accepted.id()),
                // It may become valid later (Core `net_processing.cpp`, `MaybePunishNodeForBlock`).
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
                self.new.push(&raw);
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

    /// Requests the peer's headers above `from` if the peer does the bulk download or can start it.
    fn ask_further(&mut self, peer: PeerId, from: HeaderId, now_ms: u64) {
        if self.bulk.is_none() {
            self.start_bulk(peer, now_ms);
        }
        if self.bulk.is_some_and(|bulk| bulk.peer == peer) {
            self.ask(peer, from, now_ms);
        } else if let Some(state) = self.peers.get_mut(&peer) {
            state.want = HeaderWant::Bulk;
        }
    }

    /// Records that the peer has sent everything it has.
    fn ended(&mut self, peer: PeerId, too_new: bool) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.caught_up = true;
        state.has_answered = true;
        let best = state.best;
        if self.bulk.take_if(|bulk| bulk.peer == peer).is_some() {
            self.bulk_done |= self.has_minimum_work();
        }
        let minimum = self.tree.params().minimum_chain_work;
        if work_of(&self.tree, best) < minimum && !too_new {
            self.disconnect(peer, DisconnectReason::LowWork);
        }
    }
}

/// What a message implies about the rest of its peer's chain.
#[derive(Debug, Clone, Copy)]
enum AnswerStep {
    /// There is more, above this header or above the candidate.
    On(HeaderId),
    /// Its last block is one that our request named, at this height or below.
    Among(Height),
    /// It has no more.
    Ended,
    /// The message implies nothing.
    Nowhere,
}

/// How long the peer doing the bulk download may take for an answer while there are other peers, in
/// milliseconds; also how long any peer may take before it counts as silent. Core waits two minutes
/// (`net_processing.cpp`, `HEADERS_RESPONSE_TIME`) before it asks again.
const STALL_MS: u64 = 20_000;

/// Longest time for an answer, in milliseconds.
const SILENCE_MS: u64 = 120_000;

/// Time limit of a bulk download, in milliseconds: this, plus [`BULK_HEADER_US`] for each block due since our
/// tip. (Core allows 15 minutes and 1 ms per block: `net_processing.cpp`, `HEADERS_DOWNLOAD_TIMEOUT_BASE`.)
/// For all headers of the main chain this requires 130 KB/s. If all peers are slower, a slow peer is tried
/// again with more time.
const BULK_BASE_MS: u64 = 60_000;

/// Microseconds allowed for each expected header of a bulk download.
const BULK_HEADER_US: u64 = 500;

/// Each lapse doubles the time limit of the next bulk download, at most this often.
const LAPSES_MAX: u32 = 2;

impl HeaderSync {
    /// Gives up on peers that do not answer. Call it about once a second.
    pub fn tick(&mut self, now_ms: u64) {
        self.check_bulk(now_ms);
        let bulk = self.bulk.map(|bulk| bulk.peer);
        let overdue = |asked_ms: Option<u64>| {
            asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= SILENCE_MS)
        };
        let mut silent = Vec::new();
        for (&id, peer) in &mut self.peers {
            if bulk == Some(id) || !overdue(peer.asked_ms) {
                continue;
            }
            if peer.has_answered {
                // The peer may be busy with blocks. We do without its headers unless it announces them later.
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

    /// Frees the bulk download for another peer if its peer stalls or is too slow.
    fn check_bulk(&mut self, now_ms: u64) {
        let Some(bulk) = self.bulk else { return };
        let others = self.peers.len() > 1;
        let asked_ms = self.peers.get(&bulk.peer).and_then(|peer| peer.asked_ms);
        let stall_ms = if others { STALL_MS } else { SILENCE_MS };
        if asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= stall_ms) {
            self.disconnect(bulk.peer, DisconnectReason::Stalled { seconds: stall_ms / 1000 });
        } else if others && now_ms.saturating_sub(bulk.started_ms) >= bulk.allowance_ms {
            self.lapses = self.lapses.saturating_add(1);
            let seconds = bulk.allowance_ms / 1000;
            self.disconnect(bulk.peer, DisconnectReason::TooSlow { seconds });
        }
    }

    /// Returns true if the peers have sent what they have: our chain has the network's known work, no peer
    /// does the bulk download or waits for it, and each peer has answered to the end at least once or had 20
    /// seconds to answer. Never true before one peer has answered.
    pub fn is_synced(&self, now_ms: u64) -> bool {
        let silent = |peer: &HeaderPeer| {
            peer.asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= STALL_MS)
        };
        self.bulk.is_none()
            && self.has_minimum_work()
            && self.peers.values().any(|peer| peer.caught_up)
            && self
                .peers
                .values()
                .all(|peer| peer.want != HeaderWant::Bulk && (peer.caught_up || silent(peer)))
    }

    /// Sends the requests that are due.
    pub(super) fn schedule(&mut self, now_ms: u64) {
        // Before the first bulk download is done, ask only one peer: the others would send the same headers.
        let all = self.bulk_done || self.is_recent(now_ms);
        let idle: Vec<(PeerId, HeaderWant)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.asked_ms.is_none() && peer.want != HeaderWant::Nothing)
            .map(|(&id, peer)| (id, peer.want))
            .collect();
        for (peer, want) in idle {
            if want == HeaderWant::Bulk || !all {
                if self.bulk.is_some_and(|bulk| bulk.peer != peer) {
                    continue;
                }
                if self.bulk.is_none() {
                    self.start_bulk(peer, now_ms);
                }
            }
            let ids = self.best.ids();
            let tip_height = height_of(&self.tree, self.tree.tip());
            let from = ids[tip_height.saturating_sub(LOCATOR_OVERLAP) as usize];
            self.ask(peer, from, now_ms);
        }
        // If no peer extends the candidate, keep it only while our chain lacks the minimum work.
        if self.bulk.is_none() && self.has_minimum_work() {
            self.candidate = None;
        }
    }

    pub(super) fn start_bulk(&mut self, peer: PeerId, now_ms: u64) {
        let params = self.tree.params();
        let tip_time = self.tree.connected(self.tree.tip()).map_or(0, |tip| tip.time);
        let behind = self.now(now_ms).saturating_sub(i64::from(tip_time)).max(0);
        let due = behind / i64::from(params.pow_target_spacing_seconds.get());
        let due_ms = u64::try_from(due).unwrap_or(0).saturating_mul(BULK_HEADER_US) / 1000;
        let allowance_ms =
            BULK_BASE_MS.saturating_add(due_ms).saturating_mul(1 << self.lapses.min(LAPSES_MAX));
        self.bulk = Some(HeaderDownload { peer, started_ms: now_ms, allowance_ms });
    }

    /// Asks again from twice as far below our tip as before.
    pub(super) fn ask_lower(&mut self, peer: PeerId, asked_from: Height, now_ms: u64) {
        let ids = self.best.ids();
        let tip_height = height_of(&self.tree, self.tree.tip());
        let below = tip_height.saturating_sub(asked_from).max(LOCATOR_OVERLAP);
        // Our chain may have become shorter since the request, if the new one has more work.
        let from = ids.get(asked_from.saturating_sub(below) as usize).unwrap_or(&ids[0]);
        let from = *from;
        self.ask(peer, from, now_ms);
    }

    /// Sends a request for the headers after `from`, or after the candidate if the peer does the bulk
    /// download.
    pub(super) fn ask(&mut self, peer: PeerId, from: HeaderId, now_ms: u64) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        state.asked_ms = Some(now_ms);
        state.want = HeaderWant::Nothing;
        state.asked_from = height_of(&self.tree, from);
        let has_bulk = self.bulk.is_some_and(|bulk| bulk.peer == peer);
        let mut locator = Vec::new();
        if let Some(candidate) = self.candidate.as_ref().filter(|_| has_bulk) {
            locator.push(candidate.last());
        }
        locator.extend(self.best.locator(&self.tree, from));
        self.actions.push(HeaderAction::GetHeaders { peer, locator, stop: BlockHash::ZERO });
    }
}

/// Headers of a peer that only the clock keeps out.
#[derive(Debug, Clone, Copy)]
pub(super) struct EarlyChain {
    first: KnownBlock,
    /// Time of the first one.
    time: u32,
    /// Height of the last.
    height: Height,
    chain_work: u128,
}

impl EarlyChain {
    /// Measures `headers`, whose first one was refused.
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

/// The best chain that only the clock keeps out, and how many peers have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooNew {
    /// The first block from the future.
    pub first: KnownBlock,
    /// Its time, in seconds since 1970.
    pub time: u32,
    /// Height of the last known header.
    pub height: Height,
    /// How many peers have such a chain.
    pub peers: usize,
    /// How many peers sent all their headers and have no such chain.
    pub others: usize,
}

impl HeaderSync {
    /// The best chain that has more work than ours and is kept out only by the clock, if a connected peer has
    /// one.
    pub fn too_new(&self, now_ms: u64) -> Option<TooNew> {
        let (now, work) = (self.now(now_ms), work_of(&self.tree, self.tree.tip()));
        let is_better = |early: &EarlyChain| early.chain_work > work && is_too_new(early.time, now);
        let early =
            self.peers.values().filter_map(|peer| peer.early.as_deref().copied().filter(is_better));
        let best = early.clone().max_by_key(|early| early.chain_work)?;
        let peers = early.count();
        let caught_up = self.peers.values().filter(|peer| peer.caught_up);
        let others = caught_up
            .filter(|peer| peer.early.as_deref().copied().filter(is_better).is_none())
            .count();
        let EarlyChain { first, time, height, .. } = best;
        Some(TooNew { first, time, height, peers, others })
    }
}
