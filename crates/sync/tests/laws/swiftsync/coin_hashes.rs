//! Tests that the hashes that segments store equal a slow and obvious count, each at its place.

use crate::placed::{Hasher, placed, write};
use crate::swiftsync::harness::{
    Chain, KINDS, coin_hints, equal_segments, hash_of, index_hints, random_division, range_of,
    snapshot,
};
use crate::swiftsync::shapes::{coin, pay, random_chain};
use apus_chain::{BlockChecker, BlockContext, Height, HeightRange, Network, Params};
use apus_sync::commitment::{NewHasher, read_placed};
use apus_sync::engines::pass::Pass;
use apus_sync::engines::swiftsync::{IndexHints, SegmentHints, SegmentOutput, SwiftSync};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::rng::Rng;
use bitcoin::ScriptBuf;
use bitcoin::TxOut;
use proptest::prelude::*;

const HASHER: NewHasher = || Box::<Hasher>::default();

/// Returns the list of hashes of all segments, by ascending height.
fn joined(segments: &[SegmentOutput]) -> Vec<u8> {
    let (mut out, mut first) = (Vec::new(), 0u64);
    for segment in segments {
        for hash in read_placed(&segment.hashes).map(Option::unwrap) {
            assert!(hash.place < segment.partial.numbered);
            write(&mut out, first + hash.place, &hash.hash);
        }
        first += segment.partial.numbered;
    }
    out.extend_from_slice(&first.to_le_bytes());
    out
}

fn segments(
    chain: &Chain,
    division: &[Vec<Height>],
    hints: impl Fn(HeightRange) -> SegmentHints,
) -> Vec<SegmentOutput> {
    let engine = chain.engine(KINDS[0]).with_hashes(Some(HASHER));
    let segment = |order: &Vec<Height>| {
        let hints = hints(range_of(order));
        (range_of(order).start, chain.segment(&engine, hints, order).unwrap())
    };
    let mut done: Vec<_> = division.iter().map(segment).collect();
    done.sort_by_key(|(start, _)| *start);
    done.into_iter().map(|(_, segment)| segment).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_division_gives_the_same_list(seed: u64, shuffle: u64) {
        let chain = Chain::of(&random_chain(seed, 14));
        let (hints, coins) = (chain.hints(), snapshot(&chain.utxo()));
        let division = random_division(14, &mut Rng::new(shuffle));
        let by_place = segments(&chain, &division, |range| index_hints(&hints, range));
        prop_assert_eq!(joined(&by_place), placed(&chain.blocks));
        let by_name = segments(&chain, &division, |range| coin_hints(&coins, range));
        prop_assert_eq!(joined(&by_name), placed(&chain.blocks));
    }
}

/// A block spends its own outputs: before, between and after others, out of order. There are also unspendable
/// outputs, and blocks that add no hash.
#[test]
fn outputs_spent_in_their_block_have_no_place() {
    let mut builder = ChainBuilder::new(3);
    let first = builder.block_with(vec![]);
    let never = TxOut { script_pubkey: ScriptBuf::new_op_return([7; 3]), ..pay(0) };
    builder.add_plan(BlockPlan {
        coinbase_outputs: Some(vec![never.clone()]),
        ..BlockPlan::default()
    });
    (0..100).for_each(|_| drop(builder.block_with(vec![])));
    let six = builder.spend(&[coin(&first.txdata[0], 0)], {
        let mut outputs = vec![pay(1_000); 6];
        outputs.insert(2, never);
        outputs
    });
    let again = builder.spend(&[coin(&six, 6), coin(&six, 1)], vec![pay(500); 2]);
    let last = builder.spend(&[coin(&again, 0), coin(&six, 3)], vec![pay(100)]);
    builder.block_with(vec![six.clone(), again, last]);
    let later = builder.spend(&[coin(&six, 0)], vec![pay(10)]);
    builder.block_with(vec![later]);
    let chain = Chain::of(&builder);
    let hints = chain.hints();
    for count in [1, 2, chain.stop()] {
        let division = equal_segments(chain.stop(), count);
        let done = segments(&chain, &division, |range| index_hints(&hints, range));
        assert_eq!(joined(&done), placed(&chain.blocks));
    }
}

/// Hashes are stored only on request.
#[test]
fn hashes_are_stored_on_request() {
    let chain = Chain::of(&random_chain(5, 8));
    let (engine, hints) = (chain.engine(KINDS[0]), chain.hints());
    let order: Vec<Height> = (1..=8).collect();
    let done = chain.segment(&engine, index_hints(&hints, range_of(&order)), &order).unwrap();
    assert_eq!((done.partial.numbered, done.hashes.len()), (0, 0));
    assert_eq!(SwiftSync::RUNS.len(), 4);
}

/// The coinbases of blocks 91,722 and 91,812 were overwritten, and no spend ever takes them.
#[test]
fn overwritten_coinbases_survive_at_their_places() {
    let params = Params::of(Network::Main);
    let engine = crate::swiftsync::bip30::main_engine(params).with_hashes(Some(HASHER));
    for height in [91_722, 91_812] {
        let block = crate::swiftsync::bip30::main_block(height);
        let raw = bitcoin::consensus::encode::serialize(&block);
        let hash = hash_of(&block);
        let context = BlockContext { params, height, hash, median_time_past: 0, verifier: None };
        let mut checker = BlockChecker::new();
        let checked = checker.check(&raw, &context).unwrap();
        let mut hints = IndexHints::new(height);
        hints.push([]);
        let mut segment = engine.begin(SegmentHints::Indices(hints));
        engine.block(&mut segment, &checked).unwrap();
        let done = engine.finish(segment).unwrap();
        let hashes: Vec<_> = read_placed(&done.hashes).map(Option::unwrap).collect();
        assert_eq!((hashes.len(), hashes[0].place), (1, 0));
        let outputs: usize = block.txdata.iter().map(|tx| tx.output.len()).sum();
        assert_eq!(done.partial.numbered, outputs as u64);
    }
}
