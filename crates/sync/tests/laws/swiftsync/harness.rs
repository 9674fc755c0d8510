//! The test harness: passes a chain of blocks to the engine, using every freedom that the engine allows: the
//! division into segments, the order of segments and of blocks, and the order of merging.

use apus_chain::{
    BlockBytes, BlockChecker, BlockContext, BlockHash, HeaderChain, Height, HeightRange, Network,
    OutPoint, Params, Reader, Txid, read_coin_strict,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::aggregate::{AggregateKind, Aggregator, Secret};
use apus_sync::engines::swiftsync::{
    CoinHints, CoinTotals, IndexHints, Partial, SegmentHints, SegmentOutput, SwiftSync,
    SwiftSyncError, Verdict,
};
use apus_testkit::chain::{ChainBuilder, UtxoSet, hints, utxo_set};
use apus_testkit::rng::Rng;
use bitcoin::Block;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use std::collections::BTreeMap;

pub(crate) const KINDS: [AggregateKind; 2] = [AggregateKind::Sha256, AggregateKind::MuHash];

/// The secret of all syncs. Any value suits these tests.
pub(crate) const SECRET: Secret = Secret([0x5a; 32]);

/// A time later than all blocks of all tests.
const NOW: i64 = 4_000_000_000;

/// A block's hints: ascending indices of surviving outputs.
pub(crate) type Hints = Vec<Vec<u32>>;

/// Blocks from the genesis block on, and the chain of their headers.
pub(crate) struct Chain {
    pub(crate) params: Params,
    pub(crate) headers: HeaderChain,
    pub(crate) blocks: Vec<Block>,
    raw: Vec<Vec<u8>>,
}

/// The engine's full result for a chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) whole: Partial,
    pub(crate) coins: Coins,
    pub(crate) hints: Hints,
    /// The records of all runs, sorted.
    pub(crate) records: Vec<Vec<u8>>,
}

/// Coins by (txid in internal byte order, vout): height, coinbase, amount, script.
pub(crate) type Coins = BTreeMap<OutPoint, (Height, bool, u64, Vec<u8>)>;

/// The segments in processing order, each with the heights of its blocks in processing order.
pub(crate) type Division = Vec<Vec<Height>>;

impl Chain {
    /// Makes the chain up to the builder's tip, under regtest's rules.
    pub(crate) fn of(builder: &ChainBuilder) -> Self {
        Self::with(Params::of(Network::Regtest), builder.blocks())
    }

    /// Makes a chain under other rules.
    pub(crate) fn with(params: &Params, blocks: Vec<Block>) -> Self {
        let raw: Vec<Vec<u8>> = blocks.iter().map(serialize).collect();
        let headers = raw.iter().map(|block| block.first_chunk().unwrap());
        let headers = HeaderChain::from_headers(params, NOW, headers).unwrap();
        assert_eq!(headers.tip_height() as usize + 1, blocks.len(), "the blocks are one chain");
        Self { params: params.clone(), headers, blocks, raw }
    }

    pub(crate) fn stop(&self) -> Height {
        self.headers.tip_height()
    }

    /// Returns the model's coins at the tip.
    pub(crate) fn utxo(&self) -> UtxoSet {
        utxo_set(&self.blocks)
    }

    /// Returns the right hints, one entry for each height from 1 on.
    pub(crate) fn hints(&self) -> Hints {
        hints(&self.blocks, &self.utxo())
    }

    pub(crate) fn engine(&self, kind: AggregateKind) -> SwiftSync {
        let aggregator = Aggregator::new(kind, &SECRET, *self.headers.tip_hash(), [7; 32]);
        SwiftSync::new(&self.params, &self.headers, aggregator).with_muhash(true)
    }

    /// Checks the block at `height` and passes it on.
    pub(crate) fn block<T>(
        &self,
        checker: &mut BlockChecker,
        height: Height,
        take: impl FnOnce(&BlockBytes<'_>) -> T,
    ) -> T {
        take(&checker.check(&self.raw[height as usize], &self.context(height)).unwrap())
    }

    pub(crate) fn context(&self, height: Height) -> BlockContext<'_> {
        BlockContext {
            params: &self.params,
            height,
            hash: *self.headers.hash(height).unwrap(),
            median_time_past: self.headers.median_time_past(height.saturating_sub(1)).unwrap(),
            verifier: None,
        }
    }

