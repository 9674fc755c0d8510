//! [`BlockTree`]: all known headers and blocks, which of them failed, and which chain is best.
//!
//! This is pure bookkeeping in Core's terms (`chain.h`, `node/blockstorage.h`, `validation.cpp`): no block
//! bytes, no coins, no rules. The *candidates* are always exactly the blocks whose whole chain is present and
//! did not fail; Core keeps only candidates at least as good as its tip, which has the same greatest
//! element. The caller reports which blocks it connects.

use apus_chain::{
    Ancestry, BlockHash, ConnectedHeader, Header, HeaderAcceptance, HeaderError, HeaderId,
    HeaderStatus, HeaderTree, Height, KnownBlock, Params,
};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// The state of a block in the tree, apart from its header.
#[derive(Debug, Clone, Copy)]
struct TreeNode {
    id: HeaderId,
    /// Whether its bytes are present and passed every rule that needs no coins (`BLOCK_HAVE_DATA`).
    has_block: bool,
    /// The order in which it and all its ancestors became complete (`nSequenceId`); `None` while one is
    /// missing.
    sequence: Option<u64>,
    /// Whether it or one of its ancestors is invalid (`BLOCK_FAILED_VALID`).
    failed: bool,
}

/// A block that could be the tip, in the order of Core's `CBlockIndexWorkComparator`: more work is better; on a
/// tie, the block whose chain was complete first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TipCandidate {
    chain_work: u128,
    sequence: Reverse<u64>,
    id: HeaderId,
}

/// Headers, blocks and the active chain.
pub(super) struct BlockTree {
    headers: HeaderTree,
    nodes: Vec<TreeNode>,
    candidates: BTreeSet<TipCandidate>,
    /// Waiting blocks, by their closest ancestor that is known only by its header.
    waiting: HashMap<HeaderId, Vec<HeaderId>>,
    /// The active chain by height. It always contains the genesis block.
    active: Vec<HeaderId>,
    next_sequence: u64,
}

impl BlockTree {
    /// Makes a tree with only the genesis block.
    pub(super) fn new(params: &Params) -> Self {
        let headers = HeaderTree::new(params, 0);
        let genesis = headers.tip();
        let mut tree = Self {
            headers,
            nodes: vec![TreeNode { id: genesis, has_block: true, sequence: None, failed: false }],
            candidates: BTreeSet::new(),
            waiting: HashMap::new(),
            active: vec![genesis],
            next_sequence: 0,
        };
        tree.link(genesis);
        tree
    }

    /// Returns the chain's rules.
    pub(super) fn params(&self) -> &Params {
        self.headers.params()
    }

