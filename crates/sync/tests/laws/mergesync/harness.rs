//! The test harness: runs both engines over one chain, and compares their results.

use crate::mergesync::counted::{Number, expect_numbers, expect_places};
use crate::swiftsync::harness::{Chain, Coins, Division, random_division, range_of};
use apus_chain::{
    BlockChecker, BlockLayout, CoinSumKey, Height, HeightRange, KnownBlock, OutPoint, Reader, Txid,
    read_coin_strict,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::{asks_for_bip30, bip30_error, may_repeat, outputs_of};
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions};
use apus_sync::engines::mergesync::{
    BlockConnector, ConnectFailure, Fingerprint, FingerprintKey, FirstPass, IndexedCoin, Join,
    JoinSink, OutputRecord, PrevoutRecord, SeenBlock, SegmentPrevouts, SpendRecord, SpendSummary,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::rng::Rng;
use bitcoin::consensus::encode::serialize;
use core::convert::Infallible;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An engine's result for a chain.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// The lowest refused block, with the broken rule.
    pub(crate) refused: Option<(Height, ConnectError)>,
    /// Undo data of the blocks below.
    pub(crate) undo: BTreeMap<Height, Vec<u8>>,
    /// The coins at the end, if no block is refused.
    pub(crate) coins: Option<Coins>,
}

/// Returns the in-order engine's result.
pub(crate) fn in_order(chain: &Chain) -> Said {
    let store = Arc::new(MemoryStore::new());
    let options = ChainstateOptions { cache_bytes: 1 << 22, prevout_threads: 0, scripts: None };
    let from: Arc<dyn CoinsStore> = Arc::<MemoryStore>::clone(&store);
    let mut state = Chainstate::open(&chain.params, from, options).unwrap();
    state.keep_connected();
    let mut result = Said::default();
    for height in 1..=chain.stop() {
        let context = ConnectContext { ancestry: &chain.headers, check_scripts: false };
        let connected = state.connect(checked(chain, height), &context);
        for connected in state.take_connected() {
            result.undo.insert(connected.block.id().height, connected.undo.into());
        }
        match connected {
            Ok(()) => {}
            Err(ChainstateError::Invalid { block, error }) => {
                result.refused = Some((block.height, error));
                return result;
            }
            Err(error) => panic!("{error}"),
        }
    }
    state.flush().unwrap();
    let mut coins = Coins::new();
    store
        .for_each(&mut |outpoint, coin| {
            coins.insert(*outpoint, fields(coin.as_bytes()));
            Ok(())
        })
        .unwrap();
    result.coins = Some(coins);
    result
}

fn fields(coin: &[u8]) -> (Height, bool, u64, Vec<u8>) {
    let coin = read_coin_strict(&mut Reader::new(coin)).unwrap();
    let coin = coin.as_ref();
    (coin.height, coin.coinbase, coin.amount, coin.script.to_vec())
}

fn checked(chain: &Chain, height: Height) -> apus_chain::CheckedBlock {
    let raw = serialize(&chain.blocks[height as usize]);
    let context = chain.context(height);
    BlockChecker::new().check_owned(raw, &context).map_err(|(_, error)| error).unwrap()
}

/// The runs of all segments, each with its range.
#[derive(Default)]
struct Runs {
    made: Vec<Vec<u8>>,
    spent: Vec<Vec<u8>>,
    /// The segments' own answers, and the fingerprints of their blocks.
    answers: Vec<(HeightRange, Vec<u8>, Vec<u8>)>,
    /// The spend summaries of their blocks, in the same order.
    claims: Vec<Vec<u8>>,
    /// The number of leaves that blocks add, in the same order.
    added: Vec<(HeightRange, Vec<u8>)>,
}

/// The key of all fingerprints.
pub(crate) const KEY: FingerprintKey = FingerprintKey::new([7; 8]);

