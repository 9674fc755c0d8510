//! [`ChainstatePart`]: one measured step, in a separate process.
//!
//! All steps read their input from the page cache and end when everything is durable. The copy makes a file
//! durable on a second thread while it copies the next, as the writer does; the difference between the two is
//! the cost of making tables.

use super::ChainstateFolder;
use crate::error::{AtPath, BenchError, check_interrupt};
use apus_chain::{
    BlockHash, CoinRef, HashSerialized3, OutPoint, Txid, write_coin, write_compact_size,
};
use apus_datadir::Obfuscation;
use apus_datadir::chainstate::ChainstateWriter;
use apus_storage::DirStorage;
use apus_sync::{ReadBack, SilentObserver};
use apus_testkit::rng::Rng;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Bytes per read or write.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes of records per read: small enough to stay in a CPU cache until they are used.
const RECORDS_BYTES: usize = 256 << 10;

/// Best block of the generated set.
const BEST: BlockHash = BlockHash([7; 32]);

/// Obfuscation key of the values. Any key but zeros costs the same.
const KEY: Obfuscation = Obfuscation::new([0x9a, 0x3c, 0x01, 0xfe, 0x77, 0x10, 0xc4, 0x5b]);

/// A step of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ChainstatePart {
    /// Generates the set; not measured.
    Make,
    /// Copies the files of the chainstate.
    Copy,
    /// Writes the chainstate from the set.
    Write,
    /// Reads the chainstate back and computes its hash, as a sync does before it publishes it.
    Check,
}

impl ChainstatePart {
    /// The measured steps.
    pub(super) const MEASURED: [Self; 3] = [Self::Write, Self::Copy, Self::Check];

    /// The step's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Make => "make",
            Self::Copy => "copy",
            Self::Write => "write",
            Self::Check => "check",
        }
    }
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PartOutcome {
    /// Time from the first byte read until everything was durable.
    pub(super) seconds: f64,
    /// Coins of the set.
    pub(super) coins: u64,
    /// Bytes written, or read by the check.
    pub(super) bytes: u64,
    /// The set's `hash_serialized_3`, if computed.
    pub(super) hash_serialized_3: Option<[u8; 32]>,
}

/// Runs one step in `place` and saves its result there.
pub(super) fn part(
    place: &ChainstateFolder,
    part: ChainstatePart,
    coins: u64,
    interrupt: &AtomicBool,
) -> Result<(), BenchError> {
    let start = Instant::now();
    let mut done = match part {
        ChainstatePart::Make => make(place, coins, interrupt)?,
        ChainstatePart::Copy => copy(&place.chainstate(), &place.copy(), interrupt)?,
        ChainstatePart::Write => write(place, interrupt)?,
        ChainstatePart::Check => check(place, interrupt)?,
    };
    done.seconds = start.elapsed().as_secs_f64();
    let path = place.outcome_file();
    let text = serde_json::to_vec(&done).map_err(|error| BenchError::file(&path, error))?;
    fs::write(&path, text).at(&path)
}

/// Writes the set as a file of records: txid, length of the group in four bytes, group.
fn make(
    place: &ChainstateFolder,
    coins: u64,
    interrupt: &AtomicBool,
) -> Result<PartOutcome, BenchError> {
    let path = place.set();
    let file = File::create(&path).at(&path)?;
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    let (mut set, mut group) = (MadeUpSet::new(coins), Vec::new());
    let (mut hash, mut found, mut bytes) = (HashSerialized3::new(), 0, 0);
    loop {
        let txid = set.next(&mut group, |outpoint, coin| {
            found += 1;
            hash.push(outpoint, coin);
        });
        let Some(txid) = txid else { break };
        check_interrupt(interrupt)?;
        let length = (group.len() as u32).to_le_bytes();
        for bytes in [txid.as_bytes(), &length[..], &group] {
            file.write_all(bytes).at(&path)?;
        }
        bytes += (32 + length.len() + group.len()) as u64;
    }
    let file = file.into_inner().map_err(|error| error.into_error()).at(&path)?;
    file.sync_all().at(&path)?;
    let hash_serialized_3 = Some(hash.finish().0);
    Ok(PartOutcome { seconds: 0.0, coins: found, bytes, hash_serialized_3 })
}

