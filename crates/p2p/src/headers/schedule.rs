//! Which peer to ask, and when to give up on an answer.

use super::*;

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
        let silent = |peer: &Peer| {
            peer.asked_ms.is_some_and(|asked| now_ms.saturating_sub(asked) >= STALL_MS)
        };
        self.run.is_none()
            && self.has_minimum_work()
            && self.peers.values().any(|peer| peer.caught_up)
            && self
                .peers
                .values()
                .all(|peer| peer.want != Want::Run && (peer.caught_up || silent(peer)))
    }

    /// Asks every peer that is to be asked and may be now.
    pub(super) fn schedule(&mut self, now_ms: u64) {
        // Until the first run is over only one peer is asked: the others would send the same.
        let all = self.ran || self.is_recent(now_ms);
        let idle: Vec<(PeerId, Want)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.asked_ms.is_none() && peer.want != Want::Nothing)
            .map(|(&id, peer)| (id, peer.want))
            .collect();
        for (peer, want) in idle {
            if want == Want::Run || !all {
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
        self.run = Some(Run { peer, started_ms: now_ms, allowance_ms });
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
        state.want = Want::Nothing;
        state.asked_from = height_of(&self.tree, from);
        let has_run = self.run.is_some_and(|run| run.peer == peer);
        let mut locator = Vec::new();
        if let Some(candidate) = self.candidate.as_ref().filter(|_| has_run) {
            locator.push(candidate.last());
        }
        locator.extend(self.best.locator(&self.tree, from));
        self.actions.push(Action::GetHeaders { peer, locator, stop: BlockHash::ZERO });
    }
}
