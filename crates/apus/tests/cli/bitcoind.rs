//! A real node as the reference: its snapshot and ours are identical, whatever the node's history.

use crate::sandbox::{REGTEST_MAGIC, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};
use bitcoin::consensus::serialize;
use bitcoin::{Block, BlockHash};
use std::fs;
use std::path::Path;

/// A node with a chain of every kind of script, several forks and two reorganizations.
struct Lived {
    chain: ChainBuilder,
    node: Bitcoind,
    sandbox: Sandbox,
}

impl Lived {
    fn new(seed: u64, args: &[&str]) -> Self {
        let mut lived = Self {
            chain: ChainBuilder::new(seed),
            node: Bitcoind::start(args),
            sandbox: Sandbox::empty(),
        };
        lived.grow(115);
        let trunk = lived.chain.tip();
        // Grow a branch, then one that stays behind it, then two that each overtake the best one.
        lived.grow(4);
        for length in [2, 6, 9] {
            lived.chain.set_tip(trunk);
            lived.grow(length);
        }
        assert_eq!(lived.node.best_block_hash(), lived.chain.tip());
        lived
    }

    fn grow(&mut self, blocks: usize) {
        for _ in 0..blocks {
            let block = self.chain.random_block(Shape::default());
            submit(&self.node, &block);
        }
    }

    /// Writes the node's snapshot of its tip to a file on the sandbox.
    fn dump(&self, name: &str) {
        self.node.dump_txoutset(&self.sandbox.path(name));
    }

    /// Runs `apus` on the node's own folder with both kinds of hints, and compares everything.
    fn expect_the_same_set(&self) {
        let said = self.node.txoutset_info();
        self.dump("node.dat");
        self.compare(&self.node.blocks_dir());
        let report = self.sandbox.json("report.json");
        assert_eq!(report["muhash"], said.muhash);
        assert_eq!(report["hash_serialized_3"], said.hash_serialized_3);
        assert_eq!(report["coins"], said.txouts);
        assert_eq!(report["total_amount_sat"], said.total_amount.to_sat());
        assert_eq!(report["stop_hash"], said.best_block.to_string());
        self.sandbox.remove("node.dat");
        self.sandbox.remove("report.json");
    }

    /// Compares everything with an existing `node.dat`, for block files in any folder.
    fn compare(&self, blocks: &Path) {
        let run = format!("sync --chain regtest --muhash --blocksdir {}", blocks.display());
        let first = "--hints snapshot:node.dat --out hints:new.hints --out snapshot:first.dat";
        self.sandbox.apus(&format!("{run} {first}")).succeeds();
        let second = "--hints new.hints --out snapshot:second.dat --report report.json --par 3 \
                      --segment-bytes 4000 --checkpoint-seconds 0";
        self.sandbox.apus(&format!("{run} {second}")).succeeds();
        let node = self.sandbox.read("node.dat");
        for name in ["first.dat", "second.dat"] {
            assert!(self.sandbox.read(name) == node, "{name} differs from the node's");
            self.sandbox.remove(name);
        }
        self.sandbox.remove("new.hints");
    }
}

fn submit(node: &Bitcoind, block: &Block) {
    let answer = node.submit_block(block);
    // The node stores blocks outside the best chain, but does not validate them.
    let taken = answer.as_ref().err().is_none_or(|reason| reason == "inconclusive");
    assert!(taken, "{answer:?}");
}

#[test]
fn many_histories_lead_to_the_nodes_set() {
    for (seed, args) in [
        (1, &["-blocksxor=0", "-fastprune"][..]),
        (2, &["-blocksxor=1", "-fastprune"]),
        (3, &["-blocksxor=1"]),
        (4, &["-blocksxor=0"]),
    ] {
        let lived = Lived::new(seed, args);
        let files = fs::read_dir(lived.node.blocks_dir()).unwrap();
        let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let blocks = names.filter(|name| name.starts_with("blk")).count();
        assert_eq!(blocks > 1, args.contains(&"-fastprune"), "{blocks} files");
        // Compare while the node is running.
        lived.expect_the_same_set();
    }
}

#[test]
fn blocks_rejected_by_invalidateblock_count_again_after_reconsiderblock() {
    let mut lived = Lived::new(5, &[]);
    let tip = lived.chain.tip();
    let below: BlockHash = lived.node.block_at(lived.node.height() - 3).block_hash();
    lived.node.invalidate_block(below);
    lived.dump("node.dat");
    // The files still hold the chain with the most work; only this node was ordered to reject it.
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:node.dat --out snapshot:utxo.dat",
        lived.node.blocks_dir().display()
    );
    let ended = lived.sandbox.apus(&line);
    if ended.code == Some(0) {
        // The node only disconnected blocks of the same chain, so the earlier set is still correct.
        assert!(lived.sandbox.read("utxo.dat") == lived.sandbox.read("node.dat"));
        lived.sandbox.remove("utxo.dat");
    } else {
        ended.fails(4, &["not on the most-work chain"]);
    }
    lived.sandbox.remove("node.dat");
    lived.node.reconsider_block(below);
    assert_eq!(lived.node.best_block_hash(), tip);
    lived.expect_the_same_set();
    lived.grow(3);
    lived.node.restart(&[]);
    lived.expect_the_same_set();
}

