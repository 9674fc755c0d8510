//! [`Outcome`]: the result of a sync.

use super::Engine;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsInfo;
use crate::engines::swiftsync::{CoinTotals, Counts};
use crate::folder::WrittenFolder;
use crate::warning::UnanchoredBlocks;
use apus_chain::{HeaderChain, Height, KnownBlock, Params};

/// The result of a finished sync.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The block at which it ended, and the chain of that block.
    pub chain: ChainEnd,
    /// How the blocks were validated.
    pub validation: Validation,
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set at the end.
    pub set: SetSummary,
    /// The outputs.
    pub written: Written,
}

impl Outcome {
    /// Sets the engine.
    pub(crate) fn by(mut self, engine: Engine) -> Self {
        self.validation.engine = engine;
        self
    }

    /// Adds hints for the first blocks.
    pub(crate) fn with_hints(mut self, hints: HintsProof) -> Self {
        self.validation.hints = hints;
        self
    }
}

/// The block at which a sync ended, and its chain.
#[derive(Debug, Clone, Copy)]
pub struct ChainEnd {
    /// The block whose UTXO set was computed.
    pub stop: KnownBlock,
    /// Height of the chain's tip; the sync did not read blocks above `stop`.
    pub tip_height: Height,
    /// Whether the chain has at least as much work as the real one is known to have.
    pub enough_work: bool,
}

impl ChainEnd {
    /// Describes a block of a chain.
    pub fn new(params: &Params, chain: &HeaderChain, stop: KnownBlock) -> Self {
        let enough_work = chain.chain_work() >= params.minimum_chain_work;
        Self { stop, tip_height: chain.tip_height(), enough_work }
    }
}

/// How the blocks of a sync were validated.
#[derive(Debug, Clone)]
pub struct Validation {
    /// The engine for the blocks without hints.
    pub engine: Engine,
    /// What the hints proved; empty without hints.
    pub hints: HintsProof,
    /// The first height that was connected, with every rule on amounts and order; `None` if the sync ended
    /// with the hints.
    pub connected_from: Option<Height>,
    /// The block whose coins or roots were taken on trust, without any proof; the sync validated only the blocks above.
    pub trusted: Option<KnownBlock>,
    /// How many connected blocks had their scripts run.
    pub scripts: ScriptCounts,
    /// Blocks whose witnesses were not read ([`Request::leave_witnesses`](super::Request::leave_witnesses)).
    pub unseen_witnesses: u64,
}

/// The proof for the blocks up to the hints' stop height.
#[derive(Debug, Clone, Default)]
pub struct HintsProof {
    /// The hintsfile, if the hints came from one.
    pub info: Option<HintsInfo>,
    /// The aggregate that proved that each coin spent existed and was spent once; `None` without hints.
    pub aggregate: Option<AggregateKind>,
    /// The blocks with hints that only the user declared valid.
    pub unanchored: Option<UnanchoredBlocks>,
}

/// How many connected blocks had their scripts run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptCounts {
    /// Blocks whose scripts were run.
    pub run: u64,
    /// Blocks whose scripts were assumed valid.
    pub assumed: u64,
}

/// Totals and hashes of a UTXO set.
#[derive(Debug, Clone, Copy)]
pub struct SetSummary {
    /// Its totals. If the engine keeps no set, the number of transactions with unspent coins is zero. All are zero if
    /// it does not know the coins before its first block either.
    pub totals: CoinTotals,
    /// Its hashes; `None` if the engine keeps no set.
    pub hashes: Option<SetHashes>,
    /// Whether Core's table of snapshots has this set; `false` if no set is kept. A sync fails if it computes
    /// another set for a block in the table.
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

/// Hashes of a UTXO set in internal byte order; `gettxoutsetinfo` shows them reversed.
#[derive(Debug, Clone, Copy)]
pub struct SetHashes {
    /// `hash_serialized_3`.
    pub hash_serialized_3: [u8; 32],
    /// MuHash, if it was computed ([`Request::muhash`](super::Request::muhash)).
    pub muhash: Option<[u8; 32]>,
}

/// What a sync wrote.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Folders for Bitcoin Core.
    pub folders: Vec<WrittenFolder>,
}
