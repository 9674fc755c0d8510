//! [`ProofAnswers`]: a peer's answers to a list of questions, in order, across failing connections.

use super::window::{OpenQuestion, ProofParts, QuestionWindow, Wrong};
use super::{BridgeLink, ProofPeerError, ProofPeers, Question, of_block};
use crate::message::{BadPayload, PeerLeaf, PeerProof, PeerRoots, ProofRequest, UtreexoMessage};
use apus_chain::KnownBlock;
use apus_p2p::message::Message;
use apus_p2p::transport::PeerError;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Retry budget: the number of failed attempts in a row after which the error is returned.
const TRIES: u32 = 6;
/// The same for a peer that answers later: it is behind its own peers, and sends nothing until it has caught up.
const TRIES_UNANSWERED: u32 = 8;
/// The wait before the second attempt at a peer. It doubles with each further attempt.
const BACKOFF: Duration = Duration::from_millis(250);
/// Idle timeout: a peer that owes an answer and sends no byte of one for this long is considered gone.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a wait checks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A peer's answers to a list of questions, in order.
pub struct ProofAnswers<'q> {
    peers: &'q ProofPeers<'q>,
    /// The peer's index.
    peer: usize,
    window: QuestionWindow<'q>,
    link: Option<BridgeLink>,
    /// Whether to ask again while the peer does not answer, as one does that is behind.
    waits: bool,
    /// Failures since the last answer, and the start of the current wait.
    tries: u32,
    waiting_since: Instant,
}

/// The outcome of an attempt at the first question.
enum Attempt {
    Answer(UtreexoMessage),
    /// The proof of this block is too long for one message.
    TooLong(KnownBlock),
}

impl<'q> ProofAnswers<'q> {
    pub(super) fn new(
        peers: &'q ProofPeers<'q>,
        peer: usize,
        questions: Box<dyn Iterator<Item = Question> + Send + 'q>,
    ) -> Self {
        let requests = questions.map(|question| match question {
            Question::Roots(block) => {
                OpenQuestion { block, message: UtreexoMessage::GetRoots(block.hash) }
            }
            Question::Proof(block) => {
                let message = UtreexoMessage::GetProof(ProofRequest::whole(block.hash));
                OpenQuestion { block, message }
            }
            Question::Leaves(block, most) => {
                let request = ProofRequest::leaves(block.hash, 0..most);
                OpenQuestion { block, message: UtreexoMessage::GetProof(request) }
            }
        });
        Self {
            peers,
            peer,
            window: QuestionWindow::new(Box::new(requests)),
            link: None,
            waits: true,
            tries: 0,
            waiting_since: Instant::now(),
        }
    }

    /// Sends the first questions. If that fails, it is tried again when their answers are taken.
    pub fn start(&mut self) {
        let Ok(mut link) = self.link() else { return };
        match self.send(&mut link) {
            Ok(()) => self.link = Some(link),
            Err(_) => self.window.lost(),
        }
    }

    /// Does not wait for a peer that is behind.
    #[must_use]
    pub const fn at_once(mut self) -> Self {
        self.waits = false;
        self
    }

    /// Returns the answer to the next question, which must be for the roots after this block.
    ///
    /// # Errors
    /// The peer does not answer.
    pub fn roots(&mut self, block: &KnownBlock) -> Result<PeerRoots, ProofPeerError> {
        self.expect("roots", block)?;
        match self.next()? {
            Attempt::Answer(UtreexoMessage::Roots(roots)) => Ok(roots),
            _ => Err(ProofPeerError::OutOfTurn { what: "roots" }),
        }
    }

    /// Returns the answer to the next question, which must be for the proof of this block. A proof that is
    /// too long for one message is requested in parts, if it has at most `targets_max` targets.
    ///
    /// # Errors
    /// The peer does not answer.
    pub fn proof(
        &mut self,
        block: &KnownBlock,
        targets_max: usize,
    ) -> Result<PeerProof, ProofPeerError> {
        self.expect("proof", block)?;
        match self.next()? {
            Attempt::Answer(UtreexoMessage::Proof(proof)) => Ok(proof),
            Attempt::TooLong(block) => {
                self.window.skip_first();
                self.in_parts(block, ProofParts::new(block.hash, targets_max))
            }
            Attempt::Answer(_) => Err(ProofPeerError::OutOfTurn { what: "proof" }),
        }
    }

