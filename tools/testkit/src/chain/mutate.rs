//! [`Mutator`]: random valid blocks, most of them with exactly one thing changed.
//!
//! Every change is re-signed, committed to and mined, so that nothing else is wrong. This module does not know
//! whether a changed block is invalid: many changes stop just short of a limit. The compared programs decide.

mod amounts;
mod coinbase;
mod draft;
mod header;
mod inputs;
mod limits;
mod locks;
mod scripts;
mod signatures;
mod witness;

pub use draft::raw_of;

use super::builder::ChainBuilder;
use super::random::Shape;
use crate::rng::Rng;
use bitcoin::{Block, BlockHash, OutPoint, TxOut};
use locks::PlantedOutput;

/// Makes the bytes of a changed block, or returns `None` if this chain does not allow the change.
type Make = fn(&mut Mutator) -> Option<Vec<u8>>;

/// A change and its name.
#[derive(Debug, Clone, Copy)]
pub struct Mutation {
    /// Its name.
    pub name: &'static str,
    make: Make,
}

const fn mutation(name: &'static str, make: Make) -> Mutation {
    Mutation { name, make }
}

/// A block to validate.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name of the change.
    pub mutation: &'static str,
    /// The block's bytes, which may be malformed.
    pub raw: Vec<u8>,
}

/// Blocks of about this size take long, so they are rare.
const LARGE_ONE_IN: u64 = 40;

/// Changes blocks on its own chain.
#[derive(Debug)]
pub struct Mutator {
    /// The chain to build on.
    pub chain: ChainBuilder,
    rng: Rng,
    planted: Vec<PlantedOutput>,
}

impl Mutator {
    /// Makes a mutator on a chain of random valid blocks, long enough for coins to be spent.
    pub fn new(seed: u64) -> Self {
        let mut this =
            Self { chain: ChainBuilder::new(seed), rng: Rng::new(!seed), planted: Vec::new() };
        this.chain.random_blocks(120, Shape::default());
        for _ in 0..4 {
            this.plant();
        }
        this
    }

    /// Returns the chain so far without the genesis block.
    pub fn base(&self) -> Vec<Block> {
        self.chain.blocks().split_off(1)
    }

    /// Returns all changes; the large ones last.
    pub fn mutations() -> Vec<Mutation> {
        let mut all = vec![mutation("none", |this| Some(this.valid()))];
        for group in [
            amounts::MUTATIONS,
            inputs::MUTATIONS,
            coinbase::MUTATIONS,
            witness::MUTATIONS,
            locks::MUTATIONS,
            signatures::MUTATIONS,
            scripts::MUTATIONS,
            header::MUTATIONS,
            limits::MUTATIONS,
        ] {
            all.extend_from_slice(group);
        }
        all
    }

    /// Makes a block on the tip with one change, or none.
    pub fn case(&mut self) -> Case {
        let mutations = Self::mutations();
        let large = limits::MUTATIONS.len();
        let small = mutations.len() - large;
        let index = if self.rng.one_in(LARGE_ONE_IN) {
            small + self.rng.index(large)
        } else {
            self.rng.index(small)
        };
        self.case_of(mutations[index])
    }

    /// Makes a block on the tip with this change, or an unchanged one if this chain does not allow the
    /// change.
    pub fn case_of(&mut self, mutation: Mutation) -> Case {
        match (mutation.make)(self) {
            Some(raw) => Case { mutation: mutation.name, raw },
            None => Case { mutation: "none", raw: self.valid() },
        }
    }

    /// Makes a random valid block on the tip.
    fn valid(&mut self) -> Vec<u8> {
        let draft = self.draft();
        raw_of(&self.finish(draft))
    }

    /// Adds a block that both sides accepted, and makes it the tip.
    ///
    /// # Panics
    /// If the bytes are not a block or the parent is missing.
    pub fn accept(&mut self, raw: &[u8]) {
        // Core ignores bytes after the block.
        let (block, _) = bitcoin::consensus::encode::deserialize_partial(raw).unwrap();
        self.chain.add(block);
    }

    /// Makes a branch with one block more than the chain, from up to `depth` blocks below the tip; one of its
    /// blocks may be changed. The tip stays the same.
    pub fn branch(&mut self, depth: u64) -> Vec<Case> {
        let tip = self.chain.tip();
        let depth = self.rng.between(1, depth) as usize;
        let mut fork = tip;
        for _ in 0..depth {
            fork = self.chain.block(fork).header.prev_blockhash;
        }
        self.chain.set_tip(fork);
        let changed = self.rng.index(depth + 2);
        let mut cases = Vec::new();
        for place in 0..=depth {
            let case = if place == changed {
                self.case()
            } else {
                Case { mutation: "none", raw: self.valid() }
            };
            // Malformed bytes cannot be built on; a block without its coins can.
            if let Ok((block, _)) =
                bitcoin::consensus::encode::deserialize_partial::<Block>(&case.raw)
                && block.header.prev_blockhash == self.chain.tip()
            {
                self.chain.add(block);
            }
            cases.push(case);
        }
        self.chain.set_tip(tip);
        cases
    }

    /// Continues from another block of the chain.
    pub fn go_to(&mut self, tip: BlockHash) {
        if tip != self.chain.tip() {
            self.chain.set_tip(tip);
        }
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }
}

/// A coin with its outpoint.
type NamedCoin = (OutPoint, TxOut);

#[cfg(test)]
mod tests;
