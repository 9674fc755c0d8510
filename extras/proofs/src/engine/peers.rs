//! [`PeerProofs`]: proofs and roots from bridge nodes, requested range by range.
//!
//! The job chooses where ranges begin, since a peer has the roots after any block. It requests the roots at
//! both ends of a range when the range begins, and checks them against the roots that its blocks lead to and
//! against the neighbouring ranges, as for files.

use super::{BridgePeers, ProofRange, ProofReader, ProofSource};
use crate::error::ProofsError;
use crate::message::{PeerProof, PeerRoots, write_leaves};
use crate::peers::{ProofAnswers, ProofPeers, Question};
use apus_chain::{BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Network};
use apus_hash::sha256;
use apus_p2p::transport::Dial;
use apus_sync::{Event, Observer, SyncError, Warning};
use apus_utreexo::{NodeHash, Proof, Roots};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// The context of the requests.
pub struct ProofRequester<'a> {
    /// The network.
    pub network: Network,
    /// Receives warnings about peers that fail.
    pub observer: &'a dyn Observer,
    /// Stops the search.
    pub interrupt: &'a AtomicBool,
}

/// Proofs and roots from bridge nodes.
pub struct PeerProofs<'a> {
    chain: &'a HeaderChain,
    peers: ProofPeers<'a>,
}

impl<'a> PeerProofs<'a> {
    /// Connects to the peers. Requests are for blocks of `chain`.
    pub fn connect(
        options: &BridgePeers,
        asking: ProofRequester<'a>,
        chain: &'a HeaderChain,
    ) -> Result<Self, SyncError> {
        let nonce = u64::from_le_bytes(apus_sync::system::random_bytes()?);
        let dial = Dial {
            proxy: options.proxy,
            transport: options.transport,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            ..Dial::new(asking.network, nonce)
        };
        let (addresses, patience) = (options.addresses.clone(), options.patience);
        let peers = ProofPeers::connect(addresses, dial, patience, asking.interrupt);
        let peers = peers.map_err(|error| ProofsError::Peers(Box::new(error)))?;
        for absent in peers.absent() {
            let text = format!(
                "{absent}. Apus starts with the other peers, and tries this peer again if another one fails"
            );
            asking.observer.event(Event::Warning(Warning::Extra(text)));
        }
        Ok(Self { chain, peers })
    }

    /// Identifies a job with proofs from peers, so that a later start recognizes it. The peers themselves do
    /// not matter: their data for a range were checked against its blocks, and its roots are stored.
    pub(super) fn id() -> [u8; 32] {
        sha256(b"ranges of proofs from peers")
    }

    fn block(&self, height: Height) -> Result<KnownBlock, String> {
        let hash = self.chain.hash(height).copied();
        let hash: BlockHash = hash.ok_or_else(|| format!("the chain has no block {height}"))?;
        Ok(KnownBlock { height, hash })
    }
}

impl ProofSource for PeerProofs<'_> {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        let last = self.block(heights.end - 1)?;
        // Before block 1 the forest is empty, so there is no request.
        let first = (heights.start > 1).then(|| self.block(heights.start - 1)).transpose()?;
        let roots = first.into_iter().chain([last]).map(Question::Roots);
        let blocks = heights.heights().filter_map(|height| self.block(height).ok());
        let mut answers = self.peers.ask(roots.chain(blocks.map(Question::Proof)));
        let mut roots = |block| {
            let answer = answers.roots(&block).map_err(|error| error.to_string())?;
            roots_of(&answer, &block).map_err(|what| format!("{}: {what}", answers.answered_by()))
        };
        let before = first.map_or_else(|| Ok(Roots::default()), &mut roots)?;
        let after = roots(last)?;
        let reader = Box::new(PeerEntries { answers });
        Ok(ProofRange { heights, before, after, reader })
    }
}

/// The entries of one range.
struct PeerEntries<'a> {
    answers: ProofAnswers<'a>,
}

impl ProofReader for PeerEntries<'_> {
    fn read(&mut self, block: &KnownBlock, out: &mut Vec<u8>) -> Result<(), String> {
        let proof = self.answers.proof(block).map_err(|error| error.to_string())?;
        write_entry(proof, out).map_err(|what| format!("{}: {what}", self.answers.answered_by()))
    }

    fn origin(&self) -> String {
        self.answers.answered_by()
    }
}

/// Writes a peer's answer about a block to `out` in the form of an entry (`docs/utreexo.md`), replacing its
/// content.
fn write_entry(answer: PeerProof, out: &mut Vec<u8>) -> Result<(), String> {
    let PeerProof { hashes, targets, leaves, .. } = answer;
    if targets.len() != leaves.len() {
        // An entry does not store the number of leaves, so a wrong number would shift the fields after them.
        let (targets, leaves) = (targets.len(), leaves.len());
        return Err(format!(
            "it sent {targets} targets and {leaves} leaves; the numbers must be equal"
        ));
    }
    out.clear();
    let hashes = hashes.into_iter().map(NodeHash).collect();
    Proof { targets, hashes }.write(out);
    write_leaves(&leaves, out);
    Ok(())
}

/// The roots in a peer's answer about a block.
fn roots_of(answer: &PeerRoots, block: &KnownBlock) -> Result<Roots, String> {
    let mut bytes = answer.leaves.to_le_bytes().to_vec();
    bytes.extend((answer.roots.len() as u64).to_le_bytes());
    bytes.extend_from_slice(answer.roots.as_flattened());
    let KnownBlock { height, hash } = block;
    Roots::read(&bytes)
        .map_err(|error| format!("its roots after block {height} ({hash}) are invalid: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{PeerLeaf, PeerLeafScript};

    fn block() -> KnownBlock {
        KnownBlock { height: 5, hash: BlockHash([7; 32]) }
    }

    #[test]
    fn only_possible_roots_are_accepted() {
        let answer = PeerRoots {
            block: block().hash,
            leaves: 5,
            roots: vec![[1; 32], [0; 32]],
            target: 5,
            proof: Vec::new(),
        };
        let roots = roots_of(&answer, &block()).unwrap();
        assert_eq!(
            (roots.leaves(), roots.hashes()),
            (5, &[NodeHash([1; 32]), NodeHash::EMPTY][..])
        );
        let text = roots_of(&PeerRoots { leaves: 4, ..answer.clone() }, &block()).unwrap_err();
        assert!(text.contains("after block 5") && text.contains("4 leaves has 1 roots"), "{text}");
        let many = PeerRoots { leaves: u64::MAX, roots: vec![[1; 32]; 64], ..answer };
        let text = roots_of(&many, &block()).unwrap_err();
        assert!(text.contains("too many: a forest has"), "{text}");
    }

    #[test]
    fn an_entry_has_the_format_of_proof_files() {
        let leaf =
            PeerLeaf { header_code: 3, amount: 9, script: PeerLeafScript::Other(vec![0x51]) };
        let (block, hashes) = (block().hash, vec![[9; 32]]);
        let answer = PeerProof { block, hashes, targets: vec![300], leaves: vec![leaf] };
        let mut out = vec![1, 2, 3];
        write_entry(answer.clone(), &mut out).unwrap();
        let mut expected = vec![1, 0xfd, 0x2c, 0x01, 1];
        expected.extend([9; 32]);
        expected.extend([3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x51]);
        assert_eq!(out, expected);
        let text = write_entry(PeerProof { targets: vec![], ..answer }, &mut out).unwrap_err();
        assert!(text.contains("0 targets and 1 leaves"), "{text}");
    }
}
