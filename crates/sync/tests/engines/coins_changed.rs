//! Stores that change coins, but not their number: the sync must write no output.

use crate::harness::{Job, Place, World};
use crate::world::SET;
use apus_chain::{BlockHash, CoinRef, KnownBlock, OutPoint};
use apus_engine::utxo::store::{EachChange, EachCoin, MemoryStore};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use apus_sync::{ErrorKind, IoError, Stop, SyncError};
use bitcoin::hashes::Hash;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The fault of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It loses one coin and restores a spent one, of the same amount or of any.
    Revives,
    /// It changes the coinbase mark of a coin.
    Changes,
    /// A look-up returns another script.
    Gives,
}

/// A store with a fault.
struct Faulty {
    inner: MemoryStore,
    fault: Fault,
    spent: Mutex<BTreeMap<OutPoint, CoinBytes>>,
    /// Number of wrong answers.
    wrong_answers: Mutex<u32>,
}

impl Faulty {
    fn new(fault: Fault) -> Arc<Self> {
        let inner = MemoryStore::new();
        Arc::new(Self { inner, fault, spent: Mutex::default(), wrong_answers: Mutex::default() })
    }

    fn wrong_answers(&self) -> u32 {
        *self.wrong_answers.lock().unwrap()
    }

    /// Returns all coins, with the fault applied.
    fn coins(&self) -> Result<BTreeMap<OutPoint, CoinBytes>, StoreError> {
        let mut coins = BTreeMap::new();
        self.inner.for_each(&mut |outpoint, coin| {
            coins.insert(*outpoint, coin.clone());
            Ok(())
        })?;
        match self.fault {
            Fault::Revives => {
                let amount = |coin: &CoinBytes| coin.coin().as_ref().amount;
                let spent = self.spent.lock().unwrap();
                let pairs =
                    coins.iter().flat_map(|lost| spent.iter().map(move |back| (lost, back)));
                let alike = pairs.clone().find(|(lost, back)| amount(lost.1) == amount(back.1));
                let pair = alike.or_else(|| pairs.clone().next());
                let pair = pair.map(|((lost, _), (back, coin))| (*lost, *back, coin.clone()));
                if let Some((lost, back, coin)) = pair {
                    *self.wrong_answers.lock().unwrap() += 1;
                    coins.remove(&lost);
                    coins.insert(back, coin);
                }
            }
            Fault::Changes => {
                if let Some(coin) = coins.values_mut().next() {
                    *self.wrong_answers.lock().unwrap() += 1;
                    let old = coin.clone();
                    let old = old.coin();
                    let CoinRef { coinbase, .. } = old.as_ref();
                    *coin = CoinBytes::new(CoinRef { coinbase: !coinbase, ..old.as_ref() });
                }
            }
            Fault::None | Fault::Gives => {}
        }
        Ok(coins)
    }
}

impl CoinsStore for Faulty {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.inner.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        let coin = self.inner.get(outpoint)?;
        let mut wrong_answers = self.wrong_answers.lock().unwrap();
        Ok(match coin {
            Some(coin) if self.fault == Fault::Gives && *wrong_answers == 0 => {
                *wrong_answers += 1;
                let CoinRef { height, coinbase, amount, .. } = coin.coin().as_ref();
                Some(CoinBytes::new(CoinRef { height, coinbase, amount, script: &[0x52, 0x53] }))
            }
            coin => coin,
        })
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        flush.changes.for_each(&mut |outpoint, coin| {
            if coin.is_none()
                && let Some(coin) = self.inner.get(outpoint)?
            {
                self.spent.lock().unwrap().insert(*outpoint, coin);
            }
            Ok(())
        })?;
        self.inner.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.coins()?.iter().try_for_each(|(outpoint, coin)| each(outpoint, coin))
    }
}

/// Makes jobs that connect blocks from the first on, and above hints.
fn jobs(world: &World) -> [Job; 2] {
    let job = Job { cache_bytes: 1, ..world.job() };
    [job.clone(), Job { hints: Some(world.hints(108)), ..job }]
}

