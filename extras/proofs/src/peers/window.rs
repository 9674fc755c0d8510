//! [`QuestionWindow`]: tracks the questions in flight, their order, and which of them a peer skips.
//!
//! It has no socket and no clock: it receives events and says what to send. A peer answers in the order of
//! the questions (`docs/utreexo.md`), so an answer belongs to the first open question. A peer without an
//! answer sends nothing at all; so a ping follows the questions, and a pong that arrives before an answer
//! shows that the answer will not come.
//!
//! A proof that is too long for one message is requested in [`ProofParts`]. utreexod sends messages of up to
//! 32 MiB, but Apus accepts none longer than Bitcoin Core does. Targets come first: their number is the
//! number of leaves. No message states the number of hashes, so they are requested in batches until fewer
//! arrive than were requested.

use crate::message::{
    HASHES_MAX, LEAF_BYTES_MAX, PeerProof, ProofRequest, UtreexoMessage, WantedPlaces,
};
use apus_chain::{BlockHash, KnownBlock};
use apus_p2p::message::PAYLOAD_BYTES_MAX;
use std::collections::VecDeque;

/// The most questions in flight.
const OPEN_MAX: u64 = 32;
/// The most bytes of answers in flight, estimated from earlier answers. Answers are read one by one, so these
/// bytes wait in the buffers of the system and of the peer.
const BYTES_MAX: u64 = 4 << 20;
/// Estimated size of a proof before the first one arrives.
const BYTES_EXPECTED: u64 = 512 << 10;

/// A request for a block's data, or for a part of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenQuestion {
    pub(super) block: KnownBlock,
    pub(super) message: UtreexoMessage,
}

impl OpenQuestion {
    /// The kind of data that it requests.
    pub(super) const fn what(&self) -> &'static str {
        match self.message {
            UtreexoMessage::GetRoots(_) | UtreexoMessage::Roots(_) => "roots",
            UtreexoMessage::GetProof(_) | UtreexoMessage::Proof(_) => "proof",
        }
    }

    /// The number of leaves that it requests by place.
    pub(super) fn leaves_asked(&self) -> usize {
        match &self.message {
            UtreexoMessage::GetProof(request) => request.leaves.count(),
            _ => 0,
        }
    }

    /// Whether a message is an answer to it.
    fn is_answered_by(&self, message: &UtreexoMessage) -> bool {
        match (&self.message, message) {
            (UtreexoMessage::GetRoots(block), UtreexoMessage::Roots(roots)) => {
                roots.block == *block
            }
            (UtreexoMessage::GetProof(request), UtreexoMessage::Proof(proof)) => {
                proof.block == request.block
            }
            _ => false,
        }
    }
}

/// Why an answer is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The peer skipped the first open question.
    Unanswered(OpenQuestion),
    /// The peer sent data of this block that was not requested; also has the first open question.
    NotAsked(OpenQuestion, BlockHash),
}

/// The questions in flight, and the questions to send.
pub(super) struct QuestionWindow<'q> {
    /// Questions not sent yet.
    ahead: Box<dyn Iterator<Item = OpenQuestion> + Send + 'q>,
    /// Questions to send before these: repeated, or out of order.
    again: VecDeque<OpenQuestion>,
    open: VecDeque<OpenQuestion>,
    /// Number of questions answered or given up since the connection began.
    closed: u64,
    /// The ping in flight: its nonce, and the number of questions sent before it.
    ping: Option<(u64, u64)>,
    /// Moving average of the size of proofs.
    proof_bytes: u64,
    /// Whether to ask only one question at a time.
    single: bool,
}

impl<'q> QuestionWindow<'q> {
    pub(super) fn new(ahead: Box<dyn Iterator<Item = OpenQuestion> + Send + 'q>) -> Self {
        let (again, open) = (VecDeque::new(), VecDeque::new());
        let (closed, ping, single) = (0, None, false);
        Self { ahead, again, open, closed, ping, proof_bytes: BYTES_EXPECTED, single }
    }

