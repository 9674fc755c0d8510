//! [`JoinResult`]: the result of a join, and the record from which a later start reads it.
//!
//! The record also says how far blocks were validated. It is written once losing the work so far would hurt;
//! the files that it names are durable by then, and so are the joined segments.
//!
//! ```text
//! 8     41 50 55 53 4a 4f 49 4e   "APUSJOIN"
//! 4     version, 6
//! 32    id of the plan
//! 4     height of the base's last block, 0 without a base
//! 4     height of the last joined block
//! 32    SHA-256 of each joined segment's first height and first height after it (4 each)
//! 4     height up to which blocks were validated
//! 4     height above which their scripts were run
//! 8     coins in the set
//! 8     transactions that have some
//! 16    their amounts in satoshi
//! 8     their bogosize
//! 768   their MuHash
//! 40    coins of all records, of the base, left by the join, given to inputs, overwritten (8 each)
//! …     four lists of runs (coins for inputs, places, the set's coins, the next base's coins), each a CompactSize and
//!       for each run its name after a CompactSize, and length, sections, checksum (28)
//! …     coins that were overwritten, as in `base`
//! 1     1 if the roots of the Utreexo forest were requested, and then a list of runs: leaves that survive
//! …     CompactSize number of outputs that existed when their block began; each height (4), txid, output (4)
//! 32    SHA-256 of all bytes before
//! ```
//!
//! It is written if the work before took longer than `--checkpoint-seconds` or began with an earlier start,
//! every `--checkpoint-seconds` while blocks are validated, and after the last block.

use super::base_set::OverwrittenCoin;
use super::first_pass::SegmentSummary;
use crate::engines::swiftsync::CoinTotals;
use crate::error::{StorageResult, SyncError};
use crate::workdir::names::JOINED;
use crate::workdir::{FinishedRange, RunInfo, Workdir, names, present};
use apus_chain::{Height, MuHash, OutPoint, Reader, write_compact_size};
use apus_hash::sha256;
use apus_storage::{read_whole, write_atomically};
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"APUSJOIN";

const VERSION: u32 = 6;

/// Greatest length of the record: a few hundred bytes for each run, and the outputs of some blocks.
const BYTES_MAX: u64 = 64 << 20;

/// Maximum number of remembered blocks that create an existing output. The lowest one ends the sync, unless it
/// is one of the two historical exceptions.
const EXISTED_MAX: usize = 8;

/// Maximum number of remembered coins that were overwritten. A valid chain has at most two, each from a block that
/// may overwrite the coin of another (BIP-30).
const OVERWRITTEN_MAX: usize = 8;

/// How many coins a join took, and where they went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JoinBalance {
    /// Coins of all records.
    pub(super) all: u64,
    /// Of these, coins of the base.
    pub(super) of_base: u64,
    /// Coins that no spend took.
    pub(super) left: u64,
    /// Coins that spends took.
    pub(super) answered: u64,
    /// Coins that were created again while they existed.
    pub(super) overwritten: u64,
}

impl JoinBalance {
    /// Whether every coin went somewhere. Unlike the checksums of runs, this shows a record that was lost or
    /// repeated as a whole. It holds for invalid blocks, too.
    pub(super) fn is_even(&self) -> bool {
        self.all == self.left + self.answered + self.overwritten
    }

    fn add(&mut self, other: &Self) {
        self.all += other.all;
        self.of_base += other.of_base;
        self.left += other.left;
        self.answered += other.answered;
        self.overwritten += other.overwritten;
    }
}

/// The result of a join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinResult {
    /// Coins for inputs, by the inputs' places, in runs.
    pub answers: Vec<RunInfo>,
    /// Places of the surviving coins, in runs.
    pub places: Vec<RunInfo>,
    /// The surviving coins, in runs, if the join is the last one.
    pub coins: Vec<RunInfo>,
    /// Otherwise the surviving coins in the form of the next batch's base, in runs.
    pub base: Vec<RunInfo>,
    /// Coins that this batch overwrote, if more batches follow.
    pub overwritten: Vec<OverwrittenCoin>,
    /// How many coins were joined.
    pub balance: JoinBalance,
    /// Hashes of the surviving coins by place, in runs, if they were requested.
    pub hashes: Option<Vec<RunInfo>>,
    /// Totals of the surviving coins.
    pub totals: CoinTotals,
    /// Their MuHash; the empty set's if it is not wanted.
    pub muhash: MuHash,
    /// Outputs that existed when their block began.
    pub existed: BTreeMap<Height, Vec<OutPoint>>,
}

impl JoinResult {
    /// Bytes of the surviving coins.
    pub fn coin_bytes(&self) -> u64 {
        self.coins.iter().map(|run| run.bytes).sum()
    }