fn write(place: &ChainstateFolder, interrupt: &AtomicBool) -> Result<PartOutcome, BenchError> {
    let path = place.set();
    let file = File::open(&path).at(&path)?;
    let mut records = BufReader::with_capacity(RECORDS_BYTES, file);
    let folder = DirStorage::new(place.chainstate());
    let mut writer = ChainstateWriter::new(&folder, BEST, KEY)?;
    let mut group = Vec::new();
    while let Some(txid) = next_record(&mut records, &mut group).at(&path)? {
        check_interrupt(interrupt)?;
        writer.put_group(&txid, &group)?;
    }
    let written = writer.finish()?;
    Ok(PartOutcome {
        seconds: 0.0,
        coins: written.coins,
        bytes: written.bytes,
        hash_serialized_3: None,
    })
}

/// The next transaction's coins; `None` at the end of the file.
fn next_record(records: &mut impl BufRead, group: &mut Vec<u8>) -> io::Result<Option<Txid>> {
    if records.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let (mut txid, mut length) = (Txid([0; 32]), [0; 4]);
    records.read_exact(&mut txid.0)?;
    records.read_exact(&mut length)?;
    group.resize(u32::from_le_bytes(length) as usize, 0);
    records.read_exact(group)?;
    Ok(Some(txid))
}

fn copy(from: &Path, to: &Path, interrupt: &AtomicBool) -> Result<PartOutcome, BenchError> {
    let mut names: Vec<_> = fs::read_dir(from)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
        .at(from)?;
    names.sort_unstable();
    let bytes = std::thread::scope(|scope| {
        let (send, whole) = sync_channel::<File>(1);
        let sync = scope.spawn(move || whole.into_iter().try_for_each(|file| file.sync_data()));
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut bytes = 0;
        for name in names {
            check_interrupt(interrupt)?;
            let path = from.join(&name);
            let file = File::open(&path).at(&path)?;
            let target = File::create(to.join(&name)).at(&path)?;
            bytes += copy_file(file, &target, &mut buffer).at(&path)?;
            if send.send(target).is_err() {
                break;
            }
        }
        drop(send);
        let synced = sync.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        synced.at(to)?;
        Ok::<u64, BenchError>(bytes)
    })?;
    File::open(to).and_then(|folder| folder.sync_all()).at(to)?;
    Ok(PartOutcome { seconds: 0.0, coins: 0, bytes, hash_serialized_3: None })
}

fn copy_file(mut from: File, mut to: &File, buffer: &mut [u8]) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        let count = from.read(buffer)?;
        if count == 0 {
            return Ok(bytes);
        }
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}

fn check(place: &ChainstateFolder, interrupt: &AtomicBool) -> Result<PartOutcome, BenchError> {
    let folder = place.chainstate();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = ReadBack::of(&folder, threads, &SilentObserver, interrupt)?;
    let bytes = size_of_files(&folder).at(&folder)?;
    let hash_serialized_3 = Some(found.hash_serialized_3);
    Ok(PartOutcome { seconds: 0.0, coins: found.coins, bytes, hash_serialized_3 })
}

