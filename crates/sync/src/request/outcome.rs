//! [`Outcome`]: a finished run.

use super::Engine;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsInfo;
use crate::engines::swiftsync::{CoinTotals, Counts};
use crate::folder::WrittenFolder;
use crate::warning::Unanchored;
use apus_chain::{HeaderChain, Height, KnownBlock, Params};

/// A finished run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The block it ended at, and the chain of that block.
    pub chain: ChainEnd,
    /// How the blocks were validated.
    pub validation: Validation,
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set at the end.
    pub set: SetSummary,
    /// What was written.
    pub written: Written,
}

impl Outcome {
    /// The same by `engine`.
    pub(crate) fn by(mut self, engine: Engine) -> Self {
        self.validation.engine = engine;
        self
    }

    /// The same with hints for the first blocks.
    pub(crate) fn with_hints(mut self, hints: HintsProof) -> Self {
        self.validation.hints = hints;
        self
    }
}

/// Where a run ended on which chain.
#[derive(Debug, Clone, Copy)]
pub struct ChainEnd {
    /// The block whose UTXO set was computed.
    pub stop: KnownBlock,
    /// Height of the chain's tip; the run did not look at blocks above `stop`.
    pub tip_height: Height,
    /// Whether the chain found has as much work as the real one is known to have at least.
    pub enough_work: bool,
}

impl ChainEnd {
    /// A block of a chain.
    pub fn new(params: &Params, chain: &HeaderChain, stop: KnownBlock) -> Self {
        let enough_work = chain.chain_work() >= params.minimum_chain_work;
        Self { stop, tip_height: chain.tip_height(), enough_work }
    }
}

/// How the blocks of a run were validated.
#[derive(Debug, Clone)]
pub struct Validation {
    /// What did the blocks for which there were no hints.
    pub engine: Engine,
    /// What hints stood for; nothing where there were none.
    pub hints: HintsProof,
    /// The first height that was connected, with every rule on amounts and order; none where the
    /// run ended with the hints.
    pub connected_from: Option<Height>,
    /// Which scripts of the connected blocks were run.
    pub scripts: ScriptCounts,
    /// Blocks whose witnesses were left alone ([`Request::leave_witnesses`](super::Request::leave_witnesses)).
    pub unseen_witnesses: u64,
}

/// What is known of the blocks up to the hints' stop height.
#[derive(Debug, Clone, Default)]
pub struct HintsProof {
    /// What the hints were, if they came from a hintsfile.
    pub info: Option<HintsInfo>,
    /// By what it was proven that each coin spent existed and was spent once; none where no hints were used.
    pub aggregate: Option<AggregateKind>,
    /// The blocks under hints that were taken for valid on the user's word alone.
    pub unanchored: Option<Unanchored>,
}

/// Which scripts of connected blocks were run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptCounts {
    /// Blocks whose scripts were run.
    pub run: u64,
    /// Blocks whose scripts were taken for valid.
    pub assumed: u64,
}

/// Totals and hashes of a UTXO set.
#[derive(Debug, Clone, Copy)]
pub struct SetSummary {
    /// Its totals. Where the engine keeps no set, the number of transactions with coins left is zero.
    pub totals: CoinTotals,
    /// Its hashes; none where the engine keeps no set.
    pub hashes: Option<SetHashes>,
    /// Whether Core's own table of snapshots has this very set; not where no set is kept. A run that leads to another one
    /// for a block of the table fails.
    pub in_assumeutxo_table: bool,
}

impl SetSummary {
    /// `hash_serialized_3` in internal order.
    pub fn hash_serialized_3(&self) -> Option<[u8; 32]> {
        self.hashes.map(|hashes| hashes.hash_serialized_3)
    }

    /// MuHash in internal order.
    pub fn muhash(&self) -> Option<[u8; 32]> {
        self.hashes.and_then(|hashes| hashes.muhash)
    }
}

/// Hashes of a UTXO set in internal order, as `gettxoutsetinfo` shows them reversed.
#[derive(Debug, Clone, Copy)]
pub struct SetHashes {
    /// `hash_serialized_3`.
    pub hash_serialized_3: [u8; 32],
    /// MuHash, where it was computed ([`Request::muhash`](super::Request::muhash)).
    pub muhash: Option<[u8; 32]>,
}

/// What a run wrote.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Folders for Bitcoin Core.
    pub folders: Vec<WrittenFolder>,
}
