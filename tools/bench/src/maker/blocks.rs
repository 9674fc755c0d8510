//! [`ChainBlocks`]: the blocks of a chain, made one after another.

use super::MakeOptions;
use super::account::SetAccount;
use super::build::{Builder, BuiltBlock};
use super::history::{self, History};
use super::keys::Keyring;
use super::law::ChainProfile;
use super::plan::Planner;
use super::shape::ChainShape;
use super::tally::Tally;
use crate::manifest::ExpectedSet;
use apus_chain::Height;

/// Seconds from one block to the next in a chain without a history.
const SPACING_SECONDS: u32 = 600;

/// The keys of a chain.
pub(super) fn keys(options: &MakeOptions) -> Keyring {
    let is_history = options.profile == ChainProfile::MainHistory;
    Keyring::new(options.seed, options.signed, is_history)
}

/// The parts of a chain.
pub(super) fn shape(options: &MakeOptions) -> ChainShape {
    let MakeOptions { profile, blocks, block_weight, tail_blocks, .. } = *options;
    match profile {
        ChainProfile::MainHistory => ChainShape::history(blocks, tail_blocks),
        _ => ChainShape::new(profile, blocks, block_weight, tail_blocks),
    }
}

/// Makes the blocks of a chain in order.
pub(super) struct ChainBlocks<'a> {
    planner: Planner<'a>,
    builder: Builder<'a>,
    account: Option<SetAccount<'a>>,
}

impl<'a> ChainBlocks<'a> {
    /// Starts at the first block.
    pub(super) fn new(options: &MakeOptions, keys: &'a Keyring) -> Self {
        let shape = shape(options);
        let (history, spacing) = match options.profile {
            ChainProfile::MainHistory => {
                let history = History::new(options.scale, shape.busy.end);
                (Some(history), history::SPACING_SECONDS)
            }
            _ => (None, SPACING_SECONDS),
        };
        let MakeOptions { seed, block_weight, threads, .. } = *options;
        Self {
            planner: Planner::new(keys, shape, seed, block_weight, history),
            builder: Builder::new(keys, seed, spacing, threads),
            account: None,
        }
    }

    /// Also accounts for the set at these heights.
    pub(super) fn with_account(self, keys: &'a Keyring, heights: Vec<Height>) -> Self {
        Self { account: Some(SetAccount::start(keys, heights)), ..self }
    }

    /// The final counts, and the sets accounted for.
    pub(super) fn finish(self) -> (Tally, Vec<ExpectedSet>) {
        let sets = self.account.map_or_else(Vec::new, SetAccount::finish);
        (self.planner.into_tally(), sets)
    }
}

impl Iterator for ChainBlocks<'_> {
    type Item = BuiltBlock;

    fn next(&mut self) -> Option<BuiltBlock> {
        let plan = self.planner.plan()?;
        let block = self.builder.build(&plan);
        let left = self.planner.end_block(&block.ids(), block.bytes.len() as u64);
        if let Some(account) = &mut self.account {
            account.left(&left);
            if account.wants(block.height) {
                let tally = self.planner.tally();
                let (worth, coins) = (tally.worth, tally.coins());
                account.complete(block.height, block.hash, worth, coins, self.planner.waiting());
            }
        }
        Some(block)
    }
}

#[cfg(test)]
impl<'a> ChainBlocks<'a> {
    pub(super) fn planner(&self) -> &Planner<'a> {
        &self.planner
    }
}
