//! Measures the memory for a block's coins on real servers: a full block of inputs that spend the longest
//! scripts, a quarter of a gigabyte.
//!
//! Writing these coins in a flush, and reading them without running scripts or keeping undo data, must fit
//! into what `--dbcache` leaves for it. Among the last blocks, which need undo data and have their scripts
//! run, such a block takes the size of its coins once, and little more for writing.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../crates/sync/tests/heavy/mod.rs"]
mod heavy;

use apus_chain::{BlockHash, KnownBlock, Network, OutPoint, Params, ScriptError};
use apus_coins::{Access, BatchedStore, BatcherOptions};
use apus_engine::script::{Interpreter, PreparedTx, Refusal, ScriptPool};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use bitcoin::consensus::encode::serialize;
use heavy::{INPUTS, MIB, SCRIPT_BYTES, block, coin, connect, most_bytes, outpoint};
use std::sync::Arc;

/// The size of all coins of the block.
const COINS_BYTES: u64 = INPUTS as u64 * SCRIPT_BYTES as u64;

/// All these coins, generated without holding them.
struct All(Vec<OutPoint>);

impl All {
    fn new() -> Self {
        let mut names: Vec<_> = (0..INPUTS).map(outpoint).collect();
        names.sort_unstable();
        Self(names)
    }
}

impl Changes for All {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|name| each(name, Some(&coin())))
    }
}

/// An interpreter that receives the coins of each transaction and accepts everything.
struct Anything;

struct Fine(Vec<CoinBytes>);

impl Interpreter for Anything {
    fn prepare(&self, _: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        Ok(Box::new(Fine(spent.to_vec())))
    }
}

impl PreparedTx for Fine {
    fn verify(&self, input: usize, _: u32) -> Result<(), Refusal> {
        assert!(self.0[input].heap_bytes() > SCRIPT_BYTES);
        Ok(())
    }
}

/// The peak of this process's memory during an action, minus the memory before it.
fn more_bytes<T>(act: impl FnOnce() -> T) -> (u64, T) {
    // This resets the system's peak counter. Where it is unavailable, only the first measurement counts.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = most_bytes().unwrap_or(0);
    let done = act();
    (most_bytes().unwrap_or(0).saturating_sub(before), done)
}

/// Opens a store the way a sync with `--dbcache 16` does.
fn open(url: &str) -> Arc<dyn CoinsStore> {
    let place = url.parse().unwrap();
    let store = apus_coins::open(&place, Network::Regtest, &Access::default()).unwrap();
    let batches = BatcherOptions {
        size: 204,
        in_flight: 16,
        bytes_max: 16 * MIB,
        ..BatcherOptions::default()
    };
    Arc::new(BatchedStore::new(store, batches).unwrap())
}

/// A single test, because others running next to it would use memory.
#[test]
fn a_block_of_the_longest_scripts_takes_little_memory_below_the_last_ones_and_its_coins_once_there()
{
    let params = Params::of(Network::Regtest).clone();
    let raw = serialize(&block());
    let (cluster, server) = (RedisCluster::start(), PostgresServer::start());
    for url in [cluster.url("heavy"), server.url("heavy")] {
        let store = open(&url);
        let genesis = KnownBlock { height: 0, hash: BlockHash(params.genesis_hash.0) };
        let all = All::new();
        let write = |tip| store.write(&Flush { tip, changes: &all, undo: &[], undo_from: 0 });
        let (filling, ()) = more_bytes(|| write(genesis).unwrap());
        // Write again, now that the store has coins to replace.
        let (replacing, ()) = more_bytes(|| write(genesis).unwrap());
        let (reading, state) = more_bytes(|| connect(&params, Arc::clone(&store), &raw, 2, None).0);
        drop(state);
        let scripts = ScriptPool::with_interpreter(2, Arc::new(Anything)).unwrap();
        let connect = || connect(&params, Arc::clone(&store), &raw, 1, Some(scripts)).0;
        let (keeping, mut state) = more_bytes(connect);
        let (flushing, ()) = more_bytes(|| state.flush().unwrap());
        println!(
            "{url}: filling {filling}, replacing {replacing}, reading {reading}, keeping {keeping}, flushing {flushing}"
        );
        assert!(filling < 48 * MIB, "{url}: {filling} bytes more for a first flush");
        assert!(replacing < 48 * MIB, "{url}: {replacing} bytes more for a flush");
        assert!(reading < 128 * MIB, "{url}: {reading} bytes more for a block");
        assert!(
            keeping < COINS_BYTES + 128 * MIB,
            "{url}: {keeping} bytes more with scripts and undo data"
        );
        let hash = state.tip().hash;
        assert_eq!(state.tip().height, 1);
        drop(state);
        let undo = store.undo(&hash).unwrap().unwrap();
        assert!(undo.len() as u64 > COINS_BYTES, "{}", undo.len());
        assert!(flushing < 64 * MIB, "{url}: {flushing} bytes more to write the undo data");
    }
}
