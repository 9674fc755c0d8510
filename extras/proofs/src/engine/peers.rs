//! [`PeerProofs`]: proofs and roots from bridge nodes, requested range by range.
//!
//! The job chooses where ranges begin, since a peer has the roots after any block. It requests the roots at
//! both ends of a range when the range begins, and checks them against the roots that its blocks lead to and
//! against the neighbouring ranges, as for files.
//!
//! All data of a range come from one bridge, so it alone is to blame if they do not fit together. If it fails,
//! it is left out, and the range is done again from its start with another bridge.

use super::{
    BridgePeers, ByProofsError, ForestStart, ProofRange, ProofReader, ProofSource, ProvenError,
    Retry, RootsDiffer,
};
use crate::error::ProofsError;
use crate::message::{BRIDGE, PeerProof, PeerRoots, write_leaves};
use crate::peers::{ProofAnswers, ProofPeerError, ProofPeers, Question};
use apus_chain::{BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Network};
use apus_hash::sha256;
use apus_p2p::transport::Dial;
use apus_sync::source::ChainSource;
use apus_sync::{Event, Observer, SyncError, Warning};
use apus_utreexo::{NodeHash, Proof, Roots};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Most bridges to find: one is enough for speed, and with several one may lie.
const FOUND_MAX: usize = 8;

/// How long to wait for a second bridge.
const SECOND_WITHIN: Duration = Duration::from_secs(3);

/// How often to look for bridges until there is one.
const LOOK: Duration = Duration::from_millis(200);

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
    observer: &'a dyn Observer,
    /// The forest before the first block.
    start: ForestStart,
    /// Roots before the block of a height that follow from the blocks below it.
    proven: Mutex<BTreeMap<Height, Roots>>,
    /// How often a peer failed while there were others.
    failures: AtomicUsize,
}

/// The most blocks that bridges may be behind a chain's tip for a job to end at theirs.
const BEHIND_MAX: Height = 6;

impl<'a> PeerProofs<'a> {
    /// Connects to the peers. Requests are for blocks of the source's chain.
    pub fn connect(
        options: &BridgePeers,
        asking: ProofRequester<'a>,
        source: &'a dyn ChainSource,
    ) -> Result<Self, SyncError> {
        let peers = connect(options, &asking, source)?;
        let chain = source.chain();
        let (proven, failures) = (Mutex::default(), AtomicUsize::new(0));
        let start = ForestStart::genesis(chain);
        Ok(Self { chain, peers, observer: asking.observer, start, proven, failures })
    }

    /// Lets the first range begin with this forest.
    pub(super) fn starting_with(self, start: ForestStart) -> Self {
        Self { start, ..self }
    }

    /// Identifies a job with proofs from peers that begins with these roots, so that a later start recognizes it.
    /// The peers themselves do not matter: their data for a range were checked against its blocks, and its roots are stored.
    pub(super) fn id(first: &Roots) -> [u8; 32] {
        let mut bytes = b"ranges of proofs from peers".to_vec();
        first.write(&mut bytes);
        sha256(&bytes)
    }

    fn block(&self, height: Height) -> Result<KnownBlock, String> {
        let hash = self.chain.hash(height).copied();
        let hash: BlockHash = hash.ok_or_else(|| format!("the chain has no block {height}"))?;
        Ok(KnownBlock { height, hash })
    }

    /// Returns the last block, at most the chain's `tip`, whose roots a bridge has. Waits for bridges that are behind; if that is in vain, the job can end a few blocks lower.
    pub(super) fn reached(&self, tip: Height) -> Result<Height, SyncError> {
        let first = match self.asks_roots(tip, true) {
            Ok(()) => return Ok(tip),
            Err(ProofPeerError::Interrupted) => return Err(SyncError::Interrupted),
            Err(error) => error,
        };
        let lower = tip.saturating_sub(BEHIND_MAX).max(self.start.first())..tip;
        let mut lower = lower.rev().filter(|_| is_behind(&first));
        match lower.find(|height| self.asks_roots(*height, false).is_ok()) {
            Some(height) => {
                self.warn(format!(
                    "{first}. Apus ends at block {height}, {} below the tip: a bridge has its proofs",
                    blocks(tip - height)
                ));
                Ok(height)
            }
            None => Err(ProofsError::Peers(Box::new(first)).into()),
        }
    }

