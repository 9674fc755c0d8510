//! `apus hints`: every encoding into every other, what `info` shows, and what an encoding cannot hold.

use crate::sandbox::{MAIN, REGTEST, Sandbox};
use apus_testkit::blkfile::{BlockFiles, read_chain};
use apus_testkit::chain::{BlockPlan, ChainBuilder, is_unspendable};
use bitcoin::consensus::encode::{VarInt, deserialize_partial, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Network, ScriptBuf, TxOut};

/// Encodings that Apus writes.
const WRITTEN: [&str; 6] = ["bip456", "bip456-lsb", "btcd", "bitmap", "delta", "offsets"];

/// The option that names an encoding without a magic number.
fn from(format: &str) -> String {
    match format {
        "bip456" | "btcd" => String::new(),
        other => format!("--from {other}"),
    }
}

const BLOCKS: &str = "--chain regtest --blocksdir blocks";

#[test]
fn every_encoding_converts_to_every_other_and_back() {
    let sandbox = Sandbox::with(REGTEST);
    for to in WRITTEN {
        let line = format!("hints convert msb.hints --to {to} --out {to}.hints {BLOCKS}");
        sandbox.apus(&line).succeeds().says(&["20,326 coins", "up to 315", to]);
    }
    assert!(sandbox.read("bip456.hints") == sandbox.read("msb.hints"));
    assert!(sandbox.read("bip456-lsb.hints") == sandbox.read("lsb.hints"));
    sandbox.write("offsets-height.hints", &with_height(&sandbox.read("offsets.hints"), 315));
    for source in WRITTEN.into_iter().chain(["offsets-height"]) {
        for to in WRITTEN {
            let line = format!(
                "hints convert {source}.hints {} --to {to} --out {source}.{to} {BLOCKS}",
                from(source)
            );
            sandbox.apus(&line).succeeds();
            let (new, known) = (sandbox.read(&format!("{source}.{to}")), format!("{to}.hints"));
            assert!(new == sandbox.read(&known), "{source} as {to}");
        }
    }
}

#[test]
fn counts_by_height_add_up() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox
        .apus("hints convert msb.hints --to bitmap --out bitmap --chain regtest --blocksdir blocks")
        .succeeds();
    for (line, has_outputs) in [("msb.hints", false), ("bitmap --from bitmap", true)] {
        let ended = sandbox.apus(&format!("hints info {line} --by-height")).succeeds();
        let mut lines = ended.stdout.lines();
        assert_eq!(lines.next(), Some("height,coins,outputs"));
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        let heights: Vec<u32> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
        assert!(heights.iter().copied().eq(heights[0]..316), "{heights:?}");
        assert_eq!(rows.iter().map(|row| row[1].parse::<u64>().unwrap()).sum::<u64>(), 20_326);
        assert!(rows.iter().all(|row| row[2].is_empty() != has_outputs));
    }
}

#[test]
fn encodings_that_number_outputs_alike_convert_without_blocks() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("hints convert lsb.hints --to btcd --out btcd").succeeds();
    sandbox.apus("hints convert btcd --to bip456 --out back").succeeds();
    assert!(sandbox.read("back") == sandbox.read("msb.hints"));
    sandbox.apus(&format!("hints convert btcd --to delta --out delta {BLOCKS}")).succeeds();
    let stop = sandbox.json("gettxoutsetinfo.json")["bestblock"].as_str().unwrap().to_owned();
    let line = "hints convert delta --from delta --to offsets --out offsets";
    sandbox.apus(line).fails(1, &["stores the stop block", "--stop-block", "--blocksdir"]);
    sandbox.apus(&format!("{line} --stop-block {stop}")).succeeds();
    sandbox.apus("hints convert offsets --from offsets --to delta --out delta2").succeeds();
    assert!(sandbox.read("delta") == sandbox.read("delta2"));
}

