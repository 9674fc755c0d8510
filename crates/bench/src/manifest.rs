//! [`Manifest`]: what a generated chain is, as `manifest.json` beside its `blocks/` and
//! `chain.hints`.
//!
//! It is written last, so that a folder with a manifest is a whole chain. It does not vouch for the
//! blocks: who reads it checks the chain as any other.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 1;

/// A generated chain. Counts leave the genesis block out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the shape, such as `mainnet-like`.
    pub profile: String,
    /// The seed; the same arguments give the same bytes.
    pub seed: u64,
    /// Whether signatures are real, so that full validation accepts the chain.
    pub signed: bool,
    /// Height of the tip.
    pub height: u32,
    /// Hash of the tip, as people see it.
    pub tip_hash: String,
    /// Height of the last block with more than a coinbase.
    pub assumevalid_height: u32,
    /// Hash of that block: what `-assumevalid` takes to skip all scripts.
    pub assumevalid_hash: String,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
    /// Outputs that can never be spent, such as `OP_RETURN`.
    pub unspendable: u64,
    /// Coins left at the tip.
    pub coins: u64,
    /// Their sum in satoshis.
    pub total_amount_sat: u64,
    /// Bytes of serialized blocks.
    pub bytes: u64,
    /// Spendable outputs by type of script.
    pub scripts: BTreeMap<String, u64>,
    /// Of all coins spent, how many were so within this many blocks, by the number of blocks.
    pub spent_within: BTreeMap<u32, u64>,
}
