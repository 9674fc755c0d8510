//! Positions of blocks from Core's block index: fast on any disk, and never trusted.
//!
//! Finding blocks by scanning the files costs one small read for each block, all over the disk. The index holds
//! this information in one folder, about 200 MB for the main chain. It only says where to look: each header is
//! checked against the same rules as any other, and each block is compared with its header when it is read. An
//! index may be older than the files, so the files from the last one that it knows are scanned anyway.
//!
//! The index does not contain the lengths of blocks. The distance to the next block in the file is an upper
//! bound, and the record's own size, four bytes before the block, is read along with the block.

use super::finder::BlockFinder;
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

/// Heights processed at once. The index is ordered by hash, so it is read once for each range of heights: that
/// bounds the memory for sorting by height.
const HEIGHTS_AT_ONCE: u32 = 100_000;

/// Bytes before a block: magic and size.
pub(super) const RECORD_HEAD: u64 = 8;

/// Why the index is unusable.
pub(super) enum IndexUnusable {
    /// It could not be read.
    Index(IndexError),
    /// It lists no stored block.
    Empty,
}

/// Adds the headers and positions of all stored blocks to `finder`.
pub(super) fn find(
    files: &BlockFiles,
    finder: &mut BlockFinder<'_>,
    observer: &dyn Observer,
    interrupt: &AtomicBool,
) -> Result<Result<(), IndexUnusable>, SourceError> {
    let rooms = match rooms(files, finder) {
        Ok(rooms) if rooms.is_empty() => return Ok(Err(IndexUnusable::Empty)),
        Ok(rooms) => rooms,
        Err(error) => return Ok(Err(IndexUnusable::Index(error))),
    };
    if let Err(error) = headers(files, &rooms, &|_| true, finder) {
        return Ok(Err(IndexUnusable::Index(error)));
    }
    let last = rooms.keys().max().copied().unwrap_or(0);
    let newer: Vec<BlockFile> =
        files.files().iter().filter(|file| file.number >= last).cloned().collect();
    finder.scan(&newer, observer, interrupt)?;
    Ok(Ok(()))
}

/// Adds the headers and positions of the blocks that the node connected and has undo data for, or of all stored
/// blocks if the index is taken as `stated`. All ancestors of a block of the first kind are such blocks, too.
pub(super) fn find_listed(
    files: &BlockFiles,
    finder: &mut BlockFinder<'_>,
    stated: bool,
) -> Result<(), IndexError> {
    let rooms = rooms(files, finder)?;
    headers(files, &rooms, &|entry| stated || is_connected(entry), finder)
}

/// Returns the first missing block file that the index lists for connected blocks, and the lowest of these
/// blocks. With `whole`, also finds a file that ends before such a block.
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

/// Returns the ascending offsets of blocks for each file that is present. Notes absent blocks and missing files
/// in `finder`.
fn rooms(
    files: &BlockFiles,
    finder: &mut BlockFinder<'_>,
) -> Result<HashMap<u32, Vec<u32>>, IndexError> {
    let mut starts: HashMap<u32, Vec<u32>> = HashMap::new();
    read_index(files.home(), &mut |entry| {
        match entry.data {
            Some((number, offset)) => match files.get(number) {
                Some(file) if file.length > offset => {
                    let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                    starts.entry(number).or_default().push(offset);
                }
                // For a pruned file the index has no positions.
                _ => finder.absent(entry.height),
            },
            None if entry.status & STATUS_FAILED == 0 => finder.header_alone(entry.height),
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

/// Passes the headers to `finder` by ascending height, if the heights in the index are right. At each height,
/// the headers that the node connected come first: of two chains with equal work the first is chosen, and that
/// should be the node's chain.
fn headers(
    files: &BlockFiles,
    rooms: &HashMap<u32, Vec<u32>>,
    wanted: &dyn Fn(&IndexEntry) -> bool,
    finder: &mut BlockFinder<'_>,
) -> Result<(), IndexError> {
    // No chain can have more blocks than there are entries.
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
            finder.header(&header, place, Some(height));
        }
        if end == u32::MAX {
            break;
        }
        start = end;
    }
    Ok(())
}

/// Returns a block's position with all the space up to the next block, or to the end of the file.
fn place(
    files: &BlockFiles,
    rooms: &HashMap<u32, Vec<u32>>,
    number: u32,
    offset: u64,
) -> Option<BlockLocation> {
    let starts = rooms.get(&number)?;
    let next = starts.partition_point(|&start| u64::from(start) <= offset);
    // The file may have become shorter than the index lists it.
    let length = files.get(number)?.length;
    let end = starts.get(next).map_or(length, |&next| u64::from(next).saturating_sub(RECORD_HEAD));
    let end = end.min(length);
    let size = end.checked_sub(offset)?.min(u64::from(u32::MAX)) as u32;
    (offset >= RECORD_HEAD && size > 0).then_some(BlockLocation { file: number, offset, size })
}
