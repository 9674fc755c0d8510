//! Checks the counts against independent ones: blocks parsed by another library, and messages padded and cut
//! by hand.

use super::*;
use crate::floor::count;
use apus_chain::{BlockHash, Network};
use apus_sync::ErrorKind;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::oracle;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{Block, Transaction};
use std::fs;
use std::sync::atomic::AtomicBool;

/// Counts the blocks of a padded message by following FIPS 180-4, 5.1.1, to the letter.
fn blocks_of(message: &[u8]) -> u64 {
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    padded.chunks(64).len() as u64
}

fn double(message: &[u8]) -> u64 {
    blocks_of(message) + blocks_of(&[0; 32])
}

fn stripped(tx: &Transaction) -> Vec<u8> {
    let mut tx = tx.clone();
    tx.input.iter_mut().for_each(|input| input.witness.clear());
    serialize(&tx)
}

/// Counts the nodes of a merkle tree by building its levels.
fn tree(leaves: usize) -> u64 {
    let (mut level, mut sum) = (vec![(); leaves], 0);
    while level.len() > 1 {
        level = level.chunks(2).map(|_| ()).collect();
        sum += level.len() as u64 * double(&[0; 64]);
    }
    sum
}

fn by_hand(block: &Block) -> Compressions {
    let txs = &block.txdata;
    let commits = block.witness_root().is_some()
        && txs[0]
            .output
            .iter()
            .any(|o| o.script_pubkey.as_bytes().starts_with(b"\x6a\x24\xaa\x21\xa9\xed"));
    let witnesses = txs[1..].iter().filter(|tx| tx.input.iter().any(|i| !i.witness.is_empty()));
    Compressions {
        headers: double(&serialize(&block.header)),
        txids: txs.iter().map(|tx| double(&stripped(tx))).sum(),
        merkle: tree(txs.len()),
        wtxids: witnesses.filter(|_| commits).map(|tx| double(&serialize(tx))).sum(),
        witness_merkle: if commits { tree(txs.len()) + double(&[0; 64]) } else { 0 },
    }
}

#[test]
fn compressions_match_padded_messages() {
    for length in 0..300 {
        assert_eq!(double_compressions(length), double(&vec![0; length as usize]), "{length}");
    }
    for leaves in 0..300 {
        assert_eq!(tree_compressions(leaves), tree(leaves as usize), "{leaves}");
    }
}

fn params() -> Params {
    Params::of(Network::Regtest).clone()
}

/// A chain with scripts of every kind.
fn chain() -> ChainBuilder {
    let mut chain = ChainBuilder::new(11);
    for _ in 0..130 {
        chain.random_block(Shape::default());
    }
    chain
}

/// A height among blocks that commit to witnesses.
const UNSEEN: Height = 118;

#[test]
fn a_chain_is_counted_as_by_hand() {
    let (chain, params) = (chain(), params());
    let blocks = &chain.blocks()[1..];
    let bytes = blocks.iter().map(|block| serialize(block).len() as u64).sum();
    let mut counter = WorkCounter::new(&params, Path::new("x.hints"), UNSEEN, bytes);
    let (mut hand, mut outputs, mut inputs) = (Compressions::default(), 0, 0);
    let mut skipped = 0;
    for ((height, block), survivors) in (1..).zip(blocks).zip(chain.hints()) {
        counter.block(height, &serialize(block), &survivors).unwrap();
        let mut by_hand = by_hand(block);
        if height <= UNSEEN {
            skipped += by_hand.wtxids.min(by_hand.witness_merkle);
            (by_hand.wtxids, by_hand.witness_merkle) = (0, 0);
        }
        hand.add(&by_hand);
        outputs += block.txdata.iter().map(|tx| tx.output.len() as u64).sum::<u64>();
        inputs += block.txdata[1..].iter().map(|tx| tx.input.len() as u64).sum::<u64>();
    }
    let CountedWork { work, samples } = counter.finish();
    // The chain has blocks that commit to witnesses, and blocks that do not.
    assert!(skipped > 0);
    assert!(hand.wtxids > 0 && hand.merkle > 0 && hand.witness_merkle > 0, "{hand:?}");
    assert_eq!(work.compressions, hand);
    assert_eq!((work.blocks, work.bytes), (130, bytes));
    assert_eq!((work.outputs, work.inputs), (outputs, inputs));
    let coins = chain.utxo();
    assert_eq!(work.coins, coins.len() as u64);
    // Every coin was spent or survives.
    assert_eq!(work.outputs - work.unspendable, work.inputs + work.coins);
    let elements = coins.values().map(|coin| 36 + 4 + serialize(&coin.output).len() as u64);
    assert_eq!(work.element_bytes, elements.sum::<u64>());
    let snapshot = oracle::snapshot(params.network.magic(), chain.tip(), coins);
    assert_eq!(work.coin_bytes, snapshot.len() as u64 - SNAPSHOT_HEADER);
    assert!(samples.len() > 1 && samples.len() as u64 <= SAMPLES, "{}", samples.len());
}

