//! [`CoinSink`]: an output that receives the finished UTXO set, group by group in the order of a snapshot.
//!
//! A sink writes under a temporary name, and [`CoinSink::publish`] gives the file its final name once it is
//! complete and durable. A sink that is dropped earlier leaves only a draft, which the next attempt removes.

mod chainstate;
pub mod datadir;
pub mod put;
pub mod read_back;
pub mod set_hash;

pub use chainstate::ReadBack;

use crate::engines::swiftsync::CoinTotals;
use crate::error::{IoError, StorageResult, SyncError, UsageError};
use crate::folder::WrittenFolder;
use crate::request::{Output, OutputKind, RunEnv};
use crate::runs::records;
use apus_chain::{
    BlockHash, CoinError, CoinRef, HashSerialized3, Height, MuHash, MuHashBatch, Network, OutPoint,
    Reader, Txid, UtxoStats, read_coin, write_utxo_element,
};
use apus_datadir::snapshot::{SnapshotError, SnapshotHeader, SnapshotWriter};
use apus_hash::Sha256;
use apus_storage::{Storage, StorageFile};
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a snapshot written at once.
const BATCH_BYTES: usize = 1 << 20;

/// Facts about the set that are known before its first coin.
#[derive(Debug, Clone, Copy)]
pub struct SetInfo {
    /// The chain.
    pub network: Network,
    /// Height of the block whose UTXO set this is.
    pub height: Height,
    /// That block.
    pub base: BlockHash,
    /// Number of coins.
    pub coins: u64,
    /// Upper bound for the bytes of all coins in their stored form.
    pub coin_bytes: u64,
    /// Number of transactions in the blocks after genesis that produced the set.
    pub transactions: u64,
}

/// Receives a UTXO set.
pub trait CoinSink: Send {
    /// Receives records from a merge.
    fn put_records(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        records(batch).try_for_each(|(txid, group)| self.put(txid, group))
    }

    /// Receives all coins of one transaction, in the form of a snapshot's body without the txid. Transactions
    /// arrive in ascending byte order of their ids.
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError>;

    /// Ends the set: makes the output complete and durable, under its draft name.
    fn seal(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Returns whether the sink writes a block [`index`](Self::index).
    fn indexes(&self) -> bool {
        false
    }

    /// Writes the block index next to the sealed coins.
    fn index(&mut self, _whole: &SetEnd<'_>) -> Result<(), SyncError> {
        Ok(())
    }

    /// Returns whether the sink [`check`](Self::check)s its coins after writing them.
    fn checks(&self) -> bool {
        false
    }

    /// Returns the bytes of the coins to check.
    fn bytes(&self) -> u64 {
        0
    }

    /// Reads the sealed coins back, and compares them with the set.
    fn check(&mut self, _whole: &SetEnd<'_>) -> Result<(), SyncError> {
        Ok(())
    }

    /// Reads back the blocks in the [`index`](Self::index). Returns the number of bytes read.
    fn check_blocks(&mut self, _whole: &SetEnd<'_>) -> Result<u64, SyncError> {
        Ok(0)
    }

    /// Gives the output its final name, and returns a description if it is a folder.
    fn publish(self: Box<Self>, whole: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError>;
}

/// An output of another crate: a place for the set that is neither a file nor a folder.
pub trait SetOutput: Sync {
    /// Begins to write a set.
    fn begin(&self, set: SetInfo) -> Result<Box<dyn CoinSink + '_>, SyncError>;
}

/// Facts about the set that are known after its last coin.
pub struct SetEnd<'a> {
    /// The threads and memory to use.
    pub env: &'a RunEnv<'a>,
    /// The facts known before the first coin.
    pub set: SetInfo,
    /// Its `hash_serialized_3`, in internal order.
    pub hash_serialized_3: [u8; 32],
}

/// A file that gets its final name only once it is complete.
pub struct FileDraft<'a> {
    storage: &'a dyn Storage,
    name: String,
    draft: String,
}

impl<'a> FileDraft<'a> {
    /// Begins the file.
    pub fn create(
        storage: &'a dyn Storage,
        name: &str,
    ) -> Result<(Self, Box<dyn StorageFile>), SyncError> {
        let draft = Self::of(storage, name);
        let file = storage.create(&draft.draft).at(storage, &draft.draft)?;
        Ok((draft, file))
    }

    /// Returns the draft of a file that was begun before.
    pub fn of(storage: &'a dyn Storage, name: &str) -> Self {
        Self { storage, name: name.to_owned(), draft: format!("{name}.incomplete") }
    }

