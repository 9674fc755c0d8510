//! Tests with valid chains: any order of blocks and any division produce the set, its hints and the undo data.

use crate::mergesync::harness::{KEY, agree};
use crate::swiftsync::harness::{Chain, equal_segments};
use apus_chain::{BlockChecker, BlockLayout, CoinRef, CoinSumKey, HeightRange, Reader};
use apus_engine::coin::CoinBytes;
use apus_sync::engines::mergesync::{
    BlockConnector, ConnectFailure, FingerprintKey, FirstPass, FirstPassError, SeenBlock,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::effort::rounds;
use bitcoin::consensus::encode::serialize;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn random(seed: u64, blocks: usize) -> Chain {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(100);
    builder.random_blocks(blocks, Shape::default());
    Chain::of(&builder)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(8, 200) as u32))]

    #[test]
    fn any_order_and_division_give_the_same_set(seed: u64, blocks in 0usize..30) {
        let result = agree(&random(seed, blocks), seed);
        prop_assert_eq!(result.refused, None);
    }
}

/// A block that is given twice, is missing or is outside the segment is reported, as in every pass.
#[test]
fn each_block_is_needed_exactly_once() {
    let chain = random(40, 3);
    let pass = FirstPass::new(&chain.params, &chain.headers, KEY);
    let range = HeightRange::new(5, 8);
    let gather = |order: &[u32]| {
        let (mut segment, mut checker) = (pass.begin(range).unwrap(), BlockChecker::new());
        for &height in order {
            chain.block(&mut checker, height, |block| pass.block(&mut segment, block))?;
        }
        pass.finish(segment)
    };
    assert_eq!(gather(&[6, 5]).unwrap_err(), FirstPassError::Missing(7));
    assert_eq!(gather(&[6, 5, 7, 6]).unwrap_err(), FirstPassError::Unexpected(6));
    for stranger in [4, 8] {
        assert_eq!(gather(&[5, stranger]).unwrap_err(), FirstPassError::Unexpected(stranger));
    }
    let whole = gather(&[7, 6, 5]).unwrap();
    assert_eq!(whole, gather(&[5, 6, 7]).unwrap());
    assert_eq!(pass.conclude(&whole.partial, 7).unwrap_err(), FirstPassError::Missing(1));
    assert!(whole.partial.clone().merge(&whole.partial).is_err());
    let done = whole.partial.done();
    let bytes: usize = chain.blocks[5..8].iter().map(bitcoin::Block::total_size).sum();
    assert_eq!((done.blocks, done.bytes), (3, bytes as u64));
}

/// A later start reuses only segments of its own chain, recognised by their last blocks.
#[test]
fn segments_are_taken_over_from_one_chain_only() {
    let mut builder = ChainBuilder::new(44);
    builder.empty_blocks(9);
    let chain = Chain::of(&builder);
    let forked_at = |height: usize| {
        let mut fork = ChainBuilder::new(45);
        chain.blocks[1..height].iter().for_each(|block| fork.add(block.clone()));
        fork.random_blocks(10 - height, Shape::default());
        Chain::of(&fork)
    };
    let pass = FirstPass::new(&chain.params, &chain.headers, KEY);
    let gathered = |(start, end)| {
        let mut segment = pass.begin(HeightRange::new(start, end)).unwrap();
        let mut checker = BlockChecker::new();
        for height in (start..end).rev() {
            chain.block(&mut checker, height, |block| pass.block(&mut segment, block)).unwrap();
        }
        pass.finish(segment).unwrap().partial
    };
    let [low, high] = [(1, 5), (5, 8)].map(gathered);
    assert_eq!(low.ranges(), [HeightRange::new(1, 5)]);
    let mut both = high.clone();
    both.merge(&low).unwrap();
    let mut written = Vec::new();
    both.write(&mut written);
    assert_eq!(PartialResult::read(&mut Reader::new(&written)), Some(both.clone()));
    for (fork, low_is, high_is) in
        [(4, false, false), (5, true, false), (7, true, false), (8, true, true)]
    {
        let other = forked_at(fork).headers;
        assert_eq!(low.is_of(&other), low_is, "{fork}");
        assert_eq!(high.is_of(&other), high_is, "{fork}");
        assert_eq!(both.is_of(&other), high_is, "{fork}");
    }
    assert!(both.is_of(&chain.headers));
    let short = Chain::with(&chain.params, chain.blocks[..7].to_vec()).headers;
    assert!(low.is_of(&short) && !high.is_of(&short), "a shorter chain does not have all of it");
}