    /// Adds the next part.
    pub fn add(&mut self, part: Self) {
        let Self { answers, places, coins, base, hashes, totals, muhash, existed, .. } = part;
        self.balance.add(&part.balance);
        part.overwritten.into_iter().for_each(|lost| self.overwrites(lost));
        self.base.extend(base);
        self.answers.extend(answers);
        self.places.extend(places);
        self.coins.extend(coins);
        if let Some(hashes) = hashes {
            self.hashes.get_or_insert_default().extend(hashes);
        }
        // Each transaction is entirely in one part.
        self.totals.add(&totals);
        self.muhash.combine(&muhash);
        for (height, outpoints) in existed {
            outpoints.into_iter().for_each(|outpoint| self.exists(height, outpoint));
        }
    }

    /// Records an output that existed when its block began.
    pub fn exists(&mut self, height: Height, outpoint: OutPoint) {
        self.existed.entry(height).or_default().push(outpoint);
        if self.existed.len() > EXISTED_MAX {
            self.existed.pop_last();
        }
    }

    /// Records a coin that was created again while it existed.
    pub(super) fn overwrites(&mut self, lost: OverwrittenCoin) {
        if self.overwritten.len() < OVERWRITTEN_MAX {
            self.overwritten.push(lost);
        }
    }

    /// All runs that it names.
    fn runs(&self) -> impl Iterator<Item = &RunInfo> {
        let Self { answers, places, coins, base, hashes, .. } = self;
        [answers, places, coins, base].into_iter().chain(hashes).flatten()
    }
}

/// The state from which a later start resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub joined: JoinResult,
    /// The last block of the base.
    pub base: Height,
    /// The last joined block.
    pub end: Height,
    /// The joined segments: a join gives coins only to inputs for which their own segment had none.
    pub division: [u8; 32],
    /// Height up to which blocks were validated.
    pub validated: Height,
    /// Scripts of blocks above this one were run; lower blocks may have been assumed valid.
    pub assumed: Height,
}

/// Identifies the segments of a batch.
pub(super) fn division_of(batch: &[FinishedRange<SegmentSummary>]) -> [u8; 32] {
    let ends = batch.iter().flat_map(|done| [done.range.start, done.range.end]);
    sha256(&ends.flat_map(Height::to_le_bytes).collect::<Vec<u8>>())
}

impl Record {
    /// Sets the block up to which scripts are assumed valid from now on. Blocks whose scripts must be run
    /// now, and perhaps were not, are validated again.
    pub(super) fn assume_up_to(&mut self, assumed: Height) {
        if assumed < self.assumed {
            self.validated = self.validated.min(assumed);
        }
        self.assumed = assumed;
    }

    /// Makes the record durable, after all files that it names.
    pub(super) fn write(&self, workdir: &Workdir<'_>) -> Result<(), SyncError> {
        let storage = workdir.storage();
        storage.sync_names().at(storage, "")?;
        write_atomically(storage, JOINED, &self.to_bytes(workdir.plan_id())).at(storage, JOINED)
    }

    /// Removes the record, if there is one.
    pub(super) fn remove(workdir: &Workdir<'_>) -> Result<(), SyncError> {
        let storage = workdir.storage();
        storage.remove(JOINED).at(storage, JOINED)
    }

    /// Reads the record of an earlier start under the same plan, if all files that it names exist.
    pub(super) fn read(workdir: &Workdir<'_>) -> Result<Option<Self>, SyncError> {
        let storage = workdir.storage();
        let bytes = present(read_whole(storage, JOINED, BYTES_MAX)).at(storage, JOINED)?;
        let record = bytes.and_then(|bytes| Self::from_bytes(&bytes, workdir.plan_id()));
        let Some(record) = record else { return Ok(None) };
        Ok(RunInfo::are_all_there(record.joined.runs(), storage)?.then_some(record))
    }

