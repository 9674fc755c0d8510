//! `--index` and `--out stats:FILE` of `apus sync`: makes indexes and the chain in numbers when the set is complete, in a
//! pass over the blocks and undo data of the data directory that the run writes, or of the node that gave the blocks.

use crate::args::SinkArg;
use crate::failure::Failure;
use crate::index::{expect_indexes, numbers_place};
use crate::machine::clock;
use crate::sync::{JobSource, RunJob};
use apus_chain::{Params, Txid};
use apus_datadir::{BlocksFolder, chain_folder};
use apus_indexes::{
    IndexForm, IndexesRequest, NUMBERS, NodeCoins, NumbersDraft, NumbersPlace, expect_undo_data,
    make_indexes,
};
use apus_storage::{DirStorage, create_private_dir};
use apus_sync::folder::{at, remove_folder};
use apus_sync::sink::{CoinSink, SetEnd, SetInfo, SetOutput, TotalsSink};
use apus_sync::{
    DatadirBlocks, Event, FolderKind, FolderOutput, GONE, Phase, Stop, SyncError, WrittenFolder,
    draft_of,
};
use std::path::{Path, PathBuf};

/// The folder for temporary files in the data directory; not there once it has its name.
const SCRATCH: &str = "indexes.work";

/// What a run makes from blocks and undo data, after its set.
pub(crate) struct IndexesOutput<'a> {
    blocks: IndexedBlocks,
    forms: &'a [IndexForm],
    numbers: Option<NumbersPlace>,
}

/// The blocks and undo data to read.
enum IndexedBlocks {
    /// Those of the data directory that the run writes; this is the chain's folder in its draft.
    Written(PathBuf),
    /// Those of a node, and the folder for temporary files.
    OfNode { blocks: BlocksFolder, scratch: PathBuf },
}

impl<'a> IndexesOutput<'a> {
    /// Returns what a job makes, if anything; [`expect_makeable`] has accepted it.
    pub(crate) fn of(
        job: &RunJob<'a>,
        folders: &[FolderOutput],
        work_path: &Path,
    ) -> Result<Option<Self>, SyncError> {
        let numbers = stats_path(job.outputs).map(|path| numbers_place(path, job.replace));
        let numbers = numbers.transpose().map_err(|failure| SyncError::usage(failure.message))?;
        if job.indexes.is_empty() && numbers.is_none() {
            return Ok(None);
        }
        let datadir = folders.iter().find(|it| it.kind != FolderKind::Chainstate);
        let whole = |it: &&FolderOutput| it.kind != FolderKind::Datadir(DatadirBlocks::Last);
        let blocks = match (datadir.filter(whole), &job.source) {
            (None, JobSource::Files { blocksdir, .. }) => IndexedBlocks::OfNode {
                blocks: blocksdir.clone(),
                // The next start removes the folder of this name.
                scratch: work_path.join(GONE),
            },
            (Some(datadir), _) => {
                IndexedBlocks::Written(chain_folder(&draft_of(&datadir.path), job.chain))
            }
            (None, JobSource::Peers(_)) => return Ok(None),
        };
        Ok(Some(Self { blocks, forms: job.indexes, numbers }))
    }
}

/// Returns the file for the chain in numbers.
fn stats_path(sinks: &[SinkArg]) -> Option<&Path> {
    sinks.iter().find_map(|sink| match sink {
        SinkArg::Stats(path) => Some(path.as_path()),
        _ => None,
    })
}

/// Fails, before a run starts, if it cannot make the indexes or the numbers that the user wants.
pub(crate) fn expect_makeable(job: &RunJob<'_>, folders: &[FolderOutput]) -> Result<(), Failure> {
    let kind = folders.iter().map(|it| it.kind).find(|kind| *kind != FolderKind::Chainstate);
    let kind = match kind {
        // The coins of bridges become the undo data of all blocks.
        Some(FolderKind::KeptDatadir) if job.spent.is_some() => {
            Some(FolderKind::Datadir(DatadirBlocks::All))
        }
        kind => kind,
    };
    expect_numbers(job, kind)?;
    expect_indexes(job.indexes, kind, job.chain)
}

