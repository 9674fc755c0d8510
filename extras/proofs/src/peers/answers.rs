//! [`ProofAnswers`]: what peers say to a list of questions, in its order, whatever becomes of connections.

use super::window::{OpenQuestion, ProofParts, QuestionWindow, Wrong};
use super::{BridgeLink, ProofPeerError, ProofPeers, Question, of_block};
use crate::message::{BadPayload, PeerProof, PeerRoots, ProofRequest, UtreexoMessage};
use apus_chain::KnownBlock;
use apus_p2p::message::Message;
use apus_p2p::transport::PeerError;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Attempts without an answer between them, after which the reason is told.
const TRIES: u32 = 6;
/// The wait before the second attempt at a peer. Each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(250);
/// A peer that sends no byte for so long, though it owes an answer, is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a wait looks whether it is interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// See the module.
pub struct ProofAnswers<'q> {
    peers: &'q ProofPeers<'q>,
    window: QuestionWindow<'q>,
    link: Option<BridgeLink>,
    /// Peers that cannot answer these questions.
    ruled_out: Vec<bool>,
    /// Those that answered some.
    told_by: Vec<String>,
    /// Failures since the last answer, and since when the next one is waited for.
    tries: u32,
    waiting_since: Instant,
}

/// How an attempt at the first question ended.
enum Attempt {
    Answer(UtreexoMessage),
    /// The proof of this block is longer than a message may be.
    TooLong(KnownBlock),
}

