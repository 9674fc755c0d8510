//! Tests every state of the three layers, and every change on top of it.

use crate::store::{List, TestStore};
use crate::{block, coin, outpoint};
use apus_chain::OutPoint;
use apus_engine::utxo::{CoinBytes, CoinsCache, CoinsDelta, CoinsStore, CoinsView, Flush};
use std::sync::Arc;

/// The effect of a generation on the single coin, on top of the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    /// A coin created with `fresh`.
    Fresh,
    /// A coin created without `fresh`.
    Coin,
    Spent,
}

use Has::{Coin, Fresh, Nothing, Spent};

const ALL: [Has; 4] = [Nothing, Fresh, Coin, Spent];

/// Whether the old generation is already in the store.
const WRITTEN: [bool; 2] = [false, true];

fn name() -> OutPoint {
    outpoint(7, 1)
}

/// Returns a change that produces the given state, or `None` if no change can.
fn change(has: Has, below: bool, number: u32) -> Option<CoinsDelta> {
    let mut delta = CoinsDelta::new();
    match has {
        Nothing => {}
        // Claiming `fresh` falsely is the caller's mistake, not a state.
        Fresh if below => return None,
        Fresh => delta.create(name(), coin(number), true),
        Coin => delta.create(name(), coin(number), false),
        Spent if !below => return None,
        Spent => delta.spend(name()),
    }
    Some(delta)
}

/// Returns the coin after the change.
fn after(has: Has, below: Option<CoinBytes>, number: u32) -> Option<CoinBytes> {
    match has {
        Nothing => below,
        Fresh | Coin => Some(coin(number)),
        Spent => None,
    }
}

/// Sets up one state, makes one change, and checks the view and the next flush.
fn case(stored: bool, old: Has, written: bool, young: Has, op: Has) -> bool {
    let what = format!("store {stored}, old {old:?} (written {written}), young {young:?}, {op:?}");
    let store = Arc::new(TestStore::default());
    if stored {
        let changes = List(vec![(name(), Some(coin(1)))]);
        let flush = Flush { tip: block(0), changes: &changes, undo: &[], undo_from: 0 };
        store.write(&flush).unwrap();
    }
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
    let mut now = stored.then(|| coin(1));
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}");

    if !written {
        store.shut();
    }
    let Some(delta) = change(old, now.is_some(), 2) else { return false };
    now = after(old, now, 2);
    cache.apply(&delta).unwrap();
    cache.begin_flush(block(1), Vec::new(), 0).unwrap();
    if written {
        cache.finish_flush().unwrap();
    }
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}");
    // Young is changed first and then changed again, so it may hold a fresh coin that is absent
    // below. That determines what must be written to the store.
    let below = now.clone();

    let Some(delta) = change(young, now.is_some(), 3) else {
        store.open();
        return false;
    };
    now = after(young, now, 3);
    cache.apply(&delta).unwrap();
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}");

    let Some(delta) = change(op, now.is_some(), 4) else {
        store.open();
        return false;
    };
    now = after(op, now, 4);
    cache.apply(&delta).unwrap();
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}");

    store.open();
    cache.finish_flush().unwrap();
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}: after the current flush");
    cache.flush(block(2), Vec::new(), 0).unwrap();
    assert_eq!(cache.coin(&name()).unwrap(), now, "{what}: after a flush");
    assert_eq!(store.coins().get(&name()), now.as_ref(), "{what}: in the store");

    let writes = store.written();
    let last = &writes[writes.len() - 1].changes;
    let untouched = young == Nothing && op == Nothing;
    let left_no_trace = below.is_none()
        && now.is_none()
        && (young == Fresh && op == Spent || young == Nothing && op == Nothing);
    let expected =
        if untouched || left_no_trace { Vec::new() } else { vec![(name(), now.clone())] };
    assert_eq!(*last, expected, "{what}: what the last flush wrote");
    true
}

#[test]
fn every_change_is_correct_on_every_state() {
    let mut cases = 0;
    for stored in [false, true] {
        for old in ALL {
            for written in WRITTEN {
                for young in ALL {
                    for op in ALL {
                        cases += usize::from(case(stored, old, written, young, op));
                    }
                }
            }
        }
    }
    // Two stores, two states of the old generation, and three of the four changes are possible each
    // time.
    assert_eq!(cases, 108);
}

/// A coin of the previous block is spent: neither the coin nor its spent mark is ever written.
#[test]
fn a_fresh_coin_that_is_spent_never_reaches_the_store() {
    let store = Arc::new(TestStore::default());
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
    for height in 0..10 {
        let mut delta = CoinsDelta::new();
        for vout in 0..100 {
            delta.create(outpoint(height, vout), coin(vout), true);
            if height > 0 {
                delta.spend(outpoint(height - 1, vout));
            }
        }
        cache.apply(&delta).unwrap();
        assert_eq!(cache.stats().young_entries, 100);
    }
    cache.flush(block(9), Vec::new(), 0).unwrap();
    let written = store.written();
    assert_eq!(written.len(), 1);
    assert!(
        written[0].changes.iter().all(|(outpoint, _)| outpoint.txid == crate::outpoint(9, 0).txid)
    );
    assert_eq!(written[0].changes.len(), 100);
}

/// Core `CCoinsViewCache::AddCoin`: a block is disconnected, flushed, and connected again. The coin
/// is new once more, although the store had it; when spent, it must be gone permanently.
#[test]
fn a_coin_recreated_after_a_reorg_does_not_reappear_when_spent() {
    for flush_between in [false, true] {
        let store = Arc::new(TestStore::default());
        let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
        let made = change(Fresh, false, 1).unwrap();
        let spent = change(Spent, true, 1).unwrap();
        cache.apply(&made).unwrap();
        cache.flush(block(1), Vec::new(), 0).unwrap();
        store.shut();
        cache.apply(&spent).unwrap();
        if flush_between {
            cache.begin_flush(block(0), Vec::new(), 0).unwrap();
        }
        cache.apply(&made).unwrap();
        cache.apply(&spent).unwrap();
        assert_eq!(cache.coin(&name()).unwrap(), None);
        store.open();
        cache.flush(block(2), Vec::new(), 0).unwrap();
        assert_eq!(cache.coin(&name()).unwrap(), None);
        assert!(store.coins().is_empty());
    }
}

/// BIP-30's exceptions: the later coinbase replaces the earlier one's coin.
#[test]
fn an_overwriting_coinbase_leaves_one_coin() {
    for flush_between in [false, true] {
        let store = Arc::new(TestStore::default());
        let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
        cache.apply(&change(Fresh, false, 91_812).unwrap()).unwrap();
        if flush_between {
            cache.flush(block(91_812), Vec::new(), 0).unwrap();
        }
        cache.apply(&change(Coin, true, 91_842).unwrap()).unwrap();
        assert_eq!(cache.coin(&name()).unwrap(), Some(coin(91_842)));
        cache.apply(&change(Spent, true, 0).unwrap()).unwrap();
        assert_eq!(cache.coin(&name()).unwrap(), None, "not even the first");
        cache.flush(block(91_843), Vec::new(), 0).unwrap();
        assert!(store.coins().is_empty());
    }
}
