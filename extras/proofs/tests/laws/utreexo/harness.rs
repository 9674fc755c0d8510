//! Runs the engine over a chain with given data, range by range.

use crate::mergesync::harness::{Said, in_order};
use crate::swiftsync::harness::{Chain, random_division, range_of};
use crate::utreexo::bridge::{ProofData, proofs_of};
use apus_chain::{BlockChecker, Height, HeightRange, KnownBlock, ScriptError};
use apus_engine::coin::CoinBytes;
use apus_engine::script::{Interpreter, PreparedTx, Refusal, ScriptPool};
use apus_proofs::engine::{
    ForestStart, Partial, ProofRange, ProofReader, ProofSource, ProvenError, RootsBlock,
    TrustedRoots, Utreexo, Verdict,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::rng::Rng;
use apus_utreexo::Roots;
use std::sync::Arc;

/// The data as bytes, and the roots at which each range claims to begin and end.
#[derive(Clone)]
pub(crate) struct Ranges {
    pub(crate) entries: Vec<Option<Vec<u8>>>,
    pub(crate) ranges: Vec<(HeightRange, Roots, Roots)>,
}

impl Ranges {
    pub(crate) fn of(data: &ProofData, cuts: &[HeightRange]) -> Self {
        let entries = data.entries.iter().map(|entry| Some(entry.bytes())).collect();
        let roots = |height: Height| data.roots[height as usize].clone();
        let range = |cut: &HeightRange| (*cut, roots(cut.start - 1), roots(cut.end - 1));
        Self { entries, ranges: cuts.iter().map(range).collect() }
    }

    /// The range that begins at `start`.
    pub(crate) fn from(&mut self, start: Height) -> &mut (HeightRange, Roots, Roots) {
        self.ranges.iter_mut().find(|(range, ..)| range.start == start).unwrap()
    }
}

impl ProofSource for Ranges {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        let found = self.ranges.iter().find(|(range, ..)| *range == heights);
        let (_, before, after) = found.ok_or_else(|| "there is no such range".to_owned())?;
        let reader = Box::new(Reading(&self.entries));
        Ok(ProofRange { heights, before: before.clone(), after: after.clone(), reader })
    }
}

struct Reading<'a>(&'a [Option<Vec<u8>>]);

impl ProofReader for Reading<'_> {
    fn read(&mut self, block: &KnownBlock, _: usize, out: &mut Vec<u8>) -> Result<(), String> {
        let entry = self.0.get(block.height as usize).and_then(Option::as_ref);
        out.clone_from(entry.ok_or_else(|| "it was lost".to_owned())?);
        Ok(())
    }

    fn origin(&self) -> String {
        "the harness".to_owned()
    }
}

/// An interpreter that accepts everything; other tests check scripts.
struct AnyScript;

impl Interpreter for AnyScript {
    fn prepare(&self, _: &[u8], _: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        Ok(Box::new(Self))
    }
}

impl PreparedTx for AnyScript {
    fn verify(&self, _: usize, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
}

/// An engine that accepts any script.
pub(crate) fn engine(chain: &Chain) -> Utreexo<'_> {
    let scripts = ScriptPool::with_interpreter(0, Arc::new(AnyScript)).unwrap();
    Utreexo::new(&chain.params, &chain.headers, 0, Some(scripts))
}

/// The heights from 1 to the tip, cut at random, in random order.
pub(crate) fn cuts(chain: &Chain, rng: &mut Rng) -> Vec<HeightRange> {
    random_division(chain.stop(), rng).iter().map(|order| range_of(order)).collect()
}

/// Processes one range; returns its result, or the error of its first bad block.
pub(crate) fn range<'a>(
    engine: &Utreexo<'a>,
    chain: &Chain,
    data: &'a Ranges,
    heights: HeightRange,
) -> Result<Partial, ProvenError> {
    let (mut checker, input) = (BlockChecker::new(), data.range(heights).unwrap());
    let mut segment = engine.begin(input)?;
    for height in heights.heights() {
        chain.block(&mut checker, height, |block| engine.block(&mut segment, block))?;
    }
    Ok(engine.finish(segment)?.partial)
}

/// Processes all ranges and merges the results in random order and grouping. If ranges fail, returns the
/// error of the lowest one.
pub(crate) fn run(chain: &Chain, data: &Ranges, rng: &mut Rng) -> Result<Verdict, ProvenError> {
    run_by(&engine(chain), chain, data, rng)
}