    /// Processes one segment with its blocks in the given order.
    pub(crate) fn segment(
        &self,
        engine: &SwiftSync,
        hints: SegmentHints,
        order: &[Height],
    ) -> Result<SegmentOutput, SwiftSyncError> {
        let mut checker = BlockChecker::new();
        let mut segment = engine.begin(hints);
        for &height in order {
            self.block(&mut checker, height, |block| engine.block(&mut segment, block))?;
        }
        engine.finish(segment)
    }

    /// Runs a whole sync.
    pub(crate) fn run_divided(
        &self,
        kind: AggregateKind,
        division: &Division,
        hints: impl Fn(HeightRange) -> SegmentHints,
    ) -> Result<Outcome, SwiftSyncError> {
        let engine = self.engine(kind);
        let mut whole = engine.nothing();
        let mut finished = Vec::new();
        for order in division {
            let done = self.segment(&engine, hints(range_of(order)), order)?;
            whole.merge(&done.partial).unwrap();
            finished.push(done);
        }
        let verdict = engine.conclude(&whole, self.stop())?;
        let records = records(&finished);
        let hints = found_hints(&finished, self.stop());
        Ok(Outcome { verdict, whole, coins: coins(&records), hints, records })
    }

    /// Runs a whole sync in four segments, the last first, with these hints.
    pub(crate) fn run(
        &self,
        kind: AggregateKind,
        hints: &[Vec<u32>],
    ) -> Result<Outcome, SwiftSyncError> {
        let mut division = equal_segments(self.stop(), 4);
        division.reverse();
        self.run_divided(kind, &division, |range| index_hints(hints, range))
    }

    /// Runs a whole sync with a snapshot of these coins as hints.
    pub(crate) fn run_with_snapshot(
        &self,
        kind: AggregateKind,
        segments: u32,
        snapshot: &[(OutPoint, Height)],
    ) -> Result<Outcome, SwiftSyncError> {
        self.run_divided(kind, &equal_segments(self.stop(), segments), |range| {
            coin_hints(snapshot, range)
        })
    }
}

/// Returns regtest's rules without BIP-34, so that coinbases may repeat.
pub(crate) fn without_bip34() -> Params {
    Params { bip34_height: 1_000_000, bip34_hash: None, ..Params::of(Network::Regtest).clone() }
}

pub(crate) fn range_of(heights: &[Height]) -> HeightRange {
    let (first, last) = (heights.iter().min().unwrap(), heights.iter().max().unwrap());
    HeightRange::new(*first, last + 1)
}

/// Divides heights 1 to `stop` into `count` segments, all in ascending order.
pub(crate) fn equal_segments(stop: Height, count: u32) -> Division {
    let heights: Vec<Height> = (1..=stop).collect();
    heights.chunks(stop.div_ceil(count).max(1) as usize).map(<[_]>::to_vec).collect()
}

/// Divides heights 1 to `stop` at random, with segments and blocks in random order.
pub(crate) fn random_division(stop: Height, rng: &mut Rng) -> Division {
    let mut division = vec![Vec::new()];
    let one_in = rng.between(1, u64::from(stop));
    for height in 1..=stop {
        if rng.one_in(one_in) && !division[division.len() - 1].is_empty() {
            division.push(Vec::new());
        }
        let last = division.len() - 1;
        division[last].push(height);
    }
    division.iter_mut().for_each(|segment| rng.shuffle(segment));
    rng.shuffle(&mut division);
    division
}

/// Returns the part of a chain's hints that a segment needs.
pub(crate) fn index_hints(hints: &[Vec<u32>], range: HeightRange) -> SegmentHints {
    let mut part = IndexHints::new(range.start);
    for height in range.heights() {
        part.push(hints[height as usize - 1].iter().copied());
    }
    SegmentHints::Indices(part)
}

