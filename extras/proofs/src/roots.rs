//! [`RootsOutput`]: the roots of the Utreexo forest of a UTXO set, as a commitment to it.
//!
//! Each numbered output is a leaf (BIP-182, draft). Surviving leaves arrive in [parts](HashParts); each part
//! has all survivors of a range of places. Threads compute a fragment of each part. Joining the fragments
//! takes almost no time: a fragment has a few dozen nodes.

use apus_chain::{BlockHash, CoinRef, OutPoint};
use apus_storage::{Storage, StorageFile};
use apus_sync::commitment::{
    CoinHash, CoinHasher, HashParts, NewHasher, PlacedHash, SetCommitment,
};
use apus_sync::error::{ErrorKind, IoError, RunError, SyncError};
use apus_sync::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use apus_sync::request::RunEnv;
use apus_sync::sink::FileDraft;
use apus_utreexo::{Fragment, FragmentError, Leaf, LeafBatch, LiveLeaf, NodeHash, Roots};
use core::ops::Range;
use parking_lot::Mutex;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// Number of live leaves whose nodes are hashed together: enough to fill all SIMD lanes in nearly all rows.
const TOGETHER: usize = 4096;

/// The phase that computes the roots.
pub const FOREST: Phase = Phase::Extra("forest");

/// A file to write the roots to.
pub struct RootsFile {
    /// Its folder.
    pub storage: Arc<dyn Storage>,
    /// Its name in the folder.
    pub name: String,
}

/// Computes the roots of the Utreexo forest of a set, and writes them to files.
pub struct RootsOutput<'f> {
    files: &'f [RootsFile],
    made: Mutex<MadeRoots<'f>>,
}

/// The computed roots, and the files that are still drafts.
#[derive(Default)]
struct MadeRoots<'f> {
    roots: Option<Roots>,
    drafts: Vec<(FileDraft<'f>, Box<dyn StorageFile>)>,
}

impl<'f> RootsOutput<'f> {
    /// Creates an output for these files. Without files it computes no roots, but still resumes what an
    /// earlier start began for other files.
    pub fn new(files: &'f [RootsFile]) -> Self {
        Self { files, made: Mutex::default() }
    }

    /// The roots, once they are computed.
    pub fn roots(&self) -> Option<Roots> {
        self.made.lock().roots.clone()
    }

    /// Writes the drafts of the files.
    fn take(&self, roots: Roots) -> Result<(), SyncError> {
        let mut bytes = Vec::new();
        roots.write(&mut bytes);
        let draft = |file: &'f RootsFile| {
            let (draft, mut out) = FileDraft::create(&*file.storage, &file.name)?;
            draft.write(&mut *out, &bytes)?;
            Ok((draft, out))
        };
        let drafts = self.files.iter().map(draft).collect::<Result<_, SyncError>>()?;
        *self.made.lock() = MadeRoots { roots: Some(roots), drafts };
        Ok(())
    }
}

impl SetCommitment for RootsOutput<'_> {
    fn hasher(&self) -> NewHasher {
        leaf_hasher
    }

    fn is_wanted(&self) -> bool {
        !self.files.is_empty()
    }

    fn make(&self, env: &RunEnv<'_>, hashes: &dyn HashParts) -> Result<(), SyncError> {
        self.take(roots(env, hashes)?)
    }

    fn take_made(&self, bytes: &[u8]) -> Result<(), SyncError> {
        self.take(Roots::read(bytes).map_err(|_| RootsRunError::Made)?)
    }

    fn publish(&self) -> Result<(), SyncError> {
        let drafts = std::mem::take(&mut self.made.lock().drafts);
        drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))
    }
}

/// Returns a hasher from coins to leaf hashes.
pub fn leaf_hasher() -> Box<dyn CoinHasher> {
    Box::<LeafHasher>::default()
}

#[derive(Default)]
struct LeafHasher {
    batch: LeafBatch,
    hashes: Vec<NodeHash>,
}

impl CoinHasher for LeafHasher {
    fn push(
        &mut self,
        block: &BlockHash,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        out: &mut Vec<CoinHash>,
    ) {
        self.batch.push(Leaf { block, outpoint: *outpoint, coin }, &mut self.hashes);
        out.extend(self.hashes.drain(..).map(|hash| hash.0));
    }

