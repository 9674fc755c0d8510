//! `utreexo:FILE`: the roots of the Utreexo forest.
//!
//! The leaves that survive lie in [parts](ForestParts) of which each has all those of a range of places: segments, or pieces of
//! a merge. Threads make a fragment of each part, and those are joined, which takes no time: a fragment is some
//! dozens of nodes.

mod segments;
mod sorted;

pub use segments::StoredLeaves;
pub use sorted::SortedLeaves;

use super::FileDraft;
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::RunEnv;
use apus_storage::{Storage, StorageFile};
use apus_utreexo::{Fragment, FragmentError, LiveLeaf, Roots};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// Live leaves whose nodes are hashed together: enough for all lanes of a processor on nearly all heights.
const TOGETHER: usize = 4096;

/// Where the leaves that survive are.
pub trait ForestParts: Sync {
    /// How many parts there are.
    fn count(&self) -> usize;

    /// Bytes of all of them.
    fn bytes(&self) -> u64;

    /// The fragment of a part. Those of all parts, in their order, are that of all leaves.
    fn fragment(&self, part: usize, growing: &Growing<'_>) -> Result<Fragment, SyncError>;
}

/// The roots that the leaves of all parts lead to.
pub fn roots(env: &RunEnv<'_>, parts: &dyn ForestParts) -> Result<Roots, SyncError> {
    env.observer.event(Event::Started(Phase::Forest));
    let (next, halt, bytes) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let growing = Growing { env, parts, next, halt, bytes };
    let fragments = growing.run(parts.bytes())?;
    let mut whole = Fragment::new(0).map_err(too_many)?;
    fragments.iter().try_for_each(|part| whole.append(part)).map_err(too_many)?;
    let bytes = growing.bytes.into_inner();
    env.observer.event(Event::Ended { phase: Phase::Forest, bytes });
    Ok(whole.roots().unwrap_or_default())
}

/// What the threads share.
pub struct Growing<'a> {
    env: &'a RunEnv<'a>,
    parts: &'a dyn ForestParts,
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
                self.env.observer.event(Event::Progress(Phase::Forest, progress));
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
            let fragment = self.parts.fragment(number, self);
            done.push((
                number,
                fragment.inspect_err(|_| self.halt.store(true, Ordering::Relaxed))?,
            ));
        }
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

    /// Takes a leaf that survives. `false` where it does not come behind those before it, so that what it was read from
    /// cannot be right.
    fn take(&mut self, leaf: LiveLeaf) -> Result<bool, SyncError> {
        let Some(place) = self.place(leaf.place) else { return Ok(false) };
        self.live.push(LiveLeaf { place, ..leaf });
        if self.live.len() == TOGETHER {
            self.growing.go_on()?;
            self.push(place + 1)?;
        }
        Ok(true)
    }

    /// Counted from the fragment's end; none where it lies before that, or before a leaf that came.
    fn place(&self, place: u64) -> Option<u64> {
        let end = self.fragment.first() + self.fragment.leaves();
        let free = self.live.last().map_or(0, |last| last.place + 1);
        place.checked_sub(end).filter(|place| *place >= free)
    }

    fn push(&mut self, count: u64) -> Result<(), SyncError> {
        self.fragment.push_live(count, &self.live).map_err(too_many)?;
        self.live.clear();
        Ok(())
    }

    /// The fragment of all leaves before this one, once it is made of so many bytes; none where one that came is not
    /// among them.
    fn finish(mut self, end: u64, bytes: u64) -> Result<Option<Fragment>, SyncError> {
        let Some(rest) = self.place(end) else { return Ok(None) };
        self.push(rest)?;
        self.growing.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Some(self.fragment))
    }
}

/// No chain has so many leaves: the numbers that were read cannot be right.
fn too_many(error: FragmentError) -> SyncError {
    SyncError::Io(IoError::Forest { error })
}

/// Writes the roots to a file that has no name yet.
pub fn draft_roots<'a>(
    storage: &'a dyn Storage,
    name: &str,
    roots: &Option<Roots>,
) -> Result<(FileDraft<'a>, Box<dyn StorageFile>), SyncError> {
    let (draft, mut file) = FileDraft::create(storage, name)?;
    let mut bytes = Vec::new();
    roots.iter().for_each(|roots| roots.write(&mut bytes));
    draft.write(&mut *file, &bytes)?;
    Ok((draft, file))
}
