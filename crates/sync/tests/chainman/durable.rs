//! Tests the order in which data becomes durable: blocks before the coins that rely on them.

use apus_chain::{Network, Params};
use apus_engine::utxo::store::{CoinsStore, MemoryStore};
use apus_sync::chainman::{
    ChainManager, ChainManagerError, LogState, LogSync, SubmitOutcome, TipCoins, ValidatedCoins,
};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::storage::CrashStorage;
use bitcoin::consensus::serialize;
use std::sync::Arc;

/// Opens a manager that flushes its coins to `store` after every block.
fn open(
    storage: &CrashStorage,
    store: &Arc<MemoryStore>,
) -> Result<(ChainManager, LogState), ChainManagerError> {
    let params = Params::of(Network::Regtest);
    let coins = |log: LogSync| {
        let options = ChainstateOptions { cache_bytes: 1, prevout_threads: 0, scripts: None };
        let store = log.before(Arc::clone(store) as Arc<dyn CoinsStore>);
        let state = Chainstate::open(params, store, options).unwrap();
        Ok::<_, ChainManagerError>(Box::new(ValidatedCoins::new(state, false)) as Box<dyn TipCoins>)
    };
    ChainManager::open(params, Arc::new(storage.clone()), None, coins)
}

#[test]
fn coins_are_never_at_a_block_that_the_log_lacks() {
    let (storage, store) = (CrashStorage::new(), Arc::new(MemoryStore::new()));
    let mut builder = ChainBuilder::new(5);
    let (mut manager, _) = open(&storage, &store).unwrap();
    let mut fork = builder.tip();
    for number in 0..60 {
        if number % 9 == 8 {
            // Go back by some blocks, so that coins are disconnected and connected again.
            builder.set_tip(fork);
        }
        if number % 9 == 5 {
            fork = builder.tip();
        }
        let block = builder.random_block(Shape::default());
        let outcome = manager.submit(serialize(&block)).unwrap().outcome;
        assert!(
            matches!(outcome, SubmitOutcome::Accepted | SubmitOutcome::Inconclusive),
            "{outcome:?}"
        );
        if number % 7 == 0 {
            // After a power loss, the store still has everything that was written to it.
            let tip = manager.tip();
            drop(manager);
            assert!(open(&storage.durable_image(), &store).is_ok(), "after block {number}");
            manager = open(&storage, &store).unwrap().0;
            assert_eq!(manager.tip(), tip);
        }
    }
    manager.close().unwrap();
    let tip = store.tip().unwrap().unwrap();
    assert!(tip.height > 20);
    let (manager, resumed) = open(&storage, &store).unwrap();
    assert_eq!((manager.tip(), resumed.torn_bytes), (tip, 0));
}
