//! Filters against BIP-158's vectors and another implementation; the index cut in any way.

use crate::support::{TestBlock, TestChain, filter_index, fixture, new_folder};
use apus_chain::{BlockHash, BlockLayout, BlockUndo, BlockUndoWriter, CoinRef, Network, Params};
use apus_hash::sha256d;
use apus_indexes::{FilterBuilder, IndexBlock, filter_file_name};
use apus_testkit::chain::{ChainBuilder, Shape};
use bitcoin::bip158::{BlockFilter, BlockFilterWriter};
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hex::FromHex;
use bitcoin::{Amount, Block, ScriptBuf, TxOut};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// The filter of a block that spends coins with these scripts: only these matter, so one transaction
/// seems to spend them all.
fn filter_of(block: &Block, spent: &[ScriptBuf]) -> Vec<u8> {
    let mut undo = Vec::new();
    let mut writer = BlockUndoWriter::new(&mut undo, block.txdata.len());
    let mut left = spent;
    for tx in &block.txdata[1..] {
        let (now, later) = left.split_at(tx.input.len());
        left = later;
        writer.push_tx(now.iter().map(|script| CoinRef {
            height: 1,
            coinbase: false,
            amount: 1,
            script: script.as_bytes(),
        }));
    }
    writer.finish();
    assert!(left.is_empty());
    let (raw, undo) = (serialize(block), BlockUndo::read(&undo).unwrap());
    let mut layout = BlockLayout::new();
    let view = layout.read(&raw).unwrap();
    let block = IndexBlock { height: 1, hash: view.hash(), view, undo: Some(&undo) };
    let mut filter = Vec::new();
    FilterBuilder::new().build(&block, &mut filter).unwrap();
    filter
}

#[test]
fn filters_are_those_of_bip_158() {
    let vectors = fs::read(fixture("bip-vectors/bip158.json")).unwrap();
    let vectors: Vec<serde_json::Value> = serde_json::from_slice(&vectors).unwrap();
    // The first entry names the columns.
    for vector in &vectors[1..] {
        let bytes = |at: usize| Vec::from_hex(vector[at].as_str().unwrap()).unwrap();
        let shown = |at: usize| bytes(at).into_iter().rev().collect::<Vec<_>>();
        let block: Block = deserialize(&bytes(2)).unwrap();
        let script = |script: &serde_json::Value| {
            ScriptBuf::from(Vec::from_hex(script.as_str().unwrap()).unwrap())
        };
        let spent: Vec<_> = vector[3].as_array().unwrap().iter().map(script).collect();
        let filter = filter_of(&block, &spent);
        assert_eq!(filter, bytes(5), "{}", vector[0]);
        let header = sha256d(&[&sha256d(&filter)[..], &shown(4)].concat());
        assert_eq!(header.to_vec(), shown(6), "{}", vector[0]);
    }
    assert_eq!(vectors.len(), 11);
}

/// The filter that rust-bitcoin makes.
fn other_filter(block: &Block, spent: &[ScriptBuf]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = BlockFilterWriter::new(&mut out, block);
    writer.add_output_scripts();
    // Unlike Core and the BIP, it takes empty scripts of spent outputs.
    spent.iter().filter(|it| !it.is_empty()).for_each(|it| writer.add_element(it.as_bytes()));
    writer.finish().unwrap();
    BlockFilter::new(&out).content
}

fn scripts() -> impl Strategy<Value = Vec<ScriptBuf>> {
    let script = prop_oneof![
        Just(Vec::new()),
        // Few different ones, so that they repeat.
        vec(0x51u8..0x53, 1..4),
        vec(any::<u8>(), 1..40).prop_filter("is a coin", |it| it[0] != 0x6a),
        Just(vec![0x51; 10_000]),
    ];
    vec(script.prop_map(ScriptBuf::from), 0..60)
}

