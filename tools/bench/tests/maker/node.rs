//! Validation by a real node.

use crate::apus::display;
use crate::{Chain, small};
use apus_bench::maker::{ChainProfile, MakeOptions};
use apus_testkit::bitcoind::Bitcoind;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit for a node to read a chain on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Part of a node's message about a block with a wrong script, in every version.
const REFUSED: &str = "script-verify-flag-failed";

/// A node that reads a chain, usually from a copy of its block files.
pub(crate) struct Reader {
    pub(crate) node: Bitcoind,
    _folder: Option<TempDir>,
}

impl Reader {
    pub(crate) fn start(chain: &Chain, assumevalid: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let blocks = folder.path().join("regtest/blocks");
        fs::create_dir_all(&blocks).unwrap();
        for entry in fs::read_dir(chain.path().join("blocks")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), blocks.join(entry.file_name())).unwrap();
        }
        let assumevalid = format!("-assumevalid={assumevalid}");
        let node = Bitcoind::start_in(folder.path(), "regtest", &["-reindex", &assumevalid]);
        Self { node: node.unwrap(), _folder: Some(folder) }
    }

    /// A node that gets its blocks elsewhere.
    pub(crate) fn of(node: Bitcoind) -> Self {
        Self { node, _folder: None }
    }

    /// Waits until the node is at this height and its log contains `sign`.
    fn wait(&self, height: u32, sign: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.node.height() != height || !self.node.log().contains(sign) {
            assert!(Instant::now() < deadline, "at {}: {}", self.node.height(), self.node.log());
            sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn expect_all_of(&self, chain: &Chain) {
        self.wait(chain.manifest.height, "");
        assert_eq!(self.node.best_block_hash().to_string(), chain.manifest.tip_hash);
    }
}

/// Two blocks of maximum weight that spend every kind of script, and a hundred light ones, so that coinbases
/// of blocks with fees are spent too.
#[test]
fn a_node_that_checks_all_scripts_accepts_a_signed_chain_and_finds_the_same_coins() {
    let heavy = MakeOptions { tail_blocks: 3, threads: 2, ..MakeOptions::new(2, 11) };
    let long = MakeOptions { block_weight: 12_000, ..small(110, 12) };
    let few = MakeOptions { profile: ChainProfile::FewCoins, ..small(20, 15) };
    for options in [heavy, long, few] {
        let chain = Chain::make(&options);
        let reader = Reader::start(&chain, "0");
        reader.expect_all_of(&chain);
        let info = reader.node.txoutset_info();
        assert_eq!(info.txouts, chain.manifest.coins);
        assert_eq!(info.total_amount.to_sat(), chain.manifest.total_amount_sat);
        let found = chain.synced();
        assert_eq!(display(&found.set.muhash().unwrap()), info.muhash);
        assert_eq!(display(&found.set.hash_serialized_3().unwrap()), info.hash_serialized_3);
    }
}

#[test]
fn a_node_accepts_an_unsigned_chain_only_where_it_assumes_the_scripts_valid() {
    let tail_blocks = MakeOptions::new(1, 1).tail_blocks;
    let chain = Chain::make(&MakeOptions { signed: false, tail_blocks, ..small(3, 13) });
    let reader = Reader::start(&chain, &chain.manifest.assumevalid_hash);
    reader.expect_all_of(&chain);
    let strict = Reader::start(&chain, "0");
    strict.wait(chain.manifest.assumevalid_height - 3, REFUSED);
}

/// The reason for 2,100 blocks at the end: with only two weeks' worth of blocks above the assumed-valid
/// block, a node still validates scripts.
#[test]
fn a_tail_of_two_weeks_is_too_short_to_skip_scripts() {
    let chain = Chain::make(&MakeOptions { signed: false, tail_blocks: 2_016, ..small(1, 14) });
    let reader = Reader::start(&chain, &chain.manifest.assumevalid_hash);
    reader.wait(chain.manifest.assumevalid_height - 1, REFUSED);
}
