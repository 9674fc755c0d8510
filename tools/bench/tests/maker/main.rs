//! Generated chains: accepted by a real node, recounted independently, and the state of their folder.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod apus;
mod counted;
mod folder;
mod history;
mod node;
mod shape;

use apus_bench::maker::{MadeChain, MakeOptions, make};
use apus_bench::manifest::ChainManifest;
use apus_chain::Network;
use apus_testkit::blkfile::read_chain;
use bitcoin::{Block, Network as TheirNetwork, constants::genesis_block};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// A chain with blocks of a tenth of the usual weight and hardly any blocks after them.
fn small(blocks: u32, seed: u64) -> MakeOptions {
    MakeOptions { block_weight: 400_000, tail_blocks: 3, ..MakeOptions::new(blocks, seed) }
}

/// A chain in a temporary folder.
struct Chain {
    folder: TempDir,
    manifest: ChainManifest,
}

impl Chain {
    fn make(options: &MakeOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = make(folder.path(), options, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let MadeChain::Now(manifest) = made else { panic!("the folder was empty") };
        Self { folder, manifest }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// All blocks, the genesis block first.
    fn blocks(&self) -> Vec<Block> {
        let genesis = genesis_block(TheirNetwork::Regtest).block_hash();
        read_chain(&self.path().join("blocks"), Network::Regtest.magic(), genesis)
    }

    /// All files by their names.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for folder in [self.path().to_owned(), self.path().join("blocks")] {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    let name = entry.file_name().into_string().unwrap();
                    files.insert(name, fs::read(entry.path()).unwrap());
                }
            }
        }
        files
    }
}
