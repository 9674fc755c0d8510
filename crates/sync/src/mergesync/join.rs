//! The join: all coins that segments made with all spends that they left.

use super::spill::{BUFFER_BYTES, Spill};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::request::Request;
use crate::runs::{Group, Made, MergeBudget, Merging, RunWriter, Spent};
use crate::workdir::names::SPILL;
use crate::workdir::{Done, RunInfo, runs_of};
use apus_chain::{Height, OutPoint};
use apus_engine::mergesync::{AnswerRecord, Gathered, Join, JoinSink, MadeRecord, SpentRecord};
use apus_engine::pass::RunKind;
use apus_engine::utxo::CoinBytes;
use std::collections::BTreeMap;

/// Blocks that are remembered of those that make an output which exists. The lowest one ends the run,
/// unless history excepts it, as it does two.
const EXISTED_MAX: usize = 8;

/// Records between two looks at whether the run is interrupted.
const RECORDS_BETWEEN_LOOKS: u64 = 4096;

/// What came of a join.
pub(super) struct Joined {
    /// Coins for inputs, by their places, in runs.
    pub(super) answers: Vec<RunInfo>,
    /// Places of the coins that survive, in runs.
    pub(super) places: Vec<RunInfo>,
    /// These coins, as one run.
    pub(super) coins: RunInfo,
    /// How many.
    pub(super) coin_count: u64,
    /// Outputs of blocks that existed when the block began.
    pub(super) existed: BTreeMap<Height, Vec<OutPoint>>,
}

/// Joins what segments left.
pub(super) fn join(request: &Request<'_>, done: &[Done<Gathered>]) -> Result<Joined, SyncError> {
    let storage = request.workdir;
    request.observer.event(Event::Started(Phase::Join));
    let go_on = || stop_if_interrupted(request.interrupt);
    let budget = MergeBudget::new(request.memory_bytes / 4);
    let mut sink = Sink {
        answers: Spill::new(storage, "answers", request.memory_bytes / 4),
        places: Spill::new(storage, "places", request.memory_bytes / 16),
        set: RunWriter::create(storage, format!("{SPILL}set.run"), BUFFER_BYTES)?,
        group: Group::default(),
        coin_count: 0,
        existed: BTreeMap::new(),
    };
    let mut made = Merging::<Made>::open(storage, runs_of(done, RunKind::Made), budget, &go_on)?;
    let mut spent = Merging::<Spent>::open(storage, runs_of(done, RunKind::Spent), budget, &go_on)?;
    let kinds = [RunKind::Made, RunKind::Spent];
    let bytes_total = kinds.iter().flat_map(|kind| runs_of(done, *kind)).map(|run| run.bytes).sum();
    let mut progress = Progress { bytes_total, ..Progress::default() };
    let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe("") });
    let mut join = Join::new(&mut sink);
    made.next()?;
    spent.next()?;
    for number in 1u64.. {
        if number.is_multiple_of(RECORDS_BETWEEN_LOOKS) {
            go_on()?;
            request.observer.event(Event::Progress(Phase::Join, progress));
        }
        match (made.current(), spent.current()) {
            (Some(coin), spend) if spend.is_none_or(|spend| coin[..32] <= spend[..32]) => {
                progress.bytes += coin.len() as u64;
                let Some((record, _)) = MadeRecord::read(coin) else {
                    return Err(made.cause(damaged()));
                };
                let taken = join.made(&record);
                taken.map_err(|error| made.cause(error))?;
                made.next()?;
            }
            (_, Some(spend)) => {
                progress.bytes += spend.len() as u64;
                let Some((record, _)) = SpentRecord::read(spend) else {
                    return Err(spent.cause(damaged()));
                };
                join.spent(&record)?;
                spent.next()?;
            }
            (_, None) => break,
        }
    }
    join.finish()?;
    made.close()?;
    spent.close()?;
    request.observer.event(Event::Ended { phase: Phase::Join, bytes: progress.bytes });
    sink.finish()
}

struct Sink<'s> {
    answers: Spill<'s>,
    places: Spill<'s>,
    set: RunWriter<'s>,
    group: Group,
    coin_count: u64,
    existed: BTreeMap<Height, Vec<OutPoint>>,
}

impl Sink<'_> {
    fn finish(mut self) -> Result<Joined, SyncError> {
        self.group.hand_on(&mut |record| self.set.write(record))?;
        Ok(Joined {
            answers: self.answers.finish(),
            places: self.places.finish(),
            coins: self.set.finish()?,
            coin_count: self.coin_count,
            existed: self.existed,
        })
    }
}

impl JoinSink for Sink<'_> {
    type Error = SyncError;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), SyncError> {
        self.answers.push(|out| AnswerRecord { height, place, coin }.write(out))
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        self.coin_count += 1;
        self.places.push(|out| {
            out.extend_from_slice(&height.to_be_bytes());
            out.extend_from_slice(&index.to_be_bytes());
        })?;
        let coin = CoinBytes::read(coin)
            .map_err(|error| SyncError::Io(IoError::Group { txid: outpoint.txid, error }))?;
        self.group.take(outpoint, &coin, &mut |record| self.set.write(record))
    }

    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), SyncError> {
        self.existed.entry(height).or_default().push(*outpoint);
        if self.existed.len() > EXISTED_MAX {
            self.existed.pop_last();
        }
        Ok(())
    }
}
