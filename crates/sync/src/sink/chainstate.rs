//! `chainstate:DIR`: the set as Bitcoin Core's folder of coins.
//!
//! The merge directly writes sorted tables, in a draft next to the final folder. Then everything is read back
//! with an independent implementation of LevelDB: the number of coins and `hash_serialized_3` are compared with
//! the set's, and some coins are looked up the way a node does. Only then does the folder get its name.

use super::{HashSink, SetEnd, SetInfo};
use crate::error::SyncError;
use crate::folder::expect_room;
use crate::progress::{Event, Observer, Phase, Progress, stop_if_interrupted, unless_interrupted};
use crate::request::RunEnv;
use crate::system::random_bytes;
use crate::taker::BatchTaker;
use apus_chain::{BlockHash, OutPoint, Txid, write_compact_size};
use apus_datadir::Obfuscation;
use apus_datadir::chainstate::{
    ChainstateSummary, ChainstateWriter, CoinLookUp, CoinSample, read_back, size_bound,
};
use apus_storage::DirStorage;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Coins looked up between two checks for an interrupt.
const LOOK_UPS_BETWEEN: u64 = 1000;

/// Looking up an existing and a missing coin takes this many times as long as reading one coin in order.
const LOOK_UP_WEIGHT: u64 = 10;

/// Bytes of coins passed to the hash at once.
const BATCH_BYTES: usize = 64 << 10;

/// A set that is being written to a LevelDB folder.
pub(super) struct Tables<'a> {
    folder: &'a Path,
    writer: Option<ChainstateWriter<'a>>,
    bytes: u64,
    pub(super) coins_read_back: u64,
    pub(super) looked_up: CoinLookUp,
}

impl<'a> Tables<'a> {
    /// Begins the database in the empty folder `place`; fails if the disk lacks room for it.
    pub(super) fn create(place: &'a DirStorage, set: SetInfo) -> Result<Self, SyncError> {
        let folder = place.folder();
        expect_room(folder, size_bound(set.coins, set.coin_bytes))?;
        let writer = ChainstateWriter::new(place, set.base, Obfuscation::new(random_bytes()?))?;
        let (coins_read_back, looked_up) = (0, CoinLookUp::default());
        Ok(Self { folder, writer: Some(writer), bytes: 0, coins_read_back, looked_up })
    }

    pub(super) fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        match &mut self.writer {
            Some(writer) => Ok(writer.put_group(&txid, group)?),
            None => unreachable!("no coin comes after the last one"),
        }
    }

    /// Ends the database and makes it durable.
    pub(super) fn seal(&mut self) -> Result<(), SyncError> {
        if let Some(writer) = self.writer.take() {
            self.bytes = writer.finish()?.bytes;
        }
        Ok(())
    }

    /// Returns the bytes of all tables.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads all coins back and compares them with the set, then looks up some of them.
    pub(super) fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        let RunEnv { threads, observer, interrupt, .. } = *whole.env;
        let mut sample = CoinSample::new();
        let mut draw = |outpoint, coin: &[u8]| sample.take(outpoint, coin);
        let (read, found) = ReadBack::drawing(
            self.folder,
            whole.set.coins,
            threads,
            observer,
            interrupt,
            &mut draw,
        )?;
        found.expect(self.folder, whole)?;
        let to_look_up = sample.count();
        let mut go_on = |asked: u64| {
            if !asked.is_multiple_of(LOOK_UPS_BETWEEN) {
                return ControlFlow::Continue(());
            }
            let progress = checked(found.coins, found.coins, asked, to_look_up);
            observer.event(Event::Progress(Phase::CheckCoins, progress));
            unless_interrupted(interrupt)
        };
        let looked_up = sample.look_up(self.folder, &read, &mut go_on)?;
        self.looked_up = looked_up.ok_or(SyncError::Interrupted)?;
        self.coins_read_back = found.coins;
        Ok(())
    }
}

/// The content of a chainstate, read through an independent implementation of LevelDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBack {
    /// The block of the coins.
    pub best: BlockHash,
    /// Number of coins.
    pub coins: u64,
    /// Their `hash_serialized_3`, in internal order.
    pub hash_serialized_3: [u8; 32],
}

