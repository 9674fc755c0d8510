//! [`ValidatedCoins`]: the engine that knows every rule about coins, as the manager's [`TipCoins`].
//!
//! And the order of durable things: the store moves to a block only after the log that holds the
//! block is durable, so no crash leaves coins at a block that is nowhere.

use super::replay::LogSync;
use super::{TipCoins, TipCoinsError};
use crate::engines::in_order::{Chainstate, ChainstateError};
use apus_chain::{Ancestry, BlockHash, CheckedBlock, KnownBlock, OutPoint};
use apus_engine::utxo::store::{CoinsStore, EachCoin, Flush, StoreError};
use apus_engine::utxo::{CoinBytes, ConnectContext};
use std::sync::Arc;

/// Coins under every rule.
pub struct ValidatedCoins {
    state: Chainstate,
    check_scripts: bool,
}

impl ValidatedCoins {
    /// Takes a chain state. Without scripts what is left says nothing about who may spend what:
    /// that is for tests alone.
    pub fn new(state: Chainstate, check_scripts: bool) -> Self {
        Self { state, check_scripts }
    }

    /// Begins to make coins durable when memory asks for it.
    fn make_room(&mut self) -> Result<(), TipCoinsError> {
        if self.state.flush_due() {
            self.state.begin_flush().map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: ChainstateError) -> TipCoinsError {
    TipCoinsError::Failed(error.to_string())
}

impl TipCoins for ValidatedCoins {
    fn tip(&self) -> KnownBlock {
        *self.state.tip()
    }

    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError> {
        let context = ConnectContext { ancestry: below, check_scripts: self.check_scripts };
        match self.state.connect(block, &context) {
            Ok(()) => self.make_room(),
            Err(ChainstateError::Invalid { error, .. }) => {
                Err(TipCoinsError::Invalid { reason: error.reject_reason() })
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError> {
        self.state.disconnect(block).map_err(failed)?;
        self.make_room()
    }

    fn flush(&mut self) -> Result<(), TipCoinsError> {
        self.state.flush().map_err(failed)
    }
}

impl LogSync {
    /// A store that writes nothing before the log is durable.
    pub fn before(self, store: Arc<dyn CoinsStore>) -> Arc<dyn CoinsStore> {
        Arc::new(AfterLog { log: self, store })
    }
}

struct AfterLog {
    log: LogSync,
    store: Arc<dyn CoinsStore>,
}

impl CoinsStore for AfterLog {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.store.get(outpoint)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.log.sync().map_err(|error| StoreError::Io {
            place: "the log of blocks".to_owned(),
            error: error.to_string(),
        })?;
        self.store.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.store.for_each(each)
    }
}