impl<'q> ProofAnswers<'q> {
    pub(super) fn new(
        peers: &'q ProofPeers<'q>,
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
        });
        Self {
            peers,
            window: QuestionWindow::new(Box::new(requests)),
            link: None,
            ruled_out: vec![false; peers.addresses.len()],
            told_by: Vec::new(),
            tries: 0,
            waiting_since: Instant::now(),
        }
    }

    /// The answer to the next question, which must be for the roots after this block.
    ///
    /// # Errors
    /// When no peer gives it.
    pub fn roots(&mut self, block: &KnownBlock) -> Result<PeerRoots, ProofPeerError> {
        self.expect("roots", block)?;
        match self.next()? {
            Attempt::Answer(UtreexoMessage::Roots(roots)) => Ok(roots),
            _ => Err(ProofPeerError::OutOfTurn { what: "roots" }),
        }
    }

    /// The answer to the next question, which must be for the proof of this block. Where that is too long for a
    /// message it is had in parts.
    ///
    /// # Errors
    /// When no peer gives it.
    pub fn proof(&mut self, block: &KnownBlock) -> Result<PeerProof, ProofPeerError> {
        self.expect("proof", block)?;
        match self.next()? {
            Attempt::Answer(UtreexoMessage::Proof(proof)) => Ok(proof),
            Attempt::TooLong(block) => self.in_parts(block),
            Attempt::Answer(_) => Err(ProofPeerError::OutOfTurn { what: "proof" }),
        }
    }

    /// The peers that answered, as the user would write them.
    #[must_use]
    pub fn told_by(&self) -> String {
        self.told_by.join(" and ")
    }

    fn expect(&mut self, what: &'static str, block: &KnownBlock) -> Result<(), ProofPeerError> {
        match self.window.first() {
            Some(first) if first.what() == what && first.block == *block => Ok(()),
            _ => Err(ProofPeerError::OutOfTurn { what }),
        }
    }

    /// Asks for one part after the other.
    fn in_parts(&mut self, block: KnownBlock) -> Result<PeerProof, ProofPeerError> {
        self.window.skip_first();
        let mut parts = ProofParts::new(block.hash);
        while let Some(request) = parts.request() {
            let message = UtreexoMessage::GetProof(request);
            self.window.insert_first(OpenQuestion { block, message });
            let answer = self.next()?;
            let peer = self.told_by();
            let taken = match answer {
                Attempt::Answer(UtreexoMessage::Proof(proof)) => parts.take(proof),
                _ => Err("a part is longer than a message may be".to_owned()),
            };
            taken.map_err(|what| ProofPeerError::Parts { peer, block, what })?;
        }
        self.window.widen();
        Ok(parts.into_proof())
    }

    /// What comes of the first question, over as many attempts as are worth it.
    fn next(&mut self) -> Result<Attempt, ProofPeerError> {
        (self.tries, self.waiting_since) = (0, Instant::now());
        loop {
            if self.peers.is_interrupted() {
                return Err(ProofPeerError::Interrupted);
            }
            match self.attempt() {
                Ok(attempt) => return Ok(attempt),
                Err((peer, error)) => self.recover(peer, error)?,
            }
        }
    }

    /// One attempt. What fails is told with the peer's place, and ends the connection.
    fn attempt(&mut self) -> Result<Attempt, (usize, ProofPeerError)> {
        let mut link = self.link()?;
        let (peer, name) = (link.peer(), link.name().to_owned());
        match self.wait(&mut link) {
            Ok(answer) => {
                if !self.told_by.contains(&name) {
                    self.told_by.push(name);
                }
                self.link = Some(link);
                Ok(Attempt::Answer(answer))
            }
            // It is the next message that is too long, so all before it were answered.
            Err(LinkEnd::Line(PeerError::TooLong { .. })) if self.asks_for_whole_proof() => {
                self.window.lost();
                self.window
                    .first()
                    .map_or(Err((peer, ProofPeerError::OutOfTurn { what: "proof" })), |first| {
                        Ok(Attempt::TooLong(first.block))
                    })
            }
            Err(ended) => {
                self.window.lost();
                Err((peer, ended.by(name)))
            }
        }
    }

    fn asks_for_whole_proof(&mut self) -> bool {
        let whole = |message: &UtreexoMessage| matches!(message, UtreexoMessage::GetProof(request) if request.all_leaves);
        self.window.first().is_some_and(|first| whole(&first.message))
    }

    /// The connection at hand, one that waits, or a new one.
    fn link(&mut self) -> Result<BridgeLink, (usize, ProofPeerError)> {
        if let Some(link) = self.link.take().or_else(|| self.peers.take(&self.ruled_out)) {
            return Ok(link);
        }
        // Where all are ruled out no attempt is made.
        let peer = self.peers.next(&self.ruled_out).unwrap_or_default();
        let opened = BridgeLink::open(peer, &self.peers.addresses[peer], &self.peers.dial);
        opened.map_err(|error| (peer, error))
    }

    /// Asks as far ahead as there is room, and waits for the answer to the first question.
    fn wait(&mut self, link: &mut BridgeLink) -> Result<UtreexoMessage, LinkEnd> {
        let silence = SILENCE.min(self.peers.patience);
        let (mut heard, mut heard_at) = (link.received(), Instant::now());
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
            }
            if link.received() != heard {
                (heard, heard_at) = (link.received(), Instant::now());
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

    /// Makes ready for another attempt, or tells why there is none.
    fn recover(&mut self, peer: usize, error: ProofPeerError) -> Result<(), ProofPeerError> {
        if matches!(error, ProofPeerError::Interrupted | ProofPeerError::OutOfTurn { .. }) {
            return Err(error);
        }
        // Others that wait were made before, and broke with it.
        self.peers.forget(peer);
        self.tries += 1;
        if !error.may_pass() {
            self.ruled_out[peer] = true;
        }
        let waited = self.waiting_since.elapsed();
        let none_left = self.ruled_out.iter().all(|out| *out);
        if none_left || self.tries >= TRIES || waited >= self.peers.patience {
            let (tries, seconds) = (self.tries, waited.as_secs());
            return Err(match tries {
                1 => error,
                _ => ProofPeerError::GaveUp { error: Box::new(error), tries, seconds },
            });
        }
        // Each of the others is asked once without a wait.
        let others = self.ruled_out.iter().filter(|out| !**out).count() as u32;
        match self.tries.checked_sub(others) {
            Some(again) => self.pause(BACKOFF * (1 << again)),
            None => Ok(()),
        }
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

/// A message of Utreexo's, if it is one.
fn read(name: &str, payload: &[u8]) -> Result<Option<UtreexoMessage>, LinkEnd> {
    let broken = |error: BadPayload| PeerError::Protocol { what: error.to_string() };
    UtreexoMessage::read(name, payload).map_err(|error| LinkEnd::Line(broken(error)))
}

impl Drop for ProofAnswers<'_> {
    /// A connection on which nothing is owed is of use to the next.
    fn drop(&mut self) {
        if let Some(link) = self.link.take().filter(|_| self.window.is_quiet()) {
            self.peers.give_back(link);
        }
    }
}

/// Why a connection is of no use any more.
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
