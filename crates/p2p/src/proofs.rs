//! [`ProofPeers`]: proofs of blocks, and roots, from bridge nodes of Utreexo, asked for ahead of their turn.
//!
//! A caller begins with a list of [`Question`]s and takes the answers in the same order. The [`Answers`] have a
//! connection of their own meanwhile, on which more than one question is under way, so that a far peer costs no wait
//! for each. A connection that breaks is made anew, with the same peer or another, and what was not answered is asked
//! again. What a peer tells is not checked here: the caller has the roots that it has to fit.
//!
//! `docs/decisions/0028-proofs-from-peers.md` says why it is so; what depends on the one program that answers is in
//! `docs/formats/utreexo-wire.md`.

mod answers;
mod error;
mod link;
mod parts;
#[cfg(test)]
mod tests;
mod window;

pub use answers::Answers;
pub use error::ProofPeerError;

use crate::addresses::NodeAddress;
use crate::transport::Dial;
use crate::utreexo::BRIDGE;
use apus_chain::KnownBlock;
use link::Link;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something to ask a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The roots after a block.
    Roots(KnownBlock),
    /// The proof of what a block spends, and the leaves.
    Proof(KnownBlock),
}

impl Question {
    /// The block that it is about.
    #[must_use]
    pub const fn block(&self) -> KnownBlock {
        match self {
            Self::Roots(block) | Self::Proof(block) => *block,
        }
    }
}

/// Bridge nodes, and the connections to them that wait for questions.
#[derive(Debug)]
pub struct ProofPeers<'a> {
    dial: Dial,
    addresses: Vec<NodeAddress>,
    /// How long peers may give nothing that was asked for.
    patience: Duration,
    /// Set from outside to stop waiting.
    interrupt: &'a AtomicBool,
    /// Why some of them could not be reached at first.
    absent: Vec<ProofPeerError>,
    idle: Mutex<Vec<Link>>,
    /// Which peer the next connection is made to, modulo their number.
    next: Mutex<usize>,
}

impl<'a> ProofPeers<'a> {
    /// Connects to each peer once. `dial` says how; which services a peer must offer is known here.
    ///
    /// # Errors
    /// When a peer is no bridge node of this network, or none can be reached. Of several that can't, the first
    /// one's reason is told.
    pub fn connect(
        addresses: Vec<NodeAddress>,
        dial: Dial,
        patience: Duration,
        interrupt: &'a AtomicBool,
    ) -> Result<Self, ProofPeerError> {
        let dial = Dial { required_services: BRIDGE, ..dial };
        let (absent, idle, next) = (Vec::new(), Mutex::default(), Mutex::default());
        let mut peers = Self { dial, addresses, patience, interrupt, absent, idle, next };
        for peer in 0..peers.addresses.len() {
            match Link::open(peer, &peers.addresses[peer], &peers.dial) {
                Ok(link) => peers.give_back(link),
                Err(error) if error.may_pass() => peers.absent.push(error),
                Err(error) => return Err(error),
            }
        }
        if peers.lock_idle().is_empty() && !peers.absent.is_empty() {
            return Err(peers.absent.swap_remove(0));
        }
        Ok(peers)
    }

    /// Why some of them could not be reached at first. They are asked again where others fail.
    #[must_use]
    pub fn absent(&self) -> &[ProofPeerError] {
        &self.absent
    }

    /// Begins to ask.
    pub fn ask<'q>(&'q self, questions: impl Iterator<Item = Question> + Send + 'q) -> Answers<'q> {
        Answers::new(self, Box::new(questions))
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// A connection that waits, if there is one to a peer that is not ruled out.
    fn take(&self, ruled_out: &[bool]) -> Option<Link> {
        let mut idle = self.lock_idle();
        let at = idle.iter().position(|link| !ruled_out[link.peer()])?;
        Some(idle.swap_remove(at))
    }

    fn give_back(&self, link: Link) {
        self.lock_idle().push(link);
    }

    /// Closes the connections to a peer that wait.
    fn forget(&self, peer: usize) {
        self.lock_idle().retain(|link| link.peer() != peer);
    }

    /// The next peer in turn that is not ruled out.
    fn next(&self, ruled_out: &[bool]) -> Option<usize> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.addresses.len();
        let found = (0..count).map(|step| (*next + step) % count).find(|peer| !ruled_out[*peer])?;
        *next = (found + 1) % count;
        Some(found)
    }

    /// The list is whole at any moment, also where a thread ended over it.
    fn lock_idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
