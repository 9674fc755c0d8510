//! The coins phase: merges the runs of all segments into one set, and passes it to the set's hash and every
//! sink, in the same order.
//!
//! The calling thread merges. If the sync may use more than one thread, the hash, which is one long chain of
//! compressions, has its own thread, and so do the sinks; batches of records reach them through short queues.
//! No output is published before all of them have received the whole set.

use crate::commitment::HashParts;
use crate::engines::swiftsync::hints::{HINTS_MAGIC, HINTS_VERSION};
use crate::engines::swiftsync::{CoinTotals, Verdict};
use crate::error::{InvalidError, IoError, SyncError};
use crate::folder::{FolderKind, FolderOutput, WrittenFolder, draft_of};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::request::{Output, Request, RunEnv, SetHashes, Written};
use crate::runs::EachRecord;
use crate::sink::datadir::{DraftWithBlocks, FolderSink, chainstate_folder};
use crate::sink::set_hash::{SetHash, hash_set, merge_all};
use crate::sink::{self, CoinSink, FileDraft, HashSink, SetEnd, SetInfo, TotalsSink};
use crate::source::ChainSource;
use crate::taker::BatchTaker;
use crate::workdir::{RunInfo, Workdir};
use apus_chain::{Height, KnownBlock, UtxoSetHash};
use apus_engine::script::Signatures;
use apus_storage::{DirStorage, Storage, StorageFile};
use std::sync::Arc;

/// Bytes of records passed on together.
const BATCH_BYTES: usize = 64 << 10;

/// Merges the runs and writes the outputs. `runs` holds the runs of coins and of hints; hashes are present if a
/// commitment is requested, and the blocks if they are in a data directory already. Also returns the facts about the
/// set that were known before.
pub fn write_out(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    workdir: &Workdir<'_>,
    (at, verdict): (KnownBlock, &Verdict),
    [coins, hints]: [Vec<RunInfo>; 2],
    hashes: Option<&dyn HashParts>,
    with_blocks: Option<DraftWithBlocks>,
) -> Result<(SetInfo, Put), SyncError> {
    let bytes = coins.iter().map(|run| run.bytes).sum();
    let set = SetInfo {
        network: request.env.params.network,
        height: at.height,
        base: at.hash,
        coins: verdict.coins.coins,
        coin_bytes: bytes,
        transactions: verdict.counts.transactions,
    };
    let places = places(request);
    let mut sinks = sinks(request, dir, set, &places, with_blocks)?;
    let commitment = request.commitment.filter(|it| it.is_wanted());
    if let (Some(commitment), Some(hashes)) = (commitment, hashes) {
        let made = commitment.make(&request.env, hashes);
        made.inspect_err(|error| forget_damaged(workdir.storage(), error))?;
    }
    let mut drafts = Vec::new();
    for output @ Output { storage, name, .. } in request.outputs {
        if let Some(sink) = sink::begin(output, set)? {
            sinks.push(sink);
        } else {
            let draft = draft_hints(&**storage, name, set.height, workdir, &hints);
            drafts.push(draft.inspect_err(|error| forget_damaged(workdir.storage(), error))?);
        }
    }
    let muhash = SetMuHash::Known(verdict.muhash);
    let put = put_set(request, set, sinks, muhash, bytes, SetRecords::Runs(coins));
    let put = put.inspect_err(|error| forget_damaged(workdir.storage(), error))?;
    drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))?;
    commitment.map_or(Ok(()), |commitment| commitment.publish())?;
    Ok((set, put))
}

/// If a run of the work folder proved damaged, makes the next start rebuild the segment or join that it belongs
/// to.
pub fn forget_damaged(workdir: &dyn Storage, error: &SyncError) {
    if let SyncError::Io(IoError::RunDamaged { run, .. }) = error {
        // If this fails, the damage is still the error to report.
        let _ = Workdir::forget(workdir, run);
    }
}

/// Begins a BIP-456 hintsfile in the order of its vectors, and writes all of it: its content is known before
/// the first coin is merged. It gets its final name once the set is proven and written.
fn draft_hints<'a>(
    storage: &'a dyn Storage,
    name: &str,
    stop: Height,
    workdir: &Workdir<'_>,
    runs: &[RunInfo],
) -> Result<(FileDraft<'a>, Box<dyn StorageFile>), SyncError> {
    let (draft, mut file) = FileDraft::create(storage, name)?;
    let header = [&HINTS_MAGIC[..], &[HINTS_VERSION], &stop.to_le_bytes()].concat();
    draft.write(&mut *file, &header)?;
    for run in runs {
        draft.write(&mut *file, &workdir.read_run(run)?)?;
    }
    Ok((draft, file))
}

