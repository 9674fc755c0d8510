//! Made-up values that several tests use.

use crate::manifest::{self, Manifest};

/// A chain on which a node can be timed.
pub(super) fn manifest() -> Manifest {
    Manifest {
        version: manifest::VERSION,
        profile: "mainnet-like".to_owned(),
        seed: 1,
        busy_blocks: 3,
        tail_blocks: 2_100,
        block_weight: 4_000_000,
        signed: true,
        height: 2_400,
        tip_hash: "ab".to_owned(),
        assumevalid_height: 300,
        assumevalid_hash: "cd".to_owned(),
        transactions: 4,
        inputs: 5,
        outputs: 6,
        unspendable: 1,
        coins: 2,
        total_amount_sat: 3,
        bytes: 7,
        scripts: Default::default(),
        spent_within: Default::default(),
    }
}
