//! Copies the node's coins to a snapshot in the work folder, so that a running node cannot change them during
//! the audit or between its starts; and compares them with the coins that the blocks produce.

use super::finding::{FindingKind, Findings, FoundFault};
use super::{Verify, read_again};
use crate::error::{StorageResult, SyncError};
use crate::folder::at;
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use apus_chain::{BlockHash, Network, OutPoint, Txid, vout_order};
use apus_datadir::chainstate::{ChainstateDbError, read_node};
use apus_datadir::snapshot::{
    SnapshotCoin, SnapshotError, SnapshotHeader, SnapshotInfo, SnapshotReader, snapshot_info,
    write_group,
};
use apus_storage::{DirStorage, Storage, StorageFile};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// File names of the snapshot: once it is complete, and until then.
pub(super) const TAKEN: &str = "coins.dat";
pub(super) const DRAFT: &str = "coins.dat.incomplete";

/// Coins between two checks for an interrupt.
const AT_ONCE: u64 = 1 << 16;

/// The copied coins.
pub(super) struct CoinsSnapshot {
    pub(super) path: PathBuf,
    pub(super) info: SnapshotInfo,
    /// Whether an earlier start made the copy.
    pub(super) of_earlier: bool,
}

/// Copies the node's coins, or finds the copy of an earlier start. If they cannot be read, returns `None` and
/// adds a finding.
pub(super) fn take(
    request: &Verify<'_>,
    storage: &DirStorage,
    findings: &Findings,
) -> Result<Option<CoinsSnapshot>, SyncError> {
    request.env.observer.event(Event::Started(Phase::Hints));
    let path = storage.folder().join(TAKEN);
    let is_there = path.try_exists().map_err(at(&path))?;
    if !is_there && !try_to_take(request, storage, findings)? {
        return Ok(None);
    }
    let info = snapshot_info(open(&path, Some(request.env.params.network))?, false);
    let info = info.map_err(|error| named(&path, error))?;
    request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: info.bytes });
    Ok(Some(CoinsSnapshot { path, info, of_earlier: is_there }))
}

fn try_to_take(
    request: &Verify<'_>,
    storage: &DirStorage,
    findings: &Findings,
) -> Result<bool, SyncError> {
    let may_pass = |error: &_| {
        use ChainstateDbError::{Unfinished, Vanished};
        matches!(error, CoinsReadError::Coins(Vanished { .. } | Unfinished { .. }))
    };
    let error = match read_again(request, may_pass, || take_once(request, storage)) {
        Ok(()) => return Ok(true),
        Err(CoinsReadError::Run(error)) => return Err(error),
        Err(CoinsReadError::Coins(error)) => error,
    };
    let dir = request.chainstate();
    let (kind, found) = match error {
        // The node has not written any coins yet.
        ChainstateDbError::NoBestBlock { coins: false, .. } => return Ok(false),
        ChainstateDbError::Read { path, source, .. } => return Err(at(&path)(source)),
        ChainstateDbError::Table { path, offset, what } => {
            (FindingKind::CoinsDamaged, FoundFault::new(what).at(&path, offset))
        }
        ChainstateDbError::Vanished { path } => {
            (FindingKind::CoinsDamaged, FoundFault::new("missing").of(&path))
        }
        ChainstateDbError::Unfinished { .. } => {
            let what = "the coins are between two blocks: the node stopped while it wrote them";
            (FindingKind::CoinsUnfinished, FoundFault::new(what).of(&dir))
        }
        other => (FindingKind::CoinsDamaged, FoundFault::new(other).of(&dir)),
    };
    findings.add(kind, found);
    Ok(false)
}

/// Why the coins were not copied.
enum CoinsReadError {
    /// The node's coins are unreadable.
    Coins(ChainstateDbError),
    /// Any other error.
    Run(SyncError),
}

impl From<ChainstateDbError> for CoinsReadError {
    fn from(error: ChainstateDbError) -> Self {
        Self::Coins(error)
    }
}

impl From<SyncError> for CoinsReadError {
    fn from(error: SyncError) -> Self {
        Self::Run(error)
    }
}

/// Copies the node's coins.
fn take_once(request: &Verify<'_>, storage: &DirStorage) -> Result<(), CoinsReadError> {
    let file = storage.create(DRAFT).at(storage, DRAFT)?;
    let mut writing = CoinsWriter::new(storage, file);
    // The number of coins is known only at the end.
    writing.write(&header(request.env.params.network, BlockHash::ZERO, 0))?;
    let mut coins = 0_u64;
    let read = read_node(&request.chainstate(), &mut |outpoint, bytes| {
        coins += 1;
        if coins.is_multiple_of(AT_ONCE) {
            let progress = Progress { coins, ..Progress::default() };
            request.env.observer.event(Event::Progress(Phase::Hints, progress));
            stop_if_interrupted(request.env.interrupt)?;
        }
        writing.coin(outpoint, bytes).map_err(CoinsReadError::Run)
    })?;
    writing.end_group()?;
    let path = storage.folder().join(DRAFT);
    let header = header(request.env.params.network, read.best, read.coins);
    writing.finish(&path, &header)?;
    storage.rename(DRAFT, TAKEN).at(storage, TAKEN)?;
    storage.sync_names().at(storage, "")?;
    Ok(())
}

fn header(network: Network, base_hash: BlockHash, coins: u64) -> [u8; SnapshotHeader::SIZE] {
    SnapshotHeader { network, base_hash, coins }.to_bytes()
}

/// Writes a snapshot.
struct CoinsWriter<'s> {
    storage: &'s DirStorage,
    out: BufWriter<Box<dyn StorageFile>>,
    txid: Option<Txid>,
    /// Coins of the current transaction: output number, and the end of the coin in `bytes`.
    coins: Vec<(u32, usize)>,
    bytes: Vec<u8>,
    group: Vec<u8>,
}