#[test]
fn failed_conversions_say_why() {
    let sandbox = Sandbox::with(REGTEST);
    let other = Sandbox::with(MAIN);
    sandbox.write("main.hints", &other.read("msb.hints"));
    sandbox
        .apus(&format!("hints convert msb.hints --to offsets --out offsets {BLOCKS}"))
        .succeeds();
    let mut stale = sandbox.read("offsets");
    stale[5] ^= 1;
    sandbox.write("stale", &stale);
    let counts = "counts unspendable outputs and the other does not";
    for (line, code, said) in [
        ("msb.hints --to bitmap", 1, &[counts, "add --blocksdir DIR"][..]),
        ("msb.hints --to delta", 1, &[counts, "add --blocksdir DIR"]),
        (&format!("msb.hints --to offsets-height {BLOCKS}"), 1, &["bip456"]),
        (&format!("main.hints --to delta {BLOCKS}"), 4, &["reach height 4521", "ends at 315"]),
        (&format!("stale --from offsets --to delta {BLOCKS}"), 4, &["the hints are for block"]),
        (&format!("offsets --from delta --to btcd {BLOCKS}"), 4, &["offsets: "]),
        (&format!("msb.hints --to delta {BLOCKS} --chain main"), 1, &["multiple times"]),
        ("msb.hints --to delta --blocksdir blocks --chain main", 1, &["use --chain regtest"]),
        ("msb.hints --to delta --chain regtest --blocksdir no", 3, &["no: No such file"]),
    ] {
        sandbox.apus(&format!("hints convert {line} --out out")).fails(code, said);
    }
}

#[test]
fn info_shows_what_a_file_says_about_itself() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("hints info msb.hints").succeeds().says(&[
        "format           bip456",
        "bit order        most significant bit first, determined by block 3",
        "heights          1 to 315",
        "coins            20,326",
        "bytes            5,957",
    ]);
    sandbox.apus("hints info lsb.hints").succeeds().says(&["least significant bit first"]);
    sandbox.apus("hints info msb.hints --outputs 20700").succeeds().says(&["20,700 outputs"]);
    for to in WRITTEN {
        let line = format!("hints convert msb.hints --to {to} --out {to} {BLOCKS}");
        sandbox.apus(&line).succeeds();
        sandbox.apus(&format!("hints info {to} {}", from(to))).succeeds().says(&["20,326"]);
    }
    let stop = sandbox.json("gettxoutsetinfo.json")["bestblock"].as_str().unwrap().to_owned();
    sandbox.apus("hints info offsets --from offsets").succeeds().says(&[&stop]);
}

#[test]
fn check_proves_hints_right() {
    for fixture in [MAIN, REGTEST] {
        let sandbox = Sandbox::with(fixture);
        for hints in ["msb.hints", "lsb.hints", "snapshot:node.dat"] {
            let line = format!("hints check {hints} --chain {} --blocksdir blocks", fixture.chain);
            let node = sandbox.json("gettxoutsetinfo.json");
            let verdict = format!("The hints fit the blocks up to {}", node["height"]);
            sandbox.apus(&line).succeeds().says(&[&verdict]);
        }
    }
}

/// A chain whose only block after genesis has this many outputs in its coinbase.
fn wide_block(outputs: usize) -> ChainBuilder {
    let mut chain = ChainBuilder::new(5);
    let empty = TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() };
    let coinbase_outputs = Some(vec![empty; outputs]);
    chain.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    chain
}

/// A bitmap from a program that counts outputs in 16 bits: it marks all outputs of the only block that it can
/// see as unspent.
fn overflowing_bitmap(outputs: usize) -> Vec<u8> {
    let seen = outputs & 0xffff;
    let bits = |count: usize| {
        let mut bytes = vec![0xff; count / 8];
        if !count.is_multiple_of(8) {
            bytes.push((1 << (count % 8)) - 1);
        }
        bytes
    };
    // Genesis with its one output spent, the block, the end.
    let count = (seen as u16).to_le_bytes();
    [&[1, 0, 0][..], &count, &bits(if seen == 0 { outputs } else { seen }), &[0, 0]].concat()
}