impl ReadBack {
    /// Reads the whole chainstate in `folder`. With more than one of `threads`, the hash runs on its own
    /// thread.
    pub fn of(
        folder: &Path,
        threads: usize,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SyncError> {
        let (_, found) = Self::drawing(folder, 0, threads, observer, interrupt, &mut |_, _| ())?;
        Ok(found)
    }

    /// Reads the whole chainstate, passes each coin to `draw`, and returns the database's statistics.
    /// `coins_total` is the expected number of coins, for the progress.
    fn drawing(
        folder: &Path,
        coins_total: u64,
        threads: usize,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
        draw: &mut dyn FnMut(OutPoint, &[u8]),
    ) -> Result<(ChainstateSummary, Self), SyncError> {
        let mut hashed = HashSink::default();
        let to_look_up = CoinSample::expected_count(coins_total);
        let (mut coins, mut bytes, mut failure) = (0, 0, None);
        let read = std::thread::scope(|scope| {
            let apart = threads > 1;
            let mut hash =
                BatchTaker::new("coins", scope, apart, |batch| hashed.put_records(batch))?;
            let mut batch = Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 8);
            let mut hand_on = |batch: &mut Vec<u8>, progress| {
                let whole = std::mem::replace(batch, Vec::with_capacity(batch.capacity()));
                hash.take(&Arc::new(whole))?;
                observer.event(Event::Progress(Phase::CheckCoins, progress));
                stop_if_interrupted(interrupt)
            };
            let read = read_back(folder, &mut |outpoint, coin| {
                draw(outpoint, coin);
                put_record(&mut batch, outpoint, coin);
                coins += 1;
                bytes += coin.len() as u64;
                if batch.len() < BATCH_BYTES {
                    return ControlFlow::Continue(());
                }
                let progress = Progress { bytes, ..checked(coins, coins_total, 0, to_look_up) };
                failure = hand_on(&mut batch, progress).err();
                if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if let Some(failure) = failure.take() {
                return Err(failure);
            }
            let read = read?;
            let progress = Progress { bytes, ..checked(coins, coins_total, 0, to_look_up) };
            hand_on(&mut batch, progress)?;
            hash.end()?;
            Ok(read)
        })?;
        let hash_serialized_3 = hashed.finish();
        Ok((read, Self { best: read.best, coins: read.coins, hash_serialized_3 }))
    }

    fn expect(&self, folder: &Path, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        let what = if self.best != whole.set.base {
            format!("it is at block {}, not {}", self.best, whole.set.base)
        } else if self.coins != whole.set.coins {
            format!("it has {} coins, not {}", self.coins, whole.set.coins)
        } else if self.hash_serialized_3 != whole.hash_serialized_3 {
            "its coins are wrong: hash_serialized_3 differs".to_owned()
        } else {
            return Ok(());
        };
        Err(SyncError::read_back(folder, &what))
    }
}

/// Returns the progress of a check that has read and looked up this many coins.
fn checked(coins: u64, coins_total: u64, asked: u64, to_look_up: u64) -> Progress {
    let weight = |coins: u64, asked: u64| coins + LOOK_UP_WEIGHT * asked;
    let weight_total = if coins_total > 0 { weight(coins_total, to_look_up) } else { 0 };
    let weight = weight(coins, asked);
    Progress { coins, coins_total, weight, weight_total, ..Progress::default() }
}

/// Writes one coin as the record of its transaction.
fn put_record(batch: &mut Vec<u8>, outpoint: OutPoint, coin: &[u8]) {
    batch.extend_from_slice(&outpoint.txid.0);
    let at = batch.len();
    batch.extend_from_slice(&[0; 4]);
    write_compact_size(batch, 1);
    write_compact_size(batch, u64::from(outpoint.vout));
    batch.extend_from_slice(coin);
    let length = (batch.len() - at - 4) as u32;
    batch[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::SilentObserver;
    use apus_chain::{BlockHash, Network, Params};
    use apus_testkit::storage::CrashStorage;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use tempfile::TempDir;

    /// Byte of the txid; number of the output, below 253; height; compressed amount, below 128. The script is
    /// OP_TRUE.
    type Coin = (u8, u8, u8, u8);

    const COINS: [Coin; 4] = [(1, 0, 10, 50), (1, 3, 10, 50), (2, 0, 11, 60), (9, 7, 12, 70)];
    const BASE: BlockHash = BlockHash([7; 32]);

    /// Bytes after each block of a table: compression type (none) and checksum.
    const TAIL: usize = 5;

    fn set(base: BlockHash, coins: &[Coin]) -> SetInfo {
        let coins = coins.len() as u64;
        SetInfo {
            network: Network::Regtest,
            height: 20,
            base,
            coins,
            coin_bytes: 1000,
            transactions: 0,
        }
    }

    fn groups(coins: &[Coin]) -> Vec<(Txid, Vec<u8>)> {
        let of_tx = |coins: &[Coin]| {
            let mut group = vec![coins.len() as u8];
            for (_, vout, height, amount) in coins {
                group.extend([*vout, height * 2, *amount, 7, 0x51]);
            }
            (Txid([coins[0].0; 32]), group)
        };
        coins.chunk_by(|a, b| a.0 == b.0).map(of_tx).collect()
    }

    /// Writes some coins and lets the caller `harm` the folder; returns the result of reading back and
    /// comparing with [`COINS`] at [`BASE`].
    fn check(base: BlockHash, coins: &[Coin], harm: impl FnOnce(&Path)) -> Result<(), SyncError> {
        let sandbox: TempDir = tempfile::tempdir().unwrap();
        let place = DirStorage::new(sandbox.path());
        let mut tables = Tables::create(&place, set(base, coins)).unwrap();
        for (txid, group) in groups(coins) {
            tables.put(txid, &group).unwrap();
        }
        tables.seal().unwrap();
        harm(sandbox.path());
        let (mut hash, mut records) = (HashSink::default(), Vec::new());
        for (txid, vout, height, amount) in COINS {
            let outpoint = OutPoint { txid: Txid([txid; 32]), vout: vout.into() };
            put_record(&mut records, outpoint, &[height * 2, amount, 7, 0x51]);
        }
        hash.put_records(&records).unwrap();
        let hash_serialized_3 = hash.finish();
        let (storage, interrupt) = (CrashStorage::new(), AtomicBool::new(false));
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &SilentObserver, &interrupt);
        let whole = SetEnd { env: &env, set: set(BASE, &COINS), hash_serialized_3 };
        let checked = tables.check(&whole);
        let expected = if checked.is_ok() { 4 } else { 0 };
        assert_eq!((tables.coins_read_back, tables.looked_up.coins), (expected, expected));
        checked
    }

    /// A node would hardly notice any of these differences.
    #[test]
    fn differences_are_noticed() {
        check(BASE, &COINS, |_| {}).unwrap();
        let with = |place: usize, coin: Coin| {
            let mut coins = COINS;
            coins[place] = coin;
            coins.to_vec()
        };
        let more = [&COINS[..], &[(9, 8, 12, 70)]].concat();
        for (coins, expected) in [
            (COINS[1..].to_vec(), "3 coins, not 4"),
            (COINS[..3].to_vec(), "3 coins, not 4"),
            (Vec::new(), "0 coins, not 4"),
            (more, "5 coins, not 4"),
            (with(2, (3, 0, 11, 60)), "hash_serialized_3 differs"),
            (with(2, (2, 1, 11, 60)), "hash_serialized_3 differs"),
            (with(2, (2, 0, 12, 60)), "hash_serialized_3 differs"),
            (with(2, (2, 0, 11, 61)), "hash_serialized_3 differs"),
        ] {
            let error = check(BASE, &coins, |_| {}).unwrap_err();
            assert!(error.to_string().contains(expected), "{coins:?}: {error}");
        }
        let error = check(BlockHash([8; 32]), &COINS, |_| {}).unwrap_err();
        assert!(error.to_string().contains("it is at block 0808"), "{error}");
    }

    fn table(folder: &Path) -> PathBuf {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut tables =
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "ldb"));
        tables.next().unwrap()
    }

