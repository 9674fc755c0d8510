//! `utreexo:FILE`: the roots of the Utreexo forest.
//!
//! Each segment tells how many leaves it adds and which of them survive. Where a segment's first leaf lies
//! follows from the numbers of those below it; from then on segments are independent. Threads make a fragment
//! of each, and those are joined, which takes no time: a fragment is some dozens of nodes.

use super::Draft;
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::Request;
use crate::workdir::{Done, RunInfo, Workdir};
use apus_engine::pass::RunKind;
use apus_engine::swiftsync::Partial;
use apus_storage::{Storage, StorageFile};
use apus_utreexo::{Fragment, FragmentError, LiveLeaf, Roots, read_live};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// Live leaves whose nodes are hashed together: enough for all lanes of a processor on nearly all heights.
const TOGETHER: usize = 4096;

/// What a segment adds to the forest.
pub(crate) struct SegmentLeaves {
    /// How many leaves.
    count: u64,
    /// Those that survive.
    run: RunInfo,
}

impl SegmentLeaves {
    /// Those of segments, by ascending height.
    pub(crate) fn of(done: &[Done<Partial>]) -> Vec<Self> {
        let mut done: Vec<&Done<Partial>> = done.iter().collect();
        done.sort_unstable_by_key(|done| done.range.start);
        let leaves = |done: &Done<Partial>| {
            let run = done.run(RunKind::Leaves)?.clone();
            Some(Self { count: done.partial.leaves, run })
        };
        done.into_iter().filter_map(leaves).collect()
    }
}

/// The roots that the leaves of all segments lead to.
pub(crate) fn roots(
    request: &Request<'_>,
    workdir: &Workdir<'_>,
    segments: Vec<SegmentLeaves>,
) -> Result<Roots, SyncError> {
    request.observer.event(Event::Started(Phase::Forest));
    let bytes_total = segments.iter().map(|segment| segment.run.bytes).sum();
    let (next, halt, bytes) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let mut first = 0u64;
    let segments: Vec<(u64, SegmentLeaves)> = segments
        .into_iter()
        .map(|segment| {
            let at = first;
            first = first.saturating_add(segment.count);
            (at, segment)
        })
        .collect();
    let growing = Growing { request, workdir, segments, next, halt, bytes };
    let fragments = growing.run(bytes_total)?;
    let mut whole = Fragment::new(0).map_err(too_many)?;
    fragments.iter().try_for_each(|part| whole.append(part)).map_err(too_many)?;
    let bytes = growing.bytes.into_inner();
    request.observer.event(Event::Ended { phase: Phase::Forest, bytes });
    Ok(whole.roots().unwrap_or_default())
}

/// What the threads share.
struct Growing<'a> {
    request: &'a Request<'a>,
    workdir: &'a Workdir<'a>,
    /// With the first leaf of each.
    segments: Vec<(u64, SegmentLeaves)>,
    /// The first segment that no thread has claimed.
    next: AtomicUsize,
    halt: AtomicBool,
    /// Bytes of runs that were gone through.
    bytes: AtomicU64,
}

/// Fragments, each with its segment's number.
type Numbered = Vec<(usize, Fragment)>;

impl Growing<'_> {
    /// The fragments of all segments, by ascending height.
    fn run(&self, bytes_total: u64) -> Result<Vec<Fragment>, SyncError> {
        let workers = self.request.threads.min(self.segments.len());
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
                self.request.observer.event(Event::Progress(Phase::Forest, progress));
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
            let Some((first, segment)) = self.segments.get(number) else { return Ok(done) };
            let fragment = self.fragment(*first, segment);
            done.push((
                number,
                fragment.inspect_err(|_| self.halt.store(true, Ordering::Relaxed))?,
            ));
        }
    }

    fn fragment(&self, first: u64, segment: &SegmentLeaves) -> Result<Fragment, SyncError> {
        let run = self.workdir.read_run(&segment.run)?;
        let mut fragment = Fragment::new(first).map_err(too_many)?;
        let mut live: Vec<LiveLeaf> = Vec::with_capacity(TOGETHER);
        // The first leaf that is not in the fragment.
        let mut begins = 0;
        for leaf in read_live(&run) {
            // What was checked is as it was written.
            let leaf = leaf.ok_or_else(|| self.damaged(segment))?;
            live.push(LiveLeaf { place: leaf.place - begins, ..leaf });
            if live.len() == TOGETHER {
                self.go_on()?;
                let count = leaf.place + 1 - begins;
                fragment.push_live(count, &live).map_err(too_many)?;
                live.clear();
                begins = leaf.place + 1;
            }
        }
        let rest = segment.count.checked_sub(begins).ok_or_else(|| self.damaged(segment))?;
        fragment.push_live(rest, &live).map_err(too_many)?;
        self.bytes.fetch_add(segment.run.bytes, Ordering::Relaxed);
        Ok(fragment)
    }

    fn go_on(&self) -> Result<(), SyncError> {
        match self.halt.load(Ordering::Relaxed) {
            true => Err(SyncError::Interrupted),
            false => stop_if_interrupted(self.request.interrupt),
        }
    }

    fn damaged(&self, segment: &SegmentLeaves) -> SyncError {
        let run = segment.run.name.clone();
        let file = self.workdir.storage().describe(&run);
        SyncError::Io(IoError::RunDamaged { run, file })
    }
}

/// No chain has so many leaves: the numbers that segments left cannot be right.
fn too_many(error: FragmentError) -> SyncError {
    SyncError::Io(IoError::Forest { error })
}

/// Writes the roots to a file that has no name yet.
pub(crate) fn draft_roots<'a>(
    storage: &'a dyn Storage,
    name: &str,
    roots: &Option<Roots>,
) -> Result<(Draft<'a>, Box<dyn StorageFile>), SyncError> {
    let (draft, mut file) = Draft::create(storage, name)?;
    let mut bytes = Vec::new();
    roots.iter().for_each(|roots| roots.write(&mut bytes));
    draft.write(&mut *file, &bytes)?;
    Ok((draft, file))
}