#[test]
fn a_killed_node_leaves_usable_blocks() {
    for (seed, args) in [(6, &["-fastprune"][..]), (7, &["-blocksxor=0"])] {
        let lived = Lived::new(seed, args);
        lived.dump("node.dat");
        let Lived { chain, node, sandbox } = lived;
        let folder = node.kill();
        let blocks = folder.path().join("regtest/blocks");
        sandbox.copy(&blocks, "blocks");
        let node = Bitcoind::start_in(folder.path(), "regtest", args).unwrap();
        let lived = Lived { chain, node, sandbox };
        lived.compare(Path::new("blocks"));

        // Imitate a power cut during the write of a record: its beginning, then zeros.
        let last = last_file(&lived.sandbox);
        tear(&lived.sandbox, &last, lived.chain.blocks().last().unwrap());
        let line = "sync --chain regtest --blocksdir blocks --hints snapshot:node.dat";
        let report = " --out snapshot:utxo.dat --report torn.json";
        lived.sandbox.apus(&(line.to_owned() + report)).succeeds();
        assert!(lived.sandbox.read("utxo.dat") == lived.sandbox.read("node.dat"));
    }
}

/// Name of the last block file on the sandbox.
fn last_file(sandbox: &Sandbox) -> String {
    let names = sandbox.names("blocks");
    let last = names.iter().filter(|name| name.starts_with("blk")).max().unwrap();
    format!("blocks/{last}")
}

/// Writes the first half of a block's record after the last record, obfuscated as the file is.
fn tear(sandbox: &Sandbox, file: &str, block: &Block) {
    let key = sandbox.read("blocks/xor.dat");
    let content = serialize(block);
    let record = [&REGTEST_MAGIC[..], &(content.len() as u32).to_le_bytes(), &content].concat();
    let half = &record[..record.len() / 2];
    sandbox.edit(file, |bytes| {
        let plain = |bytes: &[u8], place: usize| -> Option<[u8; 4]> {
            let four = bytes.get(place..place + 4)?;
            Some([0, 1, 2, 3].map(|at| four[at] ^ key[(place + at) % 8]))
        };
        let mut end = 0;
        while plain(bytes, end) == Some(REGTEST_MAGIC) {
            let length = plain(bytes, end + 4).unwrap();
            end += 8 + u32::from_le_bytes(length) as usize;
        }
        bytes.resize(bytes.len().max(end + half.len()), 0);
        for (place, byte) in (end..).zip(half) {
            bytes[place] = byte ^ key[place % 8];
        }
    });
}

#[test]
fn a_run_resumes_after_the_chain_grew() {
    let mut lived = Lived::new(9, &["-fastprune"]);
    lived.dump("node.dat");
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:node.dat --segment-bytes 4000 --checkpoint-seconds 0 \
         --stopatheight {} --out snapshot:utxo.dat --report report.json",
        lived.node.blocks_dir().display(),
        lived.node.height()
    );
    fs::create_dir(lived.sandbox.path("utxo.dat.incomplete")).unwrap();
    lived.sandbox.apus(&line).fails(3, &["progress is kept in utxo.dat.work"]);
    lived.sandbox.remove("utxo.dat.incomplete");
    lived.grow(30);
    lived.sandbox.apus(&line).succeeds();
    assert!(lived.sandbox.read("utxo.dat") == lived.sandbox.read("node.dat"));
    assert!(lived.sandbox.json("report.json")["segments_resumed"].as_u64() > Some(10));
}

#[test]
fn progress_up_to_a_block_that_went_stale_is_not_used() {
    let mut lived = Lived::new(10, &[]);
    lived.dump("node.dat");
    let (tip, height) = (lived.chain.tip(), lived.chain.height());
    let blocks = lived.node.blocks_dir().display().to_string();
    let run = format!("sync --chain regtest --blocksdir {blocks} --out snapshot:utxo.dat --hints");
    lived.sandbox.apus(&format!("{run} snapshot:node.dat --out hints:old.hints")).succeeds();
    lived.sandbox.remove("utxo.dat");
    fs::create_dir(lived.sandbox.path("utxo.dat.incomplete")).unwrap();
    lived.sandbox.apus(&format!("{run} old.hints")).fails(3, &["progress is kept"]);
    lived.sandbox.remove("utxo.dat.incomplete");
    let fork = lived.chain.blocks()[height as usize - 1].block_hash();
    lived.chain.set_tip(fork);
    lived.grow(2);
    // A snapshot names its block, a hintsfile only a height.
    lived
        .sandbox
        .apus(&format!("{run} old.hints"))
        .fails(1, &["progress of another sync", &format!("up to block {height} ({tip})")]);
    lived.sandbox.remove("utxo.dat.work");
    lived.sandbox.apus(&format!("{run} old.hints")).fails(4, &["old.hints"]);
    lived.sandbox.apus(&format!("{run} snapshot:node.dat")).fails(4, &[&tip.to_string(), "stale"]);
}

#[test]
fn a_set_at_an_earlier_height_equals_the_nodes_earlier_set() {
    let mut lived = Lived::new(8, &[]);
    lived.dump("then.dat");
    let height = lived.node.height();
    lived.grow(12);
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:then.dat --stopatheight {height} \
         --out snapshot:again.dat",
        lived.node.blocks_dir().display()
    );
    lived.sandbox.apus(&line).succeeds();
    assert!(lived.sandbox.read("again.dat") == lived.sandbox.read("then.dat"));
    let verify = format!(
        "snapshot verify then.dat --chain regtest --blocksdir {}",
        lived.node.blocks_dir().display()
    );
    lived
        .sandbox
        .apus(&verify)
        .succeeds()
        .says(&["then.dat holds the coins that the blocks up to"]);
}