    /// Computes CRC-32C of a block and its compression byte, masked as in LevelDB.
    fn checksum(block: &[u8]) -> [u8; 4] {
        let sum = block.iter().chain(&[0]).fold(!0u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
        });
        (!sum).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    }

    /// All entries are present and in order, and every checksum is right: only looking up a coin fails.
    #[test]
    fn a_filter_without_a_coin_is_noticed() {
        let harm = |folder: &Path| {
            let path = table(folder);
            let mut bytes = fs::read(&path).unwrap();
            let name = b"filter.leveldb.BuiltinBloomFilter2";
            let list = bytes.windows(name.len()).position(|window| window == name).unwrap() - 3;
            // The filter of six keys: 64 bits and the number of probes. Then the filter's offset, and the end
            // of the list.
            let block = list - TAIL - (8 + 1 + 4 + 4 + 1)..list - TAIL;
            assert_eq!(bytes[block.start + 8], 6);
            assert_eq!(bytes[block.end..][1..TAIL], checksum(&bytes[block.clone()]));
            bytes[block.start..][..8].fill(0);
            let sum = checksum(&bytes[block.clone()]);
            bytes[block.end..][1..TAIL].copy_from_slice(&sum);
            fs::write(path, bytes).unwrap();
        };
        let error = check(BASE, &COINS, harm).unwrap_err().to_string();
        assert!(error.contains("a look-up of"), "{error}");
    }

    #[test]
    fn a_flipped_bit_of_any_table_is_noticed() {
        // The first block contains all entries.
        for at in [0, 1, 20, 40, 60, 100] {
            let harm = |folder: &Path| {
                let path = table(folder);
                let mut bytes = fs::read(&path).unwrap();
                bytes[at] ^= 1;
                fs::write(path, bytes).unwrap();
            };
            assert!(check(BASE, &COINS, harm).is_err(), "byte {at}");
        }
    }
}