fn gather(pass: &FirstPass, chain: &Chain, division: &Division) -> Runs {
    let (mut checker, mut whole) = (BlockChecker::new(), pass.nothing());
    let mut runs = Runs::default();
    for order in division {
        let mut segment = pass.begin(range_of(order)).unwrap();
        for &height in order {
            chain.block(&mut checker, height, |block| pass.block(&mut segment, block)).unwrap();
        }
        let finished = pass.finish(segment).unwrap();
        whole.merge(&finished.partial).unwrap();
        let [made, spent, answers, prints, added, claims, waiting] =
            <[_; 7]>::try_from(finished.runs).unwrap();
        assert!(waiting.is_empty());
        runs.made.push(made);
        runs.spent.push(spent);
        runs.answers.push((range_of(order), answers, prints));
        runs.claims.push(claims);
        runs.added.push((range_of(order), added));
    }
    let last = division.iter().flatten().max().unwrap();
    assert_eq!(pass.conclude(&whole, *last).unwrap(), whole);
    runs
}

/// The result of a join.
#[derive(Default)]
struct JoinResult {
    /// Whether numbers follow the coins.
    numbered: bool,
    /// The last block that gets stripped coins.
    bare: Height,
    answers: Vec<(Height, Vec<u8>)>,
    coins: Coins,
    /// Places of the surviving coins in their blocks.
    places: Vec<(Height, u32)>,
    existed: BTreeMap<Height, Vec<OutPoint>>,
    /// Numbers of unspent coins, each with the coin's outpoint and bytes.
    live: Vec<(u32, OutPoint, Vec<u8>)>,
}

impl JoinResult {
    /// Records an unspent coin's number, and returns the coin without it.
    fn left<'c>(&mut self, outpoint: &OutPoint, height: Height, coin: &'c [u8]) -> &'c [u8] {
        let mut coin = coin;
        if self.numbered {
            let numbered = IndexedCoin::read(coin).unwrap();
            coin = numbered.coin;
            self.live.push((numbered.number.unwrap(), *outpoint, coin.to_vec()));
        }
        assert_eq!(CoinBytes::read(coin).unwrap().coin().height, height);
        coin
    }
}

impl JoinSink for JoinResult {
    type Error = Infallible;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), Infallible> {
        let mut record = Vec::new();
        let answer = PrevoutRecord { height, place, coin };
        match height <= self.bare {
            true => answer.write_bare(&mut record),
            false => answer.write(&mut record),
        }
        self.answers.push((height, record));
        Ok(())
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), Infallible> {
        let coin = self.left(outpoint, height, coin);
        assert!(self.coins.insert(*outpoint, fields(coin)).is_none());
        self.places.push((height, index));
        Ok(())
    }

    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        coin: &[u8],
    ) -> Result<(), Infallible> {
        self.left(outpoint, height, coin);
        Ok(())
    }

    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), Infallible> {
        self.existed.entry(height).or_default().push(*outpoint);
        Ok(())
    }
}

/// One record of either kind.
enum Record<'a> {
    Made(OutputRecord<'a>),
    Spent(SpendRecord),
}

impl Record<'_> {
    fn txid(&self) -> Txid {
        match self {
            Self::Made(record) => record.txid,
            Self::Spent(record) => record.outpoint.txid,
        }
    }
}

/// Merges all runs in the simplest way.
fn join(runs: &Runs, rng: &mut Rng, numbered: bool, bare: Height) -> JoinResult {
    let mut records: Vec<Record<'_>> = Vec::new();
    for run in &runs.made {
        let mut rest = &run[..];
        let mut before = None;
        while let Some((record, after)) = OutputRecord::read(rest) {
            let key = Some((record.txid, record.height));
            assert!(before < key, "a run ascends");
            before = key;
            records.push(Record::Made(record));
            rest = after;
        }
        assert!(rest.is_empty());
    }
    for run in &runs.spent {
        let mut rest = &run[..];
        while let Some((record, after)) = SpendRecord::read(rest) {
            records.push(Record::Spent(record));
            rest = after;
        }
        assert!(rest.is_empty());
    }
    // The records of one transaction come in any order.
    rng.shuffle(&mut records);
    records.sort_by_key(Record::txid);
    let mut joined = JoinResult { numbered, bare, ..JoinResult::default() };
    let mut join = Join::new(&mut joined);
    for record in &records {
        let Ok(()) = match record {
            Record::Made(record) => join.made(record),
            Record::Spent(record) => join.spent(record),
        };
    }
    let Ok(_) = join.finish();
    joined
}

fn number_of(numbered: &IndexedCoin<'_>) -> Number {
    let coin = read_coin_strict(&mut Reader::new(numbered.coin)).unwrap();
    numbered.number.map(|number| (coin.height, number))
}

