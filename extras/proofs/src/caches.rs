//! [`replay_caches`]: reads the proofs of a folder twice, to find what verifiers save by remembering some
//! leaves.
//!
//! The first pass finds when each leaf is spent; the second needs that to choose which leaves to remember.

use crate::bridge_error::BridgeError;
use crate::proof_files::{failed, open, proofs_files};
use crate::survey::{FileSurvey, ProofEntry, expect_seam};
use apus_chain::HeightRange;
use apus_storage::Storage;
use apus_sync::progress::{PROGRESS_INTERVAL, stop_if_interrupted};
use apus_sync::{Event, Observer, Phase, Progress, SyncError};
use apus_utreexo::{CacheCost, CacheReplay, CacheRule, CachesError, Lifetimes, ProvedBlock};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The phase that replays proofs with caches of several sizes.
pub const CACHES: Phase = Phase::Extra("caches");

/// The input of [`replay_caches`].
pub struct CachesRequest<'a> {
    /// The folder with proof files from block 1 on.
    pub storage: &'a dyn Storage,
    /// The caches to compare.
    pub rules: &'a [CacheRule],
    /// Receives progress.
    pub observer: &'a dyn Observer,
    /// The caller sets it to stop the replay.
    pub interrupt: &'a AtomicBool,
}

/// The result of [`replay_caches`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachesFound {
    /// Heights of the blocks.
    pub heights: HeightRange,
    /// Leaves ever added.
    pub leaves: u64,
    /// The cost of all blocks with each cache.
    pub costs: Vec<(CacheRule, CacheCost)>,
}

/// Replays all proofs of a folder with each cache. The files must be adjacent and begin with block 1.
pub fn replay_caches(request: &CachesRequest<'_>) -> Result<CachesFound, SyncError> {
    let files = CacheFiles::find(request.storage)?;
    let memory = |error| BridgeError::Memory { folder: request.storage.describe(""), error };
    let mut lifetimes = Lifetimes::new(files.leaves).map_err(memory)?;
    let walk = CacheWalk { request, files: &files };
    walk.run(Phase::Spends, |block, _| lifetimes.block(block))?;
    let spends = lifetimes.finish();
    let mut replay = CacheReplay::new(&spends, request.rules);
    walk.run(CACHES, |block, leaf_bytes| replay.block(block, leaf_bytes))?;
    let CacheFiles { heights, leaves, .. } = files;
    Ok(CachesFound { heights, leaves, costs: replay.costs().collect() })
}

/// Adjacent files from block 1 on.
struct CacheFiles {
    names: Vec<String>,
    heights: HeightRange,
    /// Leaves ever added, after the last block.
    leaves: u64,
    /// Bytes of all entries.
    bytes: u64,
}

impl CacheFiles {
    fn find(storage: &dyn Storage) -> Result<Self, SyncError> {
        let names: Vec<String> = proofs_files(storage)?.into_iter().map(|(_, name)| name).collect();
        let (mut whole, mut bytes): (Option<FileSurvey>, u64) = (None, 0);
        for name in &names {
            let file = open(storage, name)?;
            bytes += file.blocks().iter().map(|block| u64::from(block.length)).sum::<u64>();
            let (next, described) = (FileSurvey::of(&file), storage.describe(name));
            match &mut whole {
                None => {
                    expect_first(&next, described)?;
                    whole = Some(next);
                }
                Some(whole) => {
                    expect_seam(whole, &next, &described)?;
                    let heights = HeightRange::new(whole.heights.start, next.heights.end);
                    *whole = FileSurvey { heights, ..next };
                }
            }
        }
        let whole = whole.ok_or_else(|| BridgeError::None { folder: storage.describe("") })?;
        Ok(Self { names, heights: whole.heights, leaves: whole.after.leaves(), bytes })
    }
}

fn expect_first(part: &FileSurvey, file: String) -> Result<(), BridgeError> {
    let (first, leaves) = (part.heights.start, part.roots.leaves());
    if first != 1 || leaves != 0 {
        return Err(BridgeError::Begins { file, first, leaves });
    }
    Ok(())
}

/// A pass over all blocks.
struct CacheWalk<'a> {
    request: &'a CachesRequest<'a>,
    files: &'a CacheFiles,
}

impl CacheWalk<'_> {
    /// Calls `take` for each block, with the sizes of its leaf data.
    fn run(
        &self,
        phase: Phase,
        mut take: impl FnMut(&ProvedBlock<'_>, &[u32]) -> Result<(), CachesError>,
    ) -> Result<(), SyncError> {
        let CachesRequest { storage, observer, interrupt, .. } = *self.request;
        observer.event(Event::Started(phase));
        let mut progress = Progress {
            blocks_total: self.files.heights.count().into(),
            bytes_total: self.files.bytes,
            ..Progress::default()
        };
        let (mut entry, mut reported) = (Vec::new(), Instant::now());
        for name in &self.files.names {
            let mut file = open(storage, name)?;
            for height in file.heights().heights() {
                stop_if_interrupted(interrupt)?;
                file.entry(height, &mut entry).map_err(|error| failed(storage, name, error))?;
                let read = ProofEntry::read(&entry, height, || storage.describe(name))?;
                let leaves_after = file.block(height).map_or(0, |block| block.leaves_after);
                let block = ProvedBlock { height, leaves_after, proof: &read.proof };
                take(&block, &read.leaf_bytes).map_err(|error| {
                    let file = storage.describe(name);
                    BridgeError::Block { file, height, error }
                })?;
                progress.blocks += 1;
                progress.bytes += entry.len() as u64;
                if reported.elapsed() >= PROGRESS_INTERVAL {
                    observer.event(Event::Progress(phase, progress));
                    reported = Instant::now();
                }
            }
        }
        observer.event(Event::Ended { phase, bytes: progress.bytes });
        Ok(())
    }
}
