//! Places of blocks out of Core's block index: quick on any disk, and never trusted.
//!
//! Finding blocks by going through the files costs one small read for each block, all over the
//! disk. The index has the same in one folder of some 200 MB for the main chain. What it says is
//! only where to look: each header passes the same rules as any other, and each block is compared
//! with its header when it is read. Since an index may be older than the files beside it, the
//! files from the last one that it knows on are gone through all the same.
//!
//! The index leaves out how long blocks are. The distance to the next block in the file bounds it,
//! and the record's own size, four bytes before the block, is read along with the block.

use super::finding::BlockFinder;
use crate::error::SourceError;
use crate::progress::Observer;
use apus_chain::Height;
use apus_datadir::{
    BlockFile, BlockFiles, BlockLocation, IndexEntry, IndexError, STATUS_FAILED, VALID_SCRIPTS,
    read_index,
};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

/// Heights gone through at once. The index is in the order of hashes, so it is read once for each
/// stretch of heights: that bounds what has to be kept to bring it into the order of heights.
const HEIGHTS_AT_ONCE: u32 = 200_000;

/// Bytes before a block: magic and size.
pub(super) const RECORD_HEAD: u64 = 8;

/// Why the index is of no use.
pub(super) enum Unusable {
    /// It could not be read.
    Index(IndexError),
    /// It names no stored block.
    Empty,
}

/// Puts the headers and places of all stored blocks into `finding`.
pub(super) fn find(
    files: &BlockFiles,
    finding: &mut BlockFinder<'_>,
    observer: &dyn Observer,
    interrupt: &AtomicBool,
) -> Result<Result<(), Unusable>, SourceError> {
    let rooms = match rooms(files, finding) {
        Ok(rooms) if rooms.is_empty() => return Ok(Err(Unusable::Empty)),
        Ok(rooms) => rooms,
        Err(error) => return Ok(Err(Unusable::Index(error))),
    };
    if let Err(error) = headers(files, &rooms, &|_| true, finding) {
        return Ok(Err(Unusable::Index(error)));
    }
    let last = rooms.keys().max().copied().unwrap_or(0);
    let newer: Vec<BlockFile> =
        files.files().iter().filter(|file| file.number >= last).cloned().collect();
    finding.scan(&newer, observer, interrupt)?;
    Ok(Ok(()))
}

/// Puts the headers and places of those blocks into `finding` that the node connected and has undo
/// data of. All ancestors of such a block are such blocks.
pub(super) fn find_connected(
    files: &BlockFiles,
    finding: &mut BlockFinder<'_>,
) -> Result<(), IndexError> {
    let rooms = rooms(files, finding)?;
    headers(files, &rooms, &is_connected, finding)
}

/// Puts the headers and places of all stored blocks into `finding`, as the index has them.
pub(super) fn find_stated(
    files: &BlockFiles,
    finding: &mut BlockFinder<'_>,
) -> Result<(), IndexError> {
    let rooms = rooms(files, finding)?;
    headers(files, &rooms, &|_| true, finding)
}

/// The first block file in which connected blocks lie by the index, and that is not there; and the lowest of
/// these blocks. If files are to be `whole`, also one that ends before such a block.
pub(super) fn missing_file(
    files: &BlockFiles,
    whole: bool,
) -> Result<Option<(u32, Height)>, IndexError> {
    let mut missing: Option<(u32, Height)> = None;
    read_index(files.home(), &mut |entry| {
        if let Some((number, offset)) = entry.data.filter(|_| is_connected(&entry))
            && files.get(number).is_none_or(|file| whole && file.length <= offset)
        {
            let found = (number, entry.height);
            missing = Some(missing.map_or(found, |first| first.min(found)));
        }
        ControlFlow::Continue(())
    })?;
    Ok(missing)
}

fn is_connected(entry: &IndexEntry) -> bool {
    entry.validity() >= VALID_SCRIPTS
        && entry.status & STATUS_FAILED == 0
        && (entry.height == 0 || entry.undo.is_some())
}

/// Where blocks begin, ascending, for each file that is there. What else the index tells of is noted in `finding`.
fn rooms(
    files: &BlockFiles,
    finding: &mut BlockFinder<'_>,
) -> Result<HashMap<u32, Vec<u32>>, IndexError> {
    let mut starts: HashMap<u32, Vec<u32>> = HashMap::new();
    read_index(files.home(), &mut |entry| {
        match entry.data {
            Some((number, offset)) => match files.get(number) {
                Some(file) if file.length > offset => {
                    let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                    starts.entry(number).or_default().push(offset);
                }
                // Of a file that was pruned the index has no places.
                _ => finding.absent(entry.height),
            },
            None if entry.status & STATUS_FAILED == 0 => finding.header_alone(entry.height),
            None => {}
        }
        ControlFlow::Continue(())
    })?;
    for starts in starts.values_mut() {
        starts.sort_unstable();
        starts.dedup();
    }
    Ok(starts)
}

/// Gives the headers to `finding` by ascending height, as far as the index is right about heights. Of those of
/// one height the ones come first that the node connected: where two chains have the same work the first one
/// is gone for, and that should be the node's own.
fn headers(
    files: &BlockFiles,
    rooms: &HashMap<u32, Vec<u32>>,
    wanted: &dyn Fn(&IndexEntry) -> bool,
    finding: &mut BlockFinder<'_>,
) -> Result<(), IndexError> {
    // A chain of as many blocks as there are entries is the highest that there can be.
    let blocks: usize = rooms.values().map(Vec::len).sum();
    let highest = u32::try_from(blocks).unwrap_or(u32::MAX);
    let mut start = 0;
    while start <= highest {
        let end = start.saturating_add(HEIGHTS_AT_ONCE);
        let mut found: Vec<(u32, bool, BlockLocation, [u8; 80])> = Vec::new();
        read_index(files.home(), &mut |entry| {
            if let Some((file, offset)) = entry.data
                && (start..end).contains(&entry.height)
                && wanted(&entry)
                && let Some(place) = place(files, rooms, file, offset)
            {
                found.push((entry.height, !is_connected(&entry), place, entry.header));
            }
            ControlFlow::Continue(())
        })?;
        found.sort_unstable();
        for (height, _, place, header) in found {
            finding.header(&header, place, Some(height));
        }
        if end == u32::MAX {
            break;
        }
        start = end;
    }
    Ok(())
}

/// A block's place with all the room up to the next block, or to the end of the file.
fn place(
    files: &BlockFiles,
    rooms: &HashMap<u32, Vec<u32>>,
    number: u32,
    offset: u64,
) -> Option<BlockLocation> {
    let starts = rooms.get(&number)?;
    let next = starts.partition_point(|&start| u64::from(start) <= offset);
    // The file may have become shorter than the index has it.
    let length = files.get(number)?.length;
    let end = starts.get(next).map_or(length, |&next| u64::from(next).saturating_sub(RECORD_HEAD));
    let end = end.min(length);
    let size = end.checked_sub(offset)?.min(u64::from(u32::MAX)) as u32;
    (offset >= RECORD_HEAD && size > 0).then_some(BlockLocation { file: number, offset, size })
}
