//! Readers in parallel with a thread that applies blocks and flushes.

use crate::store::TestStore;
use crate::{block, coin, outpoint};
use apus_engine::utxo::{CoinsCache, CoinsDelta, CoinsStore, CoinsView};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Number of coins in a block; each is spent by the block after next.
const COINS: u32 = 64;
const BLOCKS: u32 = 600;

/// Every reader knows the writer's progress before and after its look-up: the coin must fit a
/// moment in between.
#[test]
fn a_reader_sees_a_coin_as_before_or_after_a_block() {
    let store = Arc::new(TestStore::default());
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
    let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let applied = |height: u32| height + 2;
    thread::scope(|scope| {
        for reader in 0..3u32 {
            let (cache, begun, ended) = (&cache, &begun, &ended);
            scope.spawn(move || {
                let mut step = reader;
                while ended.load(Ordering::SeqCst) < BLOCKS {
                    step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let before = ended.load(Ordering::SeqCst);
                    // Near the tip, where coins change.
                    let height = (before + (step >> 8) % 4).saturating_sub(3);
                    let vout = (step >> 16) % COINS;
                    let found = cache.coin(&outpoint(height, vout)).unwrap();
                    let after = begun.load(Ordering::SeqCst);
                    match found {
                        Some(found) => {
                            assert_eq!(found, coin(vout));
                            assert!(height < after, "{height} is not created yet at {after}");
                            assert!(before < applied(height) + 1, "{height} is spent at {before}");
                        }
                        None => assert!(
                            before <= height || after > applied(height),
                            "{height} is there from {before} to {after}"
                        ),
                    }
                }
            });
        }
        for height in 0..BLOCKS {
            let mut delta = CoinsDelta::new();
            for vout in 0..COINS {
                delta.create(outpoint(height, vout), coin(vout), true);
                if height >= 2 {
                    delta.spend(outpoint(height - 2, vout));
                }
            }
            begun.store(height + 1, Ordering::SeqCst);
            cache.apply(&delta).unwrap();
            ended.store(height + 1, Ordering::SeqCst);
            if height % 3 == 2 {
                cache.begin_flush(block(height), Vec::new(), 0).unwrap();
            }
        }
    });
    cache.flush(block(BLOCKS), Vec::new(), 0).unwrap();
    assert_eq!(store.coins().len(), 2 * COINS as usize);
}
