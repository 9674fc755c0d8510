//! The undo data of a node's blocks: it shows whether the node can disconnect the chain's last blocks, and
//! which coins blocks spend. Its positions come from the node's index, or, if the blocks were found without
//! one, from a search through the files.

use super::BlocksDir;
use crate::engines::swiftsync::{UndoReader, UndoSource};
use crate::error::{SourceError, SyncError};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::source::{BlockReply, BlockSource, SearchOptions};
use crate::warning::Warning;
use apus_chain::{BlockHash, BlockLayout, BlockUndo, BlockView, Height, HeightRange};
use apus_datadir::{IndexEntry, RevError, UndoFiles, has_undo_file, read_index};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

impl BlocksDir {
    /// Reads the undo data of the last `count` blocks, through the node's index. Returns a description of the
    /// first fault; `None` if all undo data is intact.
    pub(super) fn look_at_undo(&self, count: u32) -> Result<Option<String>, SourceError> {
        let tip = self.chain.tip_height();
        let lowest = (tip + 1).saturating_sub(count).max(1);
        let mut entries: Vec<IndexEntry> = Vec::new();
        read_index(self.files.home(), &mut |entry| {
            let known = self.chain.hash(entry.height) == Some(&entry.hash);
            if entry.height >= lowest && known {
                entries.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        entries.sort_unstable_by_key(|entry| entry.height);
        let mut files = match UndoFiles::open(self.files.dir(), self.files.magic()) {
            Ok(files) => files,
            Err(error) => return Ok(Some(error.to_string())),
        };
        Ok(entries.iter().rev().find_map(|entry| self.undo_error(&mut files, entry)))
    }

    /// Returns the positions of undo data for all blocks up to a height, from the index; `None` if the index
    /// lacks some or is unreadable.
    pub(super) fn stated_undo(&self, last: Height) -> Option<UndoPlaces> {
        let mut places = vec![None; last as usize];
        let read = read_index(self.files.home(), &mut |entry| {
            let place = entry.height.checked_sub(1).and_then(|at| places.get_mut(at as usize));
            if let Some(place) = place
                && self.chain.hash(entry.height) == Some(&entry.hash)
            {
                *place = entry.undo.and_then(|(file, at)| Some((file, u32::try_from(at).ok()?)));
            }
            ControlFlow::Continue(())
        });
        read.ok()?;
        self.undo_at(places)
    }

    /// Searches the files for the undo data of all blocks up to a height; `None` if some is not found.
    pub(super) fn found_undo(
        &self,
        last: Height,
        search: &SearchOptions<'_>,
    ) -> Result<Option<UndoPlaces>, SyncError> {
        let mut blocks: BTreeMap<u32, Vec<Height>> = BTreeMap::new();
        for height in 1..=last {
            let copies = self.copies.get(&height).into_iter().flatten();
            for place in self.places.get(height as usize).into_iter().chain(copies) {
                blocks.entry(place.file).or_default().push(height);
            }
        }
        blocks.values_mut().for_each(Vec::dedup);
        if !blocks.keys().any(|&number| has_undo_file(self.files.dir(), number)) {
            return Ok(None);
        }
        search.observer.event(Event::Started(Phase::Undo));
        let blocks: Vec<_> = blocks.into_iter().collect();
        let found = UndoSearch::new(self, search, &blocks, last).run()?;
        search.observer.event(Event::Ended { phase: Phase::Undo, bytes: 0 });
        // The hints decide which blocks need it, so the search belongs to that phase.
        search.observer.event(Event::Started(Phase::Hints));
        let places = self.undo_at(found.places);
        if places.is_none() {
            let why = found.useless.unwrap_or_else(|| "some blocks have no undo data".to_owned());
            search.observer.event(Event::Warning(Warning::UndoUseless { why }));
        }
        Ok(places)
    }

    /// Of several undo records for the same parent, returns the position of the one that fits the chain's
    /// block; `None` if that cannot be decided.
    fn fitting(&self, height: Height, undo: &[(u64, Vec<u8>)]) -> Option<u64> {
        let (mut layout, mut fitting) = (BlockLayout::new(), Vec::new());
        let range = HeightRange::new(height, height + 1);
        let fetched = self.fetcher(&AtomicBool::new(false)).fetch(range, &mut |_, raw| {
            if let Ok(block) = layout.read(raw) {
                fitting.extend(undo.iter().filter(|(_, undo)| fits(&block, undo)));
            }
            BlockReply::Yes
        });
        fetched.ok()?;
        let (first, rest) = fitting.split_first()?;
        rest.iter().all(|other| other.1 == first.1).then_some(first.0)
    }

    /// Returns the positions if every block has one.
    fn undo_at(&self, places: Vec<Option<(u32, u32)>>) -> Option<UndoPlaces> {
        let places: Option<Vec<(u32, u32)>> = places.into_iter().collect();
        Some(UndoPlaces {
            folder: self.files.dir().to_owned(),
            magic: self.files.magic(),
            places: places?,
            of_all_blocks: !self.copies_will_do,
        })
    }

    fn undo_error(&self, files: &mut UndoFiles, entry: &IndexEntry) -> Option<String> {
        let (file, offset) = entry.undo?;
        let height: Height = entry.height;
        let prev: &BlockHash = self.chain.hash(height - 1)?;
        let wrong = match files.read(file, offset, prev) {
            Err(error) => error.to_string(),
            Ok(undo) => BlockUndo::read(&undo).err()?.to_string(),
        };
        Some(format!("the undo data of block {height} is unusable: {wrong}"))
    }
}

/// Files, each with the heights of its blocks.
type FileBlocks = [(u32, Vec<Height>)];

/// A search for the undo data of blocks.
struct UndoSearch<'a> {
    dir: &'a BlocksDir,
    search: &'a SearchOptions<'a>,
    blocks: &'a FileBlocks,
    /// The next file to search.
    next: AtomicUsize,
    found: Mutex<FoundUndo>,
}

/// The result of a search.
struct FoundUndo {
    /// Positions by block, from the first block on.
    places: Vec<Option<(u32, u32)>>,
    /// Number of blocks searched so far, and in total.
    progress: Progress,
    /// Why the undo data is unusable, as a message.
    useless: Option<String>,
}

impl<'a> UndoSearch<'a> {
    fn new(
        dir: &'a BlocksDir,
        search: &'a SearchOptions<'a>,
        blocks: &'a FileBlocks,
        last: Height,
    ) -> Self {
        let blocks_total = blocks.iter().map(|(_, heights)| heights.len() as u64).sum();
        let progress = Progress { blocks_total, ..Progress::default() };
        let found = FoundUndo { places: vec![None; last as usize], progress, useless: None };
        Self { dir, search, blocks, next: AtomicUsize::new(0), found: Mutex::new(found) }
    }

    /// Searches the files, using all threads.
    fn run(self) -> Result<FoundUndo, SyncError> {
        std::thread::scope(|scope| {
            for _ in 0..self.search.threads.clamp(1, self.blocks.len()) {
                scope.spawn(|| {
                    while let Some((file, heights)) =
                        self.blocks.get(self.next.fetch_add(1, Ordering::Relaxed))
                    {
                        if !self.look_in(*file, heights) {
                            self.next.store(self.blocks.len(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        stop_if_interrupted(self.search.interrupt)?;
        Ok(self.found.into_inner())
    }

    /// Finds the positions of undo data in a file.
    fn find(&self, file: u32, heights: &[Height]) -> Result<Vec<Option<u32>>, RevError> {
        let files = &self.dir.files;
        let hash = |height: Height| self.dir.chain.hash(height).copied().unwrap_or_default();
        let prevs: Vec<BlockHash> = heights.iter().map(|height| hash(height - 1)).collect();
        let mut undo = UndoFiles::open(files.dir(), files.magic())?;
        let mut found = undo.find(file, &prevs, self.search.interrupt)?;
        found.sort_by_key(|(block, _)| *block);
        let mut places = vec![None; heights.len()];
        for of_block in found.chunk_by(|(one, _), (other, _)| one == other) {
            let (block, mut place) = of_block[0];
            if of_block.len() > 1 {
                let mut several = Vec::new();
                for &(_, offset) in of_block {
                    several.push((offset, undo.read(file, offset, &prevs[block])?));
                }
                match self.dir.fitting(heights[block], &several) {
                    Some(fitting) => place = fitting,
                    None => continue,
                }
            }
            places[block] = u32::try_from(place).ok();
        }
        Ok(places)
    }

    /// Returns whether to search further files: if one block has no undo data, the rest is unusable, too.
    fn look_in(&self, file: u32, heights: &[Height]) -> bool {
        let of_blocks = self.find(file, heights);
        let mut found = self.found.lock();
        match of_blocks {
            Ok(of_blocks) => {
                for (&height, offset) in heights.iter().zip(of_blocks) {
                    let place = &mut found.places[height as usize - 1];
                    *place = place.or(offset.map(|offset| (file, offset)));
                    if place.is_none() && !self.dir.copies.contains_key(&height) {
                        let why = format!("rev{file:05}.dat has no undo data for block {height}");
                        found.useless.get_or_insert(why);
                    }
                }
            }
            Err(error) => {
                found.useless.get_or_insert(error.to_string());
            }
        }
        found.progress.blocks += heights.len() as u64;
        self.search.observer.event(Event::Progress(Phase::Undo, found.progress));
        found.useless.is_none() && !self.search.interrupt.load(Ordering::Relaxed)
    }
}

/// Returns whether the undo data has as many coins for each transaction of the block as it spends.
fn fits(block: &BlockView<'_>, undo: &[u8]) -> bool {
    let Ok(undo) = BlockUndo::read(undo) else { return false };
    let mut txs = block.txs().enumerate().skip(1);
    undo.tx_count() == block.tx_count()
        && txs.all(|(index, tx)| {
            undo.spent_by(index).is_some_and(|coins| coins.len() == tx.inputs().len())
        })
}

/// The positions of undo data, by block from the first one on.
pub(super) struct UndoPlaces {
    folder: PathBuf,
    magic: [u8; 4],
    /// Files, and offsets in them.
    places: Vec<(u32, u32)>,
    /// Whether the index must be right for every block, even if its undo data is not needed.
    of_all_blocks: bool,
}

impl UndoSource for UndoPlaces {
    fn reader(&self, _: HeightRange) -> Box<dyn UndoReader + '_> {
        Box::new(PlacesReader { places: self, files: None })
    }

    fn of_all_blocks(&self) -> bool {
        self.of_all_blocks
    }
}

/// The reader of one thread.
struct PlacesReader<'a> {
    places: &'a UndoPlaces,
    files: Option<UndoFiles>,
}

impl UndoReader for PlacesReader<'_> {
    fn read(&mut self, height: Height, prev: &BlockHash) -> Result<Vec<u8>, String> {
        let UndoPlaces { folder, magic, places, .. } = self.places;
        let place = height.checked_sub(1).and_then(|at| places.get(at as usize));
        let Some((file, offset)) = place else {
            return Err("no index has their positions".to_owned());
        };
        let files = match &mut self.files {
            Some(files) => files,
            none => {
                let opened = UndoFiles::open(folder, *magic).map_err(|error| error.to_string())?;
                none.insert(opened)
            }
        };
        files.read(*file, u64::from(*offset), prev).map_err(|error| error.to_string())
    }
}
