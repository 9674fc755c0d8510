//! Hints that are damaged, false, or made for other blocks: Apus never makes a set, and always gives a reason.

use crate::sandbox::{Ended, MAIN, REGTEST_MAGIC, SIGNET, Sandbox};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, Shape};
use apus_testkit::oracle::{self, BitOrder, hints_file};
use apus_testkit::rng::Rng;
use bitcoin::{Amount, ScriptBuf, TxOut};

const RUN: &str = "sync --chain regtest --blocksdir blocks --out snapshot:utxo.dat --progress none";

/// A short chain with spends, and a sandbox with it.
fn chain() -> (ChainBuilder, Sandbox) {
    let mut chain = ChainBuilder::new(21);
    chain.random_blocks(108, Shape { outputs_max: 3, ..Shape::default() });
    let sandbox = Sandbox::of(&chain);
    (chain, sandbox)
}

/// Runs a sync with these bytes as hints.
fn run_with(sandbox: &Sandbox, hints: &[u8]) -> Ended {
    sandbox.write("x.hints", hints);
    sandbox.apus(&format!("{RUN} --hints x.hints"))
}

/// A chain of twenty blocks, each with one coin that is never spent.
fn twenty_coins() -> Sandbox {
    let mut chain = ChainBuilder::new(20);
    chain.empty_blocks(20);
    Sandbox::of(&chain)
}

#[test]
fn hints_truncated_at_any_byte_are_refused() {
    let sandbox = twenty_coins();
    let hints = sandbox.read("msb.hints");
    assert_eq!(hints.len(), 9 + 20 * 3);
    for length in 0..hints.len() {
        run_with(&sandbox, &hints[..length]).fails(4, &["x.hints"]);
    }
    run_with(&sandbox, &hints).succeeds();
}

#[test]
fn one_flipped_bit_anywhere_never_leads_to_a_set() {
    let (_, sandbox) = chain();
    let mut rng = Rng::new(1);
    for name in ["msb.hints", "lsb.hints"] {
        let hints = sandbox.read(name);
        // Some bits of the header, and one bit in some bytes of the elements.
        let header = (0..9).flat_map(|place| [0, 4].map(|bit| (place, bit)));
        let elements = (9..hints.len()).step_by(23);
        let flips = header.chain(elements.map(|place| (place, rng.below(8))));
        for (place, bit) in flips.collect::<Vec<_>>() {
            let mut hints = hints.clone();
            hints[place] ^= 1 << bit;
            // The version of BIP-456 with its last bit flipped is btcd's.
            let code = if (place, bit) == (4, 0) { 1 } else { 4 };
            run_with(&sandbox, &hints).fails(code, &["hints"]);
        }
    }
}

#[test]
fn errors_of_malformed_files_name_height_and_byte() {
    let sandbox = twenty_coins();
    let hints = sandbox.read("msb.hints");
    let with = |change: fn(&mut Vec<u8>)| {
        let mut hints = hints.clone();
        change(&mut hints);
        hints
    };
    // The first block with its one coin is the element 01 00 80 at byte 9.
    assert_eq!(hints[9..12], [1, 0, 0x80]);
    let element = |bytes: &[u8]| [&hints[..9], bytes, &hints[12..]].concat();
    for (case, hints, said) in [
        ("empty", Vec::new(), &["not a BIP-456 hintsfile"][..]),
        ("zeros", vec![0; 1000], &["not a BIP-456 hintsfile"]),
        ("version", with(|hints| hints[4] = 2), &["not a BIP-456 hintsfile"]),
        ("one more byte", with(|hints| hints.push(0)), &["continues at byte", "last height, 20"]),
        ("twice", with(|hints| hints.extend(hints.clone())), &["continues at byte"]),
        ("height + 1", with(|hints| hints[5] += 1), &["height 21", "the data ends"]),
        ("height - 1", with(|hints| hints[5] -= 1), &["continues at byte", "height, 19"]),
        ("height 0", with(|hints| hints[5] = 0), &["continues at byte 9"]),
        ("height 2^32 - 1", with(|hints| hints[5..9].fill(0xff)), &["height 21"]),
        ("N of 2^64 - 1", element(&[0xff; 9]), &["height 1 at byte 9", "above the limit"]),
        ("N above M", element(&[3, 1, 0x80]), &["height 1 at byte 9", "N is 3"]),
        (
            "M of 2^32 - 1",
            element(&[1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0x80]),
            &["height 1 at byte 9", "M is 4294967295, above the limit"],
        ),
        ("long N", element(&[0xfd, 1, 0, 0, 0x80]), &["height 1 at byte 9", "longer form"]),
        ("long M", element(&[1, 0xfd, 0, 0, 0x80]), &["height 1 at byte 9", "longer form"]),
        ("no bit of H", element(&[1, 0, 0x00]), &["height 1 at byte 9", "0 bits of H"]),
        ("padding", element(&[1, 0, 0xc0]), &["height 1 at byte 9"]),
        ("lsb among msb", element(&[1, 0, 0x01]), &["mixes bit orders", "height 1 at byte 9"]),
        ("an output too far", element(&[1, 1, 0x80, 0x80]), &["block 1"]),
        ("a coin less", element(&[0]), &["does not balance", "the hints are wrong"]),
    ] {
        let ended = run_with(&sandbox, &hints).fails(4, said);
        assert!(ended.stderr.len() < 600, "{case}: {ended}");
    }
    let nothing = [&hints[..5], &[0; 4]].concat();
    run_with(&sandbox, &nothing).fails(1, &["ends at height 0"]);
}

