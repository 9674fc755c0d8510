//! [`BlocksDir`]: Core's block files as a source of blocks.
//!
//! Opening it finds every block's header, by Core's index or in the files, builds the header tree
//! and settles on the most-work chain of all blocks that are there. After that only places are
//! kept: 16 bytes a height, and the further copies of blocks that lie on the disk more than once.

mod finding;
mod from_index;
mod heads;
mod undo;
mod ways_back;

pub use heads::BlockHead;

use crate::engines::swiftsync::UndoSource;
use crate::error::{ChainGap, ClockError, InvalidBlock, SourceError, SyncError};
use crate::progress::{Event, Observer};
use crate::source::{BlockFetcher, BlockSource, ChainSource, SearchOptions, Taken};
use crate::warning::Warning;
use apus_chain::{
    BLOCK_SIZE_MAX, BlockError, BlockHash, DecodeError, HEADER_SIZE, HeaderChain, Height,
    HeightRange, KnownBlock, Params, ReadError,
};
use apus_datadir::{
    BlockFiles, BlockLocation, BlockReader, BlocksFolder, Obfuscation, ScanSummary,
};
use finding::{BlockFinder, Settled};
use from_index::{RECORD_HEAD, Unusable};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use ways_back::WaysBack;

/// So many blocks a node may go back, whether to check itself or for a better chain (Core
/// `validation.h`, `MIN_BLOCKS_TO_KEEP`).
const BLOCKS_GONE_BACK: u32 = 288;

/// Core's block files, and the chain found in them.
#[derive(Debug)]
pub struct BlocksDir {
    files: BlockFiles,
    chain: HeaderChain,
    /// By height; genesis may lack a place.
    places: Vec<BlockLocation>,
    /// Further copies of a height's block.
    copies: HashMap<Height, Vec<BlockLocation>>,
    /// Blocks of other chains that are whole.
    beside: HashMap<BlockHash, BlockLocation>,
    ways_back: WaysBack,
    /// Whether the places came from Core's index: then they may be stale, and their sizes are
    /// bounds.
    from_index: bool,
    gap: ChainGap,
    /// Whether other copies of a block will do.
    copies_will_do: bool,
    /// Read buffer of each fetcher.
    buffer_bytes: usize,
    /// Places found by going through all files, made when an index proves wrong for the first time.
    rescan: OnceLock<HashMap<Height, Vec<BlockLocation>>>,
}

/// Whether to look for blocks in Core's index first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseIndex {
    /// Where it is there and can be read.
    IfPresent,
    /// Go through all files.
    Never,
    /// Only blocks that the node connected and can disconnect: with data, undo data and scripts
    /// checked, as the index says. Without an index there are none.
    Connected {
        /// The chain may have less work than the one that the node's coins are at, which a run replaces.
        older: bool,
    },
    /// All blocks up to this one, whatever the node made of them, and each only where the index says that it
    /// lies: no other copy will do.
    Stated(BlockHash),
}

impl UseIndex {
    /// Whether only blocks count that the node connected.
    pub const fn is_of_node(self) -> bool {
        matches!(self, Self::Connected { .. } | Self::Stated(_))
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
        dir: impl Into<BlocksFolder>,
        params: &Params,
        now: i64,
        use_index: UseIndex,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        Self::open_without(&dir.into(), params, now, use_index, &[], observer, interrupt)
    }

