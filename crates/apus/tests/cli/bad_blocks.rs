//! Block files that are damaged, incomplete or invalid: the error names file, place, height and remedy.

use crate::sandbox::{REGTEST, Sandbox};
use apus_testkit::blkfile::{BlockFiles, RecordPlace};
use apus_testkit::chain::{BlockPlan, ChainBuilder, Shape, seal};
use apus_testkit::rng::Rng;
use bitcoin::consensus::serialize;
use bitcoin::{Amount, ScriptBuf, TxOut};
use std::fs;
use std::os::unix::fs::symlink;

const RUN: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --progress none \
                   --out snapshot:utxo.dat --workdir progress.work";

/// A chain in several small files, and the place of each block.
struct BlocksOnDisk {
    chain: ChainBuilder,
    sandbox: Sandbox,
    places: Vec<RecordPlace>,
}

impl BlocksOnDisk {
    fn new(seed: u64, key: Option<[u8; 8]>) -> Self {
        let mut chain = ChainBuilder::new(seed);
        chain.random_blocks(130, Shape::default());
        let sandbox = Sandbox::empty();
        let mut files = BlockFiles::regtest().file_bytes_max(30_000);
        if let Some(key) = key {
            files = files.key(key);
        }
        let places = files.blocks(&chain.blocks());
        files.write(&sandbox.path("blocks"));
        sandbox.write_results(&chain);
        Self { chain, sandbox, places }
    }

    /// Name of the file with the block at a height.
    fn file(&self, height: usize) -> String {
        format!("blocks/blk{:05}.dat", self.places[height].file)
    }

    /// Flips a bit at a distance from the first byte of a block.
    fn flip(&self, height: usize, distance: isize, bit: u32) {
        let place = self.places[height].offset.checked_add_signed(distance).unwrap();
        self.sandbox.edit(&self.file(height), |bytes| bytes[place] ^= 1 << bit);
    }

    fn hash(&self, height: usize) -> String {
        self.chain.blocks()[height].block_hash().to_string()
    }
}

#[test]
fn a_flipped_bit_in_any_part_of_a_block_is_noticed() {
    let laid = BlocksOnDisk::new(31, None);
    let height = 115;
    let block = &laid.chain.blocks()[height];
    let length = serialize(block).len() as isize;
    // Half of all headers meet regtest's target: a changed one may be next to its old place.
    let missing = ["missing or damaged", "found ends at 11", "add the missing block files"];
    let hash = laid.hash(height);
    let file = laid.file(height);
    let damaged = [&hash[..], &file, "block 115", "damaged. Restore the file"];
    for (part, distance, said) in [
        ("magic", -8, &missing[..]),
        ("size, far too much", -1, &missing),
        ("version", 0, &missing),
        ("previous block", 20, &missing),
        ("merkle root", 50, &missing),
        ("time", 68, &missing),
        ("bits", 73, &missing),
        ("nonce", 77, &missing),
        ("number of transactions", 80, &damaged),
        ("coinbase's version", 81, &damaged),
        ("coinbase's input", 90, &damaged),
        ("coinbase's script", 128, &damaged),
        ("the middle", length / 2, &damaged),
        ("last lock time", length - 1, &damaged),
    ] {
        for bit in [0, 6] {
            let good = laid.sandbox.read(&laid.file(height));
            laid.flip(height, distance, bit);
            let ended = laid.sandbox.apus(RUN);
            assert_eq!(ended.code, Some(4), "{part}: {ended}");
            ended.fails(4, said);
            // Apus keeps the progress, and resumes once the file is restored.
            laid.sandbox.write(&laid.file(height), &good);
        }
    }
    // Apus does not trust even a plausible size: the block itself determines its length.
    for distance in [-4, -3] {
        laid.flip(height, distance, 0);
    }
    laid.sandbox.apus(RUN).succeeds();
    assert!(laid.sandbox.read("utxo.dat") == laid.sandbox.read("node.dat"));
}

