//! [`BlocksDir`]: Core's block files as a source of blocks.
//!
//! Opening it finds every block's header, in Core's index or in the files, builds the header tree and chooses
//! the most-work chain of all available blocks. After that it keeps only positions: 16 bytes for each height,
//! plus the additional copies of blocks that are stored more than once.

mod competing;
mod finder;
mod from_index;
mod heads;
mod undo;

pub use heads::BlockHead;

use crate::engines::swiftsync::UndoSource;
use crate::error::{ChainGap, ClockError, InvalidBlock, SourceError, SyncError};
use crate::progress::{Event, Observer};
use crate::source::{BlockFetcher, BlockReply, BlockSource, ChainSource, SearchOptions};
use crate::warning::Warning;
use apus_chain::{
    BLOCK_SIZE_MAX, BlockError, BlockHash, DecodeError, HEADER_SIZE, HeaderChain, Height,
    HeightRange, Params, ReadError,
};
use apus_datadir::{
    BlockFiles, BlockLocation, BlockReader, BlocksFolder, Obfuscation, ScanSummary,
};
use competing::CompetingBranches;
use finder::{BlockFinder, FoundChain};
use from_index::{IndexUnusable, RECORD_HEAD};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// A node may disconnect this many blocks, to check itself or to switch to a better chain (Core `validation.h`,
/// `MIN_BLOCKS_TO_KEEP`).
const DISCONNECTED_BLOCKS_MAX: u32 = 288;

/// Core's block files, and the chain found in them.
#[derive(Debug)]
pub struct BlocksDir {
    files: BlockFiles,
    chain: HeaderChain,
    /// By height; genesis may have no position.
    places: Vec<BlockLocation>,
    /// Additional copies of the block at a height.
    copies: HashMap<Height, Vec<BlockLocation>>,
    /// Complete blocks of other chains.
    off_chain: HashMap<BlockHash, BlockLocation>,
    competing: CompetingBranches,
    /// Whether the positions came from Core's index: then they may be stale, and their sizes are upper bounds.
    from_index: bool,
    gap: ChainGap,
    /// Whether any copy of a block is acceptable, not only the one that the index names.
    copies_will_do: bool,
    /// Bytes of each fetcher's read buffer.
    buffer_bytes: usize,
    /// Positions found by scanning all files, filled in when an index proves wrong for the first time.
    rescan: OnceLock<HashMap<Height, Vec<BlockLocation>>>,
}

/// Whether and how to use Core's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseIndex {
    /// Use it if it is present and readable.
    IfPresent,
    /// Scan all files.
    Never,
    /// Use only blocks that the node connected and can disconnect: by the index they have data and undo data,
    /// and their scripts were checked. Without an index there are none.
    Connected {
        /// Whether the chain may have less work than the chain of the node's coins that the sync replaces.
        older: bool,
    },
    /// Use all blocks up to this one, regardless of the node's verdict, and each only at its position in the
    /// index: other copies are not acceptable.
    Stated(BlockHash),
}

impl UseIndex {
    /// Returns whether to use only blocks that the node connected.
    pub const fn is_of_node(self) -> bool {
        matches!(self, Self::Connected { .. } | Self::Stated(_))
    }
}

/// Formats file and offset of a block for messages.
fn describe(files: &BlockFiles, place: BlockLocation) -> String {
    let file = files.files().iter().find(|file| file.number == place.file);
    let path =
        file.map_or_else(|| format!("blk{:05}.dat", place.file), |f| f.path.display().to_string());
    format!("{path} at byte {}", place.offset)
}

impl BlocksDir {
    /// Finds the most-work chain in `dir`. `now` is the time in seconds since 1970.
    pub fn open(
        dir: impl Into<BlocksFolder>,
        params: &Params,
        now: i64,
        use_index: UseIndex,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        Self::open_without(&dir.into(), params, now, use_index, &[], observer, interrupt)
    }