    /// The files that it names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.joined.runs().map(|run| run.name.as_str()).chain([JOINED])
    }

    fn to_bytes(&self, plan_id: &[u8; 32]) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(plan_id);
        out.extend_from_slice(&self.base.to_le_bytes());
        out.extend_from_slice(&self.end.to_le_bytes());
        out.extend_from_slice(&self.division);
        out.extend_from_slice(&self.validated.to_le_bytes());
        out.extend_from_slice(&self.assumed.to_le_bytes());
        let CoinTotals { coins, transactions, amount, bogosize } = self.joined.totals;
        out.extend_from_slice(&coins.to_le_bytes());
        out.extend_from_slice(&transactions.to_le_bytes());
        out.extend_from_slice(&amount.to_le_bytes());
        out.extend_from_slice(&bogosize.to_le_bytes());
        out.extend_from_slice(&self.joined.muhash.to_bytes());
        let JoinResult { answers, places, coins, base, hashes, balance, .. } = &self.joined;
        let JoinBalance { all, of_base, left, answered, overwritten } = *balance;
        [all, of_base, left, answered, overwritten]
            .into_iter()
            .for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
        [answers, places, coins, base].into_iter().for_each(|runs| write_runs(&mut out, runs));
        OverwrittenCoin::write_all(&self.joined.overwritten, &mut out);
        out.push(u8::from(hashes.is_some()));
        hashes.iter().for_each(|runs| write_runs(&mut out, runs));
        let existed = self.joined.existed.iter();
        let existed: Vec<_> =
            existed.flat_map(|(height, all)| all.iter().map(move |it| (height, it))).collect();
        write_compact_size(&mut out, existed.len() as u64);
        for (height, outpoint) in existed {
            out.extend_from_slice(&height.to_le_bytes());
            out.extend_from_slice(&outpoint.to_bytes());
        }
        names::seal(out)
    }

    fn from_bytes(bytes: &[u8], plan_id: &[u8; 32]) -> Option<Self> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        if reader.array().ok()? != plan_id {
            return None;
        }
        let (base_height, end) = (reader.u32().ok()?, reader.u32().ok()?);
        let division = *reader.array().ok()?;
        let (validated, assumed) = (reader.u32().ok()?, reader.u32().ok()?);
        let totals = read_totals(&mut reader)?;
        let muhash = MuHash::from_bytes(reader.array().ok()?).ok()?;
        let mut count = || reader.u64().ok();
        let (all, of_base, left, answered, overwritten) =
            (count()?, count()?, count()?, count()?, count()?);
        let balance = JoinBalance { all, of_base, left, answered, overwritten };
        let mut runs = || read_runs(&mut reader);
        let (answers, places, coins, base) = (runs()?, runs()?, runs()?, runs()?);
        let overwritten = OverwrittenCoin::read_all(&mut reader)?;
        let hashes = match names::flag(&mut reader)? {
            false => None,
            true => Some(read_runs(&mut reader)?),
        };
        let existed = BTreeMap::new();
        let mut joined = JoinResult {
            answers,
            places,
            coins,
            base,
            overwritten,
            balance,
            hashes,
            totals,
            muhash,
            existed,
        };
        for _ in 0..reader.compact_size().ok()? {
            let height = reader.u32().ok()?;
            joined.exists(height, OutPoint::from_bytes(reader.array().ok()?));
        }
        reader.finish().ok()?;
        Some(Self { joined, base: base_height, end, division, validated, assumed })
    }
}

pub(super) fn write_runs(out: &mut Vec<u8>, runs: &[RunInfo]) {
    write_compact_size(out, runs.len() as u64);
    for RunInfo { name, bytes, sections, checksum, .. } in runs {
        write_compact_size(out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&sections.to_le_bytes());
        out.extend_from_slice(checksum);
    }
}

pub(super) fn read_runs(reader: &mut Reader<'_>) -> Option<Vec<RunInfo>> {
    let mut runs = Vec::new();
    for _ in 0..reader.compact_size().ok()? {
        let length = reader.compact_size().ok()?;
        let name = String::from_utf8(reader.take(length).ok()?.to_vec()).ok()?;
        let (bytes, sections) = (reader.u64().ok()?, reader.u32().ok()?);
        let checksum = *reader.array().ok()?;
        runs.push(RunInfo { name, bytes, sections, checksum, held: None });
    }
    Some(runs)
}