    fn flush(&mut self, out: &mut Vec<CoinHash>) {
        self.batch.flush(&mut self.hashes);
        out.extend(self.hashes.drain(..).map(|hash| hash.0));
    }
}

/// Why the leaves of a job yield no roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsRunError {
    /// The results of segments do not form a forest.
    #[error(
        "the work folder holds an invalid Utreexo forest: {0}. Remove the work folder (--workdir), then rerun the \
         command"
    )]
    Forest(#[from] FragmentError),
    /// Other machines sent invalid roots.
    #[error("other machines sent invalid Utreexo roots: rerun the command")]
    Made,
}

impl RunError for RootsRunError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Io
    }

    fn class(&self) -> &'static str {
        "io"
    }
}

/// Computes the roots from the leaves of all parts.
fn roots(env: &RunEnv<'_>, parts: &dyn HashParts) -> Result<Roots, SyncError> {
    env.observer.event(Event::Started(FOREST));
    let (next, failed, bytes) =
        (AtomicUsize::new(0), AtomicUsize::new(usize::MAX), AtomicU64::new(0));
    let growing = ForestGrowth { env, parts, next, failed, bytes };
    let fragments = growing.run(parts.bytes())?;
    let mut whole = Fragment::new(0).map_err(too_many)?;
    fragments.iter().try_for_each(|part| whole.append(part)).map_err(too_many)?;
    let bytes = growing.bytes.into_inner();
    env.observer.event(Event::Ended { phase: FOREST, bytes });
    Ok(whole.roots().unwrap_or_default())
}

/// The state that the threads share.
struct ForestGrowth<'a> {
    env: &'a RunEnv<'a>,
    parts: &'a dyn HashParts,
    /// The first unclaimed part.
    next: AtomicUsize,
    /// The lowest part that failed. Parts above it end; parts below it continue, since they may fail, too.
    failed: AtomicUsize,
    /// Bytes of leaves processed.
    bytes: AtomicU64,
}

/// Fragments, each with its part's number.
type NumberedFragments = Vec<(usize, Fragment)>;

impl ForestGrowth<'_> {
    /// Computes the fragments of all parts, in order.
    fn run(&self, bytes_total: u64) -> Result<Vec<Fragment>, SyncError> {
        let workers = self.env.threads.min(self.parts.count());
        let mut fragments = std::thread::scope(|scope| {
            let (alive, ended) = sync_channel::<()>(0);
            let spawn = |_| {
                let (alive, thread) = (alive.clone(), std::thread::Builder::new());
                thread.name("forest".to_owned()).spawn_scoped(scope, move || {
                    let done = self.work();
                    drop(alive);
                    done
                })
            };
            let threads: Result<Vec<_>, _> = (0..workers).map(spawn).collect();
            let threads = threads.map_err(|error| {
                self.failed.store(0, Ordering::Relaxed);
                SyncError::Io(IoError::Threads { wanted: workers, error })
            })?;
            drop(alive);
            while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let bytes = self.bytes.load(Ordering::Relaxed);
                let progress = Progress { bytes, bytes_total, ..Progress::default() };
                self.env.observer.event(Event::Progress(FOREST, progress));
            }
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            let (mut all, mut failures) = (NumberedFragments::new(), Vec::new());
            for ended in ended {
                match ended {
                    Ok(some) => all.extend(some),
                    Err(failure) => failures.push(failure),
                }
            }
            let lowest = failures.into_iter().min_by_key(|(number, _)| *number);
            lowest.map_or(Ok(all), |(_, error)| Err(error))
        })?;
        fragments.sort_unstable_by_key(|(number, _)| *number);
        Ok(fragments.into_iter().map(|(_, fragment)| fragment).collect())
    }

    /// Work of one thread. An error has the number of its part.
    fn work(&self) -> Result<NumberedFragments, (usize, SyncError)> {
        let mut done = NumberedFragments::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.parts.count() || self.is_halted(number) {
                return Ok(done);
            }
            let fragment = self.fragment(number).map_err(|error| {
                self.failed.fetch_min(number, Ordering::Relaxed);
                (number, error)
            });
            done.push((number, fragment?));
        }
    }

    /// Whether a part is useless, because a lower one failed.
    fn is_halted(&self, part: usize) -> bool {
        self.failed.load(Ordering::Relaxed) <= part
    }

    /// Computes the fragment of a part. The fragments of all parts, in order, cover all leaves.
    fn fragment(&self, part: usize) -> Result<Fragment, SyncError> {
        let Range { start, end } = self.parts.places(part);
        let mut sprout = Sprout::new(self, part, start)?;
        let bytes = self.parts.part(part, &mut |leaf| sprout.take(leaf))?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        sprout.finish(end)
    }

    fn stop_if_halted(&self, part: usize) -> Result<(), SyncError> {
        match self.is_halted(part) {
            true => Err(SyncError::Interrupted),
            false => stop_if_interrupted(self.env.interrupt),
        }
    }
}