    /// Finds a header by its hash.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<HeaderId> {
        self.headers.find(hash)
    }

    /// Returns the hash of a header.
    pub(super) fn hash(&self, id: HeaderId) -> BlockHash {
        *self.headers.hash(id)
    }

    /// Returns a header with its height, work and hash.
    pub(super) fn header(&self, id: HeaderId) -> ConnectedHeader {
        match self.headers.status(id) {
            HeaderStatus::Connected(header) => header,
            // `accept_header` accepts no header without its parent.
            HeaderStatus::Orphan | HeaderStatus::Rejected => {
                unreachable!("every header of this tree is connected")
            }
        }
    }

    /// Returns the median time past of a header, itself included.
    pub(super) fn median_time_past(&self, id: HeaderId) -> u32 {
        self.headers.median_time_past(id)
    }

    /// Returns whether the block's bytes are present.
    pub(super) fn has_block(&self, id: HeaderId) -> bool {
        self.nodes[id.index()].has_block
    }

    /// Returns whether the block or one of its ancestors is invalid.
    pub(super) fn is_failed(&self, id: HeaderId) -> bool {
        self.nodes[id.index()].failed
    }

    /// Accepts a header whose parent is present (Core `validation.cpp`, `AcceptBlockHeader`). `now` is the time
    /// against which it may be too new.
    ///
    /// # Panics
    /// If the parent is missing.
    pub(super) fn accept_header(
        &mut self,
        header: &[u8; Header::SIZE],
        now: i64,
    ) -> Result<HeaderId, HeaderError> {
        self.headers.set_now(now);
        match self.headers.accept(header)? {
            HeaderAcceptance::New(id) => {
                assert_eq!(
                    id.index(),
                    self.nodes.len(),
                    "only this function assigns ids, without gaps"
                );
                self.nodes.push(TreeNode { id, has_block: false, sequence: None, failed: false });
                Ok(id)
            }
            HeaderAcceptance::Known(id) => Ok(id),
            HeaderAcceptance::Orphan(_) => unreachable!("the caller looked for the parent"),
        }
    }

    /// Records that a block's bytes are present (Core `validation.cpp`, `ReceivedBlockTransactions`). If all
    /// its ancestors are present, it and the blocks that waited for it become candidates, breadth first.
    pub(super) fn add_block(&mut self, id: HeaderId) {
        self.nodes[id.index()].has_block = true;
        let parent = self.header(id).parent.expect("the genesis block is present from the start");
        if self.nodes[parent.index()].sequence.is_none() {
            self.waiting.entry(parent).or_default().push(id);
            return;
        }
        let mut whole = VecDeque::from([id]);
        while let Some(id) = whole.pop_front() {
            self.link(id);
            whole.extend(self.waiting.remove(&id).unwrap_or_default());
        }
    }

    fn link(&mut self, id: HeaderId) {
        self.nodes[id.index()].sequence = Some(self.next_sequence);
        self.next_sequence += 1;
        if !self.is_failed(id) {
            self.candidates.extend(self.candidate(id));
        }
    }

    fn candidate(&self, id: HeaderId) -> Option<TipCandidate> {
        let chain_work = self.header(id).chain_work;
        let sequence = self.nodes[id.index()].sequence?;
        Some(TipCandidate { chain_work, sequence: Reverse(sequence), id })
    }

    /// Marks a block and all its descendants as failed (Core `validation.cpp`, `InvalidChainFound`,
    /// `SetBlockFailureFlags`). The genesis block cannot fail.
    pub(super) fn mark_failed(&mut self, id: HeaderId) {
        if self.header(id).height == 0 {
            return;
        }
        for id in self.with_descendants(id) {
            self.nodes[id.index()].failed = true;
            if let Some(candidate) = self.candidate(id) {
                self.candidates.remove(&candidate);
            }
        }
    }

    /// Clears the failures of a block, its ancestors and its descendants, regardless of their reason (Core
    /// `validation.cpp`, `ResetBlockFailureFlags`).
    pub(super) fn clear_failed(&mut self, id: HeaderId) {
        let ancestors = self.headers.lineage_of(id).skip(1);
        let family: Vec<HeaderId> = ancestors.chain(self.with_descendants(id)).collect();
        for id in family {
            if std::mem::take(&mut self.nodes[id.index()].failed) {
                self.candidates.extend(self.candidate(id));
            }
        }
    }

    /// Returns a header and all its descendants. Children have greater ids than their parents.
    fn with_descendants(&self, id: HeaderId) -> Vec<HeaderId> {
        let first = id.index();
        let mut descends = vec![false; self.nodes.len() - first];
        descends[0] = true;
        let mut family = vec![id];
        for (place, node) in self.nodes.iter().enumerate().skip(first + 1) {
            let parent = self.header(node.id).parent.map_or(0, HeaderId::index);
            if parent >= first && descends[parent - first] {
                descends[place - first] = true;
                family.push(node.id);
            }
        }
        family
    }

    /// Returns the block that should be the tip (Core `validation.cpp`, `FindMostWorkChain`).
    pub(super) fn best(&self) -> HeaderId {
        self.candidates.last().expect("the genesis block never fails").id
    }

    /// Returns the tip of the active chain.
    pub(super) fn tip(&self) -> HeaderId {
        *self.active.last().expect("the genesis block never leaves")
    }

    /// Returns the tip of the active chain, as height and hash.
    pub(super) fn tip_block(&self) -> KnownBlock {
        let tip = self.tip();
        KnownBlock { height: self.header(tip).height, hash: self.hash(tip) }
    }

    /// Returns whether a block is on the active chain.
    pub(super) fn is_active(&self, id: HeaderId) -> bool {
        self.active.get(self.header(id).height as usize) == Some(&id)
    }

    /// Returns the highest block of the active chain that is `id` or one of its ancestors.
    pub(super) fn fork(&self, id: HeaderId) -> HeaderId {
        let mut lineage = self.headers.lineage_of(id);
        lineage.find(|&id| self.is_active(id)).expect("the genesis block is every block's ancestor")
    }

    /// Returns the blocks above `fork` up to `id`, by ascending height.
    pub(super) fn path(&self, fork: HeaderId, id: HeaderId) -> Vec<HeaderId> {
        let mut path: Vec<HeaderId> =
            self.headers.lineage_of(id).take_while(|&id| id != fork).collect();
        path.reverse();
        path
    }

    /// Returns whether `id` is `ancestor` or descends from it.
    pub(super) fn descends(&self, id: HeaderId, ancestor: HeaderId) -> bool {
        self.headers.lineage_of(id).any(|id| id == ancestor)
    }

    /// Records that a block was connected to the tip.
    pub(super) fn extend_active(&mut self, id: HeaderId) {
        debug_assert_eq!(self.header(id).parent, Some(self.tip()), "connected out of order");
        self.active.push(id);
    }

    /// Records that the tip was disconnected.
    pub(super) fn shorten_active(&mut self) {
        debug_assert!(self.active.len() > 1, "the genesis block never leaves");
        self.active.pop();
    }

    /// Makes a chain the active one, without connecting anything.
    pub(super) fn set_active(&mut self, tip: HeaderId) {
        self.active = self.headers.path_to(tip);
    }

    /// Returns whether a block and all its ancestors are present.
    pub(super) fn is_whole(&self, id: HeaderId) -> bool {
        self.nodes[id.index()].sequence.is_some()
    }
}

/// Looks up ancestors on the active chain.
impl Ancestry for BlockTree {
    fn hash(&self, height: Height) -> Option<BlockHash> {
        self.active.get(height as usize).map(|&id| self.hash(id))
    }

    fn median_time_past(&self, height: Height) -> Option<u32> {
        self.active.get(height as usize).map(|&id| self.median_time_past(id))
    }
}
