//! [`Merger`]: a thread that merges tables while entries are read and written.
//!
//! It changes the set of files, never the set of entries. A failure is reported to the next writer,
//! which cannot continue indefinitely without merges.

use super::StoreError;
use super::tree::CoinsTree;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Unmerged batches at which writers must wait: each slows look-ups down.
const UNMERGED_MAX: usize = 12;

#[derive(Default)]
struct MergerState {
    /// True if there may be work.
    wanted: bool,
    /// True while a merge is running.
    running: bool,
    closing: bool,
    failure: Option<StoreError>,
}

impl MergerState {
    fn busy(&self) -> bool {
        (self.wanted || self.running) && self.failure.is_none()
    }
}

struct MergerShared {
    tree: Arc<CoinsTree>,
    state: Mutex<MergerState>,
    changed: Condvar,
}

/// The merging thread. It ends when this is dropped.
pub(super) struct Merger {
    shared: Arc<MergerShared>,
    thread: Option<JoinHandle<()>>,
}

impl Merger {
    pub(super) fn start(tree: Arc<CoinsTree>) -> std::io::Result<Self> {
        let shared = MergerShared { tree, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("store-merge".into()).spawn(move || theirs.run());
        Ok(Self { shared, thread: Some(thread?) })
    }

    /// Signals that a batch was added.
    pub(super) fn wake(&self) {
        self.shared.state.lock().wanted = true;
        self.shared.changed.notify_all();
    }

    /// Waits while there are too many unmerged batches; reports a failure, once.
    pub(super) fn make_room(&self) -> Result<(), StoreError> {
        let unmerged = || self.shared.tree.unmerged();
        self.wait_while(|state| state.busy() && unmerged() >= UNMERGED_MAX)
    }

    /// Waits until there is nothing to merge; reports a failure, once.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        self.wait_while(|state| state.busy())
    }

    fn wait_while(
        &self,
        condition: impl FnMut(&mut MergerState) -> bool,
    ) -> Result<(), StoreError> {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while(&mut state, condition);
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        self.shared.tree.stop_merging();
        if let Some(thread) = self.thread.take() {
            // It catches panics of the library, and nothing else in it can panic.
            let _ = thread.join();
        }
    }
}

impl MergerShared {
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| !state.wanted && !state.closing);
            if state.closing {
                return;
            }
            (state.wanted, state.running) = (false, true);
            drop(state);
            let merged = self.tree.merge();
            let mut state = self.state.lock();
            state.running = false;
            match merged {
                Ok(more) => state.wanted |= more,
                Err(error) => state.failure = Some(error),
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::utxo::store::DiskOptions;
    use apus_hash::sha256;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    fn open(folder: &Path, new: bool) -> Arc<CoinsTree> {
        let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 4 << 10 };
        Arc::new(CoinsTree::open(&folder.join("tree"), "here", new, options).unwrap())
    }

    /// Adds batches and wakes no merger.
    fn add(tree: &CoinsTree, batches: usize, keys: u32) {
        for number in 0..batches {
            let mut batch = tree.batch().unwrap();
            for key in 0..keys {
                let value = sha256(&[key.to_be_bytes(), (number as u32).to_be_bytes()].concat());
                batch.put(&key.to_be_bytes(), Some(&value)).unwrap();
            }
            batch.finish().unwrap();
        }
    }

    #[test]
    fn writers_wait_while_too_many_batches_are_unmerged() {
        let folder = tempfile::tempdir().unwrap();
        let tree = open(folder.path(), true);
        let merger = Merger::start(Arc::clone(&tree)).unwrap();
        // Pretend that the thread is merging.
        merger.shared.state.lock().running = true;
        add(&tree, UNMERGED_MAX - 1, 10);
        assert_eq!(tree.unmerged(), UNMERGED_MAX - 1);
        merger.make_room().unwrap();
        add(&tree, 1, 10);
        let (asked, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !asked.load(SeqCst) {
                    thread::yield_now();
                }
                // Gives a writer that does not wait the time to continue.
                (0..1000).for_each(|_| thread::yield_now());
                ended.store(true, SeqCst);
                merger.shared.state.lock().running = false;
                merger.shared.changed.notify_all();
            });
            asked.store(true, SeqCst);
            merger.make_room().unwrap();
            assert!(ended.load(SeqCst), "it waits");
        });
    }

    #[test]
    fn settling_performs_all_pending_merges() {
        let steps = |tree: &CoinsTree| (0..).take_while(|_| tree.merge().unwrap()).count();
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (tree, model) = (open(one.path(), true), open(other.path(), true));
        for tree in [&tree, &model] {
            for keys in [500, 1000, 1500] {
                add(tree, 8, keys);
                steps(tree);
            }
            add(tree, 8, 2000);
        }
        assert!(steps(&model) > 1, "one merge is not enough");
        let merger = Merger::start(Arc::clone(&tree)).unwrap();
        merger.wake();
        merger.settle().unwrap();
        assert_eq!(steps(&tree), 0);
    }

    #[test]
    fn an_interrupted_merge_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let tree = open(folder.path(), true);
        add(&tree, 12, 500);
        tree.stop_merging();
        assert!(!tree.merge().unwrap(), "the merger must not call again");
        assert_eq!(tree.unmerged(), 12);
        drop(tree);
        let tree = open(folder.path(), false);
        assert!(tree.merge().unwrap());
        assert!(tree.unmerged() < 12);
    }
}
