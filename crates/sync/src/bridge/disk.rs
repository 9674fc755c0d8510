//! How much disk proofs take, which is said before hours of work.

use crate::error::SyncError;
use crate::folder::room;
use crate::progress::{DiskUse, Event};
use crate::proofs::proofs_files;
use crate::request::{BridgeOptions, RunEnv};
use crate::source::ChainSource;
use crate::warning::Warning;
use apus_chain::Height;

/// What the forest takes in the work folder, and the numbers of leaves that records carry, in percent of the blocks'
/// bytes: 64 bytes for each leaf that lives, twice while its store merges, and 4 bytes for each coin three times. That is
/// where a quarter of the coins live; on the main chain it is less.
pub(crate) const DISK_PERCENT: u64 = 25;

/// What files of proofs take, in percent of the blocks' bytes: 78 were measured, in a forest of some six million leaves.
/// Each hash more that a coin needs adds 32 bytes, and what is spent together shares them.
const FILES_PERCENT: u64 = 80;

/// Says how much disk the files take that are to be made, up to the block at `end`, and warns where that is not free.
/// How much it really is depends on what blocks spend, so no run is refused.
pub(crate) fn tell_disk(
    env: &RunEnv<'_>,
    options: &BridgeOptions<'_>,
    dir: &dyn ChainSource,
    end: Height,
) -> Result<(), SyncError> {
    if !options.folder.is_dir() {
        return Ok(());
    }
    let files = proofs_files(&*options.storage)?;
    let first = files.last().map_or(1, |(range, _)| range.end);
    let block_bytes: u64 = (first..=end).map(|height| dir.block_bytes(height)).sum();
    let (bytes, free) = (block_bytes / 100 * FILES_PERCENT, room(&options.folder)?);
    env.observer.event(Event::DiskNeeded { what: DiskUse::Proofs, bytes, free });
    if free < bytes {
        let folder = options.folder.display().to_string();
        let warning = Warning::LittleRoomForProofs { folder, needed: bytes, free };
        env.observer.event(Event::Warning(warning));
    }
    Ok(())
}