    fn asks_roots(&self, height: Height, waits: bool) -> Result<(), ProofPeerError> {
        let Ok(block) = self.block(height) else { return Ok(()) };
        self.any_answer(block, waits, |answers| answers.roots(&block).map(drop))
    }

    /// What the first bridge says that answers a question for roots. Leaves out bridges that fail. If `waits`, then
    /// waits for bridges that are behind.
    fn any_answer<T>(
        &self,
        block: KnownBlock,
        waits: bool,
        read: impl Fn(&mut ProofAnswers<'_>) -> Result<T, ProofPeerError>,
    ) -> Result<T, ProofPeerError> {
        let ask = |peer| self.peers.ask(peer, iter::once(Question::Roots(block)));
        let (mut behind, mut failed, mut asked) = (Vec::new(), None, HashSet::new());
        // If all fail, others are asked that could not be reached before.
        while let Some(peer) =
            self.peers.choose(usize::MAX).into_iter().find(|peer| !asked.contains(peer))
        {
            asked.insert(peer);
            match read(&mut ask(peer).at_once()) {
                Err(error) if is_behind(&error) => behind.push((peer, error)),
                Err(error @ ProofPeerError::Interrupted) => return Err(error),
                Err(error) => {
                    self.leave_out(peer, &BridgeFailure::of(&error));
                    failed = Some(error);
                }
                Ok(found) => return Ok(found),
            }
        }
        for (peer, error) in behind {
            failed = Some(error);
            if waits {
                match read(&mut ask(peer)) {
                    Err(error @ ProofPeerError::Interrupted) => return Err(error),
                    Err(error) => failed = Some(error),
                    Ok(found) => return Ok(found),
                }
            }
        }
        // Without any peer, nothing was asked.
        Err(failed.unwrap_or(ProofPeerError::OutOfTurn { what: "roots" }))
    }

    /// Compares the trusted roots with those of each bridge, and leaves out bridges that have others.
    ///
    /// # Errors
    /// No bridge has the user's roots. Then the bridges are not at fault, but probably these roots or their block.
    pub(super) fn expect_trusted(&self) -> Result<(), SyncError> {
        let Some(origin) = &self.start.origin else { return Ok(()) };
        let question = || iter::once(Question::Roots(self.start.block));
        let (mut others, mut is_confirmed) = (Vec::new(), false);
        for peer in self.peers.choose(usize::MAX) {
            match self.other_roots(&mut self.peers.ask(peer, question()).at_once()) {
                Ok(None) => is_confirmed = true,
                Ok(Some(what)) => others.push((peer, what)),
                Err(ProofPeerError::Interrupted) => return Err(SyncError::Interrupted),
                // It is asked again if there is no other.
                Err(_) => {}
            }
        }
        if !is_confirmed && others.is_empty() {
            let found = self.any_answer(self.start.block, true, |it| self.other_roots(it));
            let found = found.map_err(|error| match error {
                ProofPeerError::Interrupted => SyncError::Interrupted,
                error => ProofsError::Peers(Box::new(error)).into(),
            })?;
            let Some(what) = found else { return Ok(()) };
            return Err(self.start.other_roots(origin, what).into());
        }
        if !is_confirmed {
            let others: Vec<String> = others.into_iter().map(|(_, what)| what).collect();
            return Err(self.start.other_roots(origin, others.join("; ")).into());
        }
        let KnownBlock { height, hash } = self.start.block;
        for (peer, what) in others {
            let why =
                format!("the roots of block {height} ({hash}) are not those in {origin}: {what}");
            self.leave_out(peer, &why.into());
        }
        Ok(())
    }

    /// How the roots in an answer differ from the trusted ones; `None` if they do not.
    fn other_roots(
        &self,
        answers: &mut ProofAnswers<'_>,
    ) -> Result<Option<String>, ProofPeerError> {
        let ForestStart { block, roots, .. } = &self.start;
        let answer = answers.roots(block)?;
        let what = match roots_of(&answer, block) {
            Ok(found) if found == *roots => return Ok(None),
            Ok(found) => RootsDiffer::between(&found, roots).to_string(),
            Err(what) => what,
        };
        Ok(Some(format!("{} has {what}", answers.peer_name())))
    }

    fn warn(&self, text: String) {
        self.observer.event(Event::Warning(Warning::Extra(text)));
    }

    /// Asks the bridge whose data an error concerns nothing more, if there are others. Returns whether there are.
    fn blame(&self, wrong: &ProvenError) -> bool {
        let (ProvenError::Entry { origin, .. }
        | ProvenError::After { origin, .. }
        | ProvenError::Refused { origin, .. }) = wrong
        else {
            return false;
        };
        let peer = self.peers.index_of(origin);
        peer.is_some_and(|peer| self.leave_out(peer, &wrong.to_string().into()))
    }

    /// Asks a peer that failed no more, if there are others. Returns whether there are.
    fn leave_out(&self, peer: usize, failure: &BridgeFailure) -> bool {
        // A wait that was interrupted is nobody's fault.
        let others =
            !self.peers.is_interrupted() && leave_out(&self.peers, peer, failure, self.observer);
        self.failures.fetch_add(usize::from(others), Ordering::Relaxed);
        others
    }

    /// Whether there are several peers, even if some were left out.
    pub(super) fn are_several(&self) -> bool {
        self.peers.count() > 1
    }

    /// Notes the roots that the blocks below a height lead to.
    pub(super) fn prove(&self, height: Height, roots: Roots) {
        self.proven.lock().insert(height, roots);
    }

    fn proven(&self, height: Height) -> Option<Roots> {
        self.proven.lock().get(&height).cloned()
    }
}

/// Connects to the named bridges, and warns of each that cannot be reached; or finds bridges among the nodes that
/// `source` knows.
pub(crate) fn connect<'a>(
    options: &BridgePeers,
    asking: &ProofRequester<'a>,
    source: &dyn ChainSource,
) -> Result<ProofPeers<'a>, SyncError> {
    let nonce = u64::from_le_bytes(apus_sync::system::random_bytes()?);
    let dial = Dial {
        proxy: options.proxy,
        transport: options.transport,
        handshake_timeout: HANDSHAKE_TIMEOUT,
        ..Dial::new(asking.network, nonce)
    };
    if options.addresses.is_empty() {
        return find(options.patience, &dial, asking, source);
    }
    let (addresses, patience) = (options.addresses.clone(), options.patience);
    let peers = ProofPeers::connect(addresses, dial, patience, asking.interrupt);
    let peers = peers.map_err(|error| ProofsError::Peers(Box::new(error)))?;
    for absent in peers.absent() {
        let text = format!(
            "{absent}. Apus starts with the other peers, and tries this peer again if they all fail"
        );
        asking.observer.event(Event::Warning(Warning::Extra(text)));
    }
    Ok(peers)
}