/// Bytes of a snapshot before its first coin.
const SNAPSHOT_HEADER: u64 = 51;

#[test]
fn files_and_hints_give_the_same_counts_as_blocks() {
    let (chain, params) = (chain(), params());
    let folder = tempfile::tempdir().unwrap();
    let (blocks, hints) = (folder.path().join("blocks"), folder.path().join("chain.hints"));
    let mut counter = WorkCounter::new(&params, &hints, UNSEEN, u64::MAX);
    for ((height, block), survivors) in (1..).zip(&chain.blocks()[1..]).zip(chain.hints()) {
        counter.block(height, &serialize(block), &survivors).unwrap();
    }
    let expected = counter.finish().work;
    fs::write(&hints, oracle::hints_file(&chain.hints(), oracle::BitOrder::Msb)).unwrap();
    let never = AtomicBool::new(false);
    let assumed = BlockHash(chain.blocks()[UNSEEN as usize].block_hash().to_byte_array());
    for key in [None, Some(*b"apus/key")] {
        let mut files = BlockFiles::regtest().preallocate(1 << 16);
        if let Some(key) = key {
            files = files.key(key);
        }
        files.blocks(&chain.blocks());
        files.write(&blocks);
        let counted = count(&params, &blocks, &hints, Some(&assumed), NOW, &never).unwrap();
        assert_eq!(counted.work, ChainWork { obfuscated: key.is_some(), ..expected });
    }
    let stopped = count(&params, &blocks, &hints, None, NOW, &AtomicBool::new(true)).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Interrupted);
}

/// Later than any block of the builder.
const NOW: i64 = 4_000_000_000;

#[test]
fn hints_of_another_chain_and_invalid_blocks_are_errors() {
    let (chain, params) = (chain(), params());
    let block = serialize(&chain.blocks()[1]);
    let mut counter = WorkCounter::new(&params, Path::new("x.hints"), 0, 0);
    let error = counter.block(1, &block, &[0, 9_999]).unwrap_err();
    assert!(error.to_string().starts_with("x.hints: block 1 has fewer outputs"), "{error}");
    let error = counter.block(7, &block[..block.len() - 1], &[]).unwrap_err();
    assert!(error.to_string().starts_with("block 7 cannot be read"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let (blocks, hints) = (folder.path().join("blocks"), folder.path().join("x.hints"));
    let mut files = BlockFiles::regtest();
    files.blocks(&chain.blocks()[..100]);
    files.write(&blocks);
    fs::write(&hints, oracle::hints_file(&chain.hints(), oracle::BitOrder::Msb)).unwrap();
    let never = AtomicBool::new(false);
    let short = count(&params, &blocks, &hints, None, NOW, &never).unwrap_err();
    assert!(short.to_string().contains("stop at height 130, but the chain ends at 99"));
    assert_eq!(short.kind(), ErrorKind::Usage);
    fs::write(&hints, "UTXO").unwrap();
    let damaged = count(&params, &blocks, &hints, None, NOW, &never).unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Wrong);
    let gone = count(&params, &folder.path().join("gone"), &hints, None, NOW, &never).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Io);
}
