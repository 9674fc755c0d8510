//! A real node as the judge: its snapshot and ours are the same to the byte, whatever it lived
//! through.

use crate::desk::{Desk, REGTEST_MAGIC};
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
    desk: Desk,
}

impl Lived {
    fn new(seed: u64, args: &[&str]) -> Self {
        let mut lived = Self {
            chain: ChainBuilder::new(seed),
            node: Bitcoind::start(args),
            desk: Desk::empty(),
        };
        lived.grow(115);
        let trunk = lived.chain.tip();
        // Blocks that stay behind, then a branch that overtakes them, then again.
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

    /// The node's snapshot of its tip, under a name on the desk.
    fn dump(&self, name: &str) {
        self.node.dump_txoutset(&self.desk.path(name));
    }

    /// Runs `apus` on the node's own folder with both kinds of hints, and compares everything.
    fn expect_the_same_set(&self) {
        let said = self.node.txoutset_info();
        self.dump("node.dat");
        self.compare(&self.node.blocks_dir());
        let report = self.desk.json("report.json");
        assert_eq!(report["muhash"], said.muhash);
        assert_eq!(report["hash_serialized_3"], said.hash_serialized_3);
        assert_eq!(report["coins"], said.txouts);
        assert_eq!(report["total_amount_sat"], said.total_amount.to_sat());
        assert_eq!(report["stop_hash"], said.best_block.to_string());
        self.desk.remove("node.dat");
        self.desk.remove("report.json");
    }

    /// As [`expect_the_same_set`](Self::expect_the_same_set), for a `node.dat` that is there and
    /// block files anywhere.
    fn compare(&self, blocks: &Path) {
        let run = format!("sync --chain regtest --muhash --blocksdir {}", blocks.display());
        let first = "--hints snapshot:node.dat --out hints:new.hints --out snapshot:first.dat";
        self.desk.apus(&format!("{run} {first}")).succeeds();
        let second = "--hints new.hints --out snapshot:second.dat --report report.json --par 3 \
                      --segment-bytes 4000 --checkpoint-seconds 0";
        self.desk.apus(&format!("{run} {second}")).succeeds();
        let node = self.desk.read("node.dat");
        for name in ["first.dat", "second.dat"] {
            assert!(self.desk.read(name) == node, "{name} differs from the node's");
            self.desk.remove(name);
        }
        self.desk.remove("new.hints");
    }
}

fn submit(node: &Bitcoind, block: &Block) {
    let answer = node.submit_block(block);
    // Blocks beside the best chain are taken, but not judged.
    let taken = answer.as_ref().err().is_none_or(|reason| reason == "inconclusive");
    assert!(taken, "{answer:?}");
}

#[test]
fn many_lives_lead_to_the_nodes_set() {
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
        // While the node runs.
        lived.expect_the_same_set();
    }
}

#[test]
fn blocks_that_the_node_rejects_by_order_count_again_when_it_forgives() {
    let mut lived = Lived::new(5, &[]);
    let tip = lived.chain.tip();
    let below: BlockHash = lived.node.block_at(lived.node.height() - 3).block_hash();
    lived.node.invalidate_block(below);
    lived.dump("node.dat");
    // The files still hold the chain of most work, which only this node was told to shun.
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:node.dat --out snapshot:utxo.dat",
        lived.node.blocks_dir().display()
    );
    let ended = lived.desk.apus(&line);
    if ended.code == Some(0) {
        // The node went back along the same chain, whose earlier set is as good.
        assert!(lived.desk.read("utxo.dat") == lived.desk.read("node.dat"));
        lived.desk.remove("utxo.dat");
    } else {
        ended.fails(4, &["not on the most-work chain"]);
    }
    lived.desk.remove("node.dat");
    lived.node.reconsider_block(below);
    assert_eq!(lived.node.best_block_hash(), tip);
    lived.expect_the_same_set();
    lived.grow(3);
    lived.node.restart(&[]);
    lived.expect_the_same_set();
}

