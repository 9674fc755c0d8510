//! [`RootsOutput`]: the roots of the Utreexo forest of a set, as a commitment to it.
//!
//! Each output that has a number is a leaf (BIP-182, draft). Those that survive come in [parts](HashParts), of which each
//! has all those of a range of places. Threads make a fragment of each part, and those are joined, which takes no time: a
//! fragment is some dozens of nodes.

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
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Live leaves whose nodes are hashed together: enough for all lanes of a processor on nearly all heights.
const TOGETHER: usize = 4096;

/// Making them, as a phase of a run.
pub const FOREST: Phase = Phase::Extra("forest");

/// A file that the roots are written to.
pub struct RootsFile {
    /// Its folder.
    pub storage: Arc<dyn Storage>,
    /// Its name in it.
    pub name: String,
}

/// See the module.
pub struct RootsOutput<'f> {
    files: &'f [RootsFile],
    made: Mutex<MadeRoots<'f>>,
}

/// What was made, and files that have no name yet.
#[derive(Default)]
struct MadeRoots<'f> {
    roots: Option<Roots>,
    drafts: Vec<(FileDraft<'f>, Box<dyn StorageFile>)>,
}

impl<'f> RootsOutput<'f> {
    /// Roots for these files. Without any, none are made, and yet what an earlier start began for some goes on.
    pub fn new(files: &'f [RootsFile]) -> Self {
        Self { files, made: Mutex::default() }
    }

    /// The roots, once they are made.
    pub fn roots(&self) -> Option<Roots> {
        self.held().roots.clone()
    }

    fn held(&self) -> MutexGuard<'_, MadeRoots<'f>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drafts the files.
    fn take(&self, roots: Roots) -> Result<(), SyncError> {
        let mut bytes = Vec::new();
        roots.write(&mut bytes);
        let draft = |file: &'f RootsFile| {
            let (draft, mut out) = FileDraft::create(&*file.storage, &file.name)?;
            draft.write(&mut *out, &bytes)?;
            Ok((draft, out))
        };
        let drafts = self.files.iter().map(draft).collect::<Result<_, SyncError>>()?;
        *self.held() = MadeRoots { roots: Some(roots), drafts };
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
        let drafts = std::mem::take(&mut self.held().drafts);
        drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))
    }
}

/// Hashes coins into leaves.
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

/// Why the leaves of a run lead to no roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsRunError {
    /// What segments left makes no forest.
    #[error(
        "what the work folder says of the Utreexo forest makes none: {0}. Remove the run's work folder \
         (--workdir), and start the same run again"
    )]
    Forest(#[from] FragmentError),
    /// Other machines made something else.
    #[error(
        "what other machines made of the Utreexo forest are no roots: start the same run again"
    )]
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

/// The roots that the leaves of all parts lead to.
fn roots(env: &RunEnv<'_>, parts: &dyn HashParts) -> Result<Roots, SyncError> {
    env.observer.event(Event::Started(FOREST));
    let (next, halt, bytes) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let growing = Growing { env, parts, next, halt, bytes };
    let fragments = growing.run(parts.bytes())?;
    let mut whole = Fragment::new(0).map_err(too_many)?;
    fragments.iter().try_for_each(|part| whole.append(part)).map_err(too_many)?;
    let bytes = growing.bytes.into_inner();
    env.observer.event(Event::Ended { phase: FOREST, bytes });
    Ok(whole.roots().unwrap_or_default())
}

/// What the threads share.
struct Growing<'a> {
    env: &'a RunEnv<'a>,
    parts: &'a dyn HashParts,
    /// The first part that no thread has claimed.
    next: AtomicUsize,
    halt: AtomicBool,
    /// Bytes of leaves that were gone through.
    bytes: AtomicU64,
}

/// Fragments, each with its part's number.
type Numbered = Vec<(usize, Fragment)>;

impl Growing<'_> {
    /// The fragments of all parts, in their order.
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
                self.halt.store(true, Ordering::Relaxed);
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
            // One that was halted says so; the reason is with the one that halted it.
            let (mut all, mut failure) = (Numbered::new(), None);
            for ended in ended {
                match ended {
                    Ok(some) => all.extend(some),
                    Err(SyncError::Interrupted) if failure.is_some() => {}
                    Err(error) => failure = Some(error),
                }
            }
            failure.map_or(Ok(all), Err)
        })?;
        fragments.sort_unstable_by_key(|(number, _)| *number);
        Ok(fragments.into_iter().map(|(_, fragment)| fragment).collect())
    }

    /// One thread's life.
    fn work(&self) -> Result<Numbered, SyncError> {
        let mut done = Numbered::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.parts.count() {
                return Ok(done);
            }
            let fragment = self.fragment(number);
            done.push((
                number,
                fragment.inspect_err(|_| self.halt.store(true, Ordering::Relaxed))?,
            ));
        }
    }

    /// The fragment of a part. Those of all parts, in their order, are that of all leaves.
    fn fragment(&self, part: usize) -> Result<Fragment, SyncError> {
        let Range { start, end } = self.parts.places(part);
        let mut sprout = Sprout::new(self, start)?;
        let bytes = self.parts.part(part, &mut |leaf| sprout.take(leaf))?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        sprout.finish(end)
    }

    fn go_on(&self) -> Result<(), SyncError> {
        match self.halt.load(Ordering::Relaxed) {
            true => Err(SyncError::Interrupted),
            false => stop_if_interrupted(self.env.interrupt),
        }
    }
}

/// A fragment on its way, whose leaves come by ascending place.
struct Sprout<'g> {
    growing: &'g Growing<'g>,
    fragment: Fragment,
    /// Those that are not in it yet, with their places behind its end.
    live: Vec<LiveLeaf>,
}

impl<'g> Sprout<'g> {
    /// Of the leaves from this one on.
    fn new(growing: &'g Growing<'g>, first: u64) -> Result<Self, SyncError> {
        let fragment = Fragment::new(first).map_err(too_many)?;
        Ok(Self { growing, fragment, live: Vec::with_capacity(TOGETHER) })
    }

    /// Takes a leaf that survives, behind those before it.
    fn take(&mut self, leaf: PlacedHash) -> Result<(), SyncError> {
        let place = leaf.place - self.end();
        self.live.push(LiveLeaf { place, hash: NodeHash(leaf.hash) });
        if self.live.len() == TOGETHER {
            self.growing.go_on()?;
            self.push(place + 1)?;
        }
        Ok(())
    }

    /// Where the fragment ends.
    fn end(&self) -> u64 {
        self.fragment.first() + self.fragment.leaves()
    }

    fn push(&mut self, count: u64) -> Result<(), SyncError> {
        self.fragment.push_live(count, &self.live).map_err(too_many)?;
        self.live.clear();
        Ok(())
    }

    /// The fragment of all leaves before this one.
    fn finish(mut self, end: u64) -> Result<Fragment, SyncError> {
        self.push(end.saturating_sub(self.end()))?;
        Ok(self.fragment)
    }
}

/// No chain has so many leaves: the numbers that were read cannot be right.
fn too_many(error: FragmentError) -> SyncError {
    RootsRunError::Forest(error).into()
}
