//! [`World`]: the reference node, which did everything itself, and the chain.

use crate::lived::CHAIN;
use crate::sandbox::Sandbox;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{Case, Mutator, Shape, raw_of};
use apus_testkit::rng::Rng;
use bitcoin::BlockHash;
use serde_json::{Value, json};
use std::fmt::Write;

/// The reference's data directory on the sandbox.
pub(crate) const REFERENCE: &str = "reference";

/// Block files of 64 KiB, so that there are many and pruning has some to remove.
const REFERENCE_ARGS: &[&str] = &["-fastprune"];

/// More than a node always keeps, so that hints can end below that.
pub(crate) const HEIGHT_MIN: u32 = 310;

/// A node that did everything itself from the genesis block, and the blocks that it was given.
pub(crate) struct World {
    /// `None` only while its folder is copied.
    reference: Option<Bitcoind>,
    /// All blocks, with the same tip as the reference.
    pub(crate) blocks: Mutator,
    pub(crate) rng: Rng,
    pub(crate) seed: u64,
    /// The last field, so that it is dropped after the nodes that run on it.
    pub(crate) sandbox: Sandbox,
}

impl World {
    /// A world with a random initial height.
    pub(crate) fn new(seed: u64, height_max: u32) -> Self {
        let mut rng = Rng::new(seed ^ 0x50a4);
        let height = rng.between(HEIGHT_MIN.into(), height_max.into()) as u32;
        let sandbox = Sandbox::empty();
        std::fs::create_dir(sandbox.path(REFERENCE)).unwrap();
        let mut blocks = Mutator::new(seed);
        while blocks.chain.height() < height {
            blocks.chain.random_block(Shape::default());
        }
        let mut world = Self { reference: None, blocks, rng, seed, sandbox };
        world.start();
        for block in world.blocks.base() {
            assert_eq!(verdict(world.reference(), &raw_of(&block)), "accepted");
        }
        world
    }

    pub(crate) fn reference(&self) -> &Bitcoind {
        self.reference.as_ref().expect("it runs except while its folder is copied")
    }

    fn start(&mut self) {
        let folder = self.sandbox.path(REFERENCE);
        self.reference = Some(Bitcoind::start_in(&folder, CHAIN, REFERENCE_ARGS).unwrap());
    }

    /// Stops the reference, copies its folder, and starts it again.
    pub(crate) fn copy_reference(&mut self, name: &str) {
        self.reference.take().map(Bitcoind::stop);
        self.sandbox.copy(&self.sandbox.path(REFERENCE), name);
        self.start();
    }

    /// The height of the reference's tip.
    pub(crate) fn height(&self) -> u32 {
        self.blocks.chain.height()
    }

    /// The block of the chain at a height.
    pub(crate) fn block_at(&self, height: u32) -> BlockHash {
        let chain = &self.blocks.chain;
        let mut hash = chain.tip();
        for _ in height..chain.height() {
            hash = chain.block(hash).header.prev_blockhash;
        }
        hash
    }

    /// A random number of blocks to disconnect: mostly small, sometimes a hundred blocks.
    pub(crate) fn depth(&mut self) -> u32 {
        let rng = &mut self.rng;
        let depth = match rng.below(10) {
            0..4 => 1,
            4..6 => rng.between(2, 9),
            6..8 => rng.between(10, 49),
            _ => rng.between(50, 100),
        };
        depth as u32
    }

    /// Adds a random valid block, which becomes the tip.
    pub(crate) fn valid(&mut self) -> Case {
        let block = self.blocks.chain.random_block(Shape::default());
        Case { mutation: "none", raw: raw_of(&block) }
    }

    /// Writes hints for a random height up to `most`; returns it.
    pub(crate) fn write_hints(&mut self, most: u32) -> (&'static str, u32) {
        let height = match self.rng.below(4) {
            0 | 1 => most,
            2 => most - self.rng.below(20) as u32,
            _ => self.rng.between(1, most.into()) as u32,
        };
        let tip = self.blocks.chain.tip();
        self.blocks.go_to(self.block_at(height));
        self.sandbox.write_results(&self.blocks.chain);
        self.blocks.go_to(tip);
        let hints = if self.rng.one_in(2) { "msb.hints" } else { "snapshot:node.dat" };
        (hints, height)
    }
}

/// Prints how to reproduce a failure.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("at height {} of the world of seed {}", self.height(), self.seed);
        }
    }
}

/// Submits a block to a node; returns the node's reason, or `accepted`.
pub(crate) fn verdict(node: &Bitcoind, raw: &[u8]) -> String {
    let hex = raw.iter().fold(String::with_capacity(2 * raw.len()), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    match node.try_call("submitblock", &[json!(hex)]) {
        Ok(Value::Null) => "accepted".to_owned(),
        Ok(reason) => reason.as_str().unwrap().to_owned(),
        Err(error) => error.to_string(),
    }
}