/// Fails if the chain in numbers is wanted, and neither the run nor a node gives the coins that each block spends.
fn expect_numbers(job: &RunJob<'_>, kind: Option<FolderKind>) -> Result<(), Failure> {
    let Some(path) = stats_path(job.outputs) else { return Ok(()) };
    if job.outputs.iter().filter(|sink| matches!(sink, SinkArg::Stats(_))).count() > 1 {
        return Err(Failure::usage(
            "Apus writes the chain in numbers once: give --out stats:FILE once",
        ));
    }
    numbers_place(path, job.replace)?;
    let refused = |why: &str| {
        Err(Failure::usage(format!(
            "stats:FILE counts the coins that each block spends, {why}. `apus index --numbers FILE` also makes the file, \
             for a stopped node with undo data"
        )))
    };
    match (kind, &job.source) {
        (Some(FolderKind::Datadir(DatadirBlocks::All)), _) => Ok(()),
        (_, JobSource::Files { blocksdir, use_index }) => {
            let params = Params::of(job.chain);
            let stop = match job.stop {
                Stop::At(height) => Some(height),
                Stop::AtTip | Stop::AtHints => None,
            };
            let chain = (*use_index, stop);
            let undo = expect_undo_data(params, NUMBERS, blocksdir, chain, clock(params)?);
            undo.map_err(|error| {
                let mut failure = Failure::from(error);
                failure.message.push_str(
                    ". Or let this run write the undo data: add --out datadir:DIR, without --hints and --prune",
                );
                failure
            })
        }
        (Some(FolderKind::KeptDatadir), _) => refused(
            "and with hints, blocks from peers come without these: add --spent peers, or leave out --hints",
        ),
        (Some(_), _) => refused(
            "and with --prune, a run from peers keeps the undo data only of the last blocks: leave it out",
        ),
        (None, _) => refused(
            "and a run from peers keeps their undo data only in a data directory: add --out datadir:DIR",
        ),
    }
}

impl SetOutput for IndexesOutput<'_> {
    fn begin(&self, _: SetInfo) -> Result<Box<dyn CoinSink + '_>, SyncError> {
        let totals = match self.blocks {
            IndexedBlocks::Written(_) => None,
            IndexedBlocks::OfNode { .. } => Some(TotalsSink::new(true)),
        };
        Ok(Box::new(IndexesSink { output: self, totals, numbers: None }))
    }
}

struct IndexesSink<'a> {
    output: &'a IndexesOutput<'a>,
    /// Sums up the set, if no folder has it; the sums prove the node's undo data.
    totals: Option<TotalsSink>,
    numbers: Option<NumbersDraft>,
}

impl IndexesSink<'_> {
    /// Goes over the blocks of `folder`. `phase` waits meanwhile.
    fn make(
        &mut self,
        whole: &SetEnd<'_>,
        phase: Phase,
        (folder, blocks, scratch): (&Path, &BlocksFolder, &Path),
    ) -> Result<(), SyncError> {
        let (env, output) = (whole.env, self.output);
        let best = whole.set.base;
        let coins = self.totals.take().map(TotalsSink::finish).map(|(muhash, totals)| NodeCoins {
            best,
            coins: totals.coins,
            // All money fits.
            amount: u64::try_from(totals.amount).unwrap_or(u64::MAX),
            muhash: muhash.finalize(),
        });
        env.observer.event(Event::Paused { phase, bytes: 0 });
        // An earlier start may have got this far.
        remove_folder(scratch)?;
        create_private_dir(scratch).map_err(at(scratch))?;
        let made = make_indexes(&IndexesRequest {
            params: env.params,
            folder,
            blocks: blocks.clone(),
            tip: best,
            coins,
            forms: output.forms,
            numbers: output.numbers.as_ref(),
            replace: false,
            scratch: &DirStorage::private(scratch),
            threads: env.threads,
            memory_bytes: env.memory_bytes,
            now: env.now,
            observer: env.observer,
            interrupt: env.interrupt,
        });
        let removed = remove_folder(scratch);
        self.numbers = made?.numbers;
        env.observer.event(Event::Started(phase));
        removed
    }
}

impl CoinSink for IndexesSink<'_> {
    fn put_records(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        self.totals.as_mut().map_or(Ok(()), |totals| totals.put_records(batch))
    }

    fn put(&mut self, _: Txid, _: &[u8]) -> Result<(), SyncError> {
        // `put_records` takes all coins.
        Ok(())
    }

    fn checks(&self) -> bool {
        matches!(self.output.blocks, IndexedBlocks::OfNode { .. })
    }

    fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        let IndexedBlocks::OfNode { blocks, scratch } = &self.output.blocks else { return Ok(()) };
        // Nothing is written into the node's folder.
        self.make(whole, Phase::CheckCoins, (scratch, blocks, scratch))
    }

    /// Makes the indexes: the folder, which comes before, has its coins, and its blocks were read back.
    fn check_blocks(&mut self, whole: &SetEnd<'_>) -> Result<u64, SyncError> {
        let IndexedBlocks::Written(folder) = &self.output.blocks else { return Ok(0) };
        // An earlier start may have got this far.
        remove_folder(&folder.join("indexes"))?;
        let blocks = BlocksFolder::from(folder.join("blocks"));
        self.make(whole, Phase::CheckBlocks, (folder, &blocks, &folder.join(SCRATCH)))?;
        Ok(0)
    }

    fn publish(self: Box<Self>, _: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        self.numbers.map_or(Ok(()), NumbersDraft::publish)?;
        Ok(None)
    }
}
