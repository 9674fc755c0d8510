//! Sorted runs of coins: reading one, merging many in bounded memory.
//!
//! A run holds records `txid[32] ‖ u32le length ‖ group` by ascending txid, where a group is all
//! surviving coins of one transaction in the form of a UTXO snapshot. However many runs there are,
//! at most [`MergeBudget::fan_in`] are open at once: more are first merged into longer ones. Every
//! run is compared with the SHA-256 that was noted when it was written.

use crate::error::{StorageResult, SyncError};
use crate::workdir::MERGE;
use apus_chain::Txid;
use apus_engine::storage::Storage;
use apus_hash::Sha256;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufReader, BufWriter, Read, Write};

/// Greatest length of a group: a transaction is at most a block, and the stored form of an output
/// (vout, height, amount, script) is at most 26 bytes longer than its form in the block, of which
/// there are at most 111,111.
const GROUP_BYTES_MAX: u32 = 4_000_000 + 26 * 111_111;

/// Takes a transaction's surviving coins.
pub(crate) type EachGroup<'a> = dyn FnMut(Txid, &[u8]) -> Result<(), SyncError> + 'a;

/// Bytes before the group in a record.
const RECORD_HEADER: usize = 36;

/// A run as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Name in the storage.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of all bytes.
    pub sha256: [u8; 32],
}

/// How much a merge may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeBudget {
    /// Runs open at once, at least 2.
    pub fan_in: usize,
    /// Buffer of each.
    pub buffer_bytes: usize,
}

impl MergeBudget {
    /// Divides `bytes` of memory over as many runs as sensible buffers allow.
    pub(crate) fn new(bytes: u64) -> Self {
        let buffer_bytes = 128 << 10;
        let fan_in = (bytes / buffer_bytes as u64).clamp(2, 512) as usize;
        Self { fan_in, buffer_bytes }
    }
}

/// One run, read from start to end.
struct RunReader {
    name: String,
    file: BufReader<Box<dyn Read + Send>>,
    rest: u64,
    hash: Sha256,
    sha256: [u8; 32],
    txid: [u8; 32],
    group: Vec<u8>,
}

impl RunReader {
    fn open(storage: &dyn Storage, run: &RunInfo, budget: MergeBudget) -> Result<Self, SyncError> {
        let file = storage.open(&run.name, 0).at(storage, &run.name)?;
        Ok(Self {
            name: run.name.clone(),
            file: BufReader::with_capacity(budget.buffer_bytes, file),
            rest: run.bytes,
            hash: Sha256::new(),
            sha256: run.sha256,
            txid: [0; 32],
            group: Vec::new(),
        })
    }

    /// Moves to the next record; `false` after the last, once the whole run proved intact.
    fn next(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        if self.rest == 0 {
            let intact = self.hash.clone().finalize() == self.sha256;
            return if intact { Ok(false) } else { Err(self.damaged(storage)) };
        }
        let mut header = [0; RECORD_HEADER];
        self.read(storage, &mut header)?;
        let (txid, length) = header.split_at(32);
        let length = length.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if txid <= &self.txid[..] && !self.group.is_empty() || length > GROUP_BYTES_MAX {
            return Err(self.damaged(storage));
        }
        self.txid.copy_from_slice(txid);
        let mut group = std::mem::take(&mut self.group);
        group.resize(length as usize, 0);
        self.read(storage, &mut group)?;
        self.group = group;
        Ok(true)
    }

    fn read(&mut self, storage: &dyn Storage, bytes: &mut [u8]) -> Result<(), SyncError> {
        let length = bytes.len() as u64;
        self.rest = self.rest.checked_sub(length).ok_or_else(|| self.damaged(storage))?;
        self.file.read_exact(bytes).at(storage, &self.name)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn damaged(&self, storage: &dyn Storage) -> SyncError {
        SyncError::RunDamaged { run: self.name.clone(), file: storage.describe(&self.name) }
    }
}

/// Gives the groups of all runs to `each` by ascending txid.
///
/// The names of runs made on the way begin with [`MERGE`]; they are removed at the end, and by
/// [`Workdir`](crate::workdir::Workdir) after a crash.
pub(crate) fn merge_runs(
    storage: &dyn Storage,
    runs: Vec<RunInfo>,
    budget: MergeBudget,
    each: &mut EachGroup<'_>,
) -> Result<(), SyncError> {
    let mut runs = runs;
    let mut made = 0;
    while runs.len() > budget.fan_in {
        let mut longer = Vec::with_capacity(runs.len().div_ceil(budget.fan_in));
        for group in runs.chunks(budget.fan_in) {
            let name = format!("{MERGE}{made}.run");
            made += 1;
            longer.push(merge_into_run(storage, group, budget, name)?);
            for run in group.iter().filter(|run| run.name.starts_with(MERGE)) {
                storage.remove(&run.name).at(storage, &run.name)?;
            }
        }
        runs = longer;
    }
    merge_once(storage, &runs, budget, each)?;
    for run in runs.iter().filter(|run| run.name.starts_with(MERGE)) {
        storage.remove(&run.name).at(storage, &run.name)?;
    }
    Ok(())
}

/// Merges runs into a longer one. It need not be durable: after a crash the merge starts anew.
fn merge_into_run(
    storage: &dyn Storage,
    runs: &[RunInfo],
    budget: MergeBudget,
    name: String,
) -> Result<RunInfo, SyncError> {
    let file = storage.create(&name).at(storage, &name)?;
    let mut out = BufWriter::with_capacity(budget.buffer_bytes, file);
    let mut hash = Sha256::new();
    let mut bytes = 0;
    merge_once(storage, runs, budget, &mut |txid, group| {
        let length = (group.len() as u32).to_le_bytes();
        for part in [&txid.0[..], &length, group] {
            out.write_all(part).at(storage, &name)?;
            hash.update(part);
            bytes += part.len() as u64;
        }
        Ok(())
    })?;
    out.flush().at(storage, &name)?;
    Ok(RunInfo { name, bytes, sha256: hash.finalize() })
}

fn merge_once(
    storage: &dyn Storage,
    runs: &[RunInfo],
    budget: MergeBudget,
    each: &mut EachGroup<'_>,
) -> Result<(), SyncError> {
    let mut readers = Vec::with_capacity(runs.len());
    let mut heads = BinaryHeap::with_capacity(runs.len());
    for (index, run) in runs.iter().enumerate() {
        let mut reader = RunReader::open(storage, run, budget)?;
        if reader.next(storage)? {
            heads.push(Reverse((reader.txid, index)));
        }
        readers.push(reader);
    }
    let mut last: Option<[u8; 32]> = None;
    while let Some(Reverse((txid, index))) = heads.pop() {
        if last == Some(txid) {
            return Err(SyncError::DuplicateTransaction { txid: Txid(txid) });
        }
        last = Some(txid);
        let reader = &mut readers[index];
        each(Txid(txid), &reader.group)?;
        if reader.next(storage)? {
            heads.push(Reverse((reader.txid, index)));
        }
    }
    Ok(())
}