fn size_of_files(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

// ---- the generated set ----
//
// Generates txids in ascending order, so there is no sorting, and memory does not grow with the set. The
// shares approximate the main chain's coins in 2025; nothing here is spent or validated.

/// Number of coins per 1,000 with this kind of script; the bytes around its hashes, and the hashes' lengths.
type ScriptShare = (u64, &'static [(&'static [u8], usize, &'static [u8])]);
const SCRIPTS: &[ScriptShare] = &[
    (310, &[(&[0x51, 32], 32, &[])]),
    (300, &[(&[0, 20], 20, &[])]),
    (270, &[(&[0x76, 0xa9, 20], 20, &[0x88, 0xac])]),
    (90, &[(&[0xa9, 20], 20, &[0x87])]),
    (20, &[(&[0, 32], 32, &[])]),
    // Bare 2-of-3 multisig.
    (10, &[(&[0x51, 33, 2], 32, &[]), (&[33, 3], 32, &[]), (&[33, 2], 32, &[0x53, 0xae])]),
];

/// Near today's height of the main chain, so that heights take as many bytes as there.
const HEIGHT_MAX: u64 = 900_000;

/// A set with a given number of coins; it is the same each time.
pub(super) struct MadeUpSet {
    rng: Rng,
    coins_left: u64,
    /// First eight bytes of the last txid, in txid order.
    prefix: u64,
    /// Average distance between txids.
    stride: u64,
    script: Vec<u8>,
}

impl MadeUpSet {
    /// A set of `coins` coins.
    pub(super) fn new(coins: u64) -> Self {
        // There are at most as many transactions as coins.
        let stride = u64::MAX / coins.saturating_add(1);
        Self { rng: Rng::at(1, 0), coins_left: coins, prefix: 0, stride, script: Vec::new() }
    }

    /// Puts the next transaction's coins into `group`, in a snapshot's form without the txid. Calls `each`
    /// for every coin. Returns `None` after the last coin.
    pub(super) fn next(
        &mut self,
        group: &mut Vec<u8>,
        mut each: impl FnMut(&OutPoint, CoinRef<'_>),
    ) -> Option<Txid> {
        if self.coins_left == 0 {
            return None;
        }
        let txid = self.txid();
        let count = match self.rng.below(10) {
            0..7 => 1,
            7 | 8 => 2,
            _ => 3,
        };
        let count = count.min(self.coins_left);
        self.coins_left -= count;
        group.clear();
        write_compact_size(group, count);
        let mut vout = 0;
        for number in 0..count {
            vout += self.rng.below(2) as u32 + u32::from(number > 0);
            write_compact_size(group, u64::from(vout));
            let (height, amount) = (self.rng.between(1, HEIGHT_MAX) as u32, self.amount());
            self.choose_script();
            let coin = CoinRef { height, coinbase: false, amount, script: &self.script };
            write_coin(group, coin);
            each(&OutPoint { txid, vout }, coin);
        }
        Some(txid)
    }

    /// A txid above the last one. There are fewer transactions than coins, so the steps never overflow.
    fn txid(&mut self) -> Txid {
        self.prefix += self.rng.between(1, self.stride);
        let mut txid = [0; 32];
        let (prefix, rest) = txid.split_at_mut(8);
        prefix.copy_from_slice(&self.prefix.to_be_bytes());
        self.rng.fill(rest);
        Txid(txid)
    }

    /// Draws an amount: dust, a round one, or another.
    fn amount(&mut self) -> u64 {
        match self.rng.below(10) {
            0..3 => 546,
            3 => self.rng.between(1, 1_000) * 100_000,
            _ => self.rng.between(1_000, 100_000_000),
        }
    }

    fn choose_script(&mut self) {
        let mut left = self.rng.below(1_000);
        let share = |(share, _): &&ScriptShare| match left.checked_sub(*share) {
            None => true,
            Some(less) => {
                left = less;
                false
            }
        };
        let (_, parts) = SCRIPTS.iter().find(share).expect("the shares are 1,000");
        self.script.clear();
        for (before, hash, after) in *parts {
            self.script.extend_from_slice(before);
            self.rng.append(&mut self.script, *hash);
            self.script.extend_from_slice(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{Reader, read_coin};

    #[test]
    fn a_set_has_the_requested_number_of_coins_in_order() {
        for count in [1, 2, 3, 5_000] {
            let (mut set, mut group) = (MadeUpSet::new(count), Vec::new());
            let (mut listed, mut last) = (Vec::new(), None);
            let mut found = 0;
            while let Some(txid) = set.next(&mut group, |outpoint, coin| {
                listed.push((*outpoint, coin.script.len()));
            }) {
                assert!(last.is_none_or(|last| last < txid));
                last = Some(txid);
                let mut reader = Reader::new(&group);
                for _ in 0..reader.compact_size().unwrap() {
                    let vout = reader.compact_size().unwrap() as u32;
                    let coin = read_coin(&mut reader).unwrap();
                    assert_eq!(listed[found], (OutPoint { txid, vout }, coin.script.len()));
                    found += 1;
                }
                reader.finish().unwrap();
            }
            assert_eq!((found as u64, listed.len() as u64), (count, count));
        }
    }

    #[test]
    fn all_kinds_of_scripts_appear_in_their_shares() {
        let (mut set, mut group) = (MadeUpSet::new(20_000), Vec::new());
        let mut lengths = std::collections::BTreeMap::new();
        while set
            .next(&mut group, |_, coin| *lengths.entry(coin.script.len()).or_insert(0) += 1)
            .is_some()
        {}
        // P2TR and P2WSH have the same length.
        for (length, share) in [(34, 330), (22, 300), (25, 270), (23, 90), (105, 10)] {
            let found = lengths.remove(&length).unwrap_or(0);
            assert!((found - share * 20_i64).abs() < 20 * share.min(30), "{length}: {found}");
        }
        assert!(lengths.is_empty(), "{lengths:?}");
    }
}
