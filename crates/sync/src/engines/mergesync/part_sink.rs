//! [`PartSink`]: collects the results of a thread's partitions of a join.
//!
//! Coins that no spend took go into the set if the join is the last one, with their places and hashes, and
//! otherwise into the base of the next batch.

use super::base_set::OverwrittenCoin;
use super::coin_hashes::HashSpill;
use super::join::each_coin_survives;
use super::join_result::JoinResult;
use super::join_runs::{JoinOptions, spill_bytes};
use super::spill::{HeldMemory, Spill};
use crate::engines::mergesync::record::OutputCoin;
use crate::engines::mergesync::{IndexedCoin, JoinSink, OutputRecord, PrevoutRecord};
use crate::error::{IoError, SyncError};
use crate::request::RunEnv;
use crate::runs::{RecordGroup, RunWriter};
use crate::sink::TotalsSink;
use crate::workdir::damaged;
use crate::workdir::index::SECTION_BYTES;
use crate::workdir::names::SPILL;
use apus_chain::{Height, OutPoint, Txid};
use apus_engine::utxo::CoinBytes;
use apus_storage::Storage;

/// Collects the results of a thread's partitions.
pub(super) struct PartSink<'s> {
    storage: &'s dyn Storage,
    numbered: bool,
    bare: Height,
    answers: Spill<'s>,
    survivors: Survivors<'s>,
    pub(super) joined: JoinResult,
}

/// Where the coins go that no spend took.
enum Survivors<'s> {
    Set(Box<SetPart<'s>>),
    Base(Box<BasePart<'s>>),
}

/// The surviving coins of a thread's partitions. Their MuHash, if it is wanted, is computed here on all threads,
/// because later the coins are written out by a single one.
struct SetPart<'s> {
    places: Spill<'s>,
    hashes: Option<HashSpill<'s>>,
    group: RecordGroup,
    records: SetRecords<'s>,
}

struct SetRecords<'s> {
    run: RunWriter<'s>,
    totals: TotalsSink,
}

impl SetRecords<'_> {
    fn take(&mut self, record: &[u8]) -> Result<(), SyncError> {
        self.totals.put_records(record)?;
        self.run.write(record)
    }
}

/// The surviving coins of a thread's partitions, as the records from which the next join reads them.
struct BasePart<'s> {
    run: RunWriter<'s>,
    coins: u64,
    txid: Txid,
    /// Coins of one transaction, which perhaps was repeated: height, output, index and range among the bytes.
    group: Vec<(Height, u32, u32, (usize, usize))>,
    bytes: Vec<u8>,
    record: Vec<u8>,
}

impl BasePart<'_> {
    fn take(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        if outpoint.txid != self.txid {
            self.end_group()?;
            self.txid = outpoint.txid;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(coin);
        self.group.push((height, outpoint.vout, index, (start, self.bytes.len())));
        Ok(())
    }

    /// Takes a whole record.
    fn take_record(&mut self, record: &OutputRecord<'_>) -> Result<(), SyncError> {
        self.end_group()?;
        self.coins += record.coins().count() as u64;
        self.record.clear();
        OutputRecord::write(&mut self.record, &record.txid, record.height, |out| {
            out.extend_from_slice(record.coin_bytes());
        });
        self.run.write(&self.record)
    }

    fn end_group(&mut self) -> Result<(), SyncError> {
        self.coins += self.group.len() as u64;
        self.group.sort_unstable();
        for of_block in self.group.chunk_by(|a, b| a.0 == b.0) {
            self.record.clear();
            OutputRecord::write(&mut self.record, &self.txid, of_block[0].0, |out| {
                for &(_, vout, index, (start, end)) in of_block {
                    OutputCoin { vout, index, coin: &self.bytes[start..end] }.write(out);
                }
            });
            self.run.write(&self.record)?;
        }
        self.group.clear();
        self.bytes.clear();
        Ok(())
    }
}

impl<'s> PartSink<'s> {
    pub(super) fn new(
        env: &RunEnv<'s>,
        thread: usize,
        options: &JoinOptions<'s>,
    ) -> Result<Self, SyncError> {
        let JoinOptions { numbered, hashes, muhash, bare, durable, .. } = *options;
        let storage = env.workdir;
        let [of_answers, of_places, of_hashes] = spill_bytes(env.memory_bytes, env.threads);
        let run_name = match options.next_base {
            Some(height) => format!("{SPILL}base-{height}-{thread}.run"),
            None => format!("{SPILL}set-{thread}.run"),
        };
        let run = RunWriter::create(storage, run_name, SECTION_BYTES)?;
        let survivors = match options.next_base {
            Some(_) => Survivors::Base(Box::new(BasePart {
                run,
                coins: 0,
                txid: Txid::default(),
                group: Vec::new(),
                bytes: Vec::new(),
                record: Vec::new(),
            })),
            None => Survivors::Set(Box::new(SetPart {
                places: Spill::new(storage, format!("places-{thread}"), of_places, durable),
                hashes: hashes.map(|wanted| {
                    let name = format!("leaves-{thread}");
                    HashSpill::new(wanted, Spill::new(storage, name, of_hashes, durable))
                }),
                group: RecordGroup::default(),
                records: SetRecords { run, totals: TotalsSink::new(muhash) },
            })),
        };
        let answers = Spill::new(storage, format!("answers-{thread}"), of_answers, durable);
        let joined = JoinResult::default();
        Ok(Self { storage, numbered, bare, answers, survivors, joined })
    }