/// Does the same with an engine that may begin above block 1.
pub(crate) fn run_by(
    engine: &Utreexo<'_>,
    chain: &Chain,
    data: &Ranges,
    rng: &mut Rng,
) -> Result<Verdict, ProvenError> {
    let (mut parts, mut failed) = (Vec::new(), Vec::new());
    for (heights, ..) in &data.ranges {
        match range(engine, chain, data, *heights) {
            Ok(part) => parts.push(part),
            Err(error) => failed.push((heights.start, error)),
        }
    }
    failed.sort_by_key(|(start, _)| *start);
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error);
    }
    rng.shuffle(&mut parts);
    while parts.len() > 1 {
        let part = parts.swap_remove(rng.index(parts.len()));
        let other = rng.index(parts.len());
        parts[other].merge(&part)?;
    }
    let whole = parts.pop().unwrap_or_else(|| engine.nothing());
    engine.conclude(&whole, chain.stop())
}

/// Processes a chain with honest data, cut at random.
pub(crate) fn honest(chain: &Chain, rng: &mut Rng) -> Result<Verdict, ProvenError> {
    let ranges = Ranges::of(&proofs_of(&chain.blocks), &cuts(chain, rng));
    run(chain, &ranges, rng)
}

/// The roots after a block, as a user names them.
pub(crate) fn trusted(roots: &Roots, height: Height) -> TrustedRoots {
    let block = RootsBlock::Height(height);
    TrustedRoots { roots: roots.clone(), block, origin: "roots".to_owned() }
}

/// Processes the blocks above a height, cut at random, with honest data and these roots. `None` if a job may not begin
/// there.
pub(crate) fn above(
    chain: &Chain,
    (data, roots): (&ProofData, &Roots),
    height: Height,
    rng: &mut Rng,
) -> Option<Result<Verdict, ProvenError>> {
    let stop = chain.stop();
    let trusted = trusted(roots, height);
    let start = ForestStart::of_trusted(&trusted, &chain.params, &chain.headers, stop).ok()?;
    let cut = |order: &Vec<Height>| {
        let HeightRange { start, end } = range_of(order);
        HeightRange::new(start + height, end + height)
    };
    let cuts: Vec<HeightRange> = random_division(stop - height, rng).iter().map(cut).collect();
    let mut ranges = Ranges::of(data, &cuts);
    ranges.from(height + 1).1 = roots.clone();
    Some(run_by(&engine(chain).starting_with(start), chain, &ranges, rng))
}

/// Checks that the engine gives the same verdict on a chain as the in-order engine, with the same lowest
/// invalid block and rule, and returns the verdict; also if it never sees the blocks up to a height. A forest
/// does not show whether an output already exists, so for BIP-30 this engine gives another reason.
#[track_caller]
pub(crate) fn agree(chain: &Chain, seed: u64) -> Said {
    let (wanted, mut rng) = (in_order(chain), Rng::new(seed));
    let last = wanted.refused.as_ref().map_or(chain.stop(), |(height, _)| *height);
    let data = proofs_of(&chain.blocks);
    let below = [last.saturating_sub(1), rng.between(1, last.into()) as Height];
    let below = Some(below[rng.index(2)]).filter(|height| (1..last).contains(height));
    let roots = |height: Height| &data.roots[height as usize];
    let from_roots =
        below.and_then(|height| above(chain, (&data, roots(height)), height, &mut rng));
    for found in [honest(chain, &mut rng), honest(chain, &mut rng)].into_iter().chain(from_roots) {
        match (found, &wanted.refused) {
            (Ok(verdict), None) => {
                let coins = wanted.coins.as_ref().unwrap();
                assert!(verdict.coins.is_none_or(|it| it.coins as usize == coins.len()));
            }
            (Err(ProvenError::Refused { block, error, .. }), Some((height, refusal))) => {
                assert_eq!(block.height, *height);
                let is_bip30 = refusal.reject_reason() == "bad-txns-BIP30";
                assert!(is_bip30 || *error == *refusal, "{error}, not {refusal}");
            }
            (found, wanted) => panic!("{found:?}, not {wanted:?}"),
        }
    }
    wanted
}
