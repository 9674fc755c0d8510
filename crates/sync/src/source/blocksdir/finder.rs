//! [`BlockFinder`]: collects headers and positions during the search, and chooses the chain.

use super::competing::{CompetingBranches, branches};
use super::describe;
use crate::error::{ChainGap, GapRange, InvalidBlock, SourceError};
use crate::progress::{Event, Observer, Phase, Progress};
use apus_chain::{ANY_TIME, BlockHash, Header, HeaderChain, HeaderId, HeaderTree, Height, Params};
use apus_datadir::{BlockFile, BlockFiles, BlockLocation, ScanSummary};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// At most this many reasons for rejected headers, and missing blocks, are listed in an error message.
const LISTED_MAX: usize = 3;

/// Headers and the positions of their blocks.
pub(super) struct BlockFinder<'a> {
    files: &'a BlockFiles,
    tree: HeaderTree,
    /// First position of each header, by its id in the tree.
    places: Vec<Option<BlockLocation>>,
    copies: HashMap<usize, Vec<BlockLocation>>,
    gap: ChainGap,
    /// Positions of blocks with Bitcoin Knots' own proof of work.
    knots: HashSet<(u32, u64)>,
    /// Invalid blocks, treated as missing.
    invalid: HashMap<BlockHash, &'a InvalidBlock>,
}

/// The chain chosen among all headers found.
pub(super) struct FoundChain {
    pub(super) chain: HeaderChain,
    /// Positions, by height.
    pub(super) places: Vec<BlockLocation>,
    /// Positions of additional copies, by height.
    pub(super) copies: HashMap<Height, Vec<BlockLocation>>,
    /// The positions of blocks on other chains whose ancestors are all present.
    pub(super) off_chain: HashMap<BlockHash, BlockLocation>,
    pub(super) competing: CompetingBranches,
    pub(super) gap: ChainGap,
}

impl<'a> BlockFinder<'a> {
    pub(super) fn new(files: &'a BlockFiles, params: &Params, invalid: &'a [InvalidBlock]) -> Self {
        // The caller compares the chain with the clock: leaving blocks out for their times would hide that the clock is
        // wrong.
        let mut tree = HeaderTree::new(params, ANY_TIME);
        // Waiting headers take about as much memory as connected ones, and each is a block on this disk.
        tree.set_orphans_max(usize::MAX);
        let invalid = invalid.iter().map(|invalid| (invalid.block.hash, invalid)).collect();
        let (places, copies, gap) = (Vec::new(), HashMap::new(), ChainGap::default());
        Self { files, tree, places, copies, gap, knots: HashSet::new(), invalid }
    }

    /// Adds a header and the position of its block, with its height in the index, if there is one.
    pub(super) fn header(&mut self, raw: &[u8; 80], place: BlockLocation, height: Option<Height>) {
        if !self.invalid.is_empty()
            && let Some(&invalid) = self.invalid.get(&BlockHash(apus_hash::sha256d(raw)))
        {
            // Its header is left out, so its descendants are never connected.
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
                if self.gap.refused.len() < LISTED_MAX {
                    self.gap.refused.push(format!("{}: {error}", describe(self.files, place)));
                }
            }
        }
    }

    /// Notes that a block that the index lists as stored is in no file.
    pub(super) fn absent(&mut self, height: Height) {
        self.gap.absent.add(Some(height));
    }

    /// Notes that the index has a header whose block is not stored.
    pub(super) fn header_alone(&mut self, height: Height) {
        self.gap.headers = self.gap.headers.max(Some(height));
    }

    /// Scans `files` for headers.
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

    /// Returns the most-work chain of the headers found; `None` if there is only the genesis block.
    pub(super) fn settle(self) -> Option<FoundChain> {
        let tip = self.tree.tip();
        let chain = HeaderChain::best_of(&self.tree);
        (chain.tip_height() > 0).then(|| self.settled(tip, chain))
    }

    /// Returns the chain of the headers found that ends in a block.
    pub(super) fn settle_at(self, tip: &BlockHash) -> Result<FoundChain, SourceError> {
        let found = self.tree.find(tip);
        let chain = found.and_then(|id| Some((id, HeaderChain::up_to(&self.tree, id)?)));
        match chain.filter(|(_, chain)| chain.tip_height() > 0) {
            Some((id, chain)) => Ok(self.settled(id, chain)),
            None => Err(SourceError::Node(format!(
                "the node of {} lacks blocks or undo data up to {tip} in its block index",
                self.files.home().display()
            ))),
        }
    }

    fn settled(self, tip: HeaderId, chain: HeaderChain) -> FoundChain {
        let Self { files, tree, places, mut copies, mut gap, invalid, .. } = self;
        // Entries that are not higher may belong to a stale branch.
        let is_above = |height: &Height| *height > chain.tip_height();
        gap.headers = gap.headers.filter(is_above);
        if !gap.absent.highest.is_some_and(|height| is_above(&height)) {
            gap.absent = GapRange::default();
        }
        gap.orphans = tree.orphans_count();
        let mut missing: Vec<BlockHash> =
            tree.missing_parents().filter(|hash| !invalid.contains_key(hash)).copied().collect();
        gap.unjoined = missing.iter().map(|hash| tree.orphans_above(hash)).sum();
        gap.files = ChainGap::between(files.files()).files;
        missing.sort_unstable();
        gap.missing_count = missing.len();
        missing.truncate(LISTED_MAX);
        gap.missing = missing;
        let mut by_height = Vec::with_capacity(chain.tip_height() as usize + 1);
        let mut copies_by_height = HashMap::new();
        let path = tree.path_to(tip);
        let branches = branches(&tree, &path);
        let place_of = |id: HeaderId| places.get(id.index()).copied().flatten();
        let off_chain = branches.keys().filter_map(|id| Some((*tree.hash(*id), place_of(*id)?)));
        let (off_chain, competing) =
            (off_chain.collect(), CompetingBranches::new(&tree, &path, &branches));
        for (height, id) in path.into_iter().enumerate() {
            // In the whole chain only the genesis block may have no position.
            let nowhere = BlockLocation { file: 0, offset: 0, size: 0 };
            by_height.push(place_of(id).unwrap_or(nowhere));
            if let Some(copies) = copies.remove(&id.index()) {
                copies_by_height.insert(height as Height, copies);
            }
        }
        let (places, copies) = (by_height, copies_by_height);
        FoundChain { chain, places, copies, off_chain, competing, gap }
    }
}