    /// Keeps results in memory if they fit, unless all must be `durable`. A base always is durable: nothing else
    /// is left of the blocks below it.
    pub(super) fn finish(self, held: &HeldMemory, durable: bool) -> Result<JoinResult, SyncError> {
        let mut joined = JoinResult { answers: self.answers.finish(held)?, ..self.joined };
        match self.survivors {
            Survivors::Base(mut part) => {
                part.end_group()?;
                joined.balance.left += part.coins;
                joined.base = vec![part.run.finish(true)?];
            }
            Survivors::Set(part) => {
                let SetPart { places, hashes, mut group, mut records } = *part;
                group.hand_on(&mut |record| records.take(record))?;
                let (muhash, totals) = records.totals.finish();
                joined.balance.left += totals.coins;
                joined.hashes = hashes.map(|hashes| hashes.finish(held)).transpose()?;
                joined.places = places.finish(held)?;
                joined.coins = vec![records.run.finish(durable)?];
                (joined.totals, joined.muhash) = (totals, muhash);
            }
        }
        Ok(joined)
    }

    /// Adds the hash of a coin that was overwritten in an earlier batch, if hashes are wanted.
    pub(super) fn hash_overwritten(&mut self, lost: &OverwrittenCoin) -> Result<(), SyncError> {
        let (coin, number) = self.read(&lost.outpoint, &lost.coin)?;
        self.hash(&lost.outpoint, &coin, number)
    }

    /// Reads a coin, and its number if coins are numbered.
    fn read(
        &self,
        outpoint: &OutPoint,
        bytes: &[u8],
    ) -> Result<(CoinBytes, Option<u32>), SyncError> {
        let mut coin = IndexedCoin { coin: bytes, number: None };
        if self.numbered {
            // Bytes too short for a number are not a coin either.
            coin = IndexedCoin::read(bytes).unwrap_or(IndexedCoin { coin: &[], number: None });
        }
        let failed = |error| SyncError::Io(IoError::Group { txid: outpoint.txid, error });
        Ok((CoinBytes::read(coin.coin).map_err(failed)?, coin.number))
    }

    /// Adds the hash of a coin that no spend took, if hashes are wanted.
    fn hash(
        &mut self,
        outpoint: &OutPoint,
        coin: &CoinBytes,
        number: Option<u32>,
    ) -> Result<(), SyncError> {
        let Survivors::Set(part) = &mut self.survivors else { return Ok(()) };
        let Some(hashes) = &mut part.hashes else { return Ok(()) };
        let taken = number.map(|number| hashes.take(outpoint, coin.coin().as_ref(), number));
        match taken.transpose()? {
            Some(true) => Ok(()),
            // A join never sees coins that their own block spends.
            Some(false) | None => Err(damaged(self.storage)),
        }
    }
}

impl JoinSink for PartSink<'_> {
    type Error = SyncError;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), SyncError> {
        self.joined.balance.answered += 1;
        let record = PrevoutRecord { height, place, coin };
        let bare = height <= self.bare;
        self.answers.push(|out| if bare { record.write_bare(out) } else { record.write(out) })
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        if let Survivors::Base(part) = &mut self.survivors {
            return part.take(outpoint, height, index, coin);
        }
        let (coin, number) = self.read(outpoint, coin)?;
        self.hash(outpoint, &coin, number)?;
        let Survivors::Set(part) = &mut self.survivors else { return Ok(()) };
        let SetPart { places, group, records, .. } = &mut **part;
        places.push(|out| {
            out.extend_from_slice(&height.to_be_bytes());
            out.extend_from_slice(&index.to_be_bytes());
        })?;
        group.take(outpoint, &coin, &mut |record| records.take(record))
    }

    fn record_survives(&mut self, record: &OutputRecord<'_>) -> Result<(), SyncError> {
        if let Survivors::Base(part) = &mut self.survivors {
            return part.take_record(record);
        }
        each_coin_survives(self, record)
    }

    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        // No spend took this coin, although it is not in the set.
        self.joined.balance.overwritten += 1;
        let lost = OverwrittenCoin { height, outpoint: *outpoint, coin: coin.to_vec() };
        match &self.survivors {
            Survivors::Set(_) => self.hash_overwritten(&lost),
            Survivors::Base(_) => {
                self.joined.overwrites(lost);
                Ok(())
            }
        }
    }

    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), SyncError> {
        self.joined.exists(height, *outpoint);
        Ok(())
    }
}
