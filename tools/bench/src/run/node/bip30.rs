//! Whether a node looks up every output for BIP-30.
//!
//! On the main chain no node does so any more: it knows the block at the height of BIP-34, above which no transaction
//! can be there twice (Core `validation.cpp`, `ConnectBlock`). Regtest knows no such block, so an ordinary bitcoind
//! looks up every output that a block makes. The build of `scripts/core` takes the block's hash as an option.

use crate::run::chain::Chain;
use crate::run::error::{At, RunError};
use apus_chain::BlockHash;
use std::path::Path;
use std::process::{Command, Stdio};

/// The option that names the block at the height of BIP-34, which is 1 on regtest.
const OPTION: &str = "-testbip34hash=";

/// The block to name to a node; none where it cannot be told.
pub(super) fn known_block(program: &Path, chain: &Chain) -> Result<Option<BlockHash>, RunError> {
    let output =
        Command::new(program).arg("-help-debug").stdin(Stdio::null()).output().at(program)?;
    let has = String::from_utf8_lossy(&output.stdout).contains(OPTION);
    has.then(|| chain.block_1()).transpose()
}

/// The argument that names it.
pub(super) fn argument(block: BlockHash) -> String {
    format!("{OPTION}{block}")
}
