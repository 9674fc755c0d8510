//! Regtest chains built in memory, always the same for a seed, and their coins.
//!
//! [`ChainBuilder::random_block`] makes blocks that a node accepts, in as many shapes as possible. Everything
//! else builds exactly what the caller asks for: any parent, any coinbase, any spend, valid or not. The builder
//! never validates: the test decides what a bad block means.
//!
//! The benchmarks make their chains with other code. It shares only the random numbers with this module, so
//! that its tests can compare its chains with the coins computed here.

mod builder;
mod model;
mod mutate;
mod random;
mod wallet;

pub use builder::{BlockPlan, ChainBuilder, Commitment, coins_of, commit_witness, mine, seal};
pub use model::{ModelCoin, UtxoSet, apply_block, hints, is_unspendable, utxo_set};
pub use mutate::{Case, Mutation, Mutator, raw_of};
pub use random::Shape;
pub use wallet::{ScriptKind, Wallet};

#[cfg(test)]
mod tests;
