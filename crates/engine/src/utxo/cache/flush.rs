//! Flushes: a frozen generation on its way to the store, by one thread in the background.
//!
//! A generation that could not be written stays readable and stays the next to be written: nothing
//! newer may reach the store before it. Which coins are in it is decided elsewhere.

use super::table::CacheTable;
use crate::utxo::store::{Changes, CoinsStore, EachChange, Flush, StoreError, UndoRecord};
use apus_chain::{Height, KnownBlock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// What one flush writes.
pub(super) struct FlushJob {
    /// By ascending leading bits of the txid.
    pub(super) tables: Vec<Arc<CacheTable>>,
    pub(super) tip: KnownBlock,
    pub(super) undo: Vec<UndoRecord>,
    pub(super) undo_from: Height,
}

impl Changes for FlushJob {
    /// Shards split the txids by their leading bits, so shard after shard, each sorted by itself,
    /// is the order that a store is promised.
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        for table in &self.tables {
            for key in table.sorted() {
                let (outpoint, coin) = table.change(&key);
                each(outpoint, coin)?;
            }
        }
        Ok(())
    }
}

enum FlushPhase {
    /// What is frozen, if anything, is in the store too.
    Clean,
    Writing,
    Failed {
        job: FlushJob,
        error: StoreError,
        reported: bool,
    },
}

struct FlushState {
    phase: FlushPhase,
    thread: Option<JoinHandle<()>>,
    /// Undo data of flushes that were refused.
    undo: Vec<UndoRecord>,
}

/// The one flush that may be under way.
pub(super) struct Flusher {
    store: Arc<dyn CoinsStore>,
    state: Mutex<FlushState>,
    ended: Condvar,
    flushes: AtomicU64,
}

impl Flusher {
    pub(super) fn new(store: Arc<dyn CoinsStore>) -> Self {
        let state = FlushState { phase: FlushPhase::Clean, thread: None, undo: Vec::new() };
        Self { store, state: Mutex::new(state), ended: Condvar::new(), flushes: AtomicU64::new(0) }
    }

    /// Flushes that reached the store.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Waits until no flush is under way, and fails for as long as one that failed is not written.
    pub(super) fn wait(&self) -> Result<(), StoreError> {
        self.clean().map(drop)
    }

    /// As [`wait`](Self::wait), and where it fails keeps the undo data for the next flush.
    pub(super) fn wait_with(&self, undo: &mut Vec<UndoRecord>) -> Result<(), StoreError> {
        match self.clean() {
            Ok(mut state) => {
                let kept = std::mem::take(&mut state.undo);
                undo.splice(..0, kept);
                Ok(())
            }
            Err(error) => {
                self.lock()?.undo.append(undo);
                Err(error)
            }
        }
    }

    /// Starts to write. None may be under way.
    pub(super) fn start(self: &Arc<Self>, job: FlushJob) -> Result<(), StoreError> {
        let mut state = self.lock()?;
        self.spawn(&mut state, job)
    }

    /// Waits for the flush under way. A failure is reported once; when asked again, what failed is
    /// tried again.
    pub(super) fn finish(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut state = self.ended()?;
        if matches!(state.phase, FlushPhase::Failed { reported: true, .. })
            && let FlushPhase::Failed { job, .. } =
                std::mem::replace(&mut state.phase, FlushPhase::Clean)
        {
            self.spawn(&mut state, job)?;
            drop(state);
            state = self.ended()?;
        }
        Self::report(&mut state)
    }

    fn lock(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        self.state.lock().map_err(|_| super::poisoned())
    }

    fn ended(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        let state = self.lock()?;
        let writing = |state: &mut FlushState| matches!(state.phase, FlushPhase::Writing);
        self.ended.wait_while(state, writing).map_err(|_| super::poisoned())
    }

    fn clean(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        let mut state = self.ended()?;
        Self::report(&mut state)?;
        Ok(state)
    }

    fn report(state: &mut FlushState) -> Result<(), StoreError> {
        match &mut state.phase {
            FlushPhase::Failed { error, reported, .. } => {
                *reported = true;
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut FlushState, job: FlushJob) -> Result<(), StoreError> {
        join(state.thread.take());
        state.phase = FlushPhase::Writing;
        // The job goes to the thread only once there is one: it must not be lost without.
        let (give, take) = std::sync::mpsc::sync_channel(1);
        let flusher = Arc::clone(self);
        let thread = std::thread::Builder::new().name("coins flush".into()).spawn(move || {
            if let Ok(job) = take.recv() {
                flusher.write(job);
            }
        });
        match thread {
            Ok(thread) => {
                state.thread = Some(thread);
                give.send(job).map_err(|_| super::poisoned())
            }
            Err(error) => {
                let error = super::error(format!("cannot start a thread to write: {error}"));
                state.phase = FlushPhase::Failed { job, error: error.clone(), reported: true };
                Err(error)
            }
        }
    }

    fn write(&self, job: FlushJob) {
        let FlushJob { tip, undo_from, .. } = job;
        let flush = Flush { tip, changes: &job, undo: &job.undo, undo_from };
        // A store that panics must not leave callers waiting for this thread.
        let written =
            catch_unwind(AssertUnwindSafe(|| self.store.write(&flush))).unwrap_or_else(|_| {
                Err(super::error("the store failed in the midst of a write".into()))
            });
        let phase = match written {
            Ok(()) => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                drop(job);
                FlushPhase::Clean
            }
            Err(error) => FlushPhase::Failed { job, error, reported: false },
        };
        if let Ok(mut state) = self.state.lock() {
            state.phase = phase;
        }
        self.ended.notify_all();
    }

    /// Waits for the thread itself: afterwards it no longer writes to the store.
    pub(super) fn stop(&self) {
        let thread = self.lock().ok().and_then(|mut state| state.thread.take());
        join(thread);
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // It catches panics, and what it has to say is in the state.
        let _ = thread.join();
    }
}
