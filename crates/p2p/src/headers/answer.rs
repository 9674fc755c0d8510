//! What a message of headers means.

use super::candidate::{Candidate, headers_max};
use super::stretch::Stretch;
use super::*;

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
            Ok(Step::On(from)) => self.go_on(peer, from, now_ms),
            Ok(Step::Among(asked_from)) => self.ask_lower(peer, asked_from, now_ms),
            Ok(Step::Ended) => self.ended(peer, learned.too_new),
            Ok(Step::Nowhere) => {}
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
    ) -> Result<Step, Misbehaviour> {
        let Some(state) = self.peers.get_mut(&peer) else { return Ok(Step::Nowhere) };
        let Some(stretch) = Stretch::check(self.tree.params(), raw)? else {
            let answered = state.asked_ms.take().is_some();
            let (best, asked_from) = (state.best, state.asked_from);
            return Ok(match answered {
                true => self.nothing_more(best, asked_from),
                false => Step::Nowhere,
            });
        };
        let has_run = self.run.is_some_and(|run| run.peer == peer);
        let candidate = self.candidate.as_ref().map(Candidate::last);
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
    fn nothing_more(&self, best: HeaderId, asked_from: Height) -> Step {
        let nothing_known = best == self.best.ids()[0];
        // What is on trial is no chain of ours to go down.
        if nothing_known && asked_from > 0 && self.candidate.is_none() {
            Step::Among(asked_from)
        } else {
            Step::Ended
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
    fn unconnecting(&mut self, peer: PeerId, now_ms: u64) -> Result<Step, Misbehaviour> {
        let max = if self.is_recent(now_ms) { UNCONNECTING_MAX } else { UNCONNECTING_OLD_MAX };
        if let Some(state) = self.peers.get_mut(&peer) {
            state.unconnecting += 1;
            if state.unconnecting > max {
                return Err(Misbehaviour::Unconnecting { count: state.unconnecting });
            }
            if state.want == Want::Nothing {
                state.want = Want::News;
            }
        }
        Ok(Step::Nowhere)
    }

    /// Headers whose first one is a child of `parent`.
    fn connecting(
        &mut self,
        peer: PeerId,
        stretch: &Stretch<'_>,
        parent: HeaderId,
        now_ms: u64,
        learned: &mut Learned,
    ) -> Result<Step, Misbehaviour> {
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
                Step::On(last_known)
            } else {
                Step::Ended
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
            return Ok(Step::Ended);
        }
        if self.run.is_none() {
            self.start_run(peer, now_ms);
        }
        if self.run.is_some_and(|run| run.peer == peer) {
            let params = self.tree.params();
            let max = self.candidate_max.unwrap_or_else(|| headers_max(params, self.now(now_ms)));
            self.candidate = Some(Candidate::above(&self.tree, last_known, max));
            return self.on_trial(peer, stretch, first, learned);
        }
        Ok(Step::On(last_known))
    }

    /// Headers, from the `first` on, that go on with the candidate.
    fn on_trial(
        &mut self,
        peer: PeerId,
        stretch: &Stretch<'_>,
        first: usize,
        learned: &mut Learned,
    ) -> Result<Step, Misbehaviour> {
        let required = self.work_required();
        let Some(mut candidate) = self.candidate.take() else { return Ok(Step::Nowhere) };
        candidate.extend(self.tree.params(), peer, stretch, first)?;
        if candidate.work() >= required {
            return self.accept_all(peer, candidate.into_headers(), stretch.is_full(), learned);
        }
        let start = candidate.start();
        self.candidate = Some(candidate);
        Ok(if stretch.is_full() { Step::On(start) } else { Step::Ended })
    }

    /// Headers of enough work, with the peers that sent them, of which `peer` sent the last.
    fn accept_all(
        &mut self,
        peer: PeerId,
        headers: impl Iterator<Item = (PeerId, [u8; Header::SIZE])>,
        is_full: bool,
        learned: &mut Learned,
    ) -> Result<Step, Misbehaviour> {
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
            Some(last) if is_full && !learned.too_new => Step::On(last),
            _ => Step::Ended,
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
            state.want = Want::Run;
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
enum Step {
    /// There is more to be had from it, above this header or above the candidate.
    On(HeaderId),
    /// Its last block is one that the request named, of which this height is the highest.
    Among(Height),
    /// It has no more.
    Ended,
    /// The message says nothing about that.
    Nowhere,
}