#[test]
fn a_stated_bit_order_is_enforced() {
    let sandbox = twenty_coins();
    for (hints, order) in [("msb.hints", "lsb"), ("lsb.hints", "msb")] {
        let line = format!("{RUN} --hints {hints} --hints-order {order}");
        sandbox.apus(&line).fails(4, &[hints, "height 1 at byte 9", "significant bit first"]);
    }
}

/// A chain whose hints can be read in both bit orders: its only coins are outputs 0, 2, 3 and 4 of block 1,
/// whose code is 0, 1, 2 and 4 when reversed.
fn ambiguous() -> ChainBuilder {
    let mut chain = ChainBuilder::new(3);
    let output = |satoshi, script: &[u8]| TxOut {
        value: Amount::from_sat(satoshi),
        script_pubkey: ScriptBuf::from_bytes(script.to_vec()),
    };
    let lost = || Some(vec![output(5, &[0x6a])]);
    let five = (1..=5).map(|satoshi| output(satoshi, &[0x51])).collect();
    let first = chain.add_plan(BlockPlan { coinbase_outputs: Some(five), ..BlockPlan::default() });
    for _ in 0..100 {
        chain.add_plan(BlockPlan { coinbase_outputs: lost(), ..BlockPlan::default() });
    }
    let txid = first.txdata[0].compute_txid();
    let spend = chain.spend(&[bitcoin::OutPoint { txid, vout: 1 }], lost().unwrap());
    let transactions = vec![spend];
    chain.add_plan(BlockPlan { transactions, coinbase_outputs: lost(), ..BlockPlan::default() });
    chain
}

#[test]
fn ambiguous_hints_need_an_explicit_bit_order() {
    let chain = ambiguous();
    let sandbox = Sandbox::of(&chain);
    for (name, right, wrong) in [("msb.hints", "msb", "lsb"), ("lsb.hints", "lsb", "msb")] {
        let said =
            ["the bit order is ambiguous", "height 1, byte 9", "msb", "lsb", "--hints-order"];
        sandbox.apus(&format!("{RUN} --hints {name}")).fails(4, &said);
        sandbox.apus(&format!("hints info {name}")).fails(4, &said);
        sandbox.apus(&format!("hints convert {name} --to btcd --out btcd")).fails(4, &said);
        sandbox
            .apus(&format!("{RUN} --hints {name} --hints-order {wrong}"))
            .fails(4, &["does not balance"]);
        sandbox.apus(&format!("{RUN} --hints {name} --hints-order {right}")).succeeds();
        assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
        sandbox.remove("utxo.dat");
    }
}

#[test]
fn hints_of_another_chain_or_fork_or_height_are_refused() {
    let (mut chain, sandbox) = chain();
    let mut other = ChainBuilder::new(22);
    other.random_blocks(108, Shape { outputs_max: 3, ..Shape::default() });
    // A losing fork of the same height.
    let tip = chain.tip();
    chain.set_tip(chain.blocks()[100].block_hash());
    chain.random_blocks(8, Shape::default());
    let fork = chain.tip();
    let mut files = BlockFiles::regtest();
    files.blocks(&chain.blocks_to(tip));
    files.blocks(&chain.blocks_to(fork)[101..]);
    sandbox.remove("blocks");
    files.write(&sandbox.path("blocks"));

    let msb = |hints: &[Vec<u32>]| hints_file(hints, BitOrder::Msb);
    run_with(&sandbox, &msb(&other.hints())).fails(4, &["x.hints", "another chain"]);
    run_with(&sandbox, &msb(&chain.hints_at(fork))).fails(4, &["hints", "x.hints"]);
}

