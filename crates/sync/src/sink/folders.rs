//! The sinks of a run that are folders.

use super::chainstate::ChainstateSink;
use super::datadir::{DatadirSink, DraftWithBlocks, chainstate_folder};
use super::kept::KeptSink;
use super::{CoinSink, SetInfo};
use crate::error::SyncError;
use crate::folder::{FolderKind, FolderOutput, draft_of};
use crate::request::Request;
use crate::sink::put::Sinks;
use crate::source::ChainSource;
use apus_storage::DirStorage;

/// Where the coins of each folder go while they are written.
pub fn places(request: &Request<'_>) -> Vec<DirStorage> {
    let place = |output: &FolderOutput| {
        let draft = draft_of(&output.path);
        DirStorage::new(match output.kind {
            FolderKind::Chainstate => draft,
            FolderKind::Datadir(_) | FolderKind::KeptDatadir => {
                chainstate_folder(&draft, request.env.params.network)
            }
        })
    };
    request.folders.iter().map(place).collect()
}

/// Begins all folders that `request` asks for, whose coins go to `places`. The data directory is
/// `with_blocks`, where the blocks were written while they were connected.
pub fn sinks<'a>(
    request: &'a Request<'_>,
    dir: &'a dyn ChainSource,
    set: SetInfo,
    places: &'a [DirStorage],
    mut with_blocks: Option<DraftWithBlocks>,
) -> Result<Sinks<'a>, SyncError> {
    let sink = |(output, place): (&'a FolderOutput, &'a DirStorage)| {
        Ok(match output.kind {
            FolderKind::Chainstate => {
                Box::new(ChainstateSink::create(output, place, set)?) as Box<dyn CoinSink + 'a>
            }
            FolderKind::Datadir(kept) => {
                let draft = with_blocks.take();
                Box::new(DatadirSink::create(request, dir, output, kept, draft, place, set)?)
            }
            FolderKind::KeptDatadir => {
                Box::new(KeptSink::create(request, dir, output, place, set)?)
            }
        })
    };
    request.folders.iter().zip(places).map(sink).collect()
}
