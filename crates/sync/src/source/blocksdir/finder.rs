//! [`BlockFinder`]: collects headers and positions during the search, and chooses the chain.

use super::competing::{CompetingBranches, branches};
use super::describe;
use super::heads::NOWHERE;
use crate::error::{ChainGap, GapRange, InvalidBlock, SourceError};
use crate::progress::{Event, Observer, Phase, Progress, unless_interrupted};
use apus_chain::{ANY_TIME, BlockHash, Header, HeaderChain, HeaderId, HeaderTree, Height, Params};
use apus_datadir::{BlockFile, BlockFiles, BlockLocation, ScanSummary};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// At most this many reasons for rejected headers, and missing blocks, are listed in an error message.
const LISTED_MAX: usize = 3;

/// Headers and the positions of their blocks.
pub(super) struct BlockFinder<'a> {
    files: &'a BlockFiles,
    tree: HeaderTree,
    /// First position of each header, by its id in the tree.
    places: Vec<BlockLocation>,
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
                    self.places.resize(id + 1, NOWHERE);
                }
                match &mut self.places[id] {
                    first if *first == NOWHERE => *first = place,
                    known if known.file == place.file && known.offset == place.offset => {}
                    _ => self.copies.entry(id).or_default().push(place),
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
                unless_interrupted(interrupt)
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
        self.settled(tip)
    }

    /// Returns the chain of the headers found that ends in a block.
    pub(super) fn settle_at(self, tip: &BlockHash) -> Result<FoundChain, SourceError> {
        let home = self.files.home();
        self.tree.find(tip).and_then(|id| self.settled(id)).ok_or_else(|| {
            SourceError::Node(format!(
                "the node of {} lacks blocks or undo data up to {tip} in its block index",
                home.display()
            ))
        })
    }

    /// Returns the chain that ends in `tip`; `None` if it is not connected, or the genesis block.
    ///
    /// Everything that has a part for each header is dropped as early as possible: these are the most bytes
    /// of a sync with a small cache.
    fn settled(mut self, tip: HeaderId) -> Option<FoundChain> {
        let path = self.tree.path_to(tip);
        let tip_height = path.len().checked_sub(1).filter(|height| *height > 0)? as Height;
        let gap = self.gap_above(tip_height);
        let Self { tree, places, mut copies, .. } = self;
        let branches = branches(&tree, &path);
        let place_of = |id: HeaderId| places.get(id.index()).copied().unwrap_or(NOWHERE);
        let places_off_chain = branches.keys().map(|&id| (*tree.hash(id), place_of(id)));
        let off_chain = places_off_chain.filter(|(_, place)| *place != NOWHERE).collect();
        let competing = CompetingBranches::new(&tree, &path, &branches);
        let chain = HeaderChain::out_of(tree, &path);
        // In the whole chain only the genesis block may have no position.
        let by_height: Vec<BlockLocation> = path.iter().map(|id| place_of(*id)).collect();
        let with_copies = (0..).zip(&path);
        let copies =
            with_copies.filter_map(|(height, id)| Some((height, copies.remove(&id.index())?)));
        let copies = copies.collect();
        Some(FoundChain { chain, places: by_height, copies, off_chain, competing, gap })
    }

    /// Returns the evidence of blocks beyond a chain that ends at height `tip`.
    fn gap_above(&mut self, tip: Height) -> ChainGap {
        let mut gap = std::mem::take(&mut self.gap);
        // Entries that are not higher may belong to a stale branch.
        gap.headers = gap.headers.filter(|height| *height > tip);
        if gap.absent.highest.is_none_or(|height| height <= tip) {
            gap.absent = GapRange::default();
        }
        gap.orphans = self.tree.orphans_count();
        let missing = self.tree.missing_parents();
        let mut missing: Vec<BlockHash> =
            missing.filter(|hash| !self.invalid.contains_key(hash)).copied().collect();
        gap.unjoined = missing.iter().map(|hash| self.tree.orphans_above(hash)).sum();
        gap.files = ChainGap::between(self.files.files()).files;
        missing.sort_unstable();
        gap.missing_count = missing.len();
        missing.truncate(LISTED_MAX);
        gap.missing = missing;
        gap
    }
}
