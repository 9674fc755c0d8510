//! [`Parts`]: a proof that is too long for one message, had by several.
//!
//! utreexod sends messages of up to 32 MiB, and no message is taken here that is longer than Bitcoin Core's. Targets
//! come first: there are as many leaves. How many hashes there are no message says; so they are asked for some at a
//! time, until fewer come than were asked for.

use crate::message::PAYLOAD_BYTES_MAX;
use crate::utreexo::{HASHES_MAX, LEAF_BYTES_MAX, Proof, ProofRequest, Wanted};
use apus_chain::BlockHash;

/// What a message has besides a list: the block, and the numbers of three lists.
const HEAD_BYTES: usize = 32 + 3 * 9;
/// Most hashes of a part: as many as fit a message.
const HASHES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / 32;
/// Most leaves of a part: as many as fit a message, whatever their scripts.
const LEAVES: usize = (PAYLOAD_BYTES_MAX - HEAD_BYTES) / LEAF_BYTES_MAX;

/// See the module.
pub(super) struct Parts {
    proof: Proof,
    /// The part that is asked for; none once all came.
    next: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Targets,
    Hashes,
    Leaves,
}

impl Parts {
    pub(super) const fn new(block: BlockHash) -> Self {
        let proof = Proof { block, hashes: Vec::new(), targets: Vec::new(), leaves: Vec::new() };
        Self { proof, next: Some(Part::Targets) }
    }

    /// What to ask for next; nothing once the proof is whole.
    pub(super) fn request(&self) -> Option<ProofRequest> {
        let (block, none) = (self.proof.block, Wanted::default());
        Some(match self.next? {
            Part::Targets => ProofRequest::targets(block),
            Part::Hashes => {
                let from = self.proof.hashes.len();
                ProofRequest::parts(block, (from..from + self.hashes_wanted()).collect(), none)
            }
            Part::Leaves => {
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
    pub(super) fn take(&mut self, part: Proof) -> Result<(), String> {
        let found = [part.targets.len(), part.hashes.len(), part.leaves.len()];
        let (asked, fits) = match (self.next, found) {
            // Their number is bounded by the message.
            (Some(Part::Targets), [_, hashes, leaves]) => {
                ("targets alone".to_owned(), hashes == 0 && leaves == 0)
            }
            (Some(Part::Hashes), [targets, hashes, leaves]) => {
                let most = self.hashes_wanted();
                let fits = targets == 0 && hashes <= most && leaves == 0;
                (format!("at most {most} hashes"), fits)
            }
            (Some(Part::Leaves), [targets, hashes, leaves]) => {
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
            Some(Part::Targets) => Some(Part::Hashes),
            Some(Part::Hashes) if more_hashes && self.hashes_wanted() > 0 => Some(Part::Hashes),
            _ if self.leaves_wanted() > 0 => Some(Part::Leaves),
            _ => None,
        };
        Ok(())
    }

    pub(super) fn into_proof(self) -> Proof {
        self.proof
    }
}
