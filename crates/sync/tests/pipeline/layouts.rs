//! Tests one chain in every layout that block files have in practice: the set is the same.

use crate::harness::{Events, Job, World, small_chain};
use apus_sync::Event;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::rng::Rng;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use std::sync::atomic::AtomicBool;

const KEY: [u8; 8] = [0xde, 0xad, 0, 0xbe, 0xef, 1, 0, 0x80];

/// Runs syncs over a layout of a small chain with each kind of hints; returns the warnings of the first sync.
fn check(builder: &ChainBuilder, layout: impl FnOnce(&[Block]) -> BlockFiles) -> Vec<String> {
    let world = World::laid_out(builder.blocks(), layout);
    let events = Events::default();
    let (work, out) = (CrashStorage::new(), CrashStorage::new());
    let job = Job { threads: 2, ..world.job() };
    let outcome = job.run_watched(&work, &out, &events, &AtomicBool::new(false)).unwrap();
    world.truth.check(&outcome, &out);
    let other = Job { hints: world.snapshot_hints(), segment_bytes: Some(1), ..world.job() };
    other.expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
    let warning = |event| match event {
        Event::Warning(warning) if !warning.is_of_run() => Some(warning.to_string()),
        _ => None,
    };
    events.all().into_iter().filter_map(warning).collect()
}

fn all_in(mut files: BlockFiles, blocks: &[Block]) -> BlockFiles {
    files.blocks(blocks);
    files
}

