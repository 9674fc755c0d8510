//! Fetching the coins of a block that are all in memory: the overhead of the fetcher compared with
//! a plain loop; and listing the coins that a block wants. `apus-bench prevouts` measures the gain
//! when look-ups have to wait.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{BlockBytes, BlockChecker, BlockContext, BlockHash, CoinRef, Network, OutPoint};
use apus_chain::{Params, Txid};
use apus_engine::utxo::fetch::{Place, PrevoutFetcher, wanted_of};
use apus_engine::utxo::{CoinBytes, CoinsView, StoreError};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::rng::Rng;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Amount, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Witness};
use bitcoin::{absolute, transaction};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

fn main() {
    divan::main();
}

/// Far more than a processor's caches hold.
const COINS: u64 = 1_000_000;

struct Coins(HashMap<OutPoint, CoinBytes>);

impl CoinsView for Coins {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.0.get(outpoint).cloned())
    }
}

fn outpoint(number: u64) -> OutPoint {
    let mut rng = Rng::new(number);
    let words: [[u8; 8]; 4] = std::array::from_fn(|_| rng.next_u64().to_le_bytes());
    OutPoint { txid: Txid(words.as_flattened().try_into().unwrap()), vout: 0 }
}

static VIEW: LazyLock<Arc<dyn CoinsView>> = LazyLock::new(|| {
    let coin = CoinRef { height: 700_000, coinbase: false, amount: 12_345, script: &[0x51; 34] };
    let coin = CoinBytes::new(coin);
    Arc::new(Coins((0..COINS).map(|number| (outpoint(number), coin.clone())).collect()))
});

/// Inputs of the measured blocks.
const INPUTS: [usize; 4] = [3, 30, 300, 5000];

/// Coins in memory, by inputs of a block. Items are inputs.
mod in_memory {
    use super::*;

    fn bench(bencher: Bencher<'_, '_>, inputs: usize, fetch: impl Fn(Vec<OutPoint>)) {
        let rng = RefCell::new(Rng::new(1));
        let chosen = || outpoint(rng.borrow_mut().below(COINS));
        LazyLock::force(&VIEW);
        bencher
            .counter(ItemsCount::new(inputs))
            .with_inputs(|| (0..inputs).map(|_| chosen()).collect::<Vec<_>>())
            .bench_local_values(fetch);
    }

    #[divan::bench(args = INPUTS)]
    fn plain_loop(bencher: Bencher<'_, '_>, inputs: usize) {
        bench(bencher, inputs, |wanted| {
            let view = Arc::clone(&VIEW);
            for outpoint in &wanted {
                black_box(view.coin(outpoint).unwrap());
            }
        });
    }

    #[divan::bench(args = INPUTS, consts = [0, 1, 2, 8])]
    fn threads<const N: usize>(bencher: Bencher<'_, '_>, inputs: usize) {
        let fetcher = PrevoutFetcher::new(N, 1 << 20).unwrap();
        bench(bencher, inputs, |wanted| {
            let mut fetching = fetcher.start(Arc::clone(&VIEW), wanted);
            for index in 0..inputs {
                black_box(fetching.take(index).unwrap());
            }
        });
    }
}

/// A block of 2,500 transactions with two inputs and two outputs each; every third input spends an
/// output of the block. Items are inputs.
mod block_of_5000_inputs {
    use super::*;

    fn block() -> bitcoin::Block {
        let mut rng = Rng::new(2);
        let mut transactions: Vec<Transaction> = Vec::new();
        for _ in 0..2500 {
            let mut input = || {
                let txid = match transactions.len() {
                    before if before > 0 && rng.one_in(3) => {
                        transactions[before - 1 - rng.index(before.min(50))].compute_txid()
                    }
                    _ => bitcoin::Txid::from_byte_array(outpoint(rng.next_u64()).txid.0),
                };
                TxIn {
                    previous_output: bitcoin::OutPoint { txid, vout: rng.below(2) as u32 },
                    script_sig: ScriptBuf::from(vec![0x51; 107]),
                    sequence: Sequence::MAX,
                    witness: Witness::new(),
                }
            };
            let mut input = vec![input(), input()];
            input.dedup_by_key(|input| input.previous_output);
            let script_pubkey = ScriptBuf::from(vec![0x51; 22]);
            transactions.push(Transaction {
                version: transaction::Version::TWO,
                lock_time: absolute::LockTime::ZERO,
                input,
                output: vec![TxOut { value: Amount::from_sat(1), script_pubkey }; 2],
            });
        }
        let plan = BlockPlan { transactions, ..BlockPlan::default() };
        ChainBuilder::new(1).propose(plan)
    }

    fn with_block(run: impl FnOnce(&BlockBytes<'_>)) {
        let block = block();
        let raw = serialize(&block);
        let mut checker = BlockChecker::new();
        let context = BlockContext {
            params: Params::of(Network::Regtest),
            height: 1,
            hash: BlockHash(block.block_hash().to_byte_array()),
            median_time_past: 0,
            verifier: None,
        };
        run(&checker.check(&raw, &context).unwrap());
    }

    #[divan::bench]
    fn wanted(bencher: Bencher<'_, '_>) {
        with_block(|block| {
            let (mut wanted, mut places): (Vec<OutPoint>, Vec<Place>) = Default::default();
            bencher.counter(ItemsCount::new(5000usize)).bench_local(|| {
                wanted_of(block, &mut wanted, &mut places);
                black_box((wanted.len(), places.len()))
            });
        });
    }

    /// The same task with the standard library's map of all outputs.
    #[divan::bench]
    fn map_of_outputs(bencher: Bencher<'_, '_>) {
        with_block(|block| {
            bencher.counter(ItemsCount::new(5000usize)).bench_local(|| {
                let (mut wanted, mut places, mut made) = (Vec::new(), Vec::new(), HashMap::new());
                for (index, (txid, tx)) in block.txs().enumerate() {
                    for input in tx.inputs().filter(|_| index > 0) {
                        let outpoint = OutPoint::from_bytes(input.outpoint());
                        places.push(made.get(&outpoint).copied().unwrap_or_else(|| {
                            wanted.push(outpoint);
                            Place::Wanted(wanted.len() as u32 - 1)
                        }));
                    }
                    for vout in 0..tx.outputs().len() as u32 {
                        let place = Place::Created { tx: index as u32, vout };
                        made.insert(OutPoint { txid, vout }, place);
                    }
                }
                black_box((wanted.len(), places.len()))
            });
        });
    }
}
