//! Both engines over one chain, and what each says of it.

use crate::mergesync::counted::{Number, expect_numbers, expect_places};
use crate::swiftsync::harness::{Chain, Coins, Division, random_division, range_of};
use apus_chain::{
    BlockChecker, BlockLayout, CoinSumKey, Height, HeightRange, KnownBlock, OutPoint, Reader, Txid,
    read_coin_strict,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions};
use apus_sync::engines::mergesync::{
    AnswerRecord, Answers, AskedOutputs, BlockJudge, Claims, Fingerprint, FingerprintKey, Gather,
    Join, JoinSink, JudgeError, MadeRecord, NumberedCoin, RefusedBlock, SeenBlock, SpentRecord,
};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::rng::Rng;
use bitcoin::consensus::encode::serialize;
use core::convert::Infallible;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// What an engine says of a chain.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// The lowest block that it refuses, with the rule.
    pub(crate) refused: Option<(Height, ConnectError)>,
    /// Undo data of the blocks below.
    pub(crate) undo: BTreeMap<Height, Vec<u8>>,
    /// The coins at the end, if no block is refused.
    pub(crate) coins: Option<Coins>,
}

/// What the engine says that takes one block after the other.
pub(crate) fn in_order(chain: &Chain) -> Said {
    let store = Arc::new(MemoryStore::new());
    let options = ChainstateOptions { cache_bytes: 1 << 22, prevout_threads: 0, scripts: None };
    let from: Arc<dyn CoinsStore> = Arc::<MemoryStore>::clone(&store);
    let mut state = Chainstate::open(&chain.params, from, options).unwrap();
    state.keep_connected();
    let mut said = Said::default();
    for height in 1..=chain.stop() {
        let context = ConnectContext { ancestry: &chain.headers, check_scripts: false };
        let connected = state.connect(checked(chain, height), &context);
        for connected in state.take_connected() {
            said.undo.insert(connected.block.id().height, connected.undo.into());
        }
        match connected {
            Ok(()) => {}
            Err(ChainstateError::Invalid { block, error }) => {
                said.refused = Some((block.height, error));
                return said;
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
    said.coins = Some(coins);
    said
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
    /// What segments answer themselves, and the fingerprints of their blocks.
    answers: Vec<(HeightRange, Vec<u8>, Vec<u8>)>,
    /// What their blocks claim, in the same order.
    claims: Vec<Vec<u8>>,
    /// How many leaves blocks add, likewise.
    added: Vec<(HeightRange, Vec<u8>)>,
}

/// The key of all fingerprints.
pub(crate) const KEY: FingerprintKey = FingerprintKey::new([7; 8]);

fn gather(pass: &Gather, chain: &Chain, division: &Division) -> Runs {
    let (mut checker, mut whole) = (BlockChecker::new(), pass.nothing());
    let mut runs = Runs::default();
    for order in division {
        let mut segment = pass.begin(range_of(order)).unwrap();
        for &height in order {
            chain.block(&mut checker, height, |block| pass.block(&mut segment, block)).unwrap();
        }
        let finished = pass.finish(segment).unwrap();
        whole.merge(&finished.partial).unwrap();
        let [made, spent, answers, prints, added, claims] =
            <[_; 6]>::try_from(finished.runs).unwrap();
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

/// What comes of a join.
#[derive(Default)]
struct Joined {
    /// Whether coins have their numbers behind them.
    numbered: bool,
    /// The last block that is answered with bare coins.
    bare: Height,
    answers: Vec<(Height, Vec<u8>)>,
    coins: Coins,
    /// Places of these in their blocks.
    places: Vec<(Height, u32)>,
    existed: BTreeMap<Height, Vec<OutPoint>>,
    /// Numbers of coins that no spend took, each with the coin's name and bytes.
    live: Vec<(u32, OutPoint, Vec<u8>)>,
}

impl Joined {
    /// The coin that is told of, which no spend took.
    fn left<'c>(&mut self, outpoint: &OutPoint, height: Height, coin: &'c [u8]) -> &'c [u8] {
        let mut coin = coin;
        if self.numbered {
            let numbered = NumberedCoin::read(coin).unwrap();
            coin = numbered.coin;
            self.live.push((numbered.number.unwrap(), *outpoint, coin.to_vec()));
        }
        assert_eq!(CoinBytes::read(coin).unwrap().coin().height, height);
        coin
    }
}

impl JoinSink for Joined {
    type Error = Infallible;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), Infallible> {
        let mut record = Vec::new();
        let answer = AnswerRecord { height, place, coin };
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
    Made(MadeRecord<'a>),
    Spent(SpentRecord),
}

impl Record<'_> {
    fn txid(&self) -> Txid {
        match self {
            Self::Made(record) => record.txid,
            Self::Spent(record) => record.outpoint.txid,
        }
    }
}

/// Merges all runs in the plainest way there is.
fn join(runs: &Runs, rng: &mut Rng, numbered: bool, bare: Height) -> Joined {
    let mut records: Vec<Record<'_>> = Vec::new();
    for run in &runs.made {
        let mut rest = &run[..];
        let mut before = None;
        while let Some((record, after)) = MadeRecord::read(rest) {
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
        while let Some((record, after)) = SpentRecord::read(rest) {
            records.push(Record::Spent(record));
            rest = after;
        }
        assert!(rest.is_empty());
    }
    // Those of one transaction in any order.
    rng.shuffle(&mut records);
    records.sort_by_key(Record::txid);
    let mut joined = Joined { numbered, bare, ..Joined::default() };
    let mut join = Join::new(&mut joined);
    for record in &records {
        let Ok(()) = match record {
            Record::Made(record) => join.made(record),
            Record::Spent(record) => join.spent(record),
        };
    }
    let Ok(()) = join.finish();
    joined
}

fn number_of(numbered: &NumberedCoin<'_>) -> Number {
    let coin = read_coin_strict(&mut Reader::new(numbered.coin)).unwrap();
    numbered.number.map(|number| (coin.height, number))
}

/// What is said by blocks in any order, with numbers or without. What blocks up to the height `bare`
/// spend comes bare; the claims of all, or of those up to some height, are noted.
fn merged(
    (chain, near_limit): (&Chain, Option<Height>),
    division: &Division,
    rng: &mut Rng,
    numbered: bool,
    bare: Height,
) -> Said {
    let claimed = some_or_all(chain, rng);
    let pass = Gather::new(&chain.params, &chain.headers, KEY)
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
        let answers = Answers::read(*range, &others).unwrap();
        let claims = claims_of(*range, claims, claimed);
        let order = division.iter().find(|order| range_of(order) == *range).unwrap();
        for &height in order {
            let raw = serialize(&chain.blocks[height as usize]);
            let at = (height - range.start) as usize;
            let print = Fingerprint(*prints.as_chunks().0.get(at).unwrap());
            let id = KnownBlock { height, hash: chain.context(height).hash };
            let view = layout.read(&raw).unwrap();
            // A block with claims has none, and is checked once more where it is read again.
            assert_eq!(print == Fingerprint::NONE, height <= claimed);
            let again = SeenBlock::again(id, view, &KEY, &print);
            assert_eq!(again.is_some(), height > claimed);
            let owned = checked(chain, height);
            let block = again.unwrap_or_else(|| SeenBlock::checked(&owned.bytes()));
            let existed = joined.existed.get(&height).map(Vec::as_slice).unwrap_or_default();
            let context = ConnectContext { ancestry: &chain.headers, check_scripts: false };
            let is_bare = height <= bare;
            let sum_key = sum_key.filter(|_| !is_bare);
            let judge = BlockJudge { params: &chain.params, scripts: None, sum_key, bare };
            let mut coins: Vec<&[u8]> = answers.of_block(block.id().height).collect();
            let mut numbered_coins = Vec::new();
            let allowed = claims[at].map(|claims| {
                assert_eq!(claims.block_bytes(), raw.len() as u64);
                let coins = coins.iter().copied();
                claims.allowed(&chain.params, height, &chain.headers, coins)
            });
            if numbered && !is_bare {
                numbered_coins =
                    coins.iter().map(|coin| NumberedCoin::read(coin).unwrap()).collect();
                coins = numbered_coins.iter().map(|numbered| numbered.coin).collect();
            }
            let judged = judge.block(&block, &coins, existed, &context);
            if let Some(allowed) = allowed.filter(|_| existed.is_empty()) {
                let may_be_read_again = near_limit == Some(height) && !allowed;
                assert!(allowed == judged.is_ok() || may_be_read_again, "block {height}");
            }
            match judged.and_then(|judged| judged.wait()) {
                Ok(None) => assert!(is_bare),
                Ok(Some(kept)) => {
                    undo.insert(height, kept.undo);
                    numbers.insert(height, numbered_coins.iter().map(number_of).collect());
                }
                Err(JudgeError::Refused(refused)) => {
                    all_refused.insert(height, refused);
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let Some((height, refused)) = all_refused.pop_first() else {
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
    let error = told(chain, height, refused);
    undo.retain(|other, _| *other < height);
    numbers.retain(|other, _| *other < height);
    if numbered && bare == 0 {
        expect_numbers(chain, numbers);
    }
    Said { refused: Some((height, error)), undo, coins: None }
}

/// What the blocks of a segment claim, of which those up to a height were noted.
fn claims_of(range: HeightRange, run: &[u8], claimed: Height) -> Vec<Option<Claims<'_>>> {
    if run.is_empty() {
        assert!(claimed < range.start);
        return vec![None; range.count() as usize];
    }
    let mut rest = run;
    let each = range.heights().map(|height| {
        let (claims, after) = Claims::read(rest).unwrap();
        rest = after;
        assert_eq!(claims.is_some(), height <= claimed);
        claims
    });
    let claims = each.collect();
    assert!(rest.is_empty());
    claims
}

/// The places of what survives are the hints.
fn expect_hints(chain: &Chain, mut places: Vec<(Height, u32)>) {
    places.sort_unstable();
    let mut hints = vec![Vec::new(); chain.stop() as usize];
    places.iter().for_each(|(height, index)| hints[*height as usize - 1].push(*index));
    assert_eq!(hints, chain.hints());
}

/// Asks of a refused block's outputs whether they were there before it.
fn told(chain: &Chain, height: Height, refused: RefusedBlock) -> ConnectError {
    let (asked, mut there) = (AskedOutputs::of(&refused), HashSet::new());
    assert_eq!(asked.is_empty(), refused.asked_before.is_empty());
    for below in 1..height {
        for (outpoint, made) in asked.touched(&checked(chain, below).bytes()) {
            if made {
                there.insert(outpoint)
            } else {
                there.remove(&outpoint)
            };
        }
    }
    refused.told(|outpoint| there.contains(outpoint))
}

/// Both say the same, wherever segments end. What that is.
#[track_caller]
pub(crate) fn agree(chain: &Chain, seed: u64) -> Said {
    agree_divided((chain, None), seed, |rng| random_division(chain.stop(), rng))
}

/// The same where segments begin at these heights, their blocks in order or not. The signature operations of the block
/// `near_limit` may cost nearly as much as a block's can, so that its claims need not tell whether it is valid.
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

/// A height up to which blocks are to be treated in some way. What is at stake mostly stands in a chain's last blocks.
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
        let said = merged((chain, near_limit), &divide(&mut rng), &mut rng, numbered, bare);
        assert_eq!(said.refused, wanted.refused);
        assert!(said.coins == wanted.coins);
        // Where coins come bare there is no undo data.
        let undo = wanted.undo.iter().filter(|(height, _)| **height > bare);
        assert!(said.undo.iter().eq(undo));
    }
    wanted
}
