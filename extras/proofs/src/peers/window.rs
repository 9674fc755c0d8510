//! [`QuestionWindow`]: which questions are under way, in which order, and which of them a peer leaves out.
//!
//! No socket, no clock: it is told what came, and says what to send. A peer answers in the order in which it is asked
//! (`docs/utreexo.md`), so an answer belongs to the first question that is open. It says nothing at all
//! where it has no answer; so a ping goes behind the questions, and a pong that comes before the answer says that
//! there will be none.
//!
//! A proof that is too long for one message comes in [`ProofParts`]. utreexod sends messages of up to 32 MiB, and no message
//! is taken here that is longer than Bitcoin Core's. Targets come first: there are as many leaves. How many hashes
//! there are no message says; so they are asked for some at a time, until fewer come than were asked for.

use crate::message::{
    HASHES_MAX, LEAF_BYTES_MAX, PeerProof, ProofRequest, UtreexoMessage, WantedPlaces,
};
use apus_chain::{BlockHash, KnownBlock};
use apus_p2p::message::PAYLOAD_BYTES_MAX;
use std::collections::VecDeque;

/// Most questions under way.
const OPEN_MAX: u64 = 32;
/// Bytes of answers that may be under way, as far as those before let expect. What comes is read one by one, so this
/// is what waits in the system's buffers and the peer's.
const BYTES_MAX: u64 = 4 << 20;
/// As large are proofs taken to be before the first one came.
const BYTES_EXPECTED: u64 = 512 << 10;

/// A request for a block, or for a part of what is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenQuestion {
    pub(super) block: KnownBlock,
    pub(super) message: UtreexoMessage,
}

impl OpenQuestion {
    /// What it asks for.
    pub(super) const fn what(&self) -> &'static str {
        match self.message {
            UtreexoMessage::GetRoots(_) | UtreexoMessage::Roots(_) => "roots",
            UtreexoMessage::GetProof(_) | UtreexoMessage::Proof(_) => "proof",
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

/// What is wrong with what a peer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It leaves the first open question out.
    Unanswered(OpenQuestion),
    /// It answers what is not asked, and this is the first open question.
    NotAsked(OpenQuestion, BlockHash),
}

/// See the module.
pub(super) struct QuestionWindow<'q> {
    /// Those that were not sent yet.
    ahead: Box<dyn Iterator<Item = OpenQuestion> + Send + 'q>,
    /// Those that are to be sent before: again, or out of turn.
    again: VecDeque<OpenQuestion>,
    open: VecDeque<OpenQuestion>,
    /// How many were answered or given up, since the connection began.
    closed: u64,
    /// The ping under way: its number, and how many questions were sent before it.
    ping: Option<(u64, u64)>,
    /// What a proof has of late.
    proof_bytes: u64,
    /// Whether one question at a time is asked.
    single: bool,
}

impl<'q> QuestionWindow<'q> {
    pub(super) fn new(ahead: Box<dyn Iterator<Item = OpenQuestion> + Send + 'q>) -> Self {
        let (again, open) = (VecDeque::new(), VecDeque::new());
        let (closed, ping, single) = (0, None, false);
        Self { ahead, again, open, closed, ping, proof_bytes: BYTES_EXPECTED, single }
    }

    /// The next request to send, if there is room for one. It is open from now on.
    pub(super) fn next_to_send(&mut self) -> Option<&OpenQuestion> {
        let room = if self.single { 1 } else { (BYTES_MAX / self.proof_bytes).clamp(1, OPEN_MAX) };
        if self.open.len() as u64 >= room {
            return None;
        }
        let request = self.again.pop_front().or_else(|| self.ahead.next())?;
        self.open.push_back(request);
        self.open.back()
    }

    /// Whether to send a ping behind the requests.
    pub(super) fn is_ping_due(&self) -> bool {
        self.ping.is_none() && !self.open.is_empty()
    }

    /// A ping of this number, which the connection had none of before, was sent behind all requests.
    pub(super) fn pinged(&mut self, nonce: u64) {
        self.ping = Some((nonce, self.closed + self.open.len() as u64));
    }

    /// The first question that is open, or the next one to be.
    pub(super) fn first(&mut self) -> Option<&OpenQuestion> {
        if self.open.is_empty() && self.again.is_empty() {
            self.again.extend(self.ahead.next());
        }
        self.open.front().or_else(|| self.again.front())
    }

    /// Takes a message about proofs, of so many bytes on the line. Says whether it answers the first question.
    pub(super) fn answered(&mut self, message: &UtreexoMessage, bytes: u64) -> Result<bool, Wrong> {
        let block = match message {
            UtreexoMessage::Proof(proof) => proof.block,
            UtreexoMessage::Roots(roots) => roots.block,
            // A peer that asks us, for what is not offered here.
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

    /// Takes the answer to a ping: by now all that was asked before it must be answered.
    pub(super) fn pong(&mut self, nonce: u64) -> Result<(), Wrong> {
        let Some((_, before)) = self.ping.take_if(|(ping, _)| *ping == nonce) else {
            return Ok(());
        };
        match self.open.front() {
            Some(first) if self.closed < before => Err(Wrong::Unanswered(first.clone())),
            _ => Ok(()),
        }
    }

    /// The connection is gone: all that is open is to be asked again, on another one.
    pub(super) fn lost(&mut self) {
        while let Some(request) = self.open.pop_back() {
            self.again.push_front(request);
        }
        (self.ping, self.closed) = (None, 0);
    }

    /// Gives up the first question, of which nothing is under way.
    pub(super) fn skip_first(&mut self) {
        debug_assert!(self.open.is_empty(), "an answer would be taken for another one's");
        if self.again.pop_front().is_none() {
            self.ahead.next();
        }
    }

    /// Puts a request before all others while nothing is under way, and asks one at a time from now on.
    pub(super) fn insert_first(&mut self, request: OpenQuestion) {
        debug_assert!(self.open.is_empty(), "an answer would be taken for another one's");
        self.single = true;
        self.again.push_front(request);
    }

    /// Asks more than one at a time again.
    pub(super) const fn widen(&mut self) {
        self.single = false;
    }

    /// Whether the peer owes no answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }
}

/// What a message has besides a list: the block, and the numbers of three lists.
const HEAD_BYTES: usize = 32 + 3 * 9;
/// Most hashes of a part: as many as fit a message.
const HASHES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / 32;
/// Most leaves of a part: as many as fit a message, whatever their scripts.
const LEAVES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / LEAF_BYTES_MAX;

/// See the module.
pub(super) struct ProofParts {
    proof: PeerProof,
    /// The part that is asked for; none once all came.
    next: Option<ProofPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProofPart {
    Targets,
    Hashes,
    Leaves,
}

impl ProofParts {
    pub(super) const fn new(block: BlockHash) -> Self {
        let proof =
            PeerProof { block, hashes: Vec::new(), targets: Vec::new(), leaves: Vec::new() };
        Self { proof, next: Some(ProofPart::Targets) }
    }

    /// What to ask for next; nothing once the proof is whole.
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

    /// Takes what came for the request. An error says in which way it does not fit.
    pub(super) fn take(&mut self, part: PeerProof) -> Result<(), String> {
        let found = [part.targets.len(), part.hashes.len(), part.leaves.len()];
        let (asked, fits) = match (self.next, found) {
            // Their number is bounded by the message.
            (Some(ProofPart::Targets), [_, hashes, leaves]) => {
                ("targets alone".to_owned(), hashes == 0 && leaves == 0)
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
                "{targets} targets, {hashes} hashes and {leaves} leaves came, and what was asked for is {asked}"
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
