//! [`BlocksDir`]: Core's block files as a source of blocks.
//!
//! Opening it finds every block's header, builds the header tree and settles on the most-work
//! chain of all blocks that are there. After that only places are kept: 16 bytes a height, and the
//! further copies of blocks that lie on the disk more than once.

use crate::error::ErrorKind;
use crate::progress::{Event, Observer, Phase, Progress};
use crate::source::{BlockFetcher, BlockSource, SourceError, Taken};
use apus_chain::{BlockError, BlockHash, HeaderChain, HeaderTree, Height, HeightRange, Params};
use apus_datadir::{BlkError, BlockFiles, BlockLocation, BlockReader, ScanSummary};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many reasons for refused headers an error message may list.
const REFUSALS_TOLD: usize = 3;

/// Core's block files, and the chain found in them.
#[derive(Debug)]
pub struct BlocksDir {
    files: BlockFiles,
    chain: HeaderChain,
    /// By height; genesis may lack a place.
    places: Vec<BlockLocation>,
    /// Further copies of a height's block.
    copies: HashMap<Height, Vec<BlockLocation>>,
    /// Whether the places came from Core's index and may be stale.
    from_index: bool,
    gap: Gap,
    /// Read buffer of each fetcher.
    buffer_bytes: usize,
}

/// What lies beyond the end of the chain, to explain why it is too short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gap {
    /// Blocks whose ancestors are missing.
    pub orphans: usize,
    /// One of the missing ancestors.
    pub missing: Option<BlockHash>,
    /// Headers that were refused: where, and why. The first few.
    pub refused: Vec<String>,
    /// How many headers were refused.
    pub refused_count: u64,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(missing) = self.missing {
            write!(
                f,
                "; {} further blocks descend from block {missing}, which is missing or damaged",
                self.orphans
            )?;
        }
        if self.refused_count > 0 {
            write!(
                f,
                "; {} headers were refused: {}",
                self.refused_count,
                self.refused.join("; ")
            )?;
        }
        Ok(())
    }
}

/// Headers while they are found.
struct Finding<'a> {
    files: &'a BlockFiles,
    tree: HeaderTree,
    /// First place of each header, by its id in the tree.
    places: Vec<Option<BlockLocation>>,
    copies: HashMap<usize, Vec<BlockLocation>>,
    gap: Gap,
}

impl<'a> Finding<'a> {
    fn new(files: &'a BlockFiles, params: &Params, now: i64) -> Self {
        let mut tree = HeaderTree::new(params, now);
        // Waiting headers take about as much memory as connected ones, and each is a block that
        // lies on this disk.
        tree.set_orphans_max(usize::MAX);
        Self { files, tree, places: Vec::new(), copies: HashMap::new(), gap: Gap::default() }
    }

    fn header(&mut self, raw: &[u8; 80], place: BlockLocation) {
        match self.tree.accept(raw) {
            Ok(accepted) => {
                let id = accepted.id().index();
                if self.places.len() <= id {
                    self.places.resize(id + 1, None);
                }
                match &mut self.places[id] {
                    Some(_) => self.copies.entry(id).or_default().push(place),
                    slot => *slot = Some(place),
                }
            }
            Err(error) => {
                self.gap.refused_count += 1;
                if self.gap.refused.len() < REFUSALS_TOLD {
                    self.gap.refused.push(format!("{}: {error}", describe(self.files, place)));
                }
            }
        }
    }
}

/// File and offset of a block, for people.
fn describe(files: &BlockFiles, place: BlockLocation) -> String {
    let file = files.files().iter().find(|file| file.number == place.file);
    let path =
        file.map_or_else(|| format!("blk{:05}.dat", place.file), |f| f.path.display().to_string());
    format!("{path} at byte {}", place.offset)
}

