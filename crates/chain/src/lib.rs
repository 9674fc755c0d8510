//! Bitcoin's consensus data and rules as pure functions: they take bytes and return verdicts.
//!
//! This crate does no input or output, starts no thread, reads no clock and does not log; callers pass in
//! bytes and the time. So every rule can be tested alone, and all engines, sources and threads can share it.
//! The only process-wide state is the challenge of a custom signet.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod amount;
mod assume_valid;
mod block;
mod check;
mod coin;
mod coin_sum;
mod compress;
mod hashes;
mod header;
mod header_chain;
mod header_tree;
mod muhash;
mod params;
mod read;
mod script;
mod signet;
mod spend;
#[cfg(test)]
mod tests;
mod undo;
mod utxo_hash;
mod work;

pub use amount::{
    COIN, MAX_MONEY, block_subsidy, compress_amount, decompress_amount, max_supply, money_range,
};
pub use assume_valid::{ScriptCheckReason, ScriptChecks};
pub use block::{
    BLOCK_SIZE_MAX, BlockLayout, BlockView, DecodeError, HEADER_SIZE, InputView, OutputView,
    TxView, WitnessView,
};
pub use check::{
    BlockBytes, BlockChecker, BlockContext, BlockError, CheckedBlock, LOCKTIME_THRESHOLD, TxError,
    txids_of,
};
pub use coin::{
    COIN_HEIGHT_MAX, Coin, CoinRef, CoinValue, check_coin, is_unspendable, read_coin,
    read_coin_strict, read_coin_value, skip_coin, write_coin,
};
pub use coin_sum::{CoinAdder, CoinSum, CoinSumKey, KeyedCoinSum, TxCoins};
pub use compress::{CoinError, CompressedScript, StoredScript, compress_script, write_script};
pub use hashes::{
    BlockHash, Merkle, MerkleRoot, MerkleScratch, OutPoint, ParseHashError, Txid, UtxoSetHash,
    Wtxid, merkle_root, sort_vouts, vout_order, vouts_ascend,
};
pub use header::{Header, Height, HeightRange, KNOTS_CHAIN, utc};
pub use header_chain::HeaderChain;
pub use header_tree::{
    ANY_TIME, ConnectedHeader, HeaderAcceptance, HeaderError, HeaderId, HeaderStatus, HeaderTree,
    ORPHANS_MAX, REJECTED_MAX, is_too_new,
};
pub use muhash::{MuHash, MuHashBatch, MuHashError};
pub use params::{
    ActivationError, ActivationHeight, AssumeUtxo, BIP34_IMPLIES_BIP30_LIMIT, Deployment,
    KnownBlock, Network, OtherSignet, Params, SignetMagic, UnknownNetwork,
};
pub use read::{
    COMPACT_SIZE_MAX, ReadError, Reader, extend_short, write_compact_size, write_varint,
};
pub use script::{
    BLOCK_SIGOPS_COST_MAX, MAX_SCRIPT_SIZE, OP_CHECKSIG, OP_DUP, OP_EQUAL, OP_EQUALVERIFY,
    OP_HASH160, OP_RETURN, ScriptError, ScriptType, ScriptVerifier, VERIFY_CHECKLOCKTIMEVERIFY,
    VERIFY_CHECKSEQUENCEVERIFY, VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH, VERIFY_TAPROOT,
    VERIFY_WITNESS, WITNESS_SCALE_FACTOR, accurate_sigops, height_push, keys_of_multisig,
    last_push, legacy_sigops, spending_sigop_cost_max, transaction_sigop_cost, witness_commitment,
    witness_program,
};
pub use signet::{
    SIGNET_VERIFY_FLAGS, SignetError, SignetFault, SignetSpend, check_signet_solution, signet_spend,
};
pub use spend::{
    Ancestry, BlockTotals, COINBASE_MATURITY, FeeError, SpendError, check_fee,
    check_sequence_locks, check_tx_inputs, relative_lock_is_over, relative_locks, value_out,
};
pub use undo::{BlockUndo, BlockUndoWriter, UndoCoin, UndoError, undo_checksum};
pub use utxo_hash::{HashSerialized3, UtxoElements, UtxoStats, bogosize, write_utxo_element};
pub use work::{Compact, U256, block_work, check_proof_of_work, derive_target};
