//! The leaves that segments leave make the forest that a library has which adds and deletes.

use crate::swiftsync::harness::{
    Chain, KINDS, coin_hints, equal_segments, hash_of, index_hints, random_division, range_of,
    snapshot,
};
use crate::swiftsync::shapes::{coin, pay, random_chain};
use apus_chain::{BlockChecker, BlockContext, Height, HeightRange, Network, Params};
use apus_sync::engines::pass::Pass;
use apus_sync::engines::swiftsync::{Finished, IndexHints, SegmentHints, SwiftSync};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::oracle::forest;
use apus_testkit::rng::Rng;
use apus_utreexo::{Fragment, LiveLeaf, NodeHash, read_live};
use bitcoin::ScriptBuf;
use bitcoin::TxOut;
use proptest::prelude::*;

/// What a library makes of the chain.
fn expected(chain: &Chain) -> (u64, Vec<NodeHash>) {
    let (leaves, roots) = forest(&chain.blocks);
    (leaves, roots.into_iter().map(NodeHash).collect())
}

/// The fragment of a segment that begins at this leaf.
fn fragment(first: u64, segment: &Finished) -> Fragment {
    let live: Option<Vec<LiveLeaf>> = read_live(&segment.leaves).collect();
    let mut fragment = Fragment::new(first).unwrap();
    fragment.push_live(segment.partial.leaves, &live.unwrap()).unwrap();
    fragment
}

/// The forest of segments that were done in this order, whose results come by ascending height.
fn joined(segments: &[Finished]) -> (u64, Vec<NodeHash>) {
    let mut whole = Fragment::new(0).unwrap();
    for segment in segments {
        whole.append(&fragment(whole.leaves(), segment)).unwrap();
    }
    (whole.leaves(), whole.roots().unwrap().hashes().to_vec())
}

fn segments(
    chain: &Chain,
    division: &[Vec<Height>],
    hints: impl Fn(HeightRange) -> SegmentHints,
) -> Vec<Finished> {
    let engine = chain.engine(KINDS[0]).with_leaves(true);
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
    fn any_division_gives_the_forest(seed: u64, shuffle: u64) {
        let chain = Chain::of(&random_chain(seed, 14));
        let (hints, coins) = (chain.hints(), snapshot(&chain.utxo()));
        let division = random_division(14, &mut Rng::new(shuffle));
        let by_place = segments(&chain, &division, |range| index_hints(&hints, range));
        prop_assert_eq!(joined(&by_place), expected(&chain));
        let by_name = segments(&chain, &division, |range| coin_hints(&coins, range));
        prop_assert_eq!(joined(&by_name), expected(&chain));
    }
}

/// Outputs that the block spends itself, before, between and behind others, out of order; such that cannot be
/// spent at all; and blocks that add nothing.
#[test]
fn what_a_block_spends_itself_is_no_leaf() {
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
        assert_eq!(joined(&done), expected(&chain));
    }
}

/// Where they are not asked for, none are told.
#[test]
fn leaves_are_told_on_request() {
    let chain = Chain::of(&random_chain(5, 8));
    let (engine, hints) = (chain.engine(KINDS[0]), chain.hints());
    let order: Vec<Height> = (1..=8).collect();
    let done = chain.segment(&engine, index_hints(&hints, range_of(&order)), &order).unwrap();
    assert_eq!((done.partial.leaves, done.leaves.len()), (0, 0));
    assert_eq!(SwiftSync::RUNS.len(), 3);
}

/// The coinbases of blocks 91,722 and 91,812 were overwritten, and their leaves never are deleted. Their hashes
/// are those of utreexod (`wire`, `leaf.go`).
#[test]
fn overwritten_coinbases_stay_in_the_forest() {
    let params = Params::of(Network::Main);
    let engine = crate::swiftsync::bip30::main_engine(params).with_leaves(true);
    for (height, leaf) in [
        (91_722, "84b3af0783b410b4564c5d1f361868559f7cf77cfc65ce2be951210357022fe3"),
        (91_812, "bc6b4bf7cebbd33a18d6b0fe1f8ecc7aa5403083c39ee343b985d51fd0295ad8"),
    ] {
        let block = crate::swiftsync::bip30::main_block(height);
        let raw = bitcoin::consensus::encode::serialize(&block);
        let hash = hash_of(&block);
        let context = BlockContext { params, height, hash, median_time_past: 0, verifier: None };
        let mut checker = BlockChecker::new();
        let checked = checker.check(&raw, &context).unwrap();
        let mut hints = IndexHints::new(height);
        hints.push(&[]);
        let mut segment = engine.begin(SegmentHints::Indices(hints));
        engine.block(&mut segment, &checked).unwrap();
        let done = engine.finish(segment).unwrap();
        let live: Vec<LiveLeaf> = read_live(&done.leaves).map(Option::unwrap).collect();
        assert_eq!(live.len(), 1);
        assert_eq!((live[0].place, live[0].hash.to_string()), (0, leaf.to_owned()));
        let outputs: usize = block.txdata.iter().map(|tx| tx.output.len()).sum();
        assert_eq!(done.partial.leaves, outputs as u64);
    }
}