proptest! {
    #[test]
    fn filters_are_those_of_another_implementation(
        created in scripts(),
        spent in scripts(),
        unspendable in any::<bool>(),
        nonce in any::<u32>(),
    ) {
        let mut builder = ChainBuilder::new(1);
        let mut block = builder.empty_blocks(1)[0].clone();
        block.header.nonce = nonce;
        let value = Amount::from_sat(1);
        let mut output: Vec<_> =
            created.into_iter().map(|script_pubkey| TxOut { value, script_pubkey }).collect();
        if unspendable {
            output.push(TxOut { value, script_pubkey: ScriptBuf::from(vec![0x6a, 1, 1]) });
            output.push(TxOut { value, script_pubkey: ScriptBuf::from(vec![0x51; 10_001]) });
        }
        let mut tx = block.txdata[0].clone();
        let input = tx.input[0].clone();
        tx.output = output;
        block.txdata.push(tx);
        // A transaction without inputs would be in another form.
        let spent = if spent.is_empty() { vec![ScriptBuf::new()] } else { spent };
        block.txdata[1].input = vec![input; spent.len()];
        prop_assert_eq!(filter_of(&block, &spent), other_filter(&block, &spent));
    }
}

/// The filters of an index as its database says, from the lowest block on: of each the block's hash, and the
/// entry but for the place. Checks that all filters are at their places.
pub(crate) fn entries(
    rows: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>,
    files: &Path,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let of_height = rows.iter().filter(|(key, _)| key[0] == b't');
    let mut entries = Vec::new();
    for (height, (key, value)) in (0u32..).zip(of_height) {
        assert_eq!(key[1..], height.to_be_bytes());
        let (entry, place) = value.split_at(96);
        let mut place = apus_chain::Reader::new(place);
        let (number, offset) = (place.varint().unwrap(), place.varint().unwrap() as usize);
        place.finish().unwrap();
        let file = fs::read(files.join(filter_file_name(number as u32))).unwrap();
        assert_eq!(file[offset..][..32], entry[..32], "{height}");
        let mut record = apus_chain::Reader::new(&file[offset + 32..]);
        let length = record.compact_size().unwrap();
        let filter = record.take(length).unwrap();
        assert_eq!(sha256d(filter), entry[32..64], "{height}");
        entries.push((entry.to_vec(), filter.to_vec()));
    }
    entries
}

fn random_chain() -> TestChain {
    let mut builder = ChainBuilder::new(7);
    builder.random_blocks(160, Shape::default());
    TestChain::new(&builder.blocks(), Network::Regtest)
}

#[test]
fn an_index_is_the_same_however_the_chain_is_cut() {
    let chain = random_chain();
    let whole_files = new_folder();
    let whole = filter_index(&chain, &[], whole_files.path());
    let expected = entries(&whole.rows, whole_files.path());
    let length = fs::metadata(whole_files.path().join("fltr00000.dat")).unwrap().len();
    let mut next = apus_chain::Reader::new(&whole.rows[&b"P"[..]]);
    assert_eq!((next.varint().unwrap(), next.varint().unwrap()), (0, length));
    for (filter, block) in expected.iter().zip(&chain.blocks).skip(1) {
        let (outputs, spent) = block.scripts.split_at(block.scripts.len() - spent_of(block));
        let parsed: Block = deserialize(&block.raw).unwrap();
        assert_eq!(outputs.len(), parsed.txdata.iter().map(|tx| tx.output.len()).sum::<usize>());
        assert_eq!(filter.1, other_filter(&parsed, spent));
    }
    for cuts in [&[80][..], &[1, 2, 3, 100], &[159, 158, 40], &(0..160).collect::<Vec<_>>()] {
        let files = new_folder();
        let index = filter_index(&chain, cuts, files.path());
        assert_eq!(entries(&index.rows, files.path()), expected, "{cuts:?}");
        assert_eq!(index.rows[&b"B"[..]], whole.rows[&b"B"[..]]);
        assert_eq!(index.rows.len(), whole.rows.len());
        // A node continues in the file with the highest number.
        let mut next = apus_chain::Reader::new(&index.rows[&b"P"[..]]);
        let (number, offset) = (next.varint().unwrap(), next.varint().unwrap());
        let names = fs::read_dir(&files).unwrap().map(|it| it.unwrap().file_name());
        let last = names.max().unwrap().into_string().unwrap();
        assert_eq!(filter_file_name(number as u32), last);
        assert_eq!(offset, fs::metadata(files.path().join(last)).unwrap().len());
    }
}

fn spent_of(block: &TestBlock) -> usize {
    BlockUndo::read(&block.undo).unwrap().coins().len()
}