    /// Adds bytes to the file.
    pub fn write(&self, file: &mut dyn StorageFile, bytes: &[u8]) -> Result<(), SyncError> {
        file.write_all(bytes).at(self.storage, &self.draft)
    }

    /// Makes the file durable and gives it its name. Another file of this name is an error.
    pub fn publish(self, file: Box<dyn StorageFile>) -> Result<(), SyncError> {
        self.publish_over(file, false)
    }

    /// Does the same, and with `replace` takes the place of another file of this name, which stays until then.
    pub fn publish_over(
        self,
        mut file: Box<dyn StorageFile>,
        replace: bool,
    ) -> Result<(), SyncError> {
        file.sync().at(self.storage, &self.draft)?;
        if !replace && self.is_published()? {
            self.expect_same()?;
        }
        // This also replaces an identical file, because its name may not be durable yet.
        self.storage.rename(&self.draft, &self.name).at(self.storage, &self.name)?;
        // While it is open, no other run may begin a draft of this name.
        drop(file);
        self.storage.sync_names().at(self.storage, &self.name)
    }

    /// Returns whether a file of this name exists.
    fn is_published(&self) -> Result<bool, SyncError> {
        match self.storage.len(&self.name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at(self.storage, &self.name),
        }
    }

    /// Checks a file of this name. If an earlier start of the same sync published it just before it was killed,
    /// it is identical, byte for byte; any other file belongs to another program.
    fn expect_same(&self) -> Result<(), SyncError> {
        let digest = |name: &str| -> Result<[u8; 32], SyncError> {
            let mut file = self.storage.open(name, 0).at(self.storage, name)?;
            let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => return Ok(hash.finalize()),
                    Ok(count) => hash.update(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).at(self.storage, name),
                }
            }
        };
        if digest(&self.name)? != digest(&self.draft)? {
            return Err(SyncError::Usage(UsageError::OutputExists {
                file: self.storage.describe(&self.name),
            }));
        }
        Ok(())
    }
}

/// Creates the file of a coins output; returns `None` if the output [takes no coins](OutputKind::takes_coins).
pub fn begin(output: &Output, set: SetInfo) -> Result<Option<Box<dyn CoinSink + '_>>, SyncError> {
    let Output { kind, storage, name } = output;
    Ok(match kind {
        OutputKind::Snapshot => Some(Box::new(SnapshotSink::create(&**storage, name, set)?)),
        OutputKind::Hints => None,
    })
}

/// `snapshot:FILE`: the set as `dumptxoutset` writes it.
pub struct SnapshotSink<'a> {
    draft: FileDraft<'a>,
    writer: SnapshotWriter<Box<dyn StorageFile>>,
    /// Groups with their txids, to be written together.
    batch: Vec<u8>,
}

impl<'a> SnapshotSink<'a> {
    /// Begins the file `name` in `storage`.
    pub fn create(storage: &'a dyn Storage, name: &str, set: SetInfo) -> Result<Self, SyncError> {
        let (draft, file) = FileDraft::create(storage, name)?;
        let header = SnapshotHeader { network: set.network, base_hash: set.base, coins: set.coins };
        let writer = SnapshotWriter::new(file, header).map_err(|e| at_draft(&draft, e))?;
        Ok(Self { draft, writer, batch: Vec::with_capacity(BATCH_BYTES) })
    }
}

fn at_draft(draft: &FileDraft<'_>, error: SnapshotError) -> SyncError {
    let file = draft.storage.describe(&draft.draft);
    match error {
        SnapshotError::Write { source, .. } => {
            SyncError::Io(IoError::Storage { file, error: source })
        }
        error => SyncError::Snapshot { file, error },
    }
}

impl SnapshotSink<'_> {
    /// Gives the file its name.
    fn finish(mut self) -> Result<(), SyncError> {
        self.write_batch()?;
        let Self { draft, writer, .. } = self;
        let file = writer.finish().map_err(|error| at_draft(&draft, error))?;
        draft.publish(file)
    }

    fn write_batch(&mut self) -> Result<(), SyncError> {
        self.writer.write_groups(&self.batch).map_err(|error| at_draft(&self.draft, error))?;
        self.batch.clear();
        Ok(())
    }
}

impl CoinSink for SnapshotSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.batch.extend_from_slice(&txid.0);
        self.batch.extend_from_slice(group);
        if self.batch.len() >= BATCH_BYTES { self.write_batch() } else { Ok(()) }
    }

    fn publish(self: Box<Self>, _whole: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        (*self).finish().map(|()| None)
    }
}