/// Returns the coins of a snapshot that blocks of a segment created.
pub(crate) fn coin_hints(snapshot: &[(OutPoint, Height)], range: HeightRange) -> SegmentHints {
    let inside = snapshot.iter().filter(|(_, height)| range.contains(*height));
    let inside = inside.map(|(outpoint, height)| (*height, *outpoint));
    SegmentHints::Coins(CoinHints::of(range, inside).expect("they are all inside"))
}

/// Returns the coins of the model's set in the form of a snapshot.
pub(crate) fn snapshot(coins: &UtxoSet) -> Vec<(OutPoint, Height)> {
    coins.iter().map(|(outpoint, coin)| (outpoint_of(outpoint), coin.height)).collect()
}

pub(crate) fn outpoint_of(outpoint: &bitcoin::OutPoint) -> OutPoint {
    OutPoint { txid: Txid(outpoint.txid.to_byte_array()), vout: outpoint.vout }
}

pub(crate) fn hash_of(block: &Block) -> BlockHash {
    BlockHash(block.block_hash().to_byte_array())
}

/// Returns the model's coins, for comparison.
pub(crate) fn model_coins(coins: &UtxoSet) -> Coins {
    coins
        .iter()
        .map(|(outpoint, coin)| {
            let script = coin.output.script_pubkey.to_bytes();
            let amount = coin.output.value.to_sat();
            (outpoint_of(outpoint), (coin.height, coin.coinbase, amount, script))
        })
        .collect()
}

/// Returns the model's totals, for comparison.
pub(crate) fn model_totals(coins: &UtxoSet) -> CoinTotals {
    let mut txids: Vec<_> = coins.keys().map(|outpoint| outpoint.txid).collect();
    txids.dedup();
    let sizes = coins.values().map(|coin| 50 + coin.output.script_pubkey.len() as u64);
    CoinTotals {
        coins: coins.len() as u64,
        transactions: txids.len() as u64,
        amount: coins.values().map(|coin| u128::from(coin.output.value.to_sat())).sum(),
        bogosize: sizes.sum(),
    }
}

/// Formats a hash as nodes display it.
pub(crate) fn shown(hash: &[u8]) -> String {
    hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the records of all runs, each of which must be sorted by txid.
fn records(finished: &[SegmentOutput]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for done in finished {
        let run = split_run(&done.run);
        assert!(run.is_sorted_by(|a, b| a[..32] <= b[..32]), "a run is in the order of txids");
        all.extend(run);
    }
    all.sort();
    all
}

/// Splits a run into records: `txid ‖ u32le length ‖ group` each.
pub(crate) fn split_run(run: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(run);
    let mut records = Vec::new();
    while reader.remaining() > 0 {
        let start = reader.position();
        reader.take(32).unwrap();
        let length = reader.u32().unwrap() as usize;
        reader.take(length).unwrap();
        records.push(run[start..reader.position()].to_vec());
    }
    records
}

fn coins(records: &[Vec<u8>]) -> Coins {
    let mut coins = Coins::new();
    for record in records {
        let mut reader = Reader::new(record);
        let txid = Txid(*reader.array().unwrap());
        reader.u32().unwrap();
        for _ in 0..reader.compact_size().unwrap() {
            let vout = reader.compact_size().unwrap() as u32;
            let coin = read_coin_strict(&mut reader).unwrap();
            let known = coins.insert(
                OutPoint { txid, vout },
                (coin.height, coin.coinbase, coin.amount, coin.script.to_vec()),
            );
            assert_eq!(known, None, "every coin is in the runs once");
        }
        reader.finish().unwrap();
    }
    coins
}

/// Combines the hints of all segments.
fn found_hints(finished: &[SegmentOutput], stop: Height) -> Hints {
    (1..=stop)
        .map(|height| {
            let mut of_height = finished.iter().filter_map(|done| done.hints.block(height));
            let indices = of_height.next().unwrap().to_vec();
            assert_eq!(of_height.next(), None, "every height is in one segment");
            indices
        })
        .collect()
}
