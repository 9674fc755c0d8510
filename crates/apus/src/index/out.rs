//! `--index` of `apus sync`: makes the indexes of a data directory before it gets its name.

use crate::failure::Failure;
use apus_chain::{Network, Txid};
use apus_datadir::chain_folder;
use apus_indexes::{IndexForm, IndexesRequest, make_indexes};
use apus_storage::{DirStorage, create_private_dir};
use apus_sync::folder::{at, remove_folder};
use apus_sync::sink::{CoinSink, SetEnd, SetInfo, SetOutput};
use apus_sync::{
    DatadirBlocks, Event, FolderKind, FolderOutput, Phase, SyncError, WrittenFolder, draft_of,
};
use std::path::PathBuf;

/// The folder for temporary files in the data directory; not there once it has its name.
const SCRATCH: &str = "indexes.work";

/// The indexes of a data directory that a sync writes.
pub(crate) struct IndexesOutput<'a> {
    /// The chain's folder in the data directory's draft.
    folder: PathBuf,
    forms: &'a [IndexForm],
}

impl<'a> IndexesOutput<'a> {
    /// Returns the indexes that a run makes, if any.
    pub(crate) fn of(
        forms: &'a [IndexForm],
        folders: &[FolderOutput],
        chain: Network,
    ) -> Option<Self> {
        let datadir = folders.iter().find(|it| it.kind != FolderKind::Chainstate)?;
        let folder = chain_folder(&draft_of(&datadir.path), chain);
        (!forms.is_empty()).then_some(Self { folder, forms })
    }
}

/// Fails, before a run starts, if it cannot make the indexes that the user wants.
pub(crate) fn expect_makeable(
    forms: &[IndexForm],
    folders: &[FolderOutput],
    chain: Network,
) -> Result<(), Failure> {
    let Some(first) = forms.first() else { return Ok(()) };
    let kind = folders.iter().map(|it| it.kind).find(|kind| *kind != FolderKind::Chainstate);
    match kind {
        None => Err(Failure::usage(format!(
            "--index makes indexes in a data directory: add --out datadir:DIR, or make them for the node of the chain \
             {chain} with `apus index`"
        ))),
        Some(FolderKind::Datadir(DatadirBlocks::Last)) => Err(Failure::usage(format!(
            "--index {} needs all blocks, and --prune keeps only the last ones: leave out one of them",
            first.kind()
        ))),
        Some(FolderKind::KeptDatadir) => match forms.iter().find(|form| form.kind().needs_undo()) {
            Some(form) => Err(Failure::usage(format!(
                "{} is made from the coins that each block spends, but with hints, blocks from peers come without these: \
                 leave out {} or --hints. txindex and txospenderindex need no such coins",
                form.kind(),
                form.kind()
            ))),
            None => Ok(()),
        },
        Some(_) => Ok(()),
    }
}

impl SetOutput for IndexesOutput<'_> {
    fn begin(&self, _: SetInfo) -> Result<Box<dyn CoinSink + '_>, SyncError> {
        Ok(Box::new(IndexesSink(self)))
    }
}

/// Needs no coin: it reads the complete folder.
struct IndexesSink<'a>(&'a IndexesOutput<'a>);

impl CoinSink for IndexesSink<'_> {
    fn put_records(&mut self, _: &[u8]) -> Result<(), SyncError> {
        Ok(())
    }

    fn put(&mut self, _: Txid, _: &[u8]) -> Result<(), SyncError> {
        Ok(())
    }

    /// Makes the indexes: the folder, which comes before, has its coins, and its blocks were read back.
    fn check_blocks(&mut self, whole: &SetEnd<'_>) -> Result<u64, SyncError> {
        let IndexesOutput { folder, forms } = self.0;
        let env = whole.env;
        env.observer.event(Event::Paused { phase: Phase::CheckBlocks, bytes: 0 });
        // An earlier start may have got this far.
        remove_folder(&folder.join("indexes"))?;
        let scratch = folder.join(SCRATCH);
        create_private_dir(&scratch).map_err(at(&scratch))?;
        make_indexes(&IndexesRequest {
            params: env.params,
            folder,
            blocks: folder.join("blocks").into(),
            tip: whole.set.base,
            forms,
            numbers: None,
            replace: false,
            scratch: &DirStorage::private(&scratch),
            threads: env.threads,
            memory_bytes: env.memory_bytes,
            now: env.now,
            observer: env.observer,
            interrupt: env.interrupt,
        })?;
        remove_folder(&scratch)?;
        env.observer.event(Event::Started(Phase::CheckBlocks));
        Ok(0)
    }

    fn publish(self: Box<Self>, _: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        Ok(None)
    }
}
