//! [`BlockFinder`]: headers and places while they are found, and the chain that they settle on.

use super::describe;
use super::ways_back::{WaysBack, branches};
use crate::error::{ChainGap, GapStretch, InvalidBlock, SourceError};
use crate::progress::{Event, Observer, Phase, Progress};
use apus_chain::{ANY_TIME, BlockHash, Header, HeaderChain, HeaderId, HeaderTree, Height, Params};
use apus_datadir::{BlockFile, BlockFiles, BlockLocation, ScanSummary};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many reasons for refused headers an error message may list, and how many missing blocks.
const TOLD: usize = 3;

/// Headers and the places of their blocks.
pub(super) struct BlockFinder<'a> {
    files: &'a BlockFiles,
    tree: HeaderTree,
    /// First place of each header, by its id in the tree.
    places: Vec<Option<BlockLocation>>,
    copies: HashMap<usize, Vec<BlockLocation>>,
    gap: ChainGap,
    /// Where blocks of Bitcoin Knots' own proof of work lie.
    knots: HashSet<(u32, u64)>,
    /// Blocks that are taken for missing.
    invalid: HashMap<BlockHash, &'a InvalidBlock>,
}

/// What is known once all headers are.
pub(super) struct Settled {
    pub(super) chain: HeaderChain,
    /// By height.
    pub(super) places: Vec<BlockLocation>,
    /// Further places, by height.
    pub(super) copies: HashMap<Height, Vec<BlockLocation>>,
    /// The place of each block that is on another chain, all of whose ancestors are there.
    pub(super) beside: HashMap<BlockHash, BlockLocation>,
    pub(super) ways_back: WaysBack,
    pub(super) gap: ChainGap,
}

impl<'a> BlockFinder<'a> {
    pub(super) fn new(files: &'a BlockFiles, params: &Params, invalid: &'a [InvalidBlock]) -> Self {
        // Whoever takes the chain compares it with the clock: to leave blocks out for their times would hide that the
        // clock is wrong.
        let mut tree = HeaderTree::new(params, ANY_TIME);
        // Waiting headers take about as much memory as connected ones, and each is a block that
        // lies on this disk.
        tree.set_orphans_max(usize::MAX);
        let invalid = invalid.iter().map(|invalid| (invalid.block.hash, invalid)).collect();
        let (places, copies, gap) = (Vec::new(), HashMap::new(), ChainGap::default());
        Self { files, tree, places, copies, gap, knots: HashSet::new(), invalid }
    }

    /// Takes one header and where its block lies, with the height that an index has for it.
    pub(super) fn header(&mut self, raw: &[u8; 80], place: BlockLocation, height: Option<Height>) {
        if !self.invalid.is_empty()
            && let Some(&invalid) = self.invalid.get(&BlockHash(apus_hash::sha256d(raw)))
        {
            // What descends from it waits for good, as if it were missing.
            if !self.gap.invalid.contains(invalid) {
                self.gap.invalid.push(invalid.clone());
            }
            return;
        }
        match self.tree.accept(raw) {
            Ok(accepted) => {
                let id = accepted.id().index();
                if self.places.len() <= id {
                    self.places.resize(id + 1, None);
                }
                match &mut self.places[id] {
                    Some(known) if known.file == place.file && known.offset == place.offset => {}
                    Some(_) => self.copies.entry(id).or_default().push(place),
                    slot => *slot = Some(place),
                }
            }
            Err(_) if Header::parse(raw).is_extended() => {
                if self.knots.insert((place.file, place.offset)) {
                    self.gap.knots.add(height);
                }
            }
            Err(error) => {
                self.gap.refused_count += 1;
                if self.gap.refused.len() < TOLD {
                    self.gap.refused.push(format!("{}: {error}", describe(self.files, place)));
                }
            }
        }
    }

    /// An index says that the block of a height is stored, and it is in no file.
    pub(super) fn absent(&mut self, height: Height) {
        self.gap.absent.add(Some(height));
    }