#[test]
fn a_snapshot_that_is_damaged_is_refused() {
    let sandbox = Sandbox::with(SIGNET);
    let dat = sandbox.read("node.dat");
    let with = |change: fn(&mut Vec<u8>)| {
        let mut dat = dat.clone();
        change(&mut dat);
        dat
    };
    for (dat, code, said) in [
        (Vec::new(), 4, &["not a snapshot: 0 bytes"][..]),
        (dat[..4].to_vec(), 4, &["not a snapshot: 4 bytes"]),
        (dat[..50].to_vec(), 4, &["not a snapshot: 50 bytes"]),
        (dat[..51].to_vec(), 4, &["ends at byte 51 after 0 of 120 coins", "truncated"]),
        (dat[..5000].to_vec(), 4, &["ends at byte 5000 after", "of 120 coins"]),
        (dat[..dat.len() - 1].to_vec(), 4, &["after 119 of 120 coins"]),
        (with(|dat| dat.push(0)), 4, &["continues at byte 7188", "120 coins"]),
        (with(|dat| dat[0] = b'U'), 4, &["not a snapshot: the file begins with"]),
        (with(|dat| dat[5] = 1), 4, &["format version 1, but only 2"]),
        (with(|dat| dat[7] ^= 1), 4, &["unknown chain with magic"]),
        (with(|dat| dat[7..11].copy_from_slice(&REGTEST_MAGIC)), 1, &["chain regtest, not signet"]),
        (with(|dat| dat[11] ^= 1), 4, &["not on the most-work chain"]),
        (with(|dat| dat[43] += 1), 4, &["after 120 of 121 coins"]),
        (with(|dat| dat[43] -= 1), 4, &["continues at byte", "119 coins"]),
        (with(|dat| dat[43..51].fill(0xff)), 4, &["of 18446744073709551615 coins"]),
        (with(|dat| dat[83] = 0), 4, &["claims 0 coins for transaction", "byte 51"]),
        (with(|dat| dat[83] = 121), 4, &["claims 121 coins for transaction", "byte 51"]),
        (with(|dat| dat[82] ^= 0xff), 4, &["do not create", "another chain or is damaged"]),
    ] {
        sandbox.write("x.dat", &dat);
        let line = "sync --chain signet --blocksdir blocks --hints snapshot:x.dat --progress none \
                    --out snapshot:utxo.dat";
        sandbox.apus(line).fails(code, said);
    }
    sandbox.apus("snapshot verify x.dat --chain signet --blocksdir blocks").fails(4, &["x.dat"]);
}

#[test]
fn a_snapshot_of_a_missing_block_is_reported() {
    let (mut chain, sandbox) = chain();
    let blocks = chain.blocks();
    let short = blocks[50].block_hash();
    chain.random_blocks(3, Shape::default());
    let ahead = oracle::snapshot(REGTEST_MAGIC, chain.tip(), chain.utxo());
    sandbox.write("ahead.dat", &ahead);
    let line = format!("{RUN} --hints snapshot:ahead.dat");
    let tip = chain.tip().to_string();
    sandbox.apus(&line).fails(4, &[&tip, "not on the most-work chain", "block files are missing"]);
    // An older snapshot is fine.
    let past = oracle::snapshot(REGTEST_MAGIC, short, &chain.utxo_at(short));
    sandbox.write("past.dat", &past);
    sandbox.apus(&format!("{RUN} --hints snapshot:past.dat --stopatheight 50")).succeeds();
    assert!(sandbox.read("utxo.dat") == past);
    // The same coins under the hash of another block.
    let mut lie = sandbox.read("past.dat");
    lie[11..43].copy_from_slice(&sandbox.read("node.dat")[11..43]);
    sandbox.write("lie.dat", &lie);
    sandbox
        .apus(&format!("{RUN} --hints snapshot:lie.dat").replace("utxo.dat", "new.dat"))
        .fails(4, &["does not balance"]);
}

#[test]
fn check_says_why_hints_are_wrong() {
    let sandbox = Sandbox::with(MAIN);
    let lines =
        ["hints check x.hints --blocksdir blocks", "hints check msb.hints --blocksdir blocks"];
    sandbox.write("x.hints", &sandbox.read("msb.hints")[..13_000]);
    sandbox.apus(lines[0]).fails(4, &["x.hints", "the data ends"]);
    // Undo block 170's spend of block 9's coin.
    let hints = sandbox.read("msb.hints");
    let spent = 9 + 8 * 3;
    assert_eq!(hints[spent], 0, "block 9's coin is spent");
    sandbox.write("x.hints", &[&hints[..spent], &[1, 0, 0x80], &hints[spent + 1..]].concat());
    sandbox.apus(lines[0]).fails(4, &["does not balance", "leave 259 coins", "spend 260"]);
    sandbox.apus(lines[1]).succeeds();
}