/// The source of a set's records, in the order of a snapshot.
pub enum SetRecords<'r> {
    /// Runs to merge.
    Runs(Vec<RunInfo>),
    /// Records from the caller.
    Given(Box<Give<'r>>),
}

/// Passes all records to its argument.
type Give<'r> = dyn FnOnce(&mut EachRecord<'_>) -> Result<(), SyncError> + 'r;

impl<'r> SetRecords<'r> {
    pub fn given(give: impl FnOnce(&mut EachRecord<'_>) -> Result<(), SyncError> + 'r) -> Self {
        Self::Given(Box::new(give))
    }

    fn give(self, request: &Request<'_>, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        match self {
            Self::Runs(runs) => merge_all(&request.env, runs, each),
            Self::Given(give) => give(each),
        }
    }
}

pub type Sinks<'a> = Vec<Box<dyn CoinSink + 'a>>;

/// Whether the MuHash of a set is known before the set is written.
#[derive(Clone, Copy)]
pub enum SetMuHash {
    /// Computed while the coins were counted; `None` if not requested.
    Known(Option<[u8; 32]>),
    /// To compute while the set is written, if requested, together with the totals.
    Compute,
}

/// Hashes of a set that are known before it is written.
#[derive(Clone, Copy)]
pub struct KnownHashes {
    pub muhash: SetMuHash,
    /// `None` if the hash must be computed while the set is written.
    pub hashed: Option<SetHash>,
}

impl From<SetMuHash> for KnownHashes {
    fn from(muhash: SetMuHash) -> Self {
        Self { muhash, hashed: None }
    }
}

/// The result of writing a set.
pub struct Put {
    pub hashes: SetHashes,
    /// The totals, if they had to be computed; otherwise zeros.
    pub totals: CoinTotals,
    pub written: Written,
}

/// Fails if a test found wrong arithmetic on this machine: signatures that were checked before prove nothing, and neither
/// does the progress.
fn expect_right_arithmetic(request: &Request<'_>) -> Result<(), SyncError> {
    if !Signatures::are_faulty() {
        return Ok(());
    }
    // If this fails, the error to report is the same.
    let _ = Workdir::give_up(request.env.workdir);
    Err(SyncError::io(
        "a test found that this machine computes wrongly, so the signatures that it checked prove nothing, and no output \
         was written. Test the processor and memory, then start again with an empty --workdir",
    ))
}

/// Passes a whole set to its hash and all sinks, checks that it is the announced set, and publishes the
/// outputs.
pub fn put_set(
    request: &Request<'_>,
    set: SetInfo,
    mut sinks: Sinks<'_>,
    known: impl Into<KnownHashes>,
    bytes: u64,
    records: SetRecords<'_>,
) -> Result<Put, SyncError> {
    expect_right_arithmetic(request)?;
    request.env.observer.event(Event::Started(Phase::Coins));
    let KnownHashes { muhash, hashed } = known.into();
    let mut computed = match muhash {
        SetMuHash::Known(_) => None,
        SetMuHash::Compute => Some(TotalsSink::new(request.muhash)),
    };
    let SetHash { hash_serialized_3, coins } = match hashed {
        Some(hashed) if sinks.is_empty() && computed.is_none() => hashed,
        _ => match records {
            SetRecords::Runs(runs) if sinks.is_empty() && computed.is_none() => {
                hash_set(&request.env, runs, bytes)?
            }
            records => {
                let mut hash = HashSink::default();
                let give = |each: &mut EachRecord<'_>| records.give(request, each);
                let total =
                    Progress { bytes_total: bytes, coins_total: set.coins, ..Progress::default() };
                hand_out(&request.env, total, &mut hash, &mut sinks, computed.as_mut(), give)?;
                SetHash { coins: hash.coins(), hash_serialized_3: hash.finish() }
            }
        },
    };
    if coins != set.coins {
        return Err(SyncError::io(format!(
            "{coins} coins were written, but the segments kept {}. This is a bug in Apus: please report it. The \
             output was not written",
            set.coins
        )));
    }
    match request.env.params.assumeutxo_for(&set.base) {
        Some(known) if known.hash_serialized != hash_serialized_3 => {
            let found = UtxoSetHash(hash_serialized_3);
            let known = UtxoSetHash(known.hash_serialized);
            return Err(SyncError::Invalid(InvalidError::AssumeUtxo {
                stop_hash: set.base,
                found,
                known,
            }));
        }
        _ => {}
    }
    let (muhash, totals) = match (muhash, computed.map(TotalsSink::finish)) {
        (_, Some((muhash, totals))) => (request.muhash.then(|| muhash.finalize()), totals),
        (SetMuHash::Known(muhash), None) => (muhash, CoinTotals::default()),
        (SetMuHash::Compute, None) => unreachable!("the set's hash was computed"),
    };
    let folders = publish(&SetEnd { env: &request.env, set, hash_serialized_3 }, sinks, bytes)?;
    let hashes = SetHashes { hash_serialized_3, muhash };
    Ok(Put { hashes, totals, written: Written { folders } })
}