    /// Finds the chain as [`open`](Self::open) does, as if these blocks and all their descendants were missing.
    pub fn open_without(
        dir: &BlocksFolder,
        params: &Params,
        now: i64,
        use_index: UseIndex,
        invalid: &[InvalidBlock],
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        let files = BlockFiles::open(dir, params.network.magic())?;
        let mut from_index = false;
        let mut settled = None;
        if use_index.is_of_node() {
            let mut finding = BlockFinder::new(&files, params, invalid);
            let whole = matches!(use_index, UseIndex::Connected { .. });
            let stated = matches!(use_index, UseIndex::Stated(_));
            from_index::find_listed(&files, &mut finding, stated)?;
            if let Some((number, height)) = from_index::missing_file(&files, whole)? {
                return Err(SourceError::Node(format!(
                    "{}: no blk{number:05}.dat that reaches to block {height}, which the node's block index has as \
                     connected. Restore the file, or start the node with -reindex, which downloads what is \
                     missing",
                    dir.files.display()
                )));
            }
            let none = || {
                SourceError::Node(format!(
                    "the node of {} has no connected block with undo data in its block index: start the node \
                     and let it connect some blocks first, or give its blocks folder to `apus sync`, which \
                     needs only the blocks",
                    dir.home.display()
                ))
            };
            settled = Some(match use_index {
                UseIndex::Stated(tip) => finding.settle_at(&tip)?,
                _ => finding.settle().ok_or_else(none)?,
            });
            from_index = true;
        } else if use_index == UseIndex::IfPresent && has_index(dir) {
            let mut finding = BlockFinder::new(&files, params, invalid);
            match from_index::find(&files, &mut finding, observer, interrupt)? {
                Ok(()) => settled = finding.settle(),
                Err(IndexUnusable::Empty) => {}
                Err(IndexUnusable::Index(error)) => {
                    let why = error.to_string();
                    observer.event(Event::Warning(Warning::NoIndex { why }));
                }
            }
            from_index = settled.is_some();
        }
        if settled.is_none() {
            let mut finding = BlockFinder::new(&files, params, invalid);
            let summary = finding.scan(files.files(), observer, interrupt)?;
            summary.verdict(&files)?;
            warn(&files, &summary, observer);
            settled = finding.settle();
        }
        let none = SourceError::NoChain { chain: params.network.name() };
        let FoundChain { chain, places, copies, off_chain, competing, gap } =
            settled.ok_or(none)?;
        ClockError::expect_past(&chain, now).map_err(Box::new)?;
        // Callers that use exactly the index's blocks check for missing ones themselves.
        if let Some(beyond) = gap.unjoined().filter(|_| !matches!(use_index, UseIndex::Stated(_))) {
            let end = chain.tip();
            observer.event(Event::Warning(Warning::NotJoined { end, beyond }));
        }
        let found = Self {
            files,
            chain,
            places,
            copies,
            off_chain,
            competing,
            from_index,
            gap,
            copies_will_do: !matches!(use_index, UseIndex::Stated(_)),
            buffer_bytes: 4 << 20,
            rescan: OnceLock::new(),
        };
        if matches!(use_index, UseIndex::Connected { .. })
            && let Some(what) = found.look_at_undo(DISCONNECTED_BLOCKS_MAX)?
        {
            observer.event(Event::Warning(Warning::UndoOfNode { what }));
        }
        Ok(found)
    }