/// A growing fragment, whose leaves arrive by ascending place.
struct Sprout<'g> {
    growing: &'g ForestGrowth<'g>,
    /// The number of its part.
    part: usize,
    fragment: Fragment,
    /// Leaves that are not in the fragment yet; their places count from its end.
    live: Vec<LiveLeaf>,
}

impl<'g> Sprout<'g> {
    /// Creates an empty fragment before leaf `first`.
    fn new(growing: &'g ForestGrowth<'g>, part: usize, first: u64) -> Result<Self, SyncError> {
        let fragment = Fragment::new(first).map_err(too_many)?;
        Ok(Self { growing, part, fragment, live: Vec::with_capacity(TOGETHER) })
    }

    /// Adds a surviving leaf, which must follow the leaves before it.
    fn take(&mut self, leaf: PlacedHash) -> Result<(), SyncError> {
        let place = leaf.place - self.end();
        self.live.push(LiveLeaf { place, hash: NodeHash(leaf.hash) });
        if self.live.len() == TOGETHER {
            self.growing.stop_if_halted(self.part)?;
            self.push(place + 1)?;
        }
        Ok(())
    }

    /// The first leaf after the fragment.
    fn end(&self) -> u64 {
        self.fragment.first() + self.fragment.leaves()
    }

    fn push(&mut self, count: u64) -> Result<(), SyncError> {
        self.fragment.push_live(count, &self.live).map_err(too_many)?;
        self.live.clear();
        Ok(())
    }

    /// Returns the fragment of all leaves before `end`.
    fn finish(mut self, end: u64) -> Result<Fragment, SyncError> {
        self.push(end.saturating_sub(self.end()))?;
        Ok(self.fragment)
    }
}

/// No chain has that many leaves, so the numbers read must be wrong.
fn too_many(error: FragmentError) -> SyncError {
    RootsRunError::Forest(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{Network, Params};
    use apus_storage::DirStorage;
    use apus_sync::SilentObserver;
    use apus_sync::commitment::EachHash;
    use std::sync::atomic::AtomicBool;

    /// Two damaged parts. The lower one fails last.
    struct Damaged(AtomicBool);

    impl HashParts for Damaged {
        fn count(&self) -> usize {
            2
        }

        fn bytes(&self) -> u64 {
            0
        }

        fn places(&self, part: usize) -> Range<u64> {
            let start = (part * 2 * TOGETHER) as u64;
            start..start + 2 * TOGETHER as u64
        }

        fn part(&self, part: usize, each: &mut EachHash<'_>) -> Result<u64, SyncError> {
            let Damaged(has_failed) = self;
            while part == 0 && !has_failed.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            has_failed.store(true, Ordering::Relaxed);
            let Range { start, end } = self.places(part);
            let leaves = if part == 0 { start..end } else { start..start };
            leaves.map(|place| PlacedHash { place, hash: [1; 32] }).try_for_each(each)?;
            Err(SyncError::Io(IoError::WorkdirDamaged { file: format!("part {part}") }))
        }
    }

    #[test]
    fn of_several_damaged_parts_the_lowest_is_reported() {
        let (folder, interrupt) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let storage = DirStorage::new(folder.path());
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &SilentObserver, &interrupt);
        let env = RunEnv { threads: 2, ..env };
        let error = roots(&env, &Damaged(AtomicBool::new(false))).unwrap_err().to_string();
        assert!(error.contains("part 0"), "{error}");
    }
}
