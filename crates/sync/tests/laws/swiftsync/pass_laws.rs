//! Guarantees of every [`Pass`], tested through the trait alone, so that the tests apply to any engine of
//! that kind: any division into segments, any order of segments and of blocks, any order of merging, and
//! results that went through their byte form produce the same verdict and the same runs.

use crate::swiftsync::harness::{Chain, Division, index_hints, random_division, range_of};
use crate::swiftsync::shapes::random_chain;
use apus_chain::{BlockChecker, Height, HeightRange, Reader};
use apus_sync::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind, Work};
use apus_sync::engines::swiftsync::SwiftSync;
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Debug;

const BLOCKS: u32 = 14;

/// The result of a pass: its verdict, the work done, and its runs, merged into one of each kind.
type Led<V> = (V, Work, BTreeMap<&'static str, Vec<u8>>);

/// Processes a segment with its blocks in this order.
fn segment<P: Pass>(
    pass: &P,
    chain: &Chain,
    input: P::Input,
    order: &[Height],
) -> Result<FinishedSegment<P::Partial>, P::Error> {
    let mut checker = BlockChecker::new();
    let mut segment = pass.begin(input)?;
    for &height in order {
        chain.block(&mut checker, height, |block| pass.block(&mut segment, block))?;
    }
    pass.finish(segment)
}

/// Writes a result, and reads it back.
fn through_bytes<R: PartialResult>(result: &R) -> R {
    let mut bytes = Vec::new();
    result.write(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let read = R::read(&mut reader).unwrap();
    reader.finish().unwrap();
    read
}

/// Merges the runs of a kind into one by the kind's own rule, in the simplest way.
fn joined(kind: RunKind, mut runs: Vec<(HeightRange, Vec<u8>)>) -> Vec<u8> {
    runs.sort_unstable();
    let all: Vec<u8> = runs.into_iter().flat_map(|(_, run)| run).collect();
    if kind == SwiftSync::HINTS {
        return all;
    }
    let (mut records, mut rest) = (Vec::new(), &all[..]);
    while !rest.is_empty() {
        let group = u32::from_le_bytes(rest[32..36].try_into().unwrap()) as usize;
        let (record, after) = rest.split_at(36 + group);
        records.push(record);
        rest = after;
    }
    records.sort_unstable();
    records.concat()
}

/// Runs a whole pass, and merges its results in a random order.
fn led_to<P: Pass>(
    pass: &P,
    chain: &Chain,
    input: &dyn Fn(HeightRange) -> P::Input,
    division: &Division,
    rng: &mut Rng,
) -> Led<P::Verdict>
where
    P::Error: Debug,
{
    let mut done: Vec<(HeightRange, FinishedSegment<P::Partial>)> = Vec::new();
    for order in division {
        let range = range_of(order);
        let finished = segment(pass, chain, input(range), order).unwrap();
        assert_eq!(finished.partial.ranges(), [range]);
        assert_eq!(finished.runs.len(), P::RUNS.len());
        done.push((range, finished));
    }
    rng.shuffle(&mut done);
    let mut whole = pass.nothing();
    for (_, finished) in &done {
        whole.merge(&through_bytes(&finished.partial)).unwrap();
    }
    let runs = P::RUNS.iter().enumerate().map(|(at, kind)| {
        let runs = done.iter().map(|(range, finished)| (*range, finished.runs[at].clone()));
        (kind.ending(), joined(*kind, runs.collect()))
    });
    let runs = runs.collect();
    (pass.conclude(&whole, chain.stop()).unwrap(), whole.done(), runs)
}

/// Checks a pass's guarantees on a chain.
fn expect_laws<P: Pass>(pass: &P, chain: &Chain, input: &dyn Fn(HeightRange) -> P::Input, seed: u64)
where
    P::Error: Debug,
    P::Verdict: PartialEq + Debug,
{
    let mut rng = Rng::new(seed);
    let in_order: Vec<Height> = (1..=chain.stop()).collect();
    let plain = led_to(pass, chain, input, &vec![in_order.clone()], &mut rng);
    for _ in 0..3 {
        let division = random_division(chain.stop(), &mut rng);
        assert_eq!(led_to(pass, chain, input, &division, &mut rng), plain, "{division:?}");
    }
    let whole = || input(HeightRange::new(1, chain.stop() + 1));
    // A block that is missing or given twice is noticed.
    assert!(segment(pass, chain, whole(), &in_order[1..]).is_err());
    let twice = [&in_order[..], &in_order[2..3]].concat();
    assert!(segment(pass, chain, whole(), &twice).is_err());
    // A segment that is missing or merged twice is noticed, too.
    let half = chain.stop() / 2;
    let order: Vec<Height> = (1..=half).collect();
    let lower = segment(pass, chain, input(HeightRange::new(1, half + 1)), &order).unwrap();
    assert!(pass.conclude(&lower.partial, chain.stop()).is_err());
    let mut again = through_bytes(&lower.partial);
    assert!(again.merge(&lower.partial).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn swiftsync_is_a_pass(seed: u64, other: bool) {
        let chain = Chain::of(&random_chain(seed, BLOCKS));
        let hints = chain.hints();
        let pass = chain.engine(crate::swiftsync::harness::KINDS[usize::from(other)]);
        expect_laws(&pass, &chain, &|range| index_hints(&hints, range), seed);
    }
}
