//! [`Outcome`]: a finished run.

use super::Engine;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsInfo;
use crate::engines::swiftsync::{CoinTotals, Counts};
use crate::folder::WrittenFolder;
use crate::proofs::ProofsMade;
use crate::warning::Unanchored;
use apus_chain::{BlockHash, Height};
use apus_utreexo::Roots;

/// A finished run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The height whose UTXO set was computed.
    pub stop_height: Height,
    /// Its block.
    pub stop_hash: BlockHash,
    /// Height of the chain's tip; blocks above the stop height were not looked at.
    pub tip_height: Height,
    /// Whether the chain found has as much work as the real one is known to have at least.
    pub enough_work: bool,
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set's totals.
    pub coins: CoinTotals,
    /// MuHash of the set in internal order, as `gettxoutsetinfo muhash` shows it reversed, where it was computed
    /// ([`Request::muhash`](super::Request::muhash)).
    pub muhash: Option<[u8; 32]>,
    /// `hash_serialized_3` in internal order. Where the engine keeps no set, this and the number of transactions with
    /// coins left are zeros.
    pub hash_serialized_3: [u8; 32],
    /// By what it was proven, for the blocks up to the hints' stop height, that each coin spent
    /// existed and was spent once; none where there were no hints.
    pub aggregate: Option<AggregateKind>,
    /// What did the blocks for which there were no hints. The one that goes by proofs keeps no set.
    pub engine: Engine,
    /// The first height that was connected, with every rule on amounts and order; none where the
    /// run ended with the hints.
    pub connected_from: Option<Height>,
    /// Which scripts of the connected blocks were run.
    pub scripts: ScriptCounts,
    /// Blocks whose witnesses were left alone ([`Request::leave_witnesses`](super::Request::leave_witnesses)).
    pub unseen_witnesses: u64,
    /// Whether Core's own table of snapshots has this very set; not where no set is kept. A run that leads to another one
    /// for a block of the table fails.
    pub in_assumeutxo_table: bool,
    /// What the hints were, if they came from a hintsfile.
    pub hints: Option<HintsInfo>,
    /// The blocks under hints that were taken for valid on the user's word alone.
    pub unanchored: Option<Unanchored>,
    /// The roots of the Utreexo forest, where they were asked for.
    pub utreexo: Option<Roots>,
    /// The proofs that were made, where they were asked for.
    pub proofs: Option<ProofsMade>,
    /// The folders that were written.
    pub folders: Vec<WrittenFolder>,
}

/// Which scripts of connected blocks were run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptCounts {
    /// Blocks whose scripts were run.
    pub run: u64,
    /// Blocks whose scripts were taken for valid.
    pub assumed: u64,
}