/// Coins spent within a segment need no join.
#[test]
fn one_segment_leaves_the_set_alone() {
    let chain = random(41, 25);
    let pass = FirstPass::new(&chain.params, &chain.headers, KEY);
    let mut checker = BlockChecker::new();
    let [order] = &equal_segments(chain.stop(), 1)[..] else { panic!("one segment") };
    let mut segment = pass.begin(HeightRange::new(1, chain.stop() + 1)).unwrap();
    for &height in order {
        chain.block(&mut checker, height, |block| pass.block(&mut segment, block)).unwrap();
    }
    let runs = pass.finish(segment).unwrap().runs;
    assert!(runs[1].is_empty(), "no spend is left");
    let (mut rest, mut coins) = (&runs[0][..], 0);
    while let Some((record, after)) = apus_sync::engines::mergesync::OutputRecord::read(rest) {
        coins += record.coins().count();
        rest = after;
    }
    assert_eq!((coins, rest.len()), (chain.utxo().len(), 0));
}

/// A block with changed bytes does not count as checked.
#[test]
fn a_block_is_recognized_by_its_bytes() {
    let chain = random(43, 9);
    let raw = serialize(&chain.blocks[7]);
    let (mut checker, mut layout) = (BlockChecker::new(), BlockLayout::new());
    let (mut noted, mut id) = (None, None);
    chain
        .block(&mut checker, 7, |block| {
            noted = Some(KEY.of(&block.view()));
            id = Some(SeenBlock::checked(block).id());
            Ok::<_, core::convert::Infallible>(())
        })
        .unwrap();
    let (noted, id) = (noted.unwrap(), id.unwrap());
    let mut again = |raw: &[u8], key: &FingerprintKey| {
        let view = layout.read(raw).ok();
        view.is_some_and(|view| SeenBlock::again(id, view, key, &noted).is_some())
    };
    assert!(again(&raw, &KEY) && again(&[&raw[..], &[0]].concat(), &KEY));
    assert!(!again(&raw, &FingerprintKey::new([8; 8])));
    for at in 0..raw.len() {
        let mut other = raw.clone();
        other[at] ^= 1;
        assert!(!again(&other, &KEY), "{at}");
    }
}

/// Coins without scripts are refused if scripts must be run, or undo data kept.
#[test]
fn stripped_coins_are_refused_for_scripts_and_undo_data() {
    let chain = random(43, 1);
    let context = chain.context(101);
    let raw = serialize(&chain.blocks[101]);
    let mut checker = BlockChecker::new();
    let block = SeenBlock::checked(&checker.check(&raw, &context).unwrap());
    let sum_key = Some(CoinSumKey::new([3; 16]));
    let of_all = BlockConnector {
        params: &chain.params,
        chain: &chain.headers,
        existed: &BTreeMap::new(),
        scripts: None,
        assumed: 101,
        sum_key: None,
        bare: 0,
        numbered: false,
    };
    for (bare, check_scripts, sum_key, refused) in [
        (101, true, None, true),
        (101, false, sum_key, true),
        (102, true, sum_key, true),
        (100, false, sum_key, false),
        (101, false, None, false),
    ] {
        let assumed = if check_scripts { 0 } else { 101 };
        let connector = BlockConnector { assumed, sum_key, bare, ..of_all };
        let validated = connector.block(&block, std::iter::empty());
        let is_bare = validated.err().is_some_and(|error| matches!(error, ConnectFailure::Bare));
        assert_eq!(is_bare, refused, "{bare}");
    }
    // A coin in another form is not a stripped coin.
    let coin = CoinBytes::new(CoinRef { height: 1, coinbase: true, amount: 5, script: &[0x51] });
    let connector = BlockConnector { bare: 101, ..of_all };
    let validated = connector.block(&block, std::iter::once(coin.as_bytes()));
    assert!(matches!(validated.err(), Some(ConnectFailure::Bare)));
}