pub(crate) fn expect_refused(job: &Job, place: &Place) {
    let error = job.run(place).unwrap_err();
    assert!(!place.output_files().contains_key(SET), "output in spite of: {error}");
    assert!(matches!(error, SyncError::Io(IoError::CoinsChanged { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(
        error.to_string().contains("the disk or memory lost, restored or changed some of them"),
        "{error}"
    );
}

#[test]
fn a_store_with_other_coins_gives_no_output() {
    let world = World::small(730);
    for fault in [Fault::None, Fault::Revives, Fault::Changes, Fault::Gives] {
        for job in jobs(&world) {
            let store = Faulty::new(fault);
            let place = Place::with(Arc::clone(&store) as Arc<dyn CoinsStore>);
            match fault {
                Fault::None => drop(job.expect(&world.truth, &place)),
                _ => expect_refused(&job, &place),
            }
            assert_eq!(store.wrong_answers() > 0, fault != Fault::None, "{fault:?}");
            // The next start writes no output either.
            if fault != Fault::None {
                expect_refused(&job, &place);
            }
        }
    }
}

/// Changes to a store from outside a sync.
pub(crate) struct Harm(pub(crate) Vec<(OutPoint, Option<CoinBytes>)>);

impl Changes for Harm {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, coin)| each(outpoint, coin.as_ref()))
    }
}

/// Between two starts, the disk loses one coin and gains another. No later block needs either.
#[test]
fn coins_that_change_between_two_starts_are_noticed() {
    let world = World::small(731);
    for job in jobs(&world) {
        let store = Arc::new(MemoryStore::new());
        let lower = Place::with(Arc::clone(&store) as Arc<dyn CoinsStore>);
        let part = crate::world::Truth::of(&world.chain[..=112]);
        Job { stop: Stop::At(112), ..job.clone() }.expect(&part, &lower);
        let mut coins = Vec::new();
        let mut each = |outpoint: &OutPoint, coin: &CoinBytes| {
            coins.push((*outpoint, coin.clone()));
            Ok(())
        };
        store.for_each(&mut each).unwrap();
        // A coinbase that never matures on this chain.
        let is_last = |coin: &CoinBytes| (coin.coin().coinbase, coin.coin().height) == (true, 112);
        let lost = coins.iter().find(|(_, coin)| is_last(coin));
        let (lost, coin) = lost.unwrap().clone();
        let back = OutPoint { vout: lost.vout + 70, ..lost };
        let changes = Harm(vec![(lost, None), (back, Some(coin))]);
        let tip = store.tip().unwrap().unwrap();
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: 0 }).unwrap();
        let place = Place { out: apus_testkit::storage::CrashStorage::new(), ..lower };
        expect_refused(&job, &place);
    }
}

/// A server that takes over may lack a coin that the previous one acknowledged. A block that spends this coin
/// must not count as invalid, nor stay excluded once the coin is back.
#[test]
fn a_block_is_not_invalid_for_a_coin_that_the_store_lost() {
    let world = World::small(732);
    for job in jobs(&world) {
        let store = Arc::new(MemoryStore::new());
        let place = Place::with(Arc::clone(&store) as Arc<dyn CoinsStore>);
        let part = crate::world::Truth::of(&world.chain[..=112]);
        Job { stop: Stop::At(112), ..job.clone() }.expect(&part, &place);
        let spent = world.chain[113..].iter().flat_map(|block| &block.txdata[1..]);
        let spent = spent.flat_map(|tx| &tx.input).map(|input| {
            let bitcoin::OutPoint { txid, vout } = input.previous_output;
            OutPoint { txid: apus_chain::Txid(txid.to_byte_array()), vout }
        });
        let there = |outpoint: OutPoint| Some((outpoint, store.get(&outpoint).unwrap()?));
        let (lost, coin) = spent.into_iter().find_map(there).unwrap();
        let tip = store.tip().unwrap().unwrap();
        let changes = Harm(vec![(lost, None)]);
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: 0 }).unwrap();
        let place = Place { out: apus_testkit::storage::CrashStorage::new(), ..place };
        expect_refused(&job, &place);
        // Blocks below the spending one were flushed; the coin comes back at the store's block.
        let tip = store.tip().unwrap().unwrap();
        let changes = Harm(vec![(lost, Some(coin))]);
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: 0 }).unwrap();
        job.expect(&world.truth, &place);
    }
}