    /// An index has a header of a height without its block.
    pub(super) fn header_alone(&mut self, height: Height) {
        self.gap.headers = self.gap.headers.max(Some(height));
    }

    /// Goes through `files` for headers.
    pub(super) fn scan(
        &mut self,
        files: &[BlockFile],
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<ScanSummary, SourceError> {
        let all = self.files;
        let mut summary = ScanSummary::default();
        let bytes_total = files.iter().map(|file| file.length).sum();
        let mut progress = Progress { bytes_total, ..Progress::default() };
        for file in files {
            let found = all.scan_file(file.number, &mut |header, place| {
                self.header(header, place, None);
                progress.blocks += 1;
                if interrupt.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            if interrupt.load(Ordering::Relaxed) {
                return Err(SourceError::Interrupted);
            }
            if found.records == 0 && found.resynced_bytes > 0 {
                all.expect_obfuscated(file.number)?;
                self.gap.unreadable.push(file.number);
            }
            summary.merge(found);
            progress.bytes += file.length;
            observer.event(Event::Progress(Phase::Headers, progress));
        }
        Ok(summary)
    }

    /// The most-work chain of the headers found; none where there is but the genesis block.
    pub(super) fn settle(self) -> Option<Settled> {
        let tip = self.tree.tip();
        let chain = HeaderChain::best_of(&self.tree);
        (chain.tip_height() > 0).then(|| self.settled(tip, chain))
    }

    /// The chain of the headers found that ends in a block.
    pub(super) fn settle_at(self, tip: &BlockHash) -> Result<Settled, SourceError> {
        let found = self.tree.find(tip);
        let chain = found.and_then(|id| Some((id, HeaderChain::up_to(&self.tree, id)?)));
        match chain.filter(|(_, chain)| chain.tip_height() > 0) {
            Some((id, chain)) => Ok(self.settled(id, chain)),
            None => Err(SourceError::Node(format!(
                "by its block index the node of {} has not all blocks up to {tip} with their undo data",
                self.files.home().display()
            ))),
        }
    }

    fn settled(self, tip: HeaderId, chain: HeaderChain) -> Settled {
        let Self { files, tree, places, mut copies, mut gap, invalid, .. } = self;
        // What is no higher may have come of a branch that was left.
        let is_above = |height: &Height| *height > chain.tip_height();
        gap.headers = gap.headers.filter(is_above);
        if !gap.absent.highest.is_some_and(|height| is_above(&height)) {
            gap.absent = GapStretch::default();
        }
        gap.orphans = tree.orphans_count();
        let mut missing: Vec<BlockHash> =
            tree.missing_parents().filter(|hash| !invalid.contains_key(hash)).copied().collect();
        gap.unjoined = missing.iter().map(|hash| tree.orphans_above(hash)).sum();
        gap.files = ChainGap::between(files.files()).files;
        missing.sort_unstable();
        gap.missing_count = missing.len();
        missing.truncate(TOLD);
        gap.missing = missing;
        let mut by_height = Vec::with_capacity(chain.tip_height() as usize + 1);
        let mut copies_by_height = HashMap::new();
        let path = tree.path_to(tip);
        let branches = branches(&tree, &path);
        let place_of = |id: HeaderId| places.get(id.index()).copied().flatten();
        let beside = branches.keys().filter_map(|id| Some((*tree.hash(*id), place_of(*id)?)));
        let (beside, ways_back) = (beside.collect(), WaysBack::new(&tree, &path, &branches));
        for (height, id) in path.into_iter().enumerate() {
            // Of the whole chain only the genesis block can be without a place.
            let nowhere = BlockLocation { file: 0, offset: 0, size: 0 };
            by_height.push(place_of(id).unwrap_or(nowhere));
            if let Some(copies) = copies.remove(&id.index()) {
                copies_by_height.insert(height as Height, copies);
            }
        }
        let (places, copies) = (by_height, copies_by_height);
        Settled { chain, places, copies, beside, ways_back, gap }
    }
}