/// Connects to nodes that announce themselves as bridges, and waits until there is one; for a short time also for a
/// second one, because any node can announce itself, and only two can be compared.
fn find<'a>(
    patience: Duration,
    dial: &Dial,
    asking: &ProofRequester<'a>,
    source: &dyn ChainSource,
) -> Result<ProofPeers<'a>, SyncError> {
    let began = Instant::now();
    loop {
        let nodes = source.nodes_with(BRIDGE, FOUND_MAX);
        if nodes.len() < 2 && began.elapsed() < SECOND_WITHIN.min(patience) {
            sleep(LOOK);
            continue;
        }
        let found = ProofPeers::connect_to_any(nodes, dial, patience, asking.interrupt);
        if let Some(peers) = found.map_err(|error| ProofsError::Peers(Box::new(error)))? {
            return Ok(peers);
        }
        if began.elapsed() >= patience {
            return Err(ProofsError::NoneFound { seconds: began.elapsed().as_secs() }.into());
        }
        sleep(LOOK);
    }
}

/// How a bridge failed.
pub(crate) struct BridgeFailure {
    pub(crate) why: String,
    /// Whether it may answer later: it sent nothing wrong.
    may_pass: bool,
}

impl BridgeFailure {
    pub(crate) fn of(error: &ProofPeerError) -> Self {
        Self { why: error.to_string(), may_pass: error.may_pass() }
    }
}

/// The bridge sent something wrong.
impl From<String> for BridgeFailure {
    fn from(why: String) -> Self {
        Self { why, may_pass: false }
    }
}