/// Seals all sinks, lets them write their index and read back their output, and publishes all of them.
fn publish(
    whole: &SetEnd<'_>,
    mut sinks: Sinks<'_>,
    bytes: u64,
) -> Result<Vec<WrittenFolder>, SyncError> {
    let observer = whole.env.observer;
    sinks.iter_mut().try_for_each(|sink| sink.seal())?;
    let mut phase = Event::Ended { phase: Phase::Coins, bytes };
    if sinks.iter().any(|sink| sink.indexes()) {
        observer.event(phase);
        observer.event(Event::Started(Phase::Index));
        sinks.iter_mut().try_for_each(|sink| sink.index(whole))?;
        phase = Event::Ended { phase: Phase::Index, bytes: 0 };
    }
    if sinks.iter().any(|sink| sink.checks()) {
        observer.event(phase);
        observer.event(Event::Started(Phase::CheckCoins));
        sinks.iter_mut().try_for_each(|sink| sink.check(whole))?;
        let bytes = sinks.iter().map(|sink| sink.bytes()).sum();
        phase = Event::Ended { phase: Phase::CheckCoins, bytes };
    }
    if sinks.iter().any(|sink| sink.indexes()) {
        observer.event(phase);
        observer.event(Event::Started(Phase::CheckBlocks));
        let mut bytes = 0;
        for sink in &mut sinks {
            bytes += sink.check_blocks(whole)?;
        }
        phase = Event::Ended { phase: Phase::CheckBlocks, bytes };
    }
    let mut folders = Vec::new();
    for sink in sinks {
        folders.extend(sink.publish(whole)?);
    }
    observer.event(phase);
    Ok(folders)
}

/// Passes records to the hashes and all sinks, in batches.
pub(super) fn hand_out(
    env: &RunEnv<'_>,
    mut progress: Progress,
    hash: &mut HashSink,
    sinks: &mut Sinks<'_>,
    totals: Option<&mut TotalsSink>,
    give: impl FnOnce(&mut EachRecord<'_>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let coins = hash.counter();
    std::thread::scope(|scope| {
        let apart = env.threads > 1;
        let mut takers =
            vec![BatchTaker::new("coins", scope, apart, |batch| hash.put_records(batch))?];
        if !sinks.is_empty() {
            let put = |batch: &[u8]| sinks.iter_mut().try_for_each(|sink| sink.put_records(batch));
            takers.push(BatchTaker::new("coins", scope, apart, put)?);
        }
        if let Some(totals) = totals {
            takers.push(BatchTaker::new("coins", scope, apart, |batch| totals.put_records(batch))?);
        }
        let mut batch = Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 8);
        let mut hand_on = |batch: &mut Vec<u8>| {
            progress.bytes += batch.len() as u64;
            progress.coins = coins.get();
            let whole = Arc::new(std::mem::replace(batch, Vec::with_capacity(batch.capacity())));
            takers.iter_mut().try_for_each(|taker| taker.take(&whole))?;
            env.observer.event(Event::Progress(Phase::Coins, progress));
            stop_if_interrupted(env.interrupt)
        };
        give(&mut |record| {
            batch.extend_from_slice(record);
            if batch.len() >= BATCH_BYTES { hand_on(&mut batch) } else { Ok(()) }
        })?;
        hand_on(&mut batch)?;
        takers.into_iter().try_for_each(BatchTaker::end)
    })
}

// The sinks that write folders.

/// Returns the storage to which each folder's coins are written.
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

/// Begins all folders that `request` names, and the outputs of other crates. The folders' coins go to `places`;
/// `with_blocks` is the data directory that already has its blocks.
pub fn sinks<'a>(
    request: &'a Request<'_>,
    dir: &'a dyn ChainSource,
    set: SetInfo,
    places: &'a [DirStorage],
    mut with_blocks: Option<DraftWithBlocks>,
) -> Result<Sinks<'a>, SyncError> {
    let sink = |(output, place): (&'a FolderOutput, &'a DirStorage)| {
        let sink = FolderSink::create(request, dir, output, &mut with_blocks, place, set)?;
        Ok(Box::new(sink) as Box<dyn CoinSink + 'a>)
    };
    let folders = request.folders.iter().zip(places).map(sink);
    folders.chain(request.sets.iter().map(|output| output.begin(set))).collect()
}
