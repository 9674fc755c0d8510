//! [`Mutator`]: random valid blocks, most of them with exactly one thing changed.
//!
//! Every change is re-signed, committed to and mined, so that nothing else is wrong. Whether a
//! changed block is invalid is not known here: many changes stop just short of a limit. That is
//! for the programs to say that are compared.

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
use locks::Planted;

/// What a change makes: the bytes of a block, or nothing where the chain has not what it needs.
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

/// A block to be judged.
#[derive(Debug, Clone)]
pub struct Case {
    /// The name of what was changed.
    pub mutation: &'static str,
    /// The block's bytes. They need not be a block.
    pub raw: Vec<u8>,
}

/// Blocks of this size or near it take long, so they are rare.
const LARGE_ONE_IN: u64 = 40;

/// Changes blocks on a chain of its own.
#[derive(Debug)]
pub struct Mutator {
    /// The chain: the blocks that are to be built on.
    pub chain: ChainBuilder,
    rng: Rng,
    planted: Vec<Planted>,
}

impl Mutator {
    /// A mutator on a chain of random valid blocks that is long enough for coins to be spent.
    pub fn new(seed: u64) -> Self {
        let mut this =
            Self { chain: ChainBuilder::new(seed), rng: Rng::new(!seed), planted: Vec::new() };
        this.chain.random_blocks(120, Shape::default());
        for _ in 0..4 {
            this.plant();
        }
        this
    }

    /// The chain so far without the genesis block.
    pub fn base(&self) -> Vec<Block> {
        self.chain.blocks().split_off(1)
    }

    /// All changes; the large ones last.
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

    /// A block on the tip with one change, or none.
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

    /// A block on the tip with this change; with none where the chain has not what it needs.
    pub fn case_of(&mut self, mutation: Mutation) -> Case {
        match (mutation.make)(self) {
            Some(raw) => Case { mutation: mutation.name, raw },
            None => Case { mutation: "none", raw: self.valid() },
        }
    }

    /// A random valid block on the tip.
    fn valid(&mut self) -> Vec<u8> {
        let draft = self.draft();
        raw_of(&self.finish(draft))
    }

    /// Adds what both sides took, and makes it the tip.
    ///
    /// # Panics
    /// When the bytes are no block or the parent is not here.
    pub fn accept(&mut self, raw: &[u8]) {
        // Core looks at nothing behind the block.
        let (block, _) = bitcoin::consensus::encode::deserialize_partial(raw).unwrap();
        self.chain.add(block);
    }

    /// A branch that would be better than the chain by one block, from up to `depth` blocks below
    /// the tip; one of its blocks may be changed. The tip is as before afterwards.
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
            // What is no block cannot be built on, and what lacks coins is built on regardless.
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

    /// Goes on from another block of the chain's.
    pub fn go_to(&mut self, tip: BlockHash) {
        if tip != self.chain.tip() {
            self.chain.set_tip(tip);
        }
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }
}

/// A coin by its name.
type Named = (OutPoint, TxOut);

#[cfg(test)]
mod tests;
