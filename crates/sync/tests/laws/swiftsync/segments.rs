//! Tests of callers with wrong bookkeeping: blocks given twice, left out or misplaced.

use crate::swiftsync::harness::{Chain, KINDS, equal_segments, index_hints};
use crate::swiftsync::shapes::small_chain;
use apus_chain::{BlockChecker, Height, HeightRange};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::{
    HintError, IndexHints, MergeError, Partial, Segment, SegmentHints, SwiftSync, SwiftSyncError,
};

fn range(start: Height, end: Height) -> HeightRange {
    HeightRange::new(start, end)
}

fn give(
    chain: &Chain,
    engine: &SwiftSync,
    segment: &mut Segment,
    height: Height,
) -> Result<(), SwiftSyncError> {
    chain.block(&mut BlockChecker::new(), height, |block| engine.block(segment, block))
}

fn begun(chain: &Chain, heights: HeightRange) -> (SwiftSync, Segment) {
    let engine = chain.engine(AggregateKind::Sha256);
    let segment = engine.begin(index_hints(&chain.hints(), heights));
    (engine, segment)
}

#[test]
fn a_block_given_twice() {
    let chain = Chain::of(&small_chain());
    let (engine, mut segment) = begun(&chain, range(3, 6));
    for height in [4, 3, 5] {
        give(&chain, &engine, &mut segment, height).unwrap();
        let again = give(&chain, &engine, &mut segment, height);
        assert_eq!(again, Err(SwiftSyncError::Unexpected(height)));
    }
    // Refused blocks left no trace.
    let clean = chain.segment(&engine, index_hints(&chain.hints(), range(3, 6)), &[3, 4, 5]);
    let (clean, done) = (clean.unwrap(), engine.finish(segment).unwrap());
    assert_eq!((done.partial, done.run), (clean.partial, clean.run));
}

#[test]
fn a_block_of_another_segment() {
    let chain = Chain::of(&small_chain());
    let (engine, mut segment) = begun(&chain, range(3, 6));
    for height in [0, 1, 2, 6, 7] {
        let error = give(&chain, &engine, &mut segment, height);
        assert_eq!(error, Err(SwiftSyncError::Unexpected(height)));
    }
}

#[test]
fn a_segment_with_a_block_missing() {
    let chain = Chain::of(&small_chain());
    for missing in 3..6 {
        let (engine, mut segment) = begun(&chain, range(3, 6));
        for height in (3..6).filter(|&height| height != missing) {
            give(&chain, &engine, &mut segment, height).unwrap();
        }
        let missing = range(missing, missing + 1);
        let error = SwiftSyncError::Incomplete { missing, stop: 5 };
        assert_eq!(engine.finish(segment).err(), Some(error));
    }
}

#[test]
fn a_segment_that_failed_cannot_be_finished() {
    // The fault in a block's hints shows only after its outputs were processed.
    let chain = Chain::of(&small_chain());
    let mut hints = chain.hints();
    hints[3].push(1_000);
    let engine = chain.engine(AggregateKind::Sha256);
    let mut segment = engine.begin(index_hints(&hints, range(3, 6)));
    give(&chain, &engine, &mut segment, 3).unwrap();
    let error = give(&chain, &engine, &mut segment, 4).unwrap_err();
    assert!(matches!(error, SwiftSyncError::Hints(HintError::IndexOutOfRange { .. })), "{error}");
    give(&chain, &engine, &mut segment, 5).unwrap();
    let again = give(&chain, &engine, &mut segment, 4);
    assert_eq!(again, Err(SwiftSyncError::Unexpected(4)), "half of it is in there");
    let error = SwiftSyncError::Incomplete { missing: range(4, 5), stop: 5 };
    assert_eq!(engine.finish(segment).err(), Some(error));
}

#[test]
fn an_empty_segment_changes_nothing() {
    let chain = Chain::of(&small_chain());
    let engine = chain.engine(AggregateKind::Sha256);
    let empty = engine.begin(SegmentHints::Indices(IndexHints::new(5)));
    let done = engine.finish(empty).unwrap();
    assert_eq!(done.partial, engine.nothing());
    assert!(done.run.is_empty());
}

/// Returns the result of a range of heights with the right hints.
fn part(chain: &Chain, kind: AggregateKind, heights: HeightRange) -> Partial {
    let order: Vec<Height> = heights.heights().collect();
    let hints = index_hints(&chain.hints(), heights);
    chain.segment(&chain.engine(kind), hints, &order).unwrap().partial
}