impl<'s> CoinsWriter<'s> {
    fn new(storage: &'s DirStorage, file: Box<dyn StorageFile>) -> Self {
        let out = BufWriter::with_capacity(1 << 20, file);
        let (coins, bytes, group) = (Vec::new(), Vec::new(), Vec::new());
        Self { storage, out, txid: None, coins, bytes, group }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        self.out.write_all(bytes).at(self.storage, DRAFT)
    }

    fn coin(&mut self, outpoint: OutPoint, coin: &[u8]) -> Result<(), SyncError> {
        if self.txid.is_some_and(|txid| txid != outpoint.txid) {
            self.end_group()?;
        }
        self.txid = Some(outpoint.txid);
        self.bytes.extend_from_slice(coin);
        self.coins.push((outpoint.vout, self.bytes.len()));
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), SyncError> {
        let Some(txid) = self.txid.take() else { return Ok(()) };
        let starts = std::iter::once(0).chain(self.coins.iter().map(|(_, end)| *end));
        let mut coins: Vec<(u32, &[u8])> = starts
            .zip(&self.coins)
            .map(|(start, (vout, end))| (*vout, &self.bytes[start..*end]))
            .collect();
        self.group.clear();
        write_group(&mut self.group, &txid, &mut coins)
            .map_err(|error| named(&self.storage.folder().join(DRAFT), error))?;
        self.out.write_all(&self.group).at(self.storage, DRAFT)?;
        self.coins.clear();
        self.bytes.clear();
        Ok(())
    }

    /// Makes the snapshot durable, with its final header.
    fn finish(mut self, path: &Path, header: &[u8]) -> Result<(), SyncError> {
        use std::os::unix::fs::FileExt;
        self.out.flush().at(self.storage, DRAFT)?;
        drop(self.out);
        let finish = || {
            let file = apus_storage::open_own_file(path)?;
            file.write_all_at(header, 0)?;
            file.sync_all()
        };
        finish().at(self.storage, DRAFT)
    }
}

fn named(path: &Path, error: SnapshotError) -> SyncError {
    SyncError::Snapshot { file: path.display().to_string(), error }
}

type Coins = SnapshotReader<BufReader<File>>;

pub(super) fn open(path: &Path, network: Option<Network>) -> Result<Coins, SyncError> {
    let file = File::open(path).map_err(at(path))?;
    let file = BufReader::with_capacity(1 << 20, file);
    SnapshotReader::new(file, network).map_err(|error| named(path, error))
}

/// Compares two snapshots: the coins that the blocks produce, and the node's.
pub(super) fn compare(
    request: &Verify<'_>,
    of_blocks: &Path,
    of_node: &Path,
    findings: &Findings,
) -> Result<(), SyncError> {
    request.env.observer.event(Event::Started(Phase::Compare));
    let (mut right, mut stored) = (open(of_blocks, None)?, open(of_node, None)?);
    let (mut left, mut other) = (next(&mut right, of_blocks)?, next(&mut stored, of_node)?);
    let dir = request.chainstate();
    let bytes_total = fs::metadata(of_node).map_or(0, |about| about.len());
    let mut steps = 0_u64;
    loop {
        steps += 1;
        if steps.is_multiple_of(AT_ONCE) {
            let progress = Progress { bytes: stored.offset(), bytes_total, ..Progress::default() };
            request.env.observer.event(Event::Progress(Phase::Compare, progress));
            stop_if_interrupted(request.env.interrupt)?;
        }
        let order = match (&left, &other) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(other)) => left.order(other),
        };
        if order.is_eq() {
            if let (Some(left), Some(other)) = (&left, &other)
                && left.bytes != other.bytes
            {
                let what = "the coin differs from the output that its transaction created";
                let found = FoundFault::new(what).coin(left.outpoint, left.height).of(&dir);
                findings.add(FindingKind::CoinWrong, found);
            }
        } else if let Some(coin) = if order.is_lt() { &left } else { &other } {
            let (kind, what) = match order {
                Ordering::Less => {
                    (FindingKind::CoinMissing, "missing, but the blocks leave this coin unspent")
                }
                _ => (
                    FindingKind::CoinUnknown,
                    "present, but the blocks do not leave this coin unspent",
                ),
            };
            findings.add(kind, FoundFault::new(what).coin(coin.outpoint, coin.height).of(&dir));
        }
        if order.is_le() {
            left = next(&mut right, of_blocks)?;
        }
        if order.is_ge() {
            other = next(&mut stored, of_node)?;
        }
    }
    request.env.observer.event(Event::Ended { phase: Phase::Compare, bytes: stored.offset() });
    Ok(())
}

/// A coin of a snapshot.
pub(super) struct OneCoin {
    pub(super) outpoint: OutPoint,
    pub(super) height: u32,
    pub(super) bytes: Vec<u8>,
}

impl OneCoin {
    /// Compares two coins in the order of snapshots.
    fn order(&self, other: &Self) -> Ordering {
        let (left, right) = (self.outpoint, other.outpoint);
        left.txid.0.cmp(&right.txid.0).then_with(|| vout_order(left.vout, right.vout))
    }
}

pub(super) fn next(
    reader: &mut SnapshotReader<impl Read>,
    path: &Path,
) -> Result<Option<OneCoin>, SyncError> {
    let coin = reader.next_coin().map_err(|error| named(path, error))?;
    Ok(coin.map(|SnapshotCoin { outpoint, coin, bytes, .. }| OneCoin {
        outpoint,
        height: coin.height,
        bytes: bytes.to_vec(),
    }))
}