    /// Returns the next request to send, if the window has room, and marks it as open.
    pub(super) fn next_to_send(&mut self) -> Option<&OpenQuestion> {
        let room = if self.single { 1 } else { (BYTES_MAX / self.proof_bytes).clamp(1, OPEN_MAX) };
        if self.open.len() as u64 >= room {
            return None;
        }
        let request = self.again.pop_front().or_else(|| self.ahead.next())?;
        self.open.push_back(request);
        self.open.back()
    }

    /// Whether to send a ping after the requests.
    pub(super) fn is_ping_due(&self) -> bool {
        self.ping.is_none() && !self.open.is_empty()
    }

    /// Records that a ping with this nonce, new on this connection, was sent after all requests.
    pub(super) fn pinged(&mut self, nonce: u64) {
        self.ping = Some((nonce, self.closed + self.open.len() as u64));
    }

    /// The first open question, or else the next one to send.
    pub(super) fn first(&mut self) -> Option<&OpenQuestion> {
        if self.open.is_empty() && self.again.is_empty() {
            self.again.extend(self.ahead.next());
        }
        self.open.front().or_else(|| self.again.front())
    }

    /// Processes a received message of `bytes` bytes. Returns whether it answers the first question.
    pub(super) fn answered(&mut self, message: &UtreexoMessage, bytes: u64) -> Result<bool, Wrong> {
        let block = match message {
            UtreexoMessage::Proof(proof) => proof.block,
            UtreexoMessage::Roots(roots) => roots.block,
            // The peer asks us for data that we do not serve.
            UtreexoMessage::GetProof(_) | UtreexoMessage::GetRoots(_) => return Ok(false),
        };
        let Some(first) = self.open.front() else { return Ok(false) };
        if first.is_answered_by(message) {
            if matches!(message, UtreexoMessage::Proof(_)) {
                self.proof_bytes = (7 * self.proof_bytes + bytes).div_ceil(8);
            }
            self.open.pop_front();
            self.closed += 1;
            return Ok(true);
        }
        let is_later = self.open.iter().any(|request| request.is_answered_by(message));
        Err(match is_later {
            true => Wrong::Unanswered(first.clone()),
            false => Wrong::NotAsked(first.clone(), block),
        })
    }

    /// Processes a pong: every question sent before the ping must be answered by now.
    pub(super) fn pong(&mut self, nonce: u64) -> Result<(), Wrong> {
        let Some((_, before)) = self.ping.take_if(|(ping, _)| *ping == nonce) else {
            return Ok(());
        };
        match self.open.front() {
            Some(first) if self.closed < before => Err(Wrong::Unanswered(first.clone())),
            _ => Ok(()),
        }
    }

    /// Handles a lost connection: all open questions are requeued for the next one.
    pub(super) fn lost(&mut self) {
        while let Some(request) = self.open.pop_back() {
            self.again.push_front(request);
        }
        (self.ping, self.closed) = (None, 0);
    }

    /// Drops the first question, which must not be in flight.
    pub(super) fn skip_first(&mut self) {
        debug_assert!(self.open.is_empty(), "the answer would be matched to another question");
        if self.again.pop_front().is_none() {
            self.ahead.next();
        }
    }

    /// Puts a request before all others, while none is in flight, and asks one at a time from now on.
    pub(super) fn insert_first(&mut self, request: OpenQuestion) {
        debug_assert!(self.open.is_empty(), "the answer would be matched to another question");
        self.single = true;
        self.again.push_front(request);
    }

    /// Allows several questions at a time again.
    pub(super) const fn widen(&mut self) {
        self.single = false;
    }

    /// Whether it asks one question at a time.
    pub(super) const fn is_single(&self) -> bool {
        self.single
    }

    /// Whether the peer owes no answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }
}

/// Bytes of a message in addition to a list: the block, and the lengths of three lists.
const HEAD_BYTES: usize = 32 + 3 * 9;
/// The most hashes of a part: as many as fit in a message.
const HASHES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / 32;
/// The most leaves of a part: as many as fit in a message, regardless of their scripts.
const LEAVES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / LEAF_BYTES_MAX;

