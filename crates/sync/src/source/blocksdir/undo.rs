//! The undo data of a node's blocks, by its own index: whether it could go back from the chain's tip, and which
//! coins blocks spend, as they say.

use super::BlocksDir;
use crate::error::SourceError;
use apus_chain::{BlockHash, BlockUndo, Height};
use apus_datadir::{IndexEntry, UndoFiles, read_index};
use apus_engine::swiftsync::{UndoReader, UndoSource};
use std::ops::ControlFlow;
use std::path::PathBuf;

impl BlocksDir {
    /// Reads the undo data of the last `count` blocks, by the node's own index. What is wrong with
    /// the first that is of no use, for people; nothing where all are sound.
    pub(super) fn look_at_undo(&self, count: u32) -> Result<Option<String>, SourceError> {
        let tip = self.chain.tip_height();
        let lowest = (tip + 1).saturating_sub(count).max(1);
        let mut entries: Vec<IndexEntry> = Vec::new();
        read_index(self.files.dir(), &mut |entry| {
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

    /// Where the undo data of the blocks up to a height lie; none where some have none, as far as the index
    /// says, or there is no index that can be read.
    pub(super) fn undo_places(&self, last: Height) -> Option<UndoPlaces> {
        let mut places = vec![None; last as usize];
        let read = read_index(self.files.dir(), &mut |entry| {
            let place = entry.height.checked_sub(1).and_then(|at| places.get_mut(at as usize));
            if let Some(place) = place
                && self.chain.hash(entry.height) == Some(&entry.hash)
            {
                *place = entry.undo.and_then(|(file, at)| Some((file, u32::try_from(at).ok()?)));
            }
            ControlFlow::Continue(())
        });
        read.ok()?;
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
        Some(format!("the undo data of block {height} is of no use: {wrong}"))
    }
}

/// Where undo data lie, of each block from the first on.
pub(super) struct UndoPlaces {
    folder: PathBuf,
    magic: [u8; 4],
    /// Files, and offsets in them.
    places: Vec<(u32, u32)>,
    /// Whether what the index says is to be true of each, needed or not.
    of_all_blocks: bool,
}

impl UndoSource for UndoPlaces {
    fn reader(&self) -> Box<dyn UndoReader + '_> {
        Box::new(PlacesReader { places: self, files: None })
    }

    fn of_all_blocks(&self) -> bool {
        self.of_all_blocks
    }
}

/// One thread's.
struct PlacesReader<'a> {
    places: &'a UndoPlaces,
    files: Option<UndoFiles>,
}

impl UndoReader for PlacesReader<'_> {
    fn read(&mut self, height: Height, prev: &BlockHash) -> Result<Vec<u8>, String> {
        let UndoPlaces { folder, magic, places, .. } = self.places;
        let place = height.checked_sub(1).and_then(|at| places.get(at as usize));
        let Some((file, offset)) = place else {
            return Err("no index says where they are".to_owned());
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