#[test]
fn blocks_too_wide_for_a_bitmap_are_reported() {
    for outputs in [65_535, 65_536, 70_000] {
        let chain = wide_block(outputs);
        let sandbox = Sandbox::of(&chain);
        let run = format!("sync {BLOCKS} --hints msb.hints --out snapshot:utxo.dat");
        sandbox.apus(&run).succeeds();
        assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"), "{outputs} outputs");

        let write =
            sandbox.apus(&format!("hints convert msb.hints --to bitmap --out new {BLOCKS}"));
        sandbox.write("bitmap", &overflowing_bitmap(outputs));
        let read = format!("hints convert bitmap --from bitmap --to bip456 --out back {BLOCKS}");
        let read = sandbox.apus(&read);
        if outputs == 65_535 {
            write.succeeds();
            assert!(sandbox.read("new") == sandbox.read("bitmap"));
            read.succeeds();
            assert!(sandbox.read("back") == sandbox.read("msb.hints"));
            continue;
        }
        write.fails(4, &[&outputs.to_string(), "height 1", "more than the 65535"]);
        let why = if outputs == 65_536 { "wraps its 16-bit count to 0" } else { "in 16 bits" };
        read.fails(4, &["bitmap", why]);
    }
}

#[test]
fn hints_of_an_unspendable_output_are_refused() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus(&format!("hints convert msb.hints --to bitmap --out bitmap {BLOCKS}")).succeeds();
    // The first unspendable output: its block, and its index there.
    let genesis = bitcoin::constants::genesis_block(Network::Regtest).block_hash();
    let chain = read_chain(&sandbox.path("blocks"), crate::sandbox::REGTEST_MAGIC, genesis);
    let mut bit = 0;
    let (height, output) = (0..)
        .zip(&chain)
        .find_map(|(height, block)| {
            let outputs: Vec<&TxOut> = block.txdata.iter().flat_map(|tx| &tx.output).collect();
            bit += 2;
            let found = outputs.iter().position(|out| is_unspendable(&out.script_pubkey));
            match found {
                Some(output) if height > 0 => Some((height, output)),
                _ => {
                    bit += outputs.len().div_ceil(8);
                    None
                }
            }
        })
        .unwrap();
    sandbox.edit("bitmap", |bytes| bytes[bit + output / 8] |= 1 << (output % 8));
    sandbox
        .apus(&format!("hints convert bitmap --from bitmap --to btcd --out out {BLOCKS}"))
        .fails(4, &[&format!("output {output} of block {height}"), "unspendable"]);
}

#[test]
fn hints_of_another_chain_do_not_fit_when_outputs_are_counted() {
    let sandbox = Sandbox::of(&wide_block(3));
    sandbox.write("bitmap", &overflowing_bitmap(4));
    sandbox
        .apus(&format!("hints convert bitmap --from bitmap --to btcd --out out {BLOCKS}"))
        .fails(4, &["block 1 has 3 outputs, but the hints say 4", "another chain"]);
    // More blocks than the chain has.
    let mut files = BlockFiles::regtest();
    files.blocks(&wide_block(3).blocks()[..1]);
    files.write(&sandbox.path("genesis alone"));
    sandbox.copy(&sandbox.path("genesis alone"), "genesis");
    sandbox
        .apus("hints convert msb.hints --to delta --out out --chain regtest --blocksdir genesis")
        .fails(4, &["no block after genesis found"]);
}

/// Converts `offsets` to `offsets-height`: puts the height first, and in each block replaces all indices but
/// the first by distances.
fn with_height(offsets: &[u8], height: u32) -> Vec<u8> {
    let hash = bitcoin::BlockHash::from_slice(&offsets[..32]).unwrap();
    let mut out = [&height.to_le_bytes()[..], &hash.to_byte_array()].concat();
    let mut rest = &offsets[32..];
    let mut next = || {
        let (number, length) = deserialize_partial::<VarInt>(rest).unwrap();
        rest = &rest[length..];
        number.0
    };
    for _ in 0..height {
        let count = next();
        out.extend(serialize(&VarInt(count)));
        let mut last = 0;
        for _ in 0..count {
            let index = next();
            out.extend(serialize(&VarInt(index - last)));
            last = index;
        }
    }
    out
}