/// A proof that is requested in parts.
pub(super) struct ProofParts {
    proof: PeerProof,
    /// The most targets.
    targets_max: usize,
    /// The part requested next; `None` once all parts have arrived.
    next: Option<ProofPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProofPart {
    Targets,
    Hashes,
    Leaves,
}

impl ProofParts {
    /// The parts of a proof with at most this many targets.
    pub(super) const fn new(block: BlockHash, targets_max: usize) -> Self {
        let proof =
            PeerProof { block, hashes: Vec::new(), targets: Vec::new(), leaves: Vec::new() };
        Self { proof, targets_max, next: Some(ProofPart::Targets) }
    }

    /// The parts for the leaf data only, of a block with this many leaves.
    pub(super) fn leaves(block: BlockHash, count: usize) -> Self {
        // Only their number matters.
        let (hashes, targets, leaves) = (Vec::new(), vec![0; count], Vec::new());
        let proof = PeerProof { block, hashes, targets, leaves };
        Self { proof, targets_max: count, next: Some(ProofPart::Leaves) }
    }

    /// The next request; `None` once the proof is complete.
    pub(super) fn request(&self) -> Option<ProofRequest> {
        let (block, none) = (self.proof.block, WantedPlaces::default());
        Some(match self.next? {
            ProofPart::Targets => ProofRequest::targets(block),
            ProofPart::Hashes => {
                let from = self.proof.hashes.len();
                ProofRequest::parts(block, (from..from + self.hashes_wanted()).collect(), none)
            }
            ProofPart::Leaves => {
                let from = self.proof.leaves.len();
                ProofRequest::parts(block, none, (from..from + self.leaves_wanted()).collect())
            }
        })
    }

    fn hashes_wanted(&self) -> usize {
        (HASHES_MAX - self.proof.hashes.len()).min(HASHES)
    }

    fn leaves_wanted(&self) -> usize {
        (self.proof.targets.len() - self.proof.leaves.len()).min(LEAVES)
    }

    /// Adds the answer to the request. An error describes the mismatch.
    pub(super) fn take(&mut self, part: PeerProof) -> Result<(), String> {
        let found = [part.targets.len(), part.hashes.len(), part.leaves.len()];
        let (asked, fits) = match (self.next, found) {
            // Each target is followed by a leaf of up to 10 kB.
            (Some(ProofPart::Targets), [targets, hashes, leaves]) => {
                let most = self.targets_max;
                let fits = targets <= most && hashes == 0 && leaves == 0;
                (format!("at most {most} targets"), fits)
            }
            (Some(ProofPart::Hashes), [targets, hashes, leaves]) => {
                let most = self.hashes_wanted();
                let fits = targets == 0 && hashes <= most && leaves == 0;
                (format!("at most {most} hashes"), fits)
            }
            (Some(ProofPart::Leaves), [targets, hashes, leaves]) => {
                let wanted = self.leaves_wanted();
                (format!("{wanted} leaves"), targets == 0 && hashes == 0 && leaves == wanted)
            }
            (None, _) => ("nothing".to_owned(), false),
        };
        if !fits {
            let [targets, hashes, leaves] = found;
            return Err(format!(
                "{targets} targets, {hashes} hashes and {leaves} leaves instead of {asked}"
            ));
        }
        let more_hashes = part.hashes.len() == self.hashes_wanted();
        self.proof.targets.extend(part.targets);
        self.proof.hashes.extend(part.hashes);
        self.proof.leaves.extend(part.leaves);
        self.next = match self.next {
            Some(ProofPart::Targets) => Some(ProofPart::Hashes),
            Some(ProofPart::Hashes) if more_hashes && self.hashes_wanted() > 0 => {
                Some(ProofPart::Hashes)
            }
            _ if self.leaves_wanted() > 0 => Some(ProofPart::Leaves),
            _ => None,
        };
        Ok(())
    }

    pub(super) fn into_proof(self) -> PeerProof {
        self.proof
    }
}