/// Blocks of 280,000 different scripts each; a filter of them has some 740 KB.
fn large_blocks(count: usize) -> TestChain {
    let params = Params::of(Network::Regtest).clone();
    let mut coinbase = params.genesis_coinbase.to_vec();
    coinbase.truncate(coinbase.iter().rposition(|byte| *byte == 0xff).unwrap() + 1);
    coinbase.extend_from_slice(&[0xfe]);
    coinbase.extend_from_slice(&280_000u32.to_le_bytes());
    for script in 0..280_000u32 {
        coinbase.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 5, 0x51]);
        coinbase.extend_from_slice(&script.to_be_bytes());
    }
    coinbase.extend_from_slice(&[0; 4]);
    let genesis = TestBlock { raw: params.genesis_block(), undo: vec![0], scripts: Vec::new() };
    let (mut blocks, mut tip) = (vec![genesis], params.genesis_hash);
    for _ in 0..count {
        let mut raw = vec![0; 80];
        raw[4..36].copy_from_slice(&tip.0);
        tip = BlockHash(sha256d(&raw));
        raw.push(1);
        raw.extend_from_slice(&coinbase);
        blocks.push(TestBlock { raw, undo: vec![0], scripts: Vec::new() });
    }
    TestChain { blocks, tip, params }
}

#[test]
fn a_file_ends_at_sixteen_mebibytes() {
    let chain = large_blocks(25);
    let files = new_folder();
    let index = filter_index(&chain, &[], files.path());
    let all = entries(&index.rows, files.path());
    let length = |number| fs::metadata(files.path().join(filter_file_name(number))).unwrap().len();
    // The record that began the second file.
    let mut of_height = index.rows.iter().filter(|(key, _)| key[0] == b't');
    let next = of_height.position(|(_, value)| value[96] == 1).unwrap();
    let with_next = length(0) + 32 + 5 + all[next].1.len() as u64;
    assert!(length(0) <= 1 << 24 && with_next > 1 << 24, "{}", length(0));
    assert_eq!((all.len(), index.rows[&b"P"[..]][0]), (26, 1));
}

#[test]
fn blocks_that_do_not_follow_each_other_are_refused() {
    use apus_indexes::{FilterSegment, MakeError, write_filter_index};
    use apus_storage::DirStorage;
    let chain = random_chain();
    let folders = [new_folder(), new_folder()];
    let storages = [0, 1].map(|at: usize| DirStorage::new(folders[at].path()));
    let numbers = Default::default();
    let part = |heights| {
        let mut segment = FilterSegment::new(&storages[0], &numbers, &storages[0]);
        chain.for_each(heights, &mut |block, _| segment.block(block)).unwrap();
        segment.finish().unwrap().unwrap()
    };
    let mut segment = FilterSegment::new(&storages[0], &numbers, &storages[0]);
    chain.for_each(5..6, &mut |block, _| segment.block(block)).unwrap();
    let refused = chain.for_each(7..8, &mut |block, _| segment.block(block)).unwrap_err();
    assert!(matches!(refused, MakeError::Chain { height: 7, .. }), "{refused}");
    let mut without = FilterSegment::new(&storages[0], &numbers, &storages[0]);
    let refused =
        chain.for_each(5..6, &mut |block, _| without.block(&IndexBlock { undo: None, ..*block }));
    assert!(refused.unwrap_err().to_string().contains("undo data are missing"));
    let end = chain.blocks.len();
    let best = chain.best();
    for (parts, what) in [
        (vec![], "there is no block"),
        (vec![part(1..end)], "not genesis"),
        (vec![part(0..9), part(10..end)], "another height"),
        (vec![part(0..9)], "the best block is another"),
    ] {
        let refused =
            write_filter_index(parts, &storages[1], &best, &|| Ok(())).unwrap_err().to_string();
        assert!(refused.contains(what), "{refused}");
    }
    let other = BlockHash([7; 32]);
    let mut segment = FilterSegment::new(&storages[0], &numbers, &storages[0]);
    let mut hashes = [None, Some(other)].into_iter().cycle();
    let refused = chain.for_each(3..5, &mut |block, _| {
        let hash = hashes.next().flatten().unwrap_or(block.hash);
        segment.block(&IndexBlock { hash, height: block.height, ..*block })
    });
    refused.unwrap();
    let refused = chain.for_each(5..6, &mut |block, _| segment.block(block)).unwrap_err();
    assert!(refused.to_string().contains("another parent"), "{refused}");
}
