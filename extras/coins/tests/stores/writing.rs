//! Flushes that continue while something happens to the servers, and a model to compare the store with.

use super::servers::open;
use super::support::{Step, assert_same, outpoint, random_step};
use apus_chain::OutPoint;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_testkit::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;

/// Coins that some of the flushes create, spend and replace.
pub(crate) fn wanted() -> Vec<OutPoint> {
    (0..2000).map(outpoint).collect()
}

/// The flush to a height, identical in every process.
pub(crate) fn step(height: u32) -> Step {
    let mut rng = Rng::new(u64::from(height));
    let changes = rng.between(1, 3000);
    random_step(height, changes, 8000, &mut rng)
}

/// The expected contents at a height.
pub(crate) struct Model {
    store: MemoryStore,
    pub(crate) next: u32,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { store: MemoryStore::new(), next: 0 }
    }

    /// Advances the model to a store's height, and compares the two.
    pub(crate) fn expect(&mut self, store: &dyn CoinsStore) {
        let Some(tip) = store.tip().unwrap() else { return assert_eq!(self.next, 0) };
        assert!(tip.height + 1 >= self.next, "a written block is gone");
        while self.next <= tip.height {
            step(self.next).write(&self.store).unwrap();
            self.next += 1;
        }
        assert_same(store, &self.store, self.next);
    }
}

/// The progress of the flushes.
pub(crate) struct Written {
    next: AtomicU32,
    /// True if the flushes should end, or ended with a failure.
    ended: AtomicBool,
}

impl Written {
    /// Waits until the flush in progress ends.
    pub(crate) fn advance(&self) {
        let before = self.next.load(SeqCst);
        while self.next.load(SeqCst) == before && !self.ended.load(SeqCst) {
            thread::yield_now();
        }
    }
}

/// Ends everything, even if a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Writes flush after flush to a store, and concurrently looks coins up, while `meanwhile` disturbs its
/// servers. No operation may fail, and afterwards the store must hold everything written, up to the last
/// flush.
pub(crate) fn while_written(url: &str, model: &mut Model, meanwhile: impl FnOnce(&Written)) {
    let store = open(url);
    model.expect(&*store);
    let written = Written { next: AtomicU32::new(model.next), ended: AtomicBool::new(false) };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&written.ended);
            while !written.ended.load(SeqCst) {
                step(written.next.load(SeqCst)).write(&*store).unwrap();
                written.next.fetch_add(1, SeqCst);
            }
        });
        scope.spawn(|| {
            let _ends = Ends(&written.ended);
            while !written.ended.load(SeqCst) {
                assert_eq!(store.get_many(&wanted()).unwrap().len(), wanted().len());
            }
        });
        let _ends = Ends(&written.ended);
        meanwhile(&written);
    });
    model.expect(&*store);
    assert_eq!(model.next, written.next.into_inner());
}