    /// The same, as if these blocks, and so all that descend from them, were not there.
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
            match use_index {
                UseIndex::Stated(_) => from_index::find_stated(&files, &mut finding)?,
                _ => from_index::find_connected(&files, &mut finding)?,
            }
            if let Some((number, height)) = from_index::missing_file(&files, whole)? {
                return Err(SourceError::Node(format!(
                    "{} has no blk{number:05}.dat that reaches to block {height}, which is connected by the \
                     node's block index: restore the file, or start the node with -reindex, which downloads \
                     what is missing",
                    dir.files.display()
                )));
            }
            let none = || {
                SourceError::Node(format!(
                    "by its block index the node of {} has connected no block whose undo data it kept: start \
                     it and let it connect some blocks first, or give its folder of blocks to `apus sync`, \
                     which goes by the blocks alone",
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
                Err(Unusable::Empty) => {}
                Err(Unusable::Index(error)) => {
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
        let Settled { chain, places, copies, beside, ways_back, gap } = settled.ok_or(none)?;
        ClockError::expect_past(&chain, now).map_err(Box::new)?;
        // Whoever asks for what an index states compares that itself.
        if let Some(beyond) = gap.unjoined().filter(|_| !matches!(use_index, UseIndex::Stated(_))) {
            let end = KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() };
            observer.event(Event::Warning(Warning::NotJoined { end, beyond }));
        }
        let found = Self {
            files,
            chain,
            places,
            copies,
            beside,
            ways_back,
            from_index,
            gap,
            copies_will_do: !matches!(use_index, UseIndex::Stated(_)),
            buffer_bytes: 4 << 20,
            rescan: OnceLock::new(),
        };
        if matches!(use_index, UseIndex::Connected { .. })
            && let Some(what) = found.look_at_undo(BLOCKS_GONE_BACK)?
        {
            observer.event(Event::Warning(Warning::UndoOfNode { what }));
        }
        Ok(found)
    }

    /// Length of all block files together.
    pub fn bytes_total(&self) -> u64 {
        self.files.bytes_total()
    }

    /// How many block files there are.
    pub fn file_count(&self) -> usize {
        self.files.files().len()
    }

    /// Sets the read buffer of each fetcher, in bytes.
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.buffer_bytes = bytes;
    }

    /// A fetcher that reads so many bytes at once.
    pub(super) fn fetcher_of(&self, buffer_bytes: usize) -> FilesFetcher<'_> {
        FilesFetcher { dir: self, reader: BlockReader::new(&self.files, buffer_bytes) }
    }

    /// Other places where a block may lie: further copies known, and where the places came from
    /// an index, whatever a look at all the files finds.
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

    /// The record of a block whose place came from an index, with all the room that it may take.
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
        // The last block of a file with much room behind it, or a place where no block fits.
        let found = self.files.locate(place.file, place.offset)?;
        Ok(found.map(|found| record(found.size)))
    }

    /// Gives the block at a place that was found beside the chain's to `take`. Tells whether it was
    /// taken.
    fn read_beside(
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

    /// Where the chain's blocks lie, by their headers in the files.
    fn scan_for_chain(&self) -> HashMap<Height, Vec<BlockLocation>> {
        let mut found: HashMap<Height, Vec<BlockLocation>> = HashMap::new();
        // A file that cannot be read tells of no copy; the error told is that of the first.
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

/// Whether there is an index, also one that cannot be read: that is told as it is read.
fn has_index(dir: &BlocksFolder) -> bool {
    let current = dir.index().join("CURRENT");
    current.metadata().map_or_else(|error| error.kind() != ErrorKind::NotFound, |it| it.is_file())
}

/// Tells of damage that the scan went around.
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

    /// What lies where the index says is to be a block's record.
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
        self.ways_back.lowest(tip)
    }

    /// All files are gone through where it is not where it was found.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError> {
        let mut places = Vec::new();
        if let Some(&place) = self.beside.get(hash)
            && self.read_beside(place, take)?
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

    /// Only headers are compared with the chain's.
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

/// Blocks whose copy was turned down: the copy's place and what is wrong with it.
type Damaged = Vec<(Height, BlockLocation, BlockError)>;

impl BlockFetcher for FilesFetcher<'_> {
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
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

/// The block in a record that is read with its magic and size and whatever follows it; nothing
/// where these are not right.
fn block_of_record(bytes: &[u8], magic: [u8; 4]) -> &[u8] {
    let Some((&[m0, m1, m2, m3, s0, s1, s2, s3], rest)) = bytes.split_first_chunk::<8>() else {
        return &[];
    };
    let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
    if [m0, m1, m2, m3] == magic { rest.get(..size).unwrap_or_default() } else { &[] }
}

/// Gives one copy of a block to the receiver.
fn offer(
    height: Height,
    place: BlockLocation,
    raw: &[u8],
    each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    damaged: &mut Damaged,
    stopped: &mut bool,
) -> ControlFlow<()> {
    match each(height, raw) {
        Taken::Yes | Taken::NotWanted => ControlFlow::Continue(()),
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
    /// What to read for the blocks of `want`: the blocks, or where only a bound of their size is
    /// known, the records with all the room that they may take. Beside it the blocks of which an
    /// index says where they are and nothing is there.
    fn wanted(
        &self,
        want: HeightRange,
    ) -> Result<(Vec<(u32, BlockLocation)>, Damaged), SourceError> {
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
        self.dir.files.expect_obfuscated(first.file)?;
        Err(SourceError::Damaged {
            height,
            hash: self.dir.chain.hash(height).copied().unwrap_or_default(),
            place: describe(&self.dir.files, first),
            error,
        })
    }
}