    /// Returns the total length of all block files, in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.files.bytes_total()
    }

    /// Returns the position of the block at a height. The size is an upper bound if the position comes from an
    /// index. `None` above the tip, and for a genesis block that is in no file.
    pub fn place(&self, height: Height) -> Option<BlockLocation> {
        self.places.get(height as usize).copied().filter(|place| *place != heads::NOWHERE)
    }

    /// Makes the error for a block of the chain that is damaged at its position.
    pub fn damaged(&self, height: Height, error: BlockError) -> SourceError {
        let place = self.places.get(height as usize).copied().unwrap_or(heads::NOWHERE);
        SourceError::Damaged {
            height,
            hash: self.chain.hash(height).copied().unwrap_or_default(),
            place: describe(&self.files, place),
            error,
        }
    }

    /// Returns the number of block files.
    pub fn file_count(&self) -> usize {
        self.files.files().len()
    }

    /// Sets the read buffer of each fetcher, in bytes.
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.buffer_bytes = bytes;
    }

    /// Makes a fetcher that reads this many bytes at once.
    pub(super) fn fetcher_of(&self, buffer_bytes: usize) -> FilesFetcher<'_> {
        FilesFetcher { dir: self, reader: BlockReader::new(&self.files, buffer_bytes) }
    }

    /// Returns other positions of a block: known copies, and if the positions came from an index, the copies
    /// that a scan of all files finds.
    fn other_places(&self, height: Height, tried: BlockLocation) -> Vec<BlockLocation> {
        if !self.copies_will_do {
            return Vec::new();
        }
        let mut places = self.copies.get(&height).cloned().unwrap_or_default();
        if self.from_index {
            let rescan = self.rescan.get_or_init(|| self.scan_for_chain());
            places.extend(rescan.get(&height).into_iter().flatten());
        }
        places.retain(|place| *place != tried);
        places
    }

    /// Returns the record of a block whose position came from an index, with the maximum space that it can
    /// take.
    fn record(&self, place: BlockLocation) -> Result<Option<BlockLocation>, SourceError> {
        let record = |size: u32| BlockLocation {
            file: place.file,
            offset: place.offset - RECORD_HEAD,
            size: size.saturating_add(RECORD_HEAD as u32).min(BLOCK_SIZE_MAX as u32),
        };
        let room = u64::from(place.size);
        if (HEADER_SIZE as u64..BLOCK_SIZE_MAX as u64).contains(&room) {
            return Ok(Some(record(place.size)));
        }
        if place.offset < RECORD_HEAD {
            return Ok(None);
        }
        // The block is the last of a file with much space after it, or the position is invalid.
        let found = self.files.locate(place.file, place.offset)?;
        Ok(found.map(|found| record(found.size)))
    }

    /// Passes the block at a position off the chain to `take`. Returns whether it was accepted.
    fn read_off_chain(
        &self,
        place: BlockLocation,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError> {
        let mut reader = BlockReader::new(&self.files, self.buffer_bytes);
        let mut taken = false;
        if !self.from_index {
            reader.read(&mut [(0, place)], &mut |_, _, raw| {
                taken = take(raw);
                ControlFlow::Break(())
            })?;
        } else if let Some(record) = self.record(place)? {
            reader.read(&mut [(0, record)], &mut |_, _, bytes| {
                taken = take(block_of_record(bytes, self.files.magic()));
                ControlFlow::Break(())
            })?;
        }
        Ok(taken)
    }

    /// Finds the positions of the chain's blocks by the headers in the files.
    fn scan_for_chain(&self) -> HashMap<Height, Vec<BlockLocation>> {
        let mut found: HashMap<Height, Vec<BlockLocation>> = HashMap::new();
        // An unreadable file yields no copies; the error to report is that of the first copy.
        let _ = self.files.scan(&mut |header, place| {
            let hash = BlockHash(apus_hash::sha256d(header));
            if let Some(height) = self.chain.height_of(&hash) {
                found.entry(height).or_default().push(place);
            }
            ControlFlow::Continue(())
        });
        found
    }
}

/// Returns whether an index exists, even an unreadable one: reading it reports the error.
fn has_index(dir: &BlocksFolder) -> bool {
    let current = dir.index().join("CURRENT");
    current.metadata().map_or_else(|error| error.kind() != ErrorKind::NotFound, |it| it.is_file())
}

/// Warns of damage that the scan skipped.
fn warn(files: &BlockFiles, summary: &ScanSummary, observer: &dyn Observer) {
    if let Some(&place) = summary.torn.first() {
        let (count, first) = (summary.torn_count, describe(files, place));
        observer.event(Event::Warning(Warning::TornRecords { count, first }));
    }
    if let Some(stretch) = summary.resynced.first() {
        let (bytes, places) = (summary.resynced_bytes, summary.resynced_count);
        let first = (stretch.file, stretch.offset);
        observer.event(Event::Warning(Warning::SkippedBytes { bytes, places, first }));
    }
}

impl BlockSource for BlocksDir {
    fn fetcher<'a>(&'a self, _halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a> {
        Box::new(self.fetcher_of(self.buffer_bytes))
    }

    /// If only positions in the index are acceptable, the bytes there must be exactly the block.
    fn is_exact(&self) -> bool {
        !self.copies_will_do
    }

    fn block_bytes(&self, height: Height) -> u64 {
        let room = self.places.get(height as usize).map_or(0, |place| u64::from(place.size));
        room.min(BLOCK_SIZE_MAX as u64)
    }
}

impl ChainSource for BlocksDir {
    fn chain(&self) -> &HeaderChain {
        &self.chain
    }

    fn is_by_index(&self) -> bool {
        self.from_index
    }

    fn undo(
        &self,
        last: Height,
        search: &SearchOptions<'_>,
    ) -> Result<Option<Box<dyn UndoSource>>, SyncError> {
        let places = match self.from_index {
            true => self.stated_undo(last),
            false => self.found_undo(last, search)?,
        };
        Ok(places.map(|places| Box::new(places) as _))
    }

