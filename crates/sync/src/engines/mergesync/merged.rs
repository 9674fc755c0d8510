//! [`MergedSet`]: the set that a join produced, ready to be written to the outputs.

use crate::commitment::{SetCommitment, SortedHashes};
use crate::engines::mergesync::WalkOutcome;
use crate::engines::mergesync::join_result::JoinResult;
use crate::engines::pass::Counts;
use crate::engines::swiftsync::hints::HintsWriter;
use crate::engines::swiftsync::{CoinTotals, expect_counted};
use crate::error::{StorageResult, SyncError};
use crate::progress::stop_if_interrupted;
use crate::request::{Output, Request};
use crate::runs::{CoinsForm, KeyRange, MergeBudget, PlacesForm, Runs, merge_runs};
use crate::sink::put::{KnownHashes, Put, SetMuHash, SetRecords, put_set};
use crate::sink::set_hash::SetHash;
use crate::sink::{self, FileDraft, HashSink, SetInfo, put};
use crate::source::ChainSource;
use crate::workdir::RunInfo;
use apus_chain::Height;
use apus_storage::StorageFile;
use std::io::BufWriter;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The set that a join produced.
pub(crate) struct MergedSet<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) set: SetInfo,
    pub(crate) counts: Counts,
    pub(crate) validated: WalkOutcome,
    /// Blocks whose witnesses were not read.
    pub(crate) unseen: u64,
    pub(super) joined: JoinResult,
    /// The number of outputs numbered in all blocks, if a commitment is made from the hashes of the surviving
    /// ones.
    pub(super) numbered: Option<u64>,
}

impl MergedSet<'_> {
    /// Passes the coins to the set's hashes and the sinks, and their places to the hints.
    pub(crate) fn write_out(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(Put, CoinTotals), SyncError> {
        let set = self.set;
        let places = put::places(request);
        let with_blocks = self.validated.with_blocks.take();
        let mut sinks = put::sinks(request, &*self.dir, set, &places, with_blocks)?;
        let commitment = request.commitment.filter(|it| it.is_wanted());
        if let (Some(commitment), Some(count)) = (commitment, self.numbered) {
            self.commit(request, commitment, count)?;
        }
        let mut drafts = Vec::new();
        for output in request.outputs {
            match sink::begin(output, set)? {
                Some(sink) => sinks.push(sink),
                None => drafts.push(self.draft_hints(request, output)?),
            }
        }
        let bytes = self.joined.coin_bytes();
        let muhash = request.muhash.then(|| self.joined.muhash.finalize());
        let muhash = SetMuHash::Known(muhash);
        let known = KnownHashes { muhash, hashed: self.validated.hashed };
        let records = SetRecords::Runs(self.joined.coins.clone());
        let put = put_set(request, set, sinks, known, bytes, records)?;
        drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))?;
        commitment.map_or(Ok(()), |commitment| commitment.publish())?;
        Ok((put, self.joined.totals))
    }

    /// Makes the commitment from the hashes, given the number of numbered outputs in all blocks.
    fn commit(
        &self,
        request: &Request<'_>,
        commitment: &dyn SetCommitment,
        count: u64,
    ) -> Result<(), SyncError> {
        let runs = self.joined.hashes.clone().unwrap_or_default();
        let hashes = SortedHashes::open(&request.env, runs, count)?;
        commitment.make(&request.env, &hashes)?;
        hashes.close()
    }

    /// Writes a hintsfile that is not published yet.
    fn draft_hints<'o>(
        &self,
        request: &Request<'_>,
        output: &'o Output,
    ) -> Result<(FileDraft<'o>, Box<dyn StorageFile>), SyncError> {
        // The chain may have another end than at the start of the sync.
        expect_counted(request.env.params, self.dir.chain(), self.set.height)?;
        let Output { storage, name, .. } = output;
        let (draft, file) = FileDraft::create(&**storage, name)?;
        let failed = |error| SyncError::Hints { file: storage.describe(name), error };
        let out = BufWriter::with_capacity(1 << 18, file);
        let mut writer = HintsWriter::new(out, self.set.height).map_err(failed)?;
        let budget = MergeBudget::new(request.env.memory_bytes / 4);
        let runs = self.joined.places.clone();
        let runs = Runs::<PlacesForm>::open(request.env.workdir, runs, budget, &|_| Ok(()))?;
        let mut places = runs.part(KeyRange::ALL)?;
        places.next()?;
        let mut indices = Vec::new();
        for height in 1..=self.set.height {
            indices.clear();
            while let Some((_, index)) = places.current().map(place).filter(|it| it.0 == height) {
                indices.push(index);
                places.next()?;
            }
            writer.put(&indices).map_err(failed)?;
        }
        runs.close()?;
        let out = writer.finish().map_err(failed)?;
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        Ok((draft, file.at(&**storage, name)?))
    }
}

/// Reads the height and the index of a place.
fn place(record: &[u8]) -> (Height, u32) {
    let number = |at: usize| record[at..].first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
    (number(0), number(4))
}

// [`hash_beside`]: the set's `hash_serialized_3`, computed while blocks are validated.
//
// The hash is one long chain of compressions, and computed at the end it would keep other threads waiting. It
// does not depend on the validity of the blocks: if one is invalid, the hash is dropped. If coins are written
// out, it is computed then, so that they are not read twice.

/// Does some work and, in parallel, computes the hash of the coins in some runs, if there are threads for both
/// and no output needs the coins.
///
/// # Errors
/// The work's error takes precedence.
pub fn hash_beside<T>(
    request: &Request<'_>,
    coins: Vec<RunInfo>,
    work: impl FnOnce() -> Result<T, SyncError>,
) -> Result<(T, Option<SetHash>), SyncError> {
    let are_written = !request.folders.is_empty()
        || !request.sets.is_empty()
        || request.outputs.iter().any(|output| output.kind.takes_coins());
    // If other machines share the work, this one only waits for them.
    let has_thread = request.env.threads >= 2 || request.env.is_shared;
    if !has_thread || are_written {
        return Ok((work()?, None));
    }
    let halt = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("coins".to_owned());
        let hashing = builder.spawn_scoped(scope, || hash(request, coins, &halt));
        let done = work();
        halt.store(done.is_err(), Ordering::Relaxed);
        // Without a thread the hash is computed at the end.
        let hashed = hashing.ok().map(|thread| match thread.join() {
            Ok(hashed) => hashed,
            Err(panic) => resume_unwind(panic),
        });
        let done = done?;
        Ok((done, hashed.transpose()?))
    })
}

/// Computes the hash of the coins in some runs, unless it is halted.
fn hash(
    request: &Request<'_>,
    coins: Vec<RunInfo>,
    halt: &AtomicBool,
) -> Result<SetHash, SyncError> {
    let go_on = || match halt.load(Ordering::Relaxed) {
        true => Err(SyncError::Interrupted),
        false => stop_if_interrupted(request.env.interrupt),
    };
    let (mut sink, budget) = (HashSink::default(), MergeBudget::new(request.env.memory_bytes / 16));
    merge_runs::<CoinsForm>(request.env.workdir, coins, budget, &|_| go_on(), &mut |record| {
        go_on()?;
        sink.put_records(record)
    })?;
    Ok(SetHash { coins: sink.coins(), hash_serialized_3: sink.finish() })
}