#[test]
fn a_flipped_bit_of_a_witness_is_noticed() {
    let laid = BlocksOnDisk::new(37, Some([3; 8]));
    let blocks = laid.chain.blocks();
    let witness = |block: &bitcoin::Block| {
        let inputs = block.txdata[1..].iter().flat_map(|tx| &tx.input);
        let items = inputs.flat_map(|input| input.witness.iter());
        items.map(<[u8]>::to_vec).find(|item| item.len() > 60)
    };
    let found = (100..).find_map(|height: usize| Some((height, witness(&blocks[height])?)));
    let (height, item) = found.unwrap();
    let raw = serialize(&blocks[height]);
    let place = raw.windows(item.len()).position(|bytes| bytes == item).unwrap() + 30;
    laid.flip(height, place as isize, 2);
    let block = format!("block {height} ({})", laid.hash(height));
    laid.sandbox.apus(RUN).fails(4, &[&block, &laid.file(height), "bad-witness-merkle-match"]);
}

#[test]
fn any_flipped_bit_of_a_real_nodes_file_is_noticed() {
    let sandbox = Sandbox::with(REGTEST);
    let good = sandbox.read("blocks/blk00000.dat");
    let mut rng = Rng::new(4);
    for _ in 0..25 {
        // The file ends with zeros; all blocks lie before them.
        let place = 293 + rng.index(275_000 - 293);
        sandbox.edit("blocks/blk00000.dat", |bytes| bytes[place] ^= 1 << rng.below(8));
        sandbox.apus(RUN).fails(4, &["block"]);
        sandbox.write("blocks/blk00000.dat", &good);
        if sandbox.has("progress.work") {
            sandbox.remove("progress.work");
        }
    }
    let zeros = good.len() - 100;
    sandbox.edit("blocks/blk00000.dat", |bytes| bytes[zeros] ^= 1);
    sandbox.apus(RUN).succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

#[test]
fn a_second_copy_stands_in_for_a_damaged_block() {
    let laid = BlocksOnDisk::new(32, None);
    laid.flip(90, 85, 3);
    let mut more = BlockFiles::regtest();
    more.block(&laid.chain.blocks()[90]);
    laid.sandbox.write("blocks/blk00099.dat", &more.contents()[0]);
    laid.sandbox.apus(RUN).succeeds();
    assert!(laid.sandbox.read("utxo.dat") == laid.sandbox.read("node.dat"));
}

/// Nothing else would warn the user that the set is outdated.
#[test]
fn apus_warns_of_blocks_that_do_not_connect_to_the_chain() {
    const RUN: &str = "sync --blocksdir blocks --out null";
    let laid = BlocksOnDisk::new(38, Some([9; 8]));
    let sandbox = &laid.sandbox;
    let first_of = |file: usize| laid.places.iter().position(|place| place.file == file).unwrap();
    let warned = |tip: usize, said: &[&str]| {
        let ended = sandbox.apus(&format!("{RUN} --report {tip}.json")).succeeds();
        let report = sandbox.json(&format!("{tip}.json"));
        assert_eq!(report["stop_height"], tip);
        let warnings = report["warnings"].as_array().unwrap();
        let ends = format!("the chain ends at block {tip} ({}); ", laid.hash(tip));
        let of_chain = |warning: &&serde_json::Value| warning.as_str().unwrap().starts_with(&ends);
        let warning = warnings.iter().find(of_chain).unwrap().as_str().unwrap();
        assert!(said.iter().all(|words| warning.contains(words)), "{warning}");
        // Apus prints the warning during the run, and again below the result.
        assert!(ended.stderr.contains(&format!("warning: {warning}\n")), "{ended}");
        assert!(ended.stdout.ends_with(&format!("\nWarning: {warning}.\n")), "{ended}");
    };
    let whole = sandbox.apus(RUN).succeeds();
    assert!(!whole.stderr.contains("warning") && !whole.stdout.contains("Warning"), "{whole}");
    let middle = sandbox.read("blocks/blk00001.dat");
    sandbox.remove("blocks/blk00001.dat");
    let beyond = format!("; {} further blocks descend", 131 - first_of(2));
    let one = laid.hash(first_of(2) - 1);
    let said =
        ["blk00001.dat is not in the folder", "copy the missing or damaged files", &beyond, &one];
    warned(first_of(1) - 1, &said);
    sandbox.write("blocks/blk00001.dat", &middle);
    // One block is missing, but all files are there.
    laid.flip(70, -8, 3);
    warned(69, &["; 60 further blocks descend", &laid.hash(70)]);
    laid.flip(70, -8, 3);
    // The last block: nothing descends from it, and its header is no longer valid.
    let good = sandbox.read(&laid.file(130));
    let refused = |bit: &u32| {
        laid.flip(130, 75, *bit);
        let refused = sandbox.apus(RUN).succeeds().stderr.contains("header(s) refused");
        sandbox.write(&laid.file(130), &good);
        refused
    };
    assert!((0..8).any(|bit| refused(&bit)));
}

/// Apus gives the reason once, next to the result.
#[cfg(feature = "kernel")]
#[test]
fn a_block_marked_as_failed_is_reported_at_the_end() {
    let mut chain = ChainBuilder::new(41);
    chain.random_blocks(120, Shape::default());
    let bad = chain.block_with_a_wrong_signature().block_hash().to_string();
    let sandbox = Sandbox::of(&chain);
    for run in ["", "--engine utxo"] {
        let ended = sandbox.apus(&format!("sync --blocksdir blocks --out null {run}")).succeeds();
        let last = ended.stdout.lines().last().unwrap();
        assert!(last.starts_with(&format!("Warning: block 121 ({bad}) is invalid: ")), "{last}");
        assert!(last.ends_with("."), "{last}");
        for text in [last, &ended.stderr] {
            assert_eq!(text.matches("block-script-verify-flag-failed").count(), 1, "{text}");
        }
    }
}

/// A node's folder also has blocks of losing branches, with all their ancestors.
#[test]
fn losing_branches_cause_no_warning() {
    let mut chain = ChainBuilder::new(39);
    chain.random_blocks(20, Shape::default());
    let fork = chain.tip();
    chain.random_blocks(3, Shape::default());
    let lost = chain.blocks()[21..].to_vec();
    chain.set_tip(fork);
    chain.random_blocks(5, Shape::default());
    let sandbox = Sandbox::empty();
    let mut files = BlockFiles::regtest();
    files.blocks(&chain.blocks());
    files.blocks(&lost);
    files.write(&sandbox.path("blocks"));
    let ended = sandbox.apus("sync --blocksdir blocks --out null").succeeds();
    assert!(!ended.stderr.contains("warning"), "{ended}");
}

#[test]
fn missing_or_truncated_files_are_reported() {
    let laid = BlocksOnDisk::new(33, Some([1, 2, 3, 4, 5, 6, 7, 8]));
    let sandbox = &laid.sandbox;
    assert!(sandbox.names("blocks").len() > 3, "{:?}", sandbox.names("blocks"));
    let first_of = |file: usize| laid.places.iter().position(|place| place.file == file).unwrap();
    let one = laid.hash(first_of(2) - 1);
    let ends = format!("ends at {}", first_of(1) - 1);
    let said = [&ends[..], "stop at height 130", &one, "is missing or damaged"];

    let middle = sandbox.read("blocks/blk00001.dat");
    sandbox.remove("blocks/blk00001.dat");
    sandbox.apus(RUN).fails(4, &said);
    sandbox.write("blocks/blk00001.dat", &[]);
    sandbox.apus(RUN).fails(4, &said);
    sandbox.write("blocks/blk00001.dat", &middle);

    // A crash of the node tore the last block: the chain is one block shorter.
    let last = laid.file(130);
    let whole = sandbox.read(&last);
    sandbox.edit(&last, |bytes| bytes.truncate(bytes.len() - 5));
    sandbox.apus(RUN).fails(4, &["ends at 129", "use hints for a height up to 129"]);
    sandbox.write(&last, &whole);

    let first = sandbox.read("blocks/blk00000.dat");
    sandbox.remove("blocks/blk00000.dat");
    let said = ["no block after genesis found", "blk00000.dat and all files after it"];
    sandbox.apus(RUN).fails(4, &said);
    sandbox.write("blocks/blk00000.dat", &first);
    sandbox.apus(RUN).succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

#[test]
fn unreadable_files_are_reported() {
    let laid = BlocksOnDisk::new(34, Some([7; 8]));
    let sandbox = &laid.sandbox;
    let middle = sandbox.read("blocks/blk00001.dat");
    sandbox.remove("blocks/blk00001.dat");
    fs::create_dir(sandbox.path("blocks/blk00001.dat")).unwrap();
    sandbox.apus(RUN).fails(3, &["blocks/blk00001.dat is not a regular file", "restore"]);
    sandbox.remove("blocks/blk00001.dat");
    symlink("nowhere", sandbox.path("blocks/blk00001.dat")).unwrap();
    sandbox.apus(RUN).fails(3, &["blocks/blk00001.dat"]);
    fs::remove_file(sandbox.path("blocks/blk00001.dat")).unwrap();
    sandbox.write("moved.dat", &middle);
    symlink("../moved.dat", sandbox.path("blocks/blk00001.dat")).unwrap();
    sandbox.apus(RUN).succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

#[test]
fn without_the_right_key_apus_guesses_nothing() {
    let laid = BlocksOnDisk::new(35, Some([9, 8, 7, 6, 5, 4, 3, 2]));
    let sandbox = &laid.sandbox;
    let key = sandbox.read("blocks/xor.dat");
    sandbox.remove("blocks/xor.dat");
    sandbox.apus(RUN).fails(4, &["no block was found", "Copy xor.dat together with the files"]);
    for bit in (0..64).step_by(5) {
        let mut wrong = key.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        sandbox.write("blocks/xor.dat", &wrong);
        sandbox.apus(RUN).fails(4, &["block"]);
    }
    for length in [0, 7, 9] {
        sandbox.write("blocks/xor.dat", &vec![9; length]);
        let bytes = format!("xor.dat has {length} bytes where Bitcoin Core writes 8");
        sandbox.apus(RUN).fails(3, &[&bytes, "Restore the file"]);
    }
    sandbox.remove("blocks/xor.dat");
    fs::create_dir(sandbox.path("blocks/xor.dat")).unwrap();
    sandbox.apus(RUN).fails(3, &["xor.dat"]);
    sandbox.remove("blocks/xor.dat");
    sandbox.write("blocks/xor.dat", &key);
    sandbox.apus(RUN).succeeds();
}

fn output(satoshi: u64) -> TxOut {
    TxOut { value: Amount::from_sat(satoshi), script_pubkey: ScriptBuf::from_bytes(vec![0x51]) }
}

#[test]
fn an_invalid_chain_produces_no_set() {
    let grow = || {
        let mut chain = ChainBuilder::new(36);
        chain.random_blocks(120, Shape::default());
        chain
    };
    type Break = fn(&mut ChainBuilder);
    let cases: [(Break, i32, &[&str]); 5] = [
        (
            |chain| {
                let mut block = chain.propose(BlockPlan::default());
                let second = chain.coinbase(121, vec![output(1)]);
                block.txdata.push(second);
                seal(&mut block);
                chain.add(block);
            },
            2,
            &["block 121", "bad-cb-multiple"],
        ),
        (
            |chain| {
                let coinbase = chain.coinbase(77, vec![output(1)]);
                chain.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() });
            },
            2,
            &["block 121", "bad-cb-height"],
        ),
        (
            |chain| {
                let (&coin, _) = chain.utxo().iter().find(|(_, coin)| coin.height < 10).unwrap();
                let spend = |satoshi| chain.spend(&[coin], vec![output(satoshi)]);
                let transactions = vec![spend(1), spend(2)];
                chain.block_with(transactions);
            },
            4,
            &["does not balance", "spends a coin twice"],
        ),
        (
            |chain| {
                let txid = bitcoin::Txid::from_raw_hash(bitcoin::hashes::Hash::all_zeros());
                let coin = bitcoin::OutPoint { txid, vout: 5 };
                chain.block_with(vec![chain.spend(&[coin], vec![output(1)])]);
            },
            4,
            &["does not balance", "a coin that never existed"],
        ),
        (
            |chain| {
                let coinbase_outputs = Some(vec![output(20_000_000 * 100_000_000)]);
                chain.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
            },
            2,
            &["creates money", "satoshis"],
        ),
    ];
    for (break_it, code, said) in cases {
        let mut chain = grow();
        break_it(&mut chain);
        chain.empty_blocks(3);
        let sandbox = Sandbox::of(&chain);
        sandbox.apus(RUN).fails(code, said);
        assert!(!sandbox.has("utxo.dat"));
    }
}