/// Returns the result for blocks in any order, with numbers or without. Blocks up to the height `bare` get
/// stripped coins; the spend summaries of all blocks, or of those up to some height, are kept.
fn merged(
    (chain, near_limit): (&Chain, Option<Height>),
    division: &Division,
    rng: &mut Rng,
    numbered: bool,
    bare: Height,
) -> Said {
    let claimed = some_or_all(chain, rng);
    let pass = FirstPass::new(&chain.params, &chain.headers, KEY)
        .with_numbers(numbered)
        .with_claims(claimed)
        .with_bare_coins(bare);
    let runs = gather(&pass, chain, division);
    let joined = join(&runs, rng, numbered, bare);
    let mut numbers = BTreeMap::new();
    let sum_key = Some(CoinSumKey::new([3; 16]));
    let (mut undo, mut all_refused) = (BTreeMap::new(), BTreeMap::new());
    let mut layout = BlockLayout::new();
    for ((range, own, prints), claims) in runs.answers.iter().zip(&runs.claims) {
        let mut others: Vec<&[u8]> = joined
            .answers
            .iter()
            .filter(|(height, _)| range.contains(*height))
            .map(|(_, record)| &record[..])
            .collect();
        others.push(own);
        let answers = SegmentPrevouts::read(*range, &others).unwrap();
        let claims = claims_of(*range, claims, claimed);
        let order = division.iter().find(|order| range_of(order) == *range).unwrap();
        for &height in order {
            let raw = serialize(&chain.blocks[height as usize]);
            let at = (height - range.start) as usize;
            let print = Fingerprint(*prints.as_chunks().0.get(at).unwrap());
            let id = KnownBlock { height, hash: chain.context(height).hash };
            let view = layout.read(&raw).unwrap();
            // A block with a summary has none, and is checked again if it is read again.
            assert_eq!(print == Fingerprint::NONE, height <= claimed);
            let again = SeenBlock::again(id, view, &KEY, &print);
            assert_eq!(again.is_some(), height > claimed);
            let owned = checked(chain, height);
            let block = again.unwrap_or_else(|| SeenBlock::checked(&owned.bytes()));
            let is_bare = height <= bare;
            let connector = BlockConnector {
                params: &chain.params,
                chain: &chain.headers,
                existed: &joined.existed,
                scripts: None,
                assumed: chain.stop(),
                sum_key: sum_key.filter(|_| !is_bare),
                bare,
                numbered,
            };
            let coins = || answers.of_block(height);
            let allowed = claims[at].map(|claims| {
                assert_eq!(claims.block_bytes(), raw.len() as u64);
                let allowed = claims.allowed(&chain.params, height, &chain.headers, coins());
                let may_pass = connector.sum_key.is_none() && !joined.existed.contains_key(&height);
                assert_eq!(connector.allows(height, &claims, coins()), allowed && may_pass);
                allowed
            });
            let validated = connector.block(&block, coins());
            if let Some(allowed) = allowed.filter(|_| !joined.existed.contains_key(&height)) {
                let may_be_read_again = near_limit == Some(height) && !allowed;
                assert!(allowed == validated.is_ok() || may_be_read_again, "block {height}");
            }
            match validated.and_then(|validated| validated.wait()) {
                Ok(None) => assert!(is_bare),
                Ok(Some(kept)) => {
                    undo.insert(height, kept.undo);
                    let read = |coin| IndexedCoin::read(coin).unwrap();
                    let coins = coins().filter(|_| numbered).map(read);
                    numbers.insert(height, coins.map(|coin| number_of(&coin)).collect());
                }
                Err(ConnectFailure::Refused(error)) => {
                    all_refused.insert(height, error);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let Some((height, error)) = all_refused.pop_first() else {
        expect_hints(chain, joined.places);
        if numbered {
            if bare == 0 {
                expect_numbers(chain, numbers);
            }
            expect_places(chain, runs.added, &joined.live);
        } else {
            assert!(runs.added.iter().all(|(_, added)| added.is_empty()));
        }
        return Said { refused: None, undo, coins: Some(joined.coins) };
    };
    let error = reason_of((&pass, chain, division), height, error, (rng, numbered));
    undo.retain(|other, _| *other < height);
    numbers.retain(|other, _| *other < height);
    if numbered && bare == 0 {
        expect_numbers(chain, numbers);
    }
    Said { refused: Some((height, error)), undo, coins: None }
}

/// Returns the spend summaries of a segment's blocks, which are kept up to a height.
fn claims_of(range: HeightRange, run: &[u8], claimed: Height) -> Vec<Option<SpendSummary<'_>>> {
    if run.is_empty() {
        assert!(claimed < range.start);
        return vec![None; range.count() as usize];
    }
    let mut rest = run;
    let each = range.heights().map(|height| {
        let (claims, after) = SpendSummary::read(rest).unwrap();
        rest = after;
        assert_eq!(claims.is_some(), height <= claimed);
        claims
    });
    let claims = each.collect();
    assert!(rest.is_empty());
    claims
}

/// Checks that the places of the survivors are the hints.
fn expect_hints(chain: &Chain, mut places: Vec<(Height, u32)>) {
    places.sort_unstable();
    let mut hints = vec![Vec::new(); chain.stop() as usize];
    places.iter().for_each(|(height, index)| hints[*height as usize - 1].push(*index));
    assert_eq!(hints, chain.hints());
}

/// Returns the reason for a refused block, after looking up which of its outputs the blocks below left.
fn reason_of(
    (pass, chain, division): (&FirstPass, &Chain, &Division),
    height: Height,
    error: ConnectError,
    (rng, numbered): (&mut Rng, bool),
) -> ConnectError {
    let context = ConnectContext { ancestry: &chain.headers, check_scripts: false };
    let (block, id) =
        (checked(chain, height), KnownBlock { height, hash: chain.context(height).hash });
    if may_repeat(&chain.params) || !asks_for_bip30(&chain.params, id, &context) {
        return error;
    }
    let cut = |order: &Vec<Height>| order.iter().copied().filter(|it| *it < height).collect();
    let below: Division = division.iter().map(cut).filter(|it: &Vec<_>| !it.is_empty()).collect();
    let left = match below.is_empty() {
        true => Coins::new(),
        false => join(&gather(pass, chain, &below), rng, numbered, 0).coins,
    };
    let outputs = outputs_of(block.bytes().txs());
    outputs.into_iter().find(|(_, it)| left.contains_key(it)).map_or(error, bip30_error)
}

/// Checks that both results are the same, wherever segments end. Returns the result.
#[track_caller]
pub(crate) fn agree(chain: &Chain, seed: u64) -> Said {
    agree_divided((chain, None), seed, |rng| random_division(chain.stop(), rng))
}

/// Does the same with segments that begin at these heights, their blocks in order or not. The signature
/// operations of the block `near_limit` may cost nearly as much as a block's can, so that its summary need not
/// decide whether it is valid.
#[track_caller]
pub(crate) fn agree_cut(
    (chain, near_limit): (&Chain, Option<Height>),
    seed: u64,
    cuts: &[Height],
) -> Said {
    agree_divided((chain, near_limit), seed, |rng| {
        let mut division: Division = Vec::new();
        for height in 1..=chain.stop() {
            match division.last_mut() {
                Some(last) if !cuts.contains(&height) => last.push(height),
                _ => division.push(vec![height]),
            }
        }
        if rng.one_in(2) {
            division.iter_mut().for_each(|segment| rng.shuffle(segment));
        }
        division
    })
}

/// Picks a height up to which some option applies. The interesting blocks are mostly a chain's last ones.
fn some_or_all(chain: &Chain, rng: &mut Rng) -> Height {
    let some = rng.below(u64::from(chain.stop()) + 1) as Height;
    if rng.one_in(3) { some } else { chain.stop() }
}

#[track_caller]
fn agree_divided(
    (chain, near_limit): (&Chain, Option<Height>),
    seed: u64,
    mut divide: impl FnMut(&mut Rng) -> Division,
) -> Said {
    let (wanted, mut rng) = (in_order(chain), Rng::new(seed));
    for (numbered, with_bare) in [(false, false), (true, false), (true, true), (false, true)] {
        let bare = if with_bare { some_or_all(chain, &mut rng) } else { 0 };
        let result = merged((chain, near_limit), &divide(&mut rng), &mut rng, numbered, bare);
        assert_eq!(result.refused, wanted.refused);
        assert!(result.coins == wanted.coins);
        // Blocks with stripped coins have no undo data.
        let undo = wanted.undo.iter().filter(|(height, _)| **height > bare);
        assert!(result.undo.iter().eq(undo));
    }
    wanted
}