    /// Returns the answer to the next question, which must be for the leaf data of this block, which has `count`
    /// leaves. More than were asked for, or than fit into one message, are requested in parts.
    ///
    /// # Errors
    /// The peer does not answer, or has another number of leaves.
    pub fn leaves(
        &mut self,
        block: &KnownBlock,
        count: usize,
    ) -> Result<Vec<PeerLeaf>, ProofPeerError> {
        self.expect("proof", block)?;
        let asked = self.window.first().map_or(0, |first| first.leaves_asked());
        let answer = match self.next()? {
            Attempt::Answer(UtreexoMessage::Proof(answer)) => answer,
            Attempt::TooLong(block) => {
                self.window.skip_first();
                return Ok(self.in_parts(block, ProofParts::leaves(block.hash, count))?.leaves);
            }
            Attempt::Answer(_) => return Err(ProofPeerError::OutOfTurn { what: "proof" }),
        };
        let found = answer.leaves.len();
        if found != count.min(asked) || !answer.hashes.is_empty() || !answer.targets.is_empty() {
            let what = format!(
                "{} targets, {} hashes and {found} leaves, where the block needs {count} leaves",
                answer.targets.len(),
                answer.hashes.len()
            );
            return Err(ProofPeerError::Parts { peer: self.peer_name(), block: *block, what });
        }
        if count <= asked {
            return Ok(answer.leaves);
        }
        // Other questions are in flight on this connection.
        let mut others = Self::new(self.peers, self.peer, Box::new(std::iter::empty()));
        Ok(others.in_parts(*block, ProofParts::leaves(block.hash, count))?.leaves)
    }

    /// The peer's index.
    pub(crate) const fn peer(&self) -> usize {
        self.peer
    }

    /// The peer's address, for messages.
    pub(crate) fn peer_name(&self) -> String {
        self.peers.name_of(self.peer)
    }

    fn expect(&mut self, what: &'static str, block: &KnownBlock) -> Result<(), ProofPeerError> {
        match self.window.first() {
            Some(first) if first.what() == what && first.block == *block => Ok(()),
            _ => Err(ProofPeerError::OutOfTurn { what }),
        }
    }

    /// Requests the parts one by one, while nothing else is in flight.
    fn in_parts(
        &mut self,
        block: KnownBlock,
        mut parts: ProofParts,
    ) -> Result<PeerProof, ProofPeerError> {
        while let Some(request) = parts.request() {
            let message = UtreexoMessage::GetProof(request);
            self.window.insert_first(OpenQuestion { block, message });
            let answer = self.next()?;
            let taken = match answer {
                Attempt::Answer(UtreexoMessage::Proof(proof)) => parts.take(proof),
                _ => Err("a part is too long for a message".to_owned()),
            };
            taken.map_err(|what| ProofPeerError::Parts { peer: self.peer_name(), block, what })?;
        }
        self.window.widen();
        Ok(parts.into_proof())
    }

    /// Gets the outcome of the first question, within the retry budget.
    fn next(&mut self) -> Result<Attempt, ProofPeerError> {
        (self.tries, self.waiting_since) = (0, Instant::now());
        loop {
            if self.peers.is_interrupted() {
                return Err(ProofPeerError::Interrupted);
            }
            match self.attempt() {
                Ok(attempt) => return Ok(attempt),
                Err(error) => self.recover(error)?,
            }
        }
    }

    /// Makes one attempt. An error ends the connection.
    fn attempt(&mut self) -> Result<Attempt, ProofPeerError> {
        let mut link = self.link()?;
        match self.wait(&mut link) {
            Ok(answer) => {
                self.link = Some(link);
                Ok(Attempt::Answer(answer))
            }
            // The message that is too long is the next answer, since all before it have arrived.
            Err(LinkEnd::Line(PeerError::TooLong { .. })) if self.asks_for_much() => {
                self.window.lost();
                let first = self.window.first();
                first
                    .map(|first| Attempt::TooLong(first.block))
                    .ok_or(ProofPeerError::OutOfTurn { what: "proof" })
            }
            Err(ended) => {
                self.window.lost();
                Err(ended.by(self.peer_name()))
            }
        }
    }

    /// Whether the first question is not for a part that fits into a message.
    fn asks_for_much(&mut self) -> bool {
        !self.window.is_single() && self.window.first().is_some_and(|first| first.what() == "proof")
    }

    /// The current connection, an idle one, or a new one.
    fn link(&mut self) -> Result<BridgeLink, ProofPeerError> {
        match self.link.take().or_else(|| self.peers.take(self.peer)) {
            Some(link) => Ok(link),
            None => BridgeLink::open(self.peer, &self.peers.addresses[self.peer], &self.peers.dial),
        }
    }

