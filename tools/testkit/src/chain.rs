//! Regtest chains built in memory, the same for a seed every time, and the coins they leave.
//!
//! [`ChainBuilder::random_block`] makes blocks that a node accepts, of every shape it can think
//! of. Everything else does as it is told: any parent, any coinbase, any spend, valid or not. The
//! builder never validates: what a bad block means is for the test to say.
//!
//! The benchmarks have a maker of chains of their own. It shares nothing with what is here but how
//! random numbers are drawn, so that its tests can hold its chains against the account of coins here.

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