#[test]
fn a_killed_node_leaves_blocks_that_are_as_good() {
    for (seed, args) in [(6, &["-fastprune"][..]), (7, &["-blocksxor=0"])] {
        let lived = Lived::new(seed, args);
        lived.dump("node.dat");
        let Lived { chain, node, desk } = lived;
        let folder = node.kill();
        let blocks = folder.path().join("regtest/blocks");
        desk.copy(&blocks, "blocks");
        let node = Bitcoind::start_in(folder.path(), "regtest", args).unwrap();
        let lived = Lived { chain, node, desk };
        lived.compare(Path::new("blocks"));

        // As a power cut leaves a record that was being written: its beginning, then zeros.
        let last = last_file(&lived.desk);
        tear(&lived.desk, &last, lived.chain.blocks().last().unwrap());
        let line = "sync --chain regtest --blocksdir blocks --hints snapshot:node.dat";
        let report = " --out snapshot:utxo.dat --report torn.json";
        lived.desk.apus(&(line.to_owned() + report)).succeeds();
        assert!(lived.desk.read("utxo.dat") == lived.desk.read("node.dat"));
    }
}

/// Name of the last block file on the desk.
fn last_file(desk: &Desk) -> String {
    let names = desk.names("blocks");
    let last = names.iter().filter(|name| name.starts_with("blk")).max().unwrap();
    format!("blocks/{last}")
}

/// Writes the first half of a block's record after the last record, obfuscated as the file is.
fn tear(desk: &Desk, file: &str, block: &Block) {
    let key = desk.read("blocks/xor.dat");
    let content = serialize(block);
    let record = [&REGTEST_MAGIC[..], &(content.len() as u32).to_le_bytes(), &content].concat();
    let half = &record[..record.len() / 2];
    desk.edit(file, |bytes| {
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
fn a_run_goes_on_although_the_chain_grew_meanwhile() {
    let mut lived = Lived::new(9, &["-fastprune"]);
    lived.dump("node.dat");
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:node.dat --segment-bytes 4000 --checkpoint-seconds 0 \
         --stopatheight {} --out snapshot:utxo.dat --report report.json",
        lived.node.blocks_dir().display(),
        lived.node.height()
    );
    fs::create_dir(lived.desk.path("utxo.dat.incomplete")).unwrap();
    lived.desk.apus(&line).fails(3, &["progress is kept in utxo.dat.work"]);
    lived.desk.remove("utxo.dat.incomplete");
    lived.grow(30);
    lived.desk.apus(&line).succeeds();
    assert!(lived.desk.read("utxo.dat") == lived.desk.read("node.dat"));
    assert!(lived.desk.json("report.json")["segments_resumed"].as_u64() > Some(10));
}

#[test]
fn progress_up_to_a_block_that_went_stale_is_not_used() {
    let mut lived = Lived::new(10, &[]);
    lived.dump("node.dat");
    let (tip, height) = (lived.chain.tip(), lived.chain.height());
    let blocks = lived.node.blocks_dir().display().to_string();
    let run = format!("sync --chain regtest --blocksdir {blocks} --out snapshot:utxo.dat --hints");
    lived.desk.apus(&format!("{run} snapshot:node.dat --out hints:old.hints")).succeeds();
    lived.desk.remove("utxo.dat");
    fs::create_dir(lived.desk.path("utxo.dat.incomplete")).unwrap();
    lived.desk.apus(&format!("{run} old.hints")).fails(3, &["progress is kept"]);
    lived.desk.remove("utxo.dat.incomplete");
    let fork = lived.chain.blocks()[height as usize - 1].block_hash();
    lived.chain.set_tip(fork);
    lived.grow(2);
    // A snapshot names its block, a hintsfile only a height.
    lived
        .desk
        .apus(&format!("{run} old.hints"))
        .fails(1, &["progress of another run", &format!("up to block {height} ({tip})")]);
    lived.desk.remove("utxo.dat.work");
    lived.desk.apus(&format!("{run} old.hints")).fails(4, &["old.hints"]);
    lived.desk.apus(&format!("{run} snapshot:node.dat")).fails(4, &[&tip.to_string(), "stale"]);
}

#[test]
fn a_set_at_an_earlier_height_is_the_nodes_of_then() {
    let mut lived = Lived::new(8, &[]);
    lived.dump("then.dat");
    let height = lived.node.height();
    lived.grow(12);
    let line = format!(
        "sync --chain regtest --blocksdir {} --hints snapshot:then.dat --stopatheight {height} \
         --out snapshot:again.dat",
        lived.node.blocks_dir().display()
    );
    lived.desk.apus(&line).succeeds();
    assert!(lived.desk.read("again.dat") == lived.desk.read("then.dat"));
    let verify = format!(
        "snapshot verify then.dat --chain regtest --blocksdir {}",
        lived.node.blocks_dir().display()
    );
    lived.desk.apus(&verify).succeeds().says(&["then.dat holds the coins that the blocks up to"]);
}