/// Asks a bridge no more, if there are others, and warns of that. Returns whether there are.
pub(crate) fn leave_out(
    peers: &ProofPeers<'_>,
    peer: usize,
    BridgeFailure { why, may_pass }: &BridgeFailure,
    observer: &dyn Observer,
) -> bool {
    let Some(is_new) = peers.leave_out(peer, *may_pass) else { return false };
    if is_new {
        let name = peers.name_of(peer);
        let then = match may_pass {
            true => format!("continues with other bridges, and asks {name} again if these fail"),
            false => format!("asks {name} nothing more, and continues with other bridges"),
        };
        observer.event(Event::Warning(Warning::Extra(format!("{why}. Apus {then}"))));
    }
    true
}

/// Whether a peer gives no answer because it is behind.
fn is_behind(error: &ProofPeerError) -> bool {
    match error {
        ProofPeerError::GaveUp { error, .. } => is_behind(error),
        error => matches!(error, ProofPeerError::Unanswered { .. }),
    }
}

fn blocks(count: u32) -> String {
    if count == 1 { "a block".to_owned() } else { format!("{count} blocks") }
}

impl ProofSource for PeerProofs<'_> {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        let last = self.block(heights.end - 1)?;
        // The forest before the first block is known, so there is no request.
        let first = (heights.start > self.start.first())
            .then(|| self.block(heights.start - 1))
            .transpose()?;
        loop {
            let peer = self.peers.choose(1).pop().ok_or("there is no bridge to ask")?;
            let roots = first.into_iter().chain([last]).map(Question::Roots);
            let blocks = heights.heights().filter_map(|height| self.block(height).ok());
            let mut answers = self.peers.ask(peer, roots.chain(blocks.map(Question::Proof)));
            match self.ends(&mut answers, first, last) {
                Ok((before, after)) => {
                    let reader = Box::new(PeerEntries { source: self, answers });
                    return Ok(ProofRange { heights, before, after, reader });
                }
                Err(failure) if self.leave_out(peer, &failure) => {}
                Err(failure) => return Err(failure.why),
            }
        }
    }

    fn retry(&self) -> Retry<'_> {
        let before = self.failures.load(Ordering::Relaxed);
        Box::new(move |error| match error.downcast() {
            Some(ByProofsError { error, .. }) => self.blame(error),
            None => self.failures.load(Ordering::Relaxed) > before,
        })
    }
}

impl PeerProofs<'_> {
    /// The roots after the block before a range, if there is one, and after its last block.
    fn ends(
        &self,
        answers: &mut ProofAnswers<'_>,
        first: Option<KnownBlock>,
        last: KnownBlock,
    ) -> Result<(Roots, Roots), BridgeFailure> {
        let before = match first {
            Some(block) => self.roots(answers, &block)?,
            None => self.start.roots.clone(),
        };
        Ok((before, self.roots(answers, &last)?))
    }

    /// A peer's roots after a block, which must be the proven ones if these are known.
    fn roots(
        &self,
        answers: &mut ProofAnswers<'_>,
        block: &KnownBlock,
    ) -> Result<Roots, BridgeFailure> {
        let answer = answers.roots(block).map_err(|error| BridgeFailure::of(&error))?;
        let peer = answers.peer_name();
        let roots = roots_of(&answer, block).map_err(|what| format!("{peer}: {what}"))?;
        let KnownBlock { height, hash } = block;
        match self.proven(height + 1).is_none_or(|proven| proven == roots) {
            true => Ok(roots),
            false => Err(format!("{peer} sent wrong roots of block {height} ({hash})").into()),
        }
    }
}

/// The entries of one range.
struct PeerEntries<'a> {
    source: &'a PeerProofs<'a>,
    answers: ProofAnswers<'a>,
}

impl ProofReader for PeerEntries<'_> {
    fn read(
        &mut self,
        block: &KnownBlock,
        spends_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let answer = self.answers.proof(block, spends_max);
        let read = answer.map_err(|error| BridgeFailure::of(&error)).and_then(|proof| {
            let written = write_entry(proof, out);
            written.map_err(|what| format!("{}: {what}", self.answers.peer_name()).into())
        });
        read.map_err(|failure| {
            self.source.leave_out(self.answers.peer(), &failure);
            failure.why
        })
    }

    fn origin(&self) -> String {
        self.answers.peer_name()
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
