//! `utreexo:FILE`: the roots of the Utreexo forest.
//!
//! The leaves that survive lie in [parts](ForestParts) of which each has all those of a range of places: segments, or pieces of
//! a merge. Threads make a fragment of each part, and those are joined, which takes no time: a fragment is some
//! dozens of nodes.

use crate::engines::swiftsync::{Partial, SwiftSync};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::runs::{KeyRange, LeavesForm, MergeBudget, Merging, Runs, divide};
use crate::sink::FileDraft;
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::Reader;
use apus_storage::{Storage, StorageFile};
use apus_utreexo::{Fragment, FragmentError, LiveLeaf, NodeHash, Roots, read_live};
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

// [`StoredLeaves`]: leaves that segments hashed, of which each tells how many it adds and which survive.
//
// Where a segment's first leaf lies follows from the numbers of those below it; from then on segments are
// independent.

/// See the module.
pub struct StoredLeaves<'w> {
    workdir: &'w Workdir<'w>,
    /// By ascending height.
    segments: Vec<LeafSegment>,
}

/// What a segment adds to the forest.
struct LeafSegment {
    /// Its first leaf.
    first: u64,
    /// How many leaves.
    count: u64,
    /// Those that survive.
    run: RunInfo,
}

impl<'w> StoredLeaves<'w> {
    /// Those of all segments.
    pub fn of(workdir: &'w Workdir<'w>, done: &[FinishedRange<Partial>]) -> Self {
        let mut done: Vec<&FinishedRange<Partial>> = done.iter().collect();
        done.sort_unstable_by_key(|done| done.range.start);
        let mut next = 0u64;
        let leaves = |done: &FinishedRange<Partial>| {
            let (run, first, count) =
                (done.run(SwiftSync::LEAVES)?.clone(), next, done.partial.leaves);
            next = next.saturating_add(count);
            Some(LeafSegment { first, count, run })
        };
        let segments = done.into_iter().filter_map(leaves).collect();
        Self { workdir, segments }
    }
}

impl ForestParts for StoredLeaves<'_> {
    fn count(&self) -> usize {
        self.segments.len()
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.run.bytes).sum()
    }

    fn fragment(&self, part: usize, growing: &Growing<'_>) -> Result<Fragment, SyncError> {
        let LeafSegment { first, count, run } = &self.segments[part];
        let damaged = || {
            let file = self.workdir.storage().describe(&run.name);
            SyncError::Io(IoError::RunDamaged { run: run.name.clone(), file })
        };
        let bytes = self.workdir.read_run(run)?;
        let mut sprout = Sprout::new(growing, *first)?;
        for leaf in read_live(&bytes) {
            let LiveLeaf { place, hash } = leaf.ok_or_else(damaged)?;
            let place = first.checked_add(place).ok_or_else(damaged)?;
            if !sprout.take(LiveLeaf { place, hash })? {
                return Err(damaged());
            }
        }
        let fragment = sprout.finish(first.saturating_add(*count), run.bytes)?;
        fragment.ok_or_else(damaged)
    }
}

// [`SortedLeaves`]: leaves that lie in sorted runs, as a join leaves them.
//
// Places are divided into parts by what the runs' sections hold, and each part is a merge of its own.

/// Parts for each thread, so that none waits long for the others at the end.
const PARTS_EACH: u64 = 4;

/// A smaller part is not worth a merge.
const PART_BYTES_MIN: u64 = 1 << 20;

/// See the module.
pub struct SortedLeaves<'r> {
    runs: Runs<'r, LeavesForm>,
    parts: Vec<KeyRange>,
    bytes: u64,
    /// How many leaves there are in all, deleted ones included.
    count: u64,
    /// For messages.
    folder: String,
}

impl<'r> SortedLeaves<'r> {
    /// Those of all leaves, of which there are `count`, that these runs name.
    pub fn open(env: &RunEnv<'r>, runs: Vec<RunInfo>, count: u64) -> Result<Self, SyncError> {
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        let go_on = || stop_if_interrupted(env.interrupt);
        let budget = MergeBudget::for_each_of(env.threads, env.memory_bytes / 2);
        let runs = Runs::open(env.workdir, runs, budget, &go_on)?;
        let parts = (bytes / PART_BYTES_MIN).clamp(1, PARTS_EACH * env.threads as u64);
        let parts = divide(runs.sections(), parts);
        let folder = env.workdir.describe("");
        Ok(Self { runs, parts, bytes, count, folder })
    }

    /// All were gone through.
    pub fn close(self) -> Result<(), SyncError> {
        self.runs.close()
    }

    fn damaged(&self) -> SyncError {
        SyncError::Io(IoError::WorkdirDamaged { file: self.folder.clone() })
    }
}

impl ForestParts for SortedLeaves<'_> {
    fn count(&self) -> usize {
        self.parts.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fragment(&self, part: usize, growing: &Growing<'_>) -> Result<Fragment, SyncError> {
        let keys = self.parts[part];
        let mut sprout = Sprout::new(growing, keys.from)?;
        let mut merging: Merging<'_, LeavesForm> = self.runs.part(keys)?;
        let mut bytes = 0;
        merging.next()?;
        while let Some(record) = merging.current() {
            bytes += record.len() as u64;
            let leaf = read(record).ok_or_else(|| self.damaged())?;
            if !sprout.take(leaf)? {
                return Err(self.damaged());
            }
            merging.next()?;
        }
        let fragment = sprout.finish(keys.until.unwrap_or(self.count), bytes)?;
        fragment.ok_or_else(|| self.damaged())
    }
}

fn read(record: &[u8]) -> Option<LiveLeaf> {
    let mut reader = Reader::new(record);
    let place = u64::from_be_bytes(*reader.array().ok()?);
    Some(LiveLeaf { place, hash: NodeHash(*reader.array().ok()?) })
}
