//! A store that does not outlast the program: for chains that fit into memory, and as the reference
//! model for other stores.

use crate::coin::CoinBytes;
use crate::utxo::store::{CoinsStore, EachCoin, Flush, StoreError};
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use parking_lot::RwLock;
use std::collections::HashMap;

/// Coins in a map.
#[derive(Debug, Default)]
pub struct MemoryStore(RwLock<MemoryState>);

#[derive(Debug, Default)]
struct MemoryState {
    tip: Option<KnownBlock>,
    coins: HashMap<OutPoint, CoinBytes>,
    undo: HashMap<BlockHash, (KnownBlock, Vec<u8>)>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn read<T>(&self, answer: impl FnOnce(&MemoryState) -> T) -> T {
        answer(&self.0.read())
    }
}

impl CoinsStore for MemoryStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(self.read(|state| state.tip))
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.read(|state| state.coins.get(outpoint).cloned()))
    }

    /// All coins are from one block.
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        Ok(self.read(|state| wanted.iter().map(|it| state.coins.get(it).cloned()).collect()))
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        // Collect all changes before applying any: the iteration may end in an error.
        let mut changes = Vec::new();
        flush.changes.for_each(&mut |outpoint, coin| {
            changes.push((*outpoint, coin.cloned()));
            Ok(())
        })?;
        let mut state = self.0.write();
        for (outpoint, coin) in changes {
            match coin {
                Some(coin) => state.coins.insert(outpoint, coin),
                None => state.coins.remove(&outpoint),
            };
        }
        for record in flush.undo {
            state.undo.insert(record.block.hash, (record.block, record.bytes.whole().into_owned()));
        }
        state.undo.retain(|_, (block, _)| block.height >= flush.undo_from);
        state.tip = Some(flush.tip);
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read(|state| state.undo.get(block).map(|(_, bytes)| bytes.clone())))
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.read(|state| {
            let mut coins: Vec<_> = state.coins.iter().collect();
            coins.sort_unstable_by_key(|(outpoint, _)| *outpoint);
            coins.into_iter().try_for_each(|(outpoint, coin)| each(outpoint, coin))
        })
    }
}