    /// Sends questions as far ahead as the window allows, and waits for the answer to the first one.
    fn wait(&mut self, link: &mut BridgeLink) -> Result<UtreexoMessage, LinkEnd> {
        let silence = SILENCE.min(self.peers.patience / 2);
        // A peer's own pings are no sign that it will answer, so bytes of other messages do not count.
        let (mut others, mut heard_at) = (0, Instant::now());
        let mut heard = link.received();
        loop {
            self.send(link)?;
            if self.peers.is_interrupted() {
                return Err(LinkEnd::Interrupted);
            }
            if let Some((message, bytes)) = link.receive().map_err(LinkEnd::Line)? {
                match message {
                    Message::Other { name, payload } => {
                        if let Some(answer) = read(&name, &payload)?
                            && self.window.answered(&answer, bytes).map_err(LinkEnd::Wrong)?
                        {
                            return Ok(answer);
                        }
                    }
                    Message::Pong(nonce) => self.window.pong(nonce).map_err(LinkEnd::Wrong)?,
                    Message::Ping(nonce) => {
                        link.send(&Message::Pong(nonce)).map_err(LinkEnd::Line)?;
                    }
                    _ => {}
                }
                others += bytes;
            }
            if link.received() > heard + others {
                (heard, heard_at) = (link.received() - others, Instant::now());
            }
            let late = |during, after| Err(LinkEnd::Line(PeerError::Timeout { during, after }));
            if heard_at.elapsed() >= silence {
                return late("the peer's silence", silence);
            }
            if self.waiting_since.elapsed() >= self.peers.patience {
                return late("an answer of the peer's", self.peers.patience);
            }
        }
    }

    fn send(&mut self, link: &mut BridgeLink) -> Result<(), LinkEnd> {
        while let Some(request) = self.window.next_to_send() {
            let message = request.message.to_message();
            link.send(&message).map_err(LinkEnd::Line)?;
        }
        if self.window.is_ping_due() {
            let nonce = link.ping().map_err(LinkEnd::Line)?;
            self.window.pinged(nonce);
        }
        Ok(())
    }

    /// Prepares another attempt, or returns the error if there is none left.
    fn recover(&mut self, error: ProofPeerError) -> Result<(), ProofPeerError> {
        if matches!(error, ProofPeerError::Interrupted | ProofPeerError::OutOfTurn { .. }) {
            return Err(error);
        }
        // Older idle connections to the peer are probably broken too.
        self.peers.forget(self.peer);
        let pause = BACKOFF * (1 << self.tries);
        self.tries += 1;
        let is_behind = matches!(error, ProofPeerError::Unanswered { .. });
        let is_silent =
            matches!(error, ProofPeerError::Peer { error: PeerError::Timeout { .. }, .. });
        // Each wait for a silent peer is long, and there may be others.
        let is_hopeless = !error.may_pass()
            || is_behind && !self.waits
            || is_silent && self.peers.has_others(self.peer);
        let waited = self.waiting_since.elapsed();
        let tries_max = if is_behind { TRIES_UNANSWERED } else { TRIES };
        // The next attempt needs some time, too: if the wait ended within it, its error would hide this one.
        let spared = if is_behind { self.peers.patience / 4 } else { Duration::ZERO };
        let is_late = waited + pause + spared >= self.peers.patience;
        if is_hopeless || self.tries >= tries_max || is_late {
            let (tries, seconds) = (self.tries, waited.as_secs());
            return Err(match tries {
                1 => error,
                _ => ProofPeerError::GaveUp { error: Box::new(error), tries, seconds },
            });
        }
        self.pause(pause)
    }

    fn pause(&self, pause: Duration) -> Result<(), ProofPeerError> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.peers.is_interrupted() {
                return Err(ProofPeerError::Interrupted);
            }
            sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// Reads a Utreexo message; `None` if it is another message.
fn read(name: &str, payload: &[u8]) -> Result<Option<UtreexoMessage>, LinkEnd> {
    let broken = |error: BadPayload| PeerError::Protocol { what: error.to_string() };
    UtreexoMessage::read(name, payload).map_err(|error| LinkEnd::Line(broken(error)))
}

impl Drop for ProofAnswers<'_> {
    /// Returns a connection without pending answers for reuse.
    fn drop(&mut self) {
        if let Some(link) = self.link.take().filter(|_| self.window.is_quiet()) {
            self.peers.give_back(link);
        }
    }
}

/// Why a connection ended.
enum LinkEnd {
    Line(PeerError),
    Wrong(Wrong),
    Interrupted,
}

impl LinkEnd {
    fn by(self, peer: String) -> ProofPeerError {
        match self {
            Self::Line(error) => ProofPeerError::of(peer, error),
            Self::Interrupted => ProofPeerError::Interrupted,
            Self::Wrong(Wrong::Unanswered(OpenQuestion { block, message })) => {
                let what = OpenQuestion { block, message }.what();
                ProofPeerError::Unanswered { peer, what, block }
            }
            Self::Wrong(Wrong::NotAsked(request, found)) => {
                let (what, block) = (request.what(), request.block);
                ProofPeerError::not_asked(peer, what, block, of_block(&found))
            }
        }
    }
}
