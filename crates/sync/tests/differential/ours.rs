//! Applies our rules in Core's order, on one chain that only grows.

use apus_chain::{
    BlockChecker, BlockContext, BlockError, BlockHash, CheckedBlock, Header, HeaderChain,
    HeaderTree, Network, Params, check_proof_of_work,
};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::ConnectContext;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// `Ok` for a valid block, or Core's reject reason.
pub(crate) type Verdict = Result<(), String>;

pub(crate) struct Ours {
    params: Params,
    headers: HeaderTree,
    checker: BlockChecker,
    state: Chainstate,
}

impl Ours {
    pub(crate) fn start() -> Self {
        let params = Params::of(Network::Regtest).clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let options = ChainstateOptions {
            cache_bytes: 1 << 22,
            prevout_threads: 0,
            scripts: Some(ScriptPool::new(1).unwrap()),
        };
        Self {
            headers: HeaderTree::new(&params, i64::try_from(now).unwrap()),
            checker: BlockChecker::new(),
            state: Chainstate::open(&params, Arc::new(MemoryStore::new()), options).unwrap(),
            params,
        }
    }

    pub(crate) fn tip(&self) -> [u8; 32] {
        self.state.tip().hash.0
    }

    pub(crate) fn submit(&mut self, raw: &[u8]) -> Verdict {
        let Some(first) = raw.first_chunk::<{ Header::SIZE }>() else {
            return Err("undecodable".to_owned());
        };
        let header = Header::parse(first);
        let checked = self.check(raw.to_vec(), header.hash());
        // Checks without context come before the header, and the rest after it.
        match &checked {
            Err(BlockError::Decode(_)) => return Err("undecodable".to_owned()),
            _ if !check_proof_of_work(&header.hash(), header.bits, self.params.pow_limit) => {
                return Err("high-hash".to_owned());
            }
            _ => {}
        }
        if header.prev != self.state.tip().hash {
            return Err("prev-blk-not-found".to_owned());
        }
        let id = match (self.headers.accept(first), &checked) {
            (Ok(accepted), _) => accepted.id(),
            // Every case has only one fault, so the order of these two does not matter.
            (Err(error), Ok(_)) => return Err(error.reason().into_owned()),
            (Err(_), Err(error)) => return Err(error.reject_reason()),
        };
        let block = checked.map_err(|error| error.reject_reason())?;
        let chain = HeaderChain::up_to(&self.headers, id).unwrap();
        let context = ConnectContext { ancestry: &chain, check_scripts: true };
        match self.state.connect(block, &context) {
            Ok(()) => Ok(()),
            Err(ChainstateError::Invalid { error, .. }) => Err(error.reject_reason()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks a block that follows the tip.
    fn check(&mut self, raw: Vec<u8>, hash: BlockHash) -> Result<CheckedBlock, BlockError> {
        let tip = self.headers.find(&self.state.tip().hash).unwrap();
        let context = BlockContext {
            params: &self.params,
            height: self.state.tip().height + 1,
            hash,
            median_time_past: self.headers.median_time_past(tip),
            verifier: None,
        };
        self.checker.check_owned(raw, &context).map_err(|(_, error)| error)
    }
}