fn conclude(chain: &Chain, parts: &[HeightRange], stop: Height) -> Result<(), SwiftSyncError> {
    let kind = AggregateKind::Sha256;
    let engine = chain.engine(kind);
    let mut whole = engine.nothing();
    for &heights in parts {
        whole.merge(&part(chain, kind, heights)).unwrap();
    }
    engine.conclude(&whole, stop).map(|_| ())
}

#[test]
fn a_run_with_segments_missing() {
    let chain = Chain::of(&small_chain());
    let stop = chain.stop();
    let incomplete = |missing| Err(SwiftSyncError::Incomplete { missing, stop });
    let all = range(1, stop + 1);
    assert_eq!(conclude(&chain, &[all], stop), Ok(()));
    assert_eq!(conclude(&chain, &[], stop), incomplete(all));
    assert_eq!(conclude(&chain, &[range(1, stop)], stop), incomplete(range(stop, stop + 1)));
    assert_eq!(conclude(&chain, &[range(2, stop + 1)], stop), incomplete(range(1, 2)));
    let gap = [range(5, stop + 1), range(1, 3)];
    assert_eq!(conclude(&chain, &gap, stop), incomplete(range(3, 5)));
    let gaps = [range(2, 3), range(5, 6)];
    assert_eq!(conclude(&chain, &gaps, stop), incomplete(range(1, 2)));
}

#[test]
fn a_run_with_blocks_beyond_its_ends() {
    let chain = Chain::of(&small_chain());
    let stop = chain.stop();
    for parts in [&[range(1, stop + 1)][..], &[range(1, 3), range(4, stop + 1)]] {
        for short in [stop - 1, 4] {
            let surplus = range(short + 1, stop + 1);
            let error = SwiftSyncError::Surplus { surplus, stop: short };
            assert_eq!(conclude(&chain, parts, short), Err(error));
        }
    }
}

#[test]
fn the_genesis_block_in_a_run() {
    // Its output is not a coin, even if hints list it.
    let chain = Chain::of(&small_chain());
    let engine = chain.engine(AggregateKind::Sha256);
    let mut hints = IndexHints::new(0);
    hints.push([0]);
    for block in chain.hints() {
        hints.push(block);
    }
    let order: Vec<Height> = (0..=chain.stop()).collect();
    let done = chain.segment(&engine, SegmentHints::Indices(hints), &order).unwrap();
    let error = SwiftSyncError::Surplus { surplus: range(0, 1), stop: chain.stop() };
    assert_eq!(engine.conclude(&done.partial, chain.stop()), Err(error));
}

#[test]
fn parts_that_overlap_are_not_merged() {
    let chain = Chain::of(&small_chain());
    for kind in KINDS {
        let mut whole = part(&chain, kind, range(3, 6));
        let before = whole.clone();
        for (start, end, overlap) in [(3, 6, 3), (1, 4, 3), (5, 7, 5), (4, 5, 4), (1, 9, 3)] {
            let other = part(&chain, kind, range(start, end));
            assert_eq!(whole.merge(&other), Err(MergeError::Overlap(overlap)));
            assert_eq!(whole, before, "a refused part leaves no trace");
        }
    }
}

#[test]
fn parts_of_different_aggregates_are_not_merged() {
    let chain = Chain::of(&small_chain());
    for (kind, other) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
        let mut whole = part(&chain, kind, range(1, 3));
        let before = whole.clone();
        let result = whole.merge(&part(&chain, other, range(3, 5)));
        assert!(matches!(result, Err(MergeError::Kind(_))), "{result:?}");
        assert_eq!(whole, before, "a refused part leaves no trace");
    }
}

#[test]
fn parts_under_two_keys_do_not_balance() {
    use apus_sync::engines::swiftsync::aggregate::{Aggregator, Secret};
    let chain = Chain::of(&small_chain());
    let aggregator = |secret| {
        Aggregator::new(AggregateKind::Sha256, &Secret(secret), *chain.headers.tip_hash(), [7; 32])
    };
    let engines = [[1; 32], [2; 32]]
        .map(|secret| SwiftSync::new(&chain.params, &chain.headers, aggregator(secret)));
    let mut whole = engines[0].nothing();
    for (engine, order) in engines.iter().zip(equal_segments(chain.stop(), 2)) {
        let hints = index_hints(&chain.hints(), crate::swiftsync::harness::range_of(&order));
        whole.merge(&chain.segment(engine, hints, &order).unwrap().partial).unwrap();
    }
    let error = engines[0].conclude(&whole, chain.stop()).unwrap_err();
    assert!(matches!(error, SwiftSyncError::Unbalanced { .. }), "{error}");
}