fn read_totals(reader: &mut Reader<'_>) -> Option<CoinTotals> {
    let (coins, transactions) = (reader.u64().ok()?, reader.u64().ok()?);
    let amount = u128::from_le_bytes(*reader.array().ok()?);
    Some(CoinTotals { coins, transactions, amount, bogosize: reader.u64().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workdir::plan::testing::plan;
    use apus_chain::Txid;
    use apus_storage::Storage;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::io::Write;

    fn run(name: &str, bytes: u64) -> RunInfo {
        let sections = bytes as u32 / 7;
        RunInfo { name: name.to_owned(), bytes, sections, checksum: [bytes as u8; 16], held: None }
    }

    fn record(
        validated: Height,
        assumed: Height,
        with_hashes: bool,
        runs: &[u64],
        existed: &[u32],
    ) -> Record {
        let of = |kind: &str| {
            runs.iter().map(|bytes| run(&format!("spill-{kind}-{bytes}.run"), *bytes)).collect()
        };
        let (answers, places, coins) = (of("answers"), of("places"), of("set"));
        let hashes = with_hashes.then(|| of("hashes"));
        let totals = CoinTotals { coins: 9, transactions: 8, amount: 7 << 70, bogosize: 6 };
        let base = of("base");
        let balance = JoinBalance { all: 9, of_base: 8, left: 7, answered: 1, overwritten: 1 };
        let outpoint = OutPoint { txid: Txid([9; 32]), vout: 3 };
        let overwritten = vec![OverwrittenCoin { height: 4, outpoint, coin: vec![5; 20] }];
        let mut joined = JoinResult {
            answers,
            places,
            coins,
            base,
            overwritten,
            balance,
            hashes,
            totals,
            ..JoinResult::default()
        };
        joined.muhash.insert(b"a coin");
        for vout in existed {
            joined.exists(vout % 7, OutPoint { txid: Txid([8; 32]), vout: *vout });
        }
        let division = [6; 32];
        Record { joined, base: assumed / 3, end: assumed / 2, division, validated, assumed }
    }

    #[test]
    fn blocks_whose_scripts_are_no_longer_assumed_valid_are_validated_again() {
        let after = |validated, before: [Height; 2]| {
            let mut record = record(validated, before[0], false, &[], &[]);
            record.assume_up_to(before[1]);
            (record.validated, record.assumed)
        };
        assert_eq!(after(50, [100, 100]), (50, 100));
        assert_eq!(after(50, [100, 70]), (50, 70));
        assert_eq!(after(50, [100, 20]), (20, 20));
        assert_eq!(after(150, [100, 20]), (20, 20));
        assert_eq!(after(150, [100, 0]), (0, 0));
        // Blocks whose scripts were run stay validated.
        assert_eq!(after(150, [100, 120]), (150, 120));
    }

    /// If there are more such blocks than the limit, the lowest are kept, regardless of their order and parts.
    #[test]
    fn the_lowest_blocks_with_outputs_that_existed_are_remembered() {
        let outpoint = |vout: u32| OutPoint { txid: Txid([8; 32]), vout };
        let mut heights: Vec<Height> = (1..=3 * EXISTED_MAX as Height).collect();
        for turn in 0..heights.len() {
            heights.rotate_left(7);
            heights.swap(turn, 0);
            let (first, second) = heights.split_at(turn);
            let part = |heights: &[Height]| {
                let mut part = JoinResult::default();
                for height in heights {
                    part.exists(*height, outpoint(2 * height));
                    part.exists(*height, outpoint(2 * height + 1));
                }
                part
            };
            let mut whole = part(first);
            whole.add(part(second));
            let both = |height: Height| vec![outpoint(2 * height), outpoint(2 * height + 1)];
            let lowest = (1..=EXISTED_MAX as Height).map(|height| (height, both(height)));
            assert_eq!(whole.existed, lowest.collect::<BTreeMap<_, _>>());
        }
    }

    /// A start resumes from a join only if each of its files exists with its full length.
    #[test]
    fn a_join_with_a_missing_or_short_file_is_ignored() {
        let storage = CrashStorage::new();
        let workdir = Workdir::start(&storage, &plan(5)).unwrap();
        let record = record(5, 7, true, &[70, 140], &[1]);
        let put = |run: &RunInfo, bytes: u64| {
            let mut file = storage.create(&run.name).unwrap();
            file.write_all(&vec![0; bytes as usize]).unwrap();
        };
        record.joined.runs().for_each(|run| put(run, run.file_bytes()));
        assert_eq!(Record::read(&workdir).unwrap(), None);
        record.write(&workdir).unwrap();
        let found = || Record::read(&workdir).unwrap();
        for run in record.joined.runs() {
            assert_eq!(found(), Some(record.clone()));
            for bytes in [run.file_bytes() - 1, run.file_bytes() + 1] {
                put(run, bytes);
                assert_eq!(found(), None, "{}", run.name);
            }
            storage.remove(&run.name).unwrap();
            assert_eq!(found(), None, "{}", run.name);
            put(run, run.file_bytes());
        }
        let all: BTreeSet<&str> = record.names().collect();
        assert_eq!(all.len(), 1 + 2 * 5);
        assert!(all.contains(JOINED) && record.joined.runs().all(|run| all.contains(&*run.name)));
    }

    proptest! {
        #[test]
        fn a_record_round_trips_and_any_change_is_refused(
            validated: u32,
            assumed: u32,
            with_hashes: bool,
            runs in proptest::collection::vec(any::<u64>(), 0..4),
            existed in proptest::collection::vec(any::<u32>(), 0..9),
            place: proptest::sample::Index,
            bit in 0u8..8,
        ) {
            let record = record(validated, assumed, with_hashes, &runs, &existed);
            let mut bytes = record.to_bytes(&[3; 32]);
            prop_assert_eq!(Record::from_bytes(&bytes, &[3; 32]), Some(record));
            prop_assert_eq!(Record::from_bytes(&bytes, &[4; 32]), None);
            let place = place.index(bytes.len());
            prop_assert_eq!(Record::from_bytes(&bytes[..place], &[3; 32]), None);
            bytes[place] ^= 1 << bit;
            prop_assert_eq!(Record::from_bytes(&bytes, &[3; 32]), None);
        }
    }
}