impl BlocksDir {
    /// Finds the most-work chain in `dir`. `now` is the time in seconds since 1970.
    pub fn open(
        dir: &Path,
        params: &Params,
        now: i64,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        let files = BlockFiles::open(dir, params.network.magic())?;
        let mut finding = Finding::new(&files, params, now);
        let summary = scan(&files, &mut finding, observer, interrupt)?;
        summary.verdict(&files)?;
        warn(&files, &summary, observer);
        Self::settle(finding, false)
            .map(|settled| settled.into_source(files.clone()))
            .ok_or_else(|| SourceError::NoChain { chain: params.network.name() })
    }

    fn settle(finding: Finding<'_>, from_index: bool) -> Option<Settled> {
        let Finding { tree, places, mut copies, mut gap, .. } = finding;
        let chain = HeaderChain::best_of(&tree);
        if chain.tip_height() == 0 {
            return None;
        }
        gap.orphans = tree.orphans_count();
        gap.missing = tree.missing_parents().min().copied();
        let mut by_height = Vec::with_capacity(chain.tip_height() as usize + 1);
        let mut copies_by_height = HashMap::new();
        for (height, id) in tree.path_to(tree.tip()).into_iter().enumerate() {
            let nowhere = BlockLocation { file: 0, offset: 0, size: 0 };
            by_height.push(places.get(id.index()).copied().flatten().unwrap_or(nowhere));
            if let Some(copies) = copies.remove(&id.index()) {
                copies_by_height.insert(height as Height, copies);
            }
        }
        Some(Settled { chain, places: by_height, copies: copies_by_height, from_index, gap })
    }

    /// The most-work chain.
    pub fn chain(&self) -> &HeaderChain {
        &self.chain
    }

    /// Length of all block files together.
    pub fn bytes_total(&self) -> u64 {
        self.files.bytes_total()
    }

    /// How many block files there are.
    pub fn file_count(&self) -> usize {
        self.files.files().len()
    }

    /// What lies beyond the chain's end.
    pub fn gap(&self) -> &Gap {
        &self.gap
    }

    /// Whether Core's index gave the places.
    pub fn from_index(&self) -> bool {
        self.from_index
    }

    /// Sets the read buffer of each fetcher, in bytes.
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.buffer_bytes = bytes;
    }

    /// Other places where a block may lie: further copies known, and where the places came from
    /// an index, whatever a look at all the files finds.
    fn other_places(&self, height: Height, tried: BlockLocation) -> Vec<BlockLocation> {
        let mut places = self.copies.get(&height).cloned().unwrap_or_default();
        if let (true, Some(hash)) = (self.from_index, self.chain.hash(height)) {
            // A file that cannot be read tells of no copy; the error told is that of the first.
            let _ = self.files.scan(&mut |header, place| {
                if apus_hash::sha256d(header) == hash.0 {
                    places.push(place);
                }
                ControlFlow::Continue(())
            });
        }
        places.retain(|place| *place != tried);
        places
    }
}

/// What [`BlocksDir`] has beside the files.
struct Settled {
    chain: HeaderChain,
    places: Vec<BlockLocation>,
    copies: HashMap<Height, Vec<BlockLocation>>,
    from_index: bool,
    gap: Gap,
}

impl Settled {
    fn into_source(self, files: BlockFiles) -> BlocksDir {
        let Self { chain, places, copies, from_index, gap } = self;
        BlocksDir { files, chain, places, copies, from_index, gap, buffer_bytes: 4 << 20 }
    }
}