    fn gap(&self) -> &ChainGap {
        &self.gap
    }

    fn obfuscation(&self) -> Obfuscation {
        self.files.obfuscation()
    }

    fn undo_needed(&self, tip: Height) -> Option<Height> {
        self.competing.lowest(tip)
    }

    /// Scans all files if the block is not at its position.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError> {
        let mut places = Vec::new();
        if let Some(&place) = self.off_chain.get(hash)
            && self.read_off_chain(place, take)?
        {
            return Ok(true);
        }
        self.files.scan(&mut |header, place| {
            if apus_hash::sha256d(header) == hash.0 {
                places.push((0, place));
            }
            ControlFlow::Continue(())
        })?;
        let mut taken = false;
        let mut reader = BlockReader::new(&self.files, self.buffer_bytes);
        reader.read(&mut places, &mut |_, _, raw| {
            taken = take(raw);
            if taken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(taken)
    }

    /// Compares only headers with the chain's.
    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError> {
        self.read_heads(last, reached)
    }
}

pub(super) struct FilesFetcher<'a> {
    dir: &'a BlocksDir,
    reader: BlockReader<'a>,
}

/// Blocks whose copy was refused, with the copy's position and its fault.
type DamagedCopiesByHeight = Vec<(Height, BlockLocation, BlockError)>;

impl BlockFetcher for FilesFetcher<'_> {
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<(), SourceError> {
        let mut stopped = false;
        let (mut wanted, mut damaged) = self.wanted(want)?;
        let head = if self.dir.from_index { RECORD_HEAD as usize } else { 0 };
        let magic = self.dir.files.magic();
        self.reader.read(&mut wanted, &mut |height, place, bytes| {
            let raw = if head == 0 { bytes } else { block_of_record(bytes, magic) };
            let place = BlockLocation { offset: place.offset + head as u64, ..place };
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

/// Returns the block in a record that was read with its magic, its size and the bytes after it; empty if magic
/// or size is wrong.
fn block_of_record(bytes: &[u8], magic: [u8; 4]) -> &[u8] {
    let Some((&[m0, m1, m2, m3, s0, s1, s2, s3], rest)) = bytes.split_first_chunk::<8>() else {
        return &[];
    };
    let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
    if [m0, m1, m2, m3] == magic { rest.get(..size).unwrap_or_default() } else { &[] }
}

/// Passes one copy of a block to the receiver.
fn offer(
    height: Height,
    place: BlockLocation,
    raw: &[u8],
    each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    damaged: &mut DamagedCopiesByHeight,
    stopped: &mut bool,
) -> ControlFlow<()> {
    match each(height, raw) {
        BlockReply::Yes | BlockReply::NotWanted => ControlFlow::Continue(()),
        BlockReply::Damaged(error) => {
            damaged.push((height, place, error));
            ControlFlow::Continue(())
        }
        BlockReply::Stop => {
            *stopped = true;
            ControlFlow::Break(())
        }
    }
}

impl FilesFetcher<'_> {
    /// Returns what to read for the blocks of `want`: the blocks, or, where only an upper bound of their size
    /// is known, the records with the maximum space that they can take. Also returns the blocks that are
    /// missing at their position in the index.
    fn wanted(
        &self,
        want: HeightRange,
    ) -> Result<(Vec<(u32, BlockLocation)>, DamagedCopiesByHeight), SourceError> {
        let (mut wanted, mut nowhere) = (Vec::with_capacity(want.count() as usize), Vec::new());
        for height in want.heights() {
            let Some(&place) = self.dir.places.get(height as usize) else { continue };
            self.dir.expect_there(height, place)?;
            if !self.dir.from_index {
                wanted.push((height, place));
                continue;
            }
            match self.dir.record(place)? {
                Some(record) => wanted.push((height, record)),
                None => {
                    let error =
                        DecodeError::Read(ReadError::End { offset: 0, needed: HEADER_SIZE });
                    nowhere.push((height, place, error.into()));
                }
            }
        }
        Ok((wanted, nowhere))
    }

    /// Tries the other positions of a block whose first copy is damaged; returns whether the receiver wants to
    /// stop.
    fn another_copy(
        &mut self,
        height: Height,
        first: BlockLocation,
        error: BlockError,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
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
        self.dir.files.expect_obfuscated(first.file)?;
        Err(self.dir.damaged(height, error))
    }
}
