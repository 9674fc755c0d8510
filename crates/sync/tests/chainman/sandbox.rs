//! A manager over the engine, with script verdicts from the interpreter or from a list.

use apus_chain::{Ancestry, CheckedBlock, KnownBlock, Params};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::chainman::{ChainManager, SubmitOutcome, TipCoins, TipCoinsError, ValidatedCoins};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use std::collections::HashMap;
use std::sync::Arc;

/// The source of script verdicts.
pub(crate) enum Scripts {
    /// The interpreter.
    #[cfg_attr(not(feature = "kernel"), expect(dead_code, reason = "there is no interpreter"))]
    Run,
    /// These blocks fail, by hash and reason, and all others pass.
    Listed(HashMap<String, String>),
}

/// Coins that run no scripts, and the blocks that must fail by a script.
struct ListedVerdicts {
    coins: ValidatedCoins,
    failing: HashMap<String, String>,
}

impl TipCoins for ListedVerdicts {
    fn tip(&self) -> KnownBlock {
        self.coins.tip()
    }

    fn connect(&mut self, block: CheckedBlock, below: &dyn Ancestry) -> Result<(), TipCoinsError> {
        let failing = self.failing.get(&block.hash().to_string()).cloned();
        match failing {
            Some(reason) => Err(TipCoinsError::Invalid { reason }),
            None => self.coins.connect(block, below),
        }
    }

    fn disconnect(&mut self, block: &CheckedBlock) -> Result<(), TipCoinsError> {
        self.coins.disconnect(block)
    }

    fn flush(&mut self) -> Result<(), TipCoinsError> {
        self.coins.flush()
    }
}

/// Makes a manager in memory.
pub(crate) fn manager(params: &Params, scripts: Scripts) -> ChainManager {
    let pool = match &scripts {
        Scripts::Run => Some(ScriptPool::new(2).unwrap()),
        Scripts::Listed(_) => None,
    };
    let check_scripts = pool.is_some();
    let options = ChainstateOptions { cache_bytes: 1 << 20, prevout_threads: 0, scripts: pool };
    let state = Chainstate::open(params, Arc::new(MemoryStore::new()), options).unwrap();
    let coins = ValidatedCoins::new(state, check_scripts);
    let coins: Box<dyn TipCoins> = match scripts {
        Scripts::Run => Box::new(coins),
        Scripts::Listed(failing) => Box::new(ListedVerdicts { coins, failing }),
    };
    ChainManager::in_memory(params, coins, None)
}

/// Returns the reason of a rejection; empty for any other outcome.
pub(crate) fn reason(outcome: &SubmitOutcome) -> &str {
    match outcome {
        SubmitOutcome::Rejected { reason } => reason,
        _ => "",
    }
}