#[test]
fn one_plain_file() {
    let warnings = check(&small_chain(10), |blocks| all_in(BlockFiles::regtest(), blocks));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn many_obfuscated_files_with_zeros_at_their_ends() {
    let warnings = check(&small_chain(11), |blocks| {
        let files = BlockFiles::regtest().key(KEY).file_bytes_max(3_000).preallocate(1_024);
        all_in(files, blocks)
    });
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn a_file_for_each_block_without_the_genesis_block() {
    check(&small_chain(12), |blocks| all_in(BlockFiles::regtest().file_bytes_max(1), &blocks[1..]));
}

#[test]
fn any_order() {
    check(&small_chain(13), |blocks| {
        let mut blocks = blocks.to_vec();
        Rng::new(13).shuffle(&mut blocks);
        all_in(BlockFiles::regtest().key(KEY).file_bytes_max(9_000), &blocks)
    });
}

/// A record may be longer than its block: a node reads the block and ignores the rest.
#[test]
fn records_that_continue_after_their_blocks() {
    for key in [[0; 8], KEY] {
        let warnings = check(&small_chain(16), |blocks| {
            let mut files = BlockFiles::regtest().key(key).file_bytes_max(20_000);
            for (number, block) in (1..).zip(blocks) {
                let surplus = [number % 251 + 1].repeat(usize::from(number) % 90);
                files.record(&[serialize(block), surplus].concat());
            }
            files
        });
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[test]
fn duplicate_blocks_are_harmless() {
    check(&small_chain(14), |blocks| {
        let mut blocks = [blocks, &blocks[20..], &blocks[..50]].concat();
        Rng::new(14).shuffle(&mut blocks);
        all_in(BlockFiles::regtest().file_bytes_max(30_000).preallocate(512), &blocks)
    });
}

#[test]
fn stale_forks_and_the_chain_in_disorder() {
    let mut builder = small_chain(15);
    let tip = builder.tip();
    let main = builder.blocks();
    let mut stale = Vec::new();
    for (height, length) in [(3, 2), (60, 30), (100, 5), (118, 1)] {
        builder.set_tip(main[height].block_hash());
        stale.extend(builder.random_blocks(length, Shape::default()));
    }
    builder.set_tip(tip);
    check(&builder, |blocks| {
        let mut blocks = [blocks, &stale].concat();
        Rng::new(15).shuffle(&mut blocks);
        all_in(BlockFiles::regtest().key(KEY).file_bytes_max(20_000), &blocks)
    });
}

#[test]
fn a_write_that_a_crash_cut_short() {
    let builder = small_chain(16);
    for keep in [1, 7, 8, 87, 88, 150] {
        let warnings = check(&builder, |blocks| {
            let mut files = all_in(BlockFiles::regtest().key(KEY), &blocks[..100]);
            files.torn(&blocks[100], keep);
            files.next_file();
            all_in(files, &blocks[100..])
        });
        assert_eq!(warnings.len(), 1, "{keep}: {warnings:?}");
        assert!(warnings[0].contains("blk00000.dat") || warnings[0].contains("file 0"));
    }
}

#[test]
fn bytes_that_are_not_blocks() {
    let builder = small_chain(17);
    let warnings = check(&builder, |blocks| {
        let mut files = all_in(BlockFiles::regtest(), &blocks[..40]);
        files.bytes(&Rng::new(17).bytes(777));
        all_in(files, &blocks[40..])
    });
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("777 bytes"), "{warnings:?}");
}

/// Makes a chain with a witness, which can be changed without changing the header.
fn with_a_witness(seed: u64) -> (ChainBuilder, usize) {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(105);
    let coinbase = builder.blocks()[5].txdata[0].clone();
    let wpkh = builder.output(5_000_000_000, ScriptKind::Wpkh);
    let first = builder.spend_coins(&coins_of(&coinbase), vec![wpkh]);
    let out = builder.output(5_000_000_000, ScriptKind::OpTrue);
    let second = builder.spend_coins(&coins_of(&first), vec![out]);
    builder.add_plan(BlockPlan { transactions: vec![first, second], ..BlockPlan::default() });
    builder.empty_blocks(2);
    (builder, 106)
}

/// Damaged copies with the intact one's header must be ignored, wherever they are.
#[test]
fn damaged_copies_next_to_a_good_one() {
    let (builder, height) = with_a_witness(18);
    let good = builder.blocks()[height].clone();
    assert_eq!(good.txdata.len(), 3);
    let mut copies: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut copy = |what, change: &dyn Fn(&mut Block)| {
        let mut block = good.clone();
        change(&mut block);
        assert_eq!(block.block_hash(), good.block_hash());
        copies.push((what, serialize(&block)));
    };
    copy("an amount", &|block| block.txdata[1].output[0].value += bitcoin::Amount::ONE_SAT);
    copy("a witness", &|block| {
        block.txdata[2].input[0].witness = bitcoin::Witness::from_slice(&[[1u8; 9]]);
    });
    copy("no witness at all", &|block| {
        block.txdata.iter_mut().for_each(|tx| {
            tx.input.iter_mut().for_each(|input| input.witness = bitcoin::Witness::new());
        });
    });
    copy("no witness nonce", &|block| {
        block.txdata[0].input[0].witness = bitcoin::Witness::new();
    });
    // CVE-2012-2459: three transactions have the Merkle root of these four.
    copy("the last one twice", &|block| {
        block.txdata.push(block.txdata[2].clone());
        assert!(block.check_merkle_root());
    });
    copy("one transaction less", &|block| drop(block.txdata.pop()));
    let whole = serialize(&good);
    copies.push(("cut", whole[..whole.len() - 1].to_vec()));
    copies.push(("nothing but the header", whole[..80].to_vec()));
    copies.push(("a byte more", [&whole[..], &[0]].concat()));

    for (what, bytes) in &copies {
        println!("{what}");
        for before in [true, false] {
            check(&builder, |blocks| {
                let mut files = BlockFiles::regtest().key(KEY);
                if before {
                    files.record(bytes);
                    files.next_file();
                }
                files.blocks(blocks);
                files.record(bytes);
                files
            });
        }
    }
    // All damaged copies are first, and the intact one is last.
    check(&builder, |blocks| {
        let mut files = BlockFiles::regtest();
        for (_, bytes) in &copies {
            files.record(bytes);
        }
        files.next_file();
        all_in(files, blocks)
    });
}
