//! The engine over a chain of which something is told, range by range.

use crate::mergesync::harness::{Said, in_order};
use crate::swiftsync::harness::{Chain, random_division, range_of};
use crate::utreexo::bridge::{Told, tell};
use apus_chain::{BlockChecker, Height, HeightRange, KnownBlock, ScriptError};
use apus_engine::coin::CoinBytes;
use apus_engine::script::{Interpreter, PreparedTx, Refusal, ScriptPool};
use apus_proofs::engine::{
    Partial, ProofRange, ProofReader, ProofSource, ProvenError, Utreexo, Verdict,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::rng::Rng;
use apus_utreexo::Roots;
use std::sync::Arc;

/// What is told, as bytes, and the roots that each range says it begins and ends with.
#[derive(Clone)]
pub(crate) struct Ranges {
    pub(crate) entries: Vec<Option<Vec<u8>>>,
    pub(crate) ranges: Vec<(HeightRange, Roots, Roots)>,
}

impl Ranges {
    pub(crate) fn of(told: &Told, cuts: &[HeightRange]) -> Self {
        let entries = told.entries.iter().map(|entry| Some(entry.bytes())).collect();
        let roots = |height: Height| told.roots[height as usize].clone();
        let range = |cut: &HeightRange| (*cut, roots(cut.start - 1), roots(cut.end - 1));
        Self { entries, ranges: cuts.iter().map(range).collect() }
    }

    /// The range that begins there.
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
    fn read(&mut self, block: &KnownBlock, out: &mut Vec<u8>) -> Result<(), String> {
        let entry = self.0.get(block.height as usize).and_then(Option::as_ref);
        out.clone_from(entry.ok_or_else(|| "it was lost".to_owned())?);
        Ok(())
    }

    fn origin(&self) -> String {
        "the harness".to_owned()
    }
}

/// Scripts are judged elsewhere.
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

/// An engine that takes any script for valid.
pub(crate) fn engine(chain: &Chain) -> Utreexo<'_> {
    let scripts = ScriptPool::with_interpreter(0, Arc::new(AnyScript)).unwrap();
    Utreexo::new(&chain.params, &chain.headers, 0, Some(scripts))
}

/// The heights from 1 to the tip, cut at random, in random order.
pub(crate) fn cuts(chain: &Chain, rng: &mut Rng) -> Vec<HeightRange> {
    random_division(chain.stop(), rng).iter().map(|order| range_of(order)).collect()
}

/// One range, or the error of its first block that has one.
pub(crate) fn range<'a>(
    engine: &Utreexo<'a>,
    chain: &Chain,
    told: &'a Ranges,
    heights: HeightRange,
) -> Result<Partial, ProvenError> {
    let (mut checker, input) = (BlockChecker::new(), told.range(heights).unwrap());
    let mut segment = engine.begin(input)?;
    for height in heights.heights() {
        chain.block(&mut checker, height, |block| engine.block(&mut segment, block))?;
    }
    Ok(engine.finish(segment)?.partial)
}

/// A whole run over all ranges, whose results are merged in any order and grouping. If ranges fail, the lowest
/// one's error.
pub(crate) fn run(chain: &Chain, told: &Ranges, rng: &mut Rng) -> Result<Verdict, ProvenError> {
    let engine = engine(chain);
    let (mut parts, mut failed) = (Vec::new(), Vec::new());
    for (heights, ..) in &told.ranges {
        match range(&engine, chain, told, *heights) {
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

/// The same of what an honest one tells, cut at random.
pub(crate) fn honest(chain: &Chain, rng: &mut Rng) -> Result<Verdict, ProvenError> {
    let ranges = Ranges::of(&tell(&chain.blocks), &cuts(chain, rng));
    run(chain, &ranges, rng)
}

/// The engine says of a chain what the one says that takes one block after the other: the lowest block that it refuses,
/// and the rule. What that is. Whether an output exists already no forest shows; where that is the reason, this engine
/// has another one.
#[track_caller]
pub(crate) fn agree(chain: &Chain, seed: u64) -> Said {
    let (wanted, mut rng) = (in_order(chain), Rng::new(seed));
    for _ in 0..2 {
        match (honest(chain, &mut rng), &wanted.refused) {
            (Ok(verdict), None) => {
                let coins = wanted.coins.as_ref().unwrap();
                assert_eq!(verdict.coins.coins as usize, coins.len());
            }
            (Err(ProvenError::Refused { block, error, .. }), Some((height, told))) => {
                assert_eq!(block.height, *height);
                let is_bip30 = told.reject_reason() == "bad-txns-BIP30";
                assert!(is_bip30 || *error == *told, "{error}, not {told}");
            }
            (found, wanted) => panic!("{found:?}, not {wanted:?}"),
        }
    }
    wanted
}