/// Computes `hash_serialized_3` of the set and counts its coins.
#[derive(Default)]
pub struct HashSink {
    hash: HashSerialized3,
    coins: CoinCounter,
}

/// A counter of coins, for display.
#[derive(Clone, Default)]
pub struct CoinCounter(Arc<AtomicU64>);

impl CoinCounter {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl HashSink {
    /// Returns the number of coins so far.
    pub fn coins(&self) -> u64 {
        self.coins.get()
    }

    /// Returns a counter that other threads can read during the work.
    pub fn counter(&self) -> CoinCounter {
        self.coins.clone()
    }

    /// Returns the hash in internal order.
    pub fn finish(self) -> [u8; 32] {
        self.hash.finish().0
    }

    /// Receives records from a merge.
    pub fn put_records(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        let coins = each_coin_of(batch, |outpoint, coin| self.hash.push(&outpoint, coin))?;
        self.coins.0.fetch_add(coins, Ordering::Relaxed);
        Ok(())
    }
}

/// Passes the coins of all records to `each`, and returns their number.
fn each_coin_of(
    batch: &[u8],
    mut each: impl FnMut(OutPoint, CoinRef<'_>),
) -> Result<u64, SyncError> {
    let mut coins = 0;
    for (txid, group) in records(batch) {
        coins += each_coin(txid, group, &mut each)
            .map_err(|error| SyncError::Io(IoError::Group { txid, error }))?;
    }
    Ok(coins)
}

/// Passes the coins of one transaction to `each`, and returns their number.
pub fn each_coin(
    txid: Txid,
    group: &[u8],
    mut each: impl FnMut(OutPoint, CoinRef<'_>),
) -> Result<u64, CoinError> {
    let mut reader = Reader::new(group);
    let count = reader.compact_size()? as u64;
    for _ in 0..count {
        let vout = reader.compact_max(u64::from(u32::MAX))? as u32;
        let coin = read_coin(&mut reader)?;
        each(OutPoint { txid, vout }, coin.as_ref());
    }
    reader.finish()?;
    Ok(count)
}

/// Computes the set's totals, and its MuHash if requested.
pub struct TotalsSink {
    muhash: Option<Box<MuHashBatch>>,
    stats: UtxoStats,
}

impl TotalsSink {
    pub fn new(muhash: bool) -> Self {
        Self { muhash: muhash.then(Box::default), stats: UtxoStats::default() }
    }

    /// Receives records in the order of a snapshot.
    pub fn put_records(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        let each = |outpoint: OutPoint, coin: CoinRef<'_>| {
            if let Some(muhash) = &mut self.muhash {
                muhash.insert_written(|out| write_utxo_element(out, &outpoint, coin));
            }
            self.stats.push(&outpoint, coin);
        };
        each_coin_of(batch, each).map(drop)
    }

    /// Returns the MuHash and the totals. If the MuHash was not requested, it is the empty set's.
    pub fn finish(self) -> (MuHash, CoinTotals) {
        let UtxoStats { coins, transactions, total_amount, bogosize, .. } = self.stats;
        let totals = CoinTotals { coins, transactions, amount: total_amount, bogosize };
        (self.muhash.map(|it| it.finish()).unwrap_or_default(), totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::storage::{AfterCrash, CrashStorage, FaultStorage, Operation};
    use std::collections::BTreeMap;
    use std::io::{self, Write};

    fn publish(storage: &dyn Storage, bytes: &[u8]) -> Result<(), SyncError> {
        let (draft, mut file) = FileDraft::create(storage, "out")?;
        file.write_all(bytes).at(storage, "out")?;
        draft.publish(file)
    }

    fn holding(name: &str, bytes: &[u8]) -> CrashStorage {
        CrashStorage::holding(BTreeMap::from([(name.to_owned(), bytes.to_vec())]))
    }

    fn expect_published(storage: &CrashStorage, bytes: &[u8]) {
        let expected = BTreeMap::from([("out".to_owned(), bytes.to_vec())]);
        assert_eq!(storage.live_files(), expected);
        assert_eq!(storage.durable_image().live_files(), expected);
    }

    #[test]
    fn a_draft_gets_its_name_when_it_is_durable() {
        let storage = holding("out.incomplete", b"of an earlier start, and longer");
        let (draft, mut file) = FileDraft::create(&storage, "out").unwrap();
        file.write_all(b"bytes").unwrap();
        assert_eq!(storage.names().unwrap(), ["out.incomplete"]);
        draft.publish(file).unwrap();
        expect_published(&storage, b"bytes");
    }

    /// An earlier start renamed the file and was killed before the name was durable.
    #[test]
    fn an_equal_file_is_made_durable() {
        let storage = CrashStorage::new();
        storage.create("out").unwrap().write_all(b"bytes").unwrap();
        publish(&storage, b"bytes").unwrap();
        expect_published(&storage, b"bytes");
    }

    #[test]
    fn another_file_is_not_touched() {
        for other in [&b""[..], b"byte", b"bytes!", b"bytez"] {
            let storage = holding("out", other);
            let error = publish(&storage, b"bytes").unwrap_err();
            assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
            assert_eq!(storage.live_files()["out"], other);
        }
    }

    #[test]
    fn a_crash_shows_the_whole_file_or_none() {
        for before in [None, Some(&b"bytes"[..])] {
            for at in 0..2 {
                for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
                    let storage = before.map_or_else(CrashStorage::new, |old| holding("out", old));
                    storage.crash_at(at, after);
                    let _ = publish(&storage, b"bytes");
                    assert!(storage.crashed());
                    for seed in 0..20 {
                        let files = storage.crash_image(seed).live_files();
                        assert!(files.get("out").is_none_or(|found| found == b"bytes"));
                        assert!(before.is_none() || files.contains_key("out"));
                    }
                }
            }
        }
    }

    #[test]
    fn disk_errors_while_the_name_is_checked() {
        for (operation, n) in [(Operation::Len, 0), (Operation::Open, 0), (Operation::Read, 1)] {
            for other in [&b"bytes"[..], b"other"] {
                let disk = holding("out", other);
                let storage = FaultStorage::new(disk.clone());
                storage.fail_nth(operation, n, io::ErrorKind::Other);
                let error = publish(&storage, b"bytes").unwrap_err();
                assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
                assert_eq!(disk.live_files()["out"], other);
            }
        }
        // Publishing an identical file again is not an error.
        let disk = holding("out", b"bytes");
        let storage = FaultStorage::new(disk.clone());
        storage.fail_every(Operation::Read, 2, io::ErrorKind::Interrupted);
        publish(&storage, b"bytes").unwrap();
        assert!(storage.failed() > 1);
        expect_published(&disk, b"bytes");
    }

    /// Returns two coins of one transaction: vouts 0 and 1, OP_TRUE.
    fn group() -> Vec<u8> {
        let coin = apus_chain::CoinRef { height: 1, coinbase: false, amount: 5, script: &[0x51] };
        let mut group = vec![2];
        for vout in [0, 1] {
            group.push(vout);
            apus_chain::write_coin(&mut group, coin);
        }
        group
    }

    fn set(coins: u64) -> SetInfo {
        SetInfo {
            network: Network::Regtest,
            height: 1,
            base: BlockHash([7; 32]),
            coins,
            coin_bytes: 0,
            transactions: 0,
        }
    }

    #[test]
    fn a_snapshot_without_all_its_coins_gets_no_name() {
        for (stated, right) in [(1, false), (2, true), (3, false)] {
            let storage = CrashStorage::new();
            let set = set(stated);
            let mut sink = SnapshotSink::create(&storage, "out", set).unwrap();
            sink.put_records(&record(&group())).unwrap();
            assert_eq!(sink.finish().is_ok(), right);
            assert_eq!(storage.names().unwrap() == ["out"], right);
        }
    }

    #[test]
    fn a_full_disk_is_reported_with_its_remedy() {
        let storage = FaultStorage::new(CrashStorage::new());
        storage.fail_from(Operation::Write, 1, io::ErrorKind::StorageFull);
        let set = set(2);
        let mut sink = SnapshotSink::create(&storage, "out", set).unwrap();
        sink.put(Txid([1; 32]), &group()).unwrap();
        let text = sink.finish().unwrap_err().to_string();
        assert!(text.starts_with("out.incomplete: ") && text.contains("Free some space"), "{text}");
    }

    fn record(group: &[u8]) -> Vec<u8> {
        [&[1; 32][..], &(group.len() as u32).to_le_bytes(), group].concat()
    }

    #[test]
    fn groups_that_are_not_coins() {
        let mut sink = HashSink::default();
        sink.put_records(&record(&group())).unwrap();
        assert_eq!(sink.coins(), 2);
        let whole = group();
        for bytes in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &[]] {
            let error = HashSink::default().put_records(&record(bytes)).unwrap_err();
            assert!(matches!(error, SyncError::Io(IoError::Group { .. })), "{error}");
        }
    }
}