/// Goes through all files for headers.
fn scan(
    files: &BlockFiles,
    finding: &mut Finding<'_>,
    observer: &dyn Observer,
    interrupt: &AtomicBool,
) -> Result<ScanSummary, SourceError> {
    let mut summary = ScanSummary::default();
    let mut progress = Progress { bytes_total: files.bytes_total(), ..Progress::default() };
    for file in files.files() {
        let found = files.scan_file(file.number, &mut |header, place| {
            finding.header(header, place);
            progress.blocks += 1;
            if interrupt.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if interrupt.load(Ordering::Relaxed) {
            return Err(SourceError::Interrupted);
        }
        summary.merge(found);
        progress.bytes += file.length;
        observer.event(Event::Progress(Phase::Headers, progress));
    }
    Ok(summary)
}

/// Tells of damage that the scan went around.
fn warn(files: &BlockFiles, summary: &ScanSummary, observer: &dyn Observer) {
    if let Some(&place) = summary.torn.first() {
        observer.event(Event::Warning(format!(
            "{} block record(s) end before their last byte, the first in {}: left by a crash of \
             the node, and ignored",
            summary.torn_count,
            describe(files, place)
        )));
    }
    if let Some(stretch) = summary.resynced.first() {
        observer.event(Event::Warning(format!(
            "{} bytes in {} place(s) of the block files are no blocks, the first in file {} at \
             byte {}: skipped",
            summary.resynced_bytes, summary.resynced_count, stretch.file, stretch.offset
        )));
    }
}

impl BlockSource for BlocksDir {
    fn fetcher(&self) -> Box<dyn BlockFetcher + '_> {
        let reader = BlockReader::new(&self.files, self.buffer_bytes);
        Box::new(FilesFetcher { dir: self, reader })
    }

    fn block_bytes(&self, height: Height) -> u64 {
        self.places.get(height as usize).map_or(0, |place| u64::from(place.size))
    }
}

struct FilesFetcher<'a> {
    dir: &'a BlocksDir,
    reader: BlockReader<'a>,
}

impl BlockFetcher for FilesFetcher<'_> {
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    ) -> Result<(), SourceError> {
        let mut wanted: Vec<(u32, BlockLocation)> = want
            .heights()
            .filter_map(|height| Some((height, *self.dir.places.get(height as usize)?)))
            .collect();
        let mut damaged: Vec<(Height, BlockLocation, BlockError)> = Vec::new();
        let mut stopped = false;
        self.reader.read(&mut wanted, &mut |height, place, raw| {
            offer(height, place, raw, each, &mut damaged, &mut stopped)
        })?;
        for (height, place, error) in damaged {
            if stopped {
                break;
            }
            stopped |= self.another_copy(height, place, error, each)?;
        }
        Ok(())
    }
}

/// Gives one copy of a block to the receiver.
fn offer(
    height: Height,
    place: BlockLocation,
    raw: &[u8],
    each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    damaged: &mut Vec<(Height, BlockLocation, BlockError)>,
    stopped: &mut bool,
) -> ControlFlow<()> {
    match each(height, raw) {
        Taken::Yes => ControlFlow::Continue(()),
        Taken::Damaged(error) => {
            damaged.push((height, place, error));
            ControlFlow::Continue(())
        }
        Taken::Stop => {
            *stopped = true;
            ControlFlow::Break(())
        }
    }
}

impl FilesFetcher<'_> {
    /// Tries the other places of a block whose first copy is damaged; says whether the receiver
    /// wants to stop.
    fn another_copy(
        &mut self,
        height: Height,
        first: BlockLocation,
        error: BlockError,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    ) -> Result<bool, SourceError> {
        for place in self.dir.other_places(height, first) {
            let (mut damaged, mut stopped) = (Vec::new(), false);
            self.reader.read(&mut [(height, place)], &mut |height, place, raw| {
                offer(height, place, raw, each, &mut damaged, &mut stopped)
            })?;
            if stopped || damaged.is_empty() {
                return Ok(stopped);
            }
        }
        Err(SourceError::Damaged {
            height,
            hash: self.dir.chain.hash(height).copied().unwrap_or_default(),
            place: describe(&self.dir.files, first),
            error,
        })
    }
}

/// What an error of the block files means for a run.
pub(crate) fn files_error_kind(error: &BlkError) -> ErrorKind {
    match error {
        BlkError::WrongChain { .. } => ErrorKind::Usage,
        BlkError::NoBlocks { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}
