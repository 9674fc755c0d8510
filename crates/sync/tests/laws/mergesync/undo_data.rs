//! SwiftSync with undo data: it checks every rule in one walk, and neither undo data nor hints can make an
//! invalid chain pass.

use crate::mergesync::harness::in_order;
use crate::swiftsync::harness::{
    Chain, Coins, Division, SECRET, index_hints, random_division, range_of,
};
use apus_chain::{
    BlockChecker, BlockHash, BlockUndo, BlockUndoWriter, CoinRef, Height, HeightRange, OutPoint,
    ScriptError,
};
use apus_engine::coin::CoinBytes;
use apus_engine::script::{Interpreter, PreparedTx, Refusal, ScriptPool};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::aggregate::{AggregateKind, Aggregator};
use apus_sync::engines::swiftsync::{
    ConnectByUndo, SwiftSync, SwiftSyncError, UndoPass, UndoPassError, UndoReader, UndoSource,
    Verdict,
};
use apus_testkit::chain::{
    ChainBuilder, ModelCoin, ScriptKind, Shape, UtxoSet, coins_of, hints, is_unspendable,
};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use bitcoin::hashes::Hash;
use bitcoin::{Sequence, Transaction, TxOut};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Undo data by height.
type Undo = BTreeMap<Height, Vec<u8>>;

struct GivenUndo(Undo);

impl UndoSource for GivenUndo {
    fn reader(&self, _: HeightRange) -> Box<dyn UndoReader + '_> {
        Box::new(Reading(&self.0))
    }
}

struct Reading<'a>(&'a Undo);

impl UndoReader for Reading<'_> {
    fn read(&mut self, height: Height, _: &BlockHash) -> Result<Vec<u8>, String> {
        self.0.get(&height).cloned().ok_or_else(|| "there are none".to_owned())
    }
}

/// Accepts every script: these tests are not about scripts.
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

/// Runs a whole sync, divided and ordered by `division`.
fn run(
    chain: &Chain,
    undo: &Undo,
    hints: &[Vec<u32>],
    division: &Division,
) -> Result<Verdict, UndoPassError> {
    let tip = *chain.headers.tip_hash();
    let aggregator = Aggregator::new(AggregateKind::Coins, &SECRET, tip, [7; 32]);
    let scripts = ScriptPool::with_interpreter(0, Arc::new(AnyScript)).unwrap();
    let undo = GivenUndo(undo.clone());
    let pass = UndoPass {
        swiftsync: SwiftSync::new(&chain.params, &chain.headers, aggregator),
        connector: ConnectByUndo {
            params: &chain.params,
            chain: &chain.headers,
            assumed: 0,
            scripts: Some(scripts),
            sum_key: None,
        },
        undo: &undo,
        keeps: false,
    };
    let (mut checker, mut whole) = (BlockChecker::new(), pass.nothing());
    for order in division {
        let mut segment = pass.begin(index_hints(hints, range_of(order)))?;
        for &height in order {
            chain.block(&mut checker, height, |block| pass.block(&mut segment, block))?;
        }
        whole.merge(&pass.finish(segment)?.partial).unwrap();
    }
    pass.conclude(&whole, chain.stop())
}

/// A coin with its fields.
type Fields = (Height, bool, u64, Vec<u8>);

/// The coins of undo data, by transaction.
type BlockPrevouts = Vec<Vec<Fields>>;

fn read(undo: &[u8]) -> BlockPrevouts {
    let undo = BlockUndo::read(undo).unwrap();
    let fields = |tx: usize| {
        let coins = undo.spent_by(tx).unwrap().iter().map(|coin| {
            let coin = coin.coin();
            let coin = coin.as_ref();
            (coin.height, coin.coinbase, coin.amount, coin.script.to_vec())
        });
        coins.collect()
    };
    (1..undo.tx_count()).map(fields).collect()
}

fn written(spent: &BlockPrevouts) -> Vec<u8> {
    let mut out = Vec::new();
    let mut undo = BlockUndoWriter::new(&mut out, spent.len() + 1);
    for coins in spent {
        undo.push_tx(coins.iter().map(|(height, coinbase, amount, script)| CoinRef {
            height: *height,
            coinbase: *coinbase,
            amount: *amount,
            script,
        }));
    }
    undo.finish();
    out
}

/// Makes the undo data of a liar who knows all outputs of a chain, wherever they are, and names them for every
/// input that spends them. For outpoints that never existed, the liar makes up a coin.
fn claimed(chain: &Chain) -> Undo {
    let mut made: Coins = Coins::new();
    for (height, block) in (0..).zip(&chain.blocks) {
        for (tx, place) in block.txdata.iter().zip(0..) {
            for (output, vout) in tx.output.iter().zip(0..) {
                let name =
                    OutPoint { txid: apus_chain::Txid(tx.compute_txid().to_byte_array()), vout };
                let script = output.script_pubkey.to_bytes();
                if !is_unspendable(&output.script_pubkey) {
                    made.insert(name, (height, place == 0, output.value.to_sat(), script));
                }
            }
        }
    }
    let of_block = |block: &bitcoin::Block| -> BlockPrevouts {
        let of_tx = |tx: &Transaction| {
            let coins = tx.input.iter().map(|input| {
                let spent = input.previous_output;
                let txid = apus_chain::Txid(spent.txid.to_byte_array());
                let made = made.get(&OutPoint { txid, vout: spent.vout });
                made.cloned().unwrap_or((1, false, 1_000_000, vec![0x51]))
            });
            coins.collect()
        };
        block.txdata[1..].iter().map(of_tx).collect()
    };
    let undo = |(height, block)| (height, written(&of_block(block)));
    (1..).zip(&chain.blocks[1..]).map(undo).collect()
}

/// Makes the hints of a liar who knows every spend in the chain, even of outputs that do not exist yet.
fn claimed_hints(chain: &Chain) -> Vec<Vec<u32>> {
    let mut coins = UtxoSet::new();
    for (height, block) in (0..).zip(&chain.blocks) {
        for (place, tx) in block.txdata.iter().enumerate() {
            for (name, output) in coins_of(tx) {
                if !is_unspendable(&output.script_pubkey) && height > 0 {
                    coins.insert(name, ModelCoin { output, height, coinbase: place == 0 });
                }
            }
        }
    }
    let inputs = chain.blocks.iter().flat_map(|block| &block.txdata).flat_map(|tx| &tx.input);
    inputs.for_each(|input| drop(coins.remove(&input.previous_output)));
    hints(&chain.blocks, &coins)
}

/// Makes a chain with mature coins.
fn builder(seed: u64) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(101);
    builder.random_blocks(6, Shape::default());
    builder
}

/// Right hints and right undo data produce the set, in any order.
#[test]
fn right_undo_data_give_the_set() {
    for seed in 0..6 {
        let mut builder = builder(seed);
        builder.random_blocks(20, Shape::default());
        let (chain, mut rng) = (Chain::of(&builder), Rng::new(seed));
        let result = in_order(&chain);
        let undo: Undo = result.undo;
        assert_eq!(undo, claimed(&chain), "Core's undo data are the coins");
        assert_eq!(claimed_hints(&chain), chain.hints());
        let divisions = [(); 3].map(|()| random_division(chain.stop(), &mut rng));
        let verdicts = divisions
            .each_ref()
            .map(|division| run(&chain, &undo, &chain.hints(), division).unwrap());
        assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]));
        assert_eq!(verdicts[0].coins.coins as usize, result.coins.unwrap().len());
        assert_eq!(verdicts[0].aggregate, AggregateKind::Coins);
    }
}

/// A block that breaks a rule about coins is reported with Core's reason, if its undo data name existing
/// coins.
#[test]
fn a_block_that_breaks_a_rule_about_coins_is_reported() {
    type Fault = fn(&mut ChainBuilder) -> Transaction;
    let faults: [(&str, Fault); 3] = [
        ("bad-txns-in-belowout", |builder| {
            let coin = builder.mature_coin();
            let output = builder.output(coin.1.value.to_sat() + 1, ScriptKind::OpTrue);
            builder.spend_coins(&[coin], vec![output])
        }),
        ("bad-txns-premature-spend-of-coinbase", |builder| {
            let height = builder.height() + 1;
            let young = builder.utxo().iter().find(|(_, coin)| {
                coin.coinbase && coin.height + 100 > height && coin.output.value.to_sat() > 1_000
            });
            let coin = young.map(|(name, coin)| (*name, coin.output.clone())).unwrap();
            let output = builder.output(900, ScriptKind::OpTrue);
            builder.spend_coins(&[coin], vec![output])
        }),
        ("bad-txns-nonfinal", |builder| {
            let coin = builder.mature_coin();
            let output = builder.output(900, ScriptKind::OpTrue);
            let mut tx = builder.spend_coins(std::slice::from_ref(&coin), vec![output]);
            tx.input[0].sequence = Sequence::from_height(60_000);
            builder.sign(&mut tx, &[coin]);
            tx
        }),
    ];
    for (seed, (reason, fault)) in (70..).zip(faults) {
        let mut builder = builder(seed);
        let tx = fault(&mut builder);
        builder.block_with(vec![tx]);
        let height = builder.height();
        builder.random_blocks(3, Shape::default());
        let chain = Chain::of(&builder);
        let (at, error) = in_order(&chain).refused.unwrap();
        assert_eq!((at, &*error.reject_reason()), (height, reason));
        let division = random_division(chain.stop(), &mut Rng::new(seed));
        match run(&chain, &claimed(&chain), &chain.hints(), &division).unwrap_err() {
            UndoPassError::Refused { block, error: found } => {
                assert_eq!((block.height, *found), (height, error), "{reason}");
            }
            other => panic!("{reason}: {other}"),
        }
    }
}

fn spend(
    builder: &mut ChainBuilder,
    coin: (bitcoin::OutPoint, TxOut),
    satoshi: u64,
) -> Transaction {
    let output = builder.output(satoshi, ScriptKind::OpTrue);
    builder.spend_coins(&[coin], vec![output])
}

/// Chains that spend missing coins: undo data that name a coin for the spend anyway never make them pass.
#[test]
fn missing_coins_are_never_spent() {
    let mut chains: Vec<(&str, ChainBuilder)> = Vec::new();
    let mut never = builder(80);
    let coin = never.mature_coin();
    let mut tx = spend(&mut never, coin, 1_000);
    tx.input[0].previous_output.vout += 77;
    never.block_with(vec![tx]);
    chains.push(("never was", never));

    let mut twice = builder(81);
    let coin = twice.mature_coin();
    for satoshi in [1_000, 2_000] {
        let tx = spend(&mut twice, coin.clone(), satoshi);
        twice.block_with(vec![tx]);
    }
    chains.push(("spent twice", twice));

    let mut early = builder(82);
    let coin = early.mature_coin();
    let first = spend(&mut early, coin, 9_000);
    let mut second = spend(&mut early, coins_of(&first)[0].clone(), 1_000);
    // The spend has no relative lock time.
    second.input[0].sequence = Sequence::MAX;
    early.block_with(vec![second]);
    early.block_with(vec![first]);
    chains.push(("spent before it is made", early));

    let mut within = builder(83);
    let coin = within.mature_coin();
    let first = spend(&mut within, coin, 9_000);
    let second = spend(&mut within, coins_of(&first)[0].clone(), 1_000);
    within.block_with(vec![second, first]);
    chains.push(("spent before it is made, in one block", within));

    for (what, mut builder) in chains {
        builder.empty_blocks(2);
        let chain = Chain::of(&builder);
        assert_eq!(
            in_order(&chain).refused.unwrap().1.reject_reason(),
            "bad-txns-inputs-missingorspent"
        );
        let division = random_division(chain.stop(), &mut Rng::new(3));
        let mut undo = claimed(&chain);
        // Tries the liar's undo data, and a version whose heights hide that a coin is created later.
        for height in [None, Some(1)] {
            for data in undo.values_mut() {
                let mut spent = read(data);
                spent.iter_mut().flatten().for_each(|coin| coin.0 = height.unwrap_or(coin.0));
                *data = written(&spent);
            }
            let error = run(&chain, &undo, &claimed_hints(&chain), &division).unwrap_err();
            if let (None, UndoPassError::Refused { error, .. }) = (height, &error) {
                assert_eq!(error.reject_reason(), "bad-txns-inputs-missingorspent", "{what}");
            }
            let found = matches!(
                error,
                UndoPassError::Refused { .. }
                    | UndoPassError::SwiftSync(
                        SwiftSyncError::CoinsUnbalanced { .. } | SwiftSyncError::Order { .. }
                    )
            );
            assert!(found, "{what}: {error}");
        }
    }
}

/// Returns a valid chain, its undo data, and a block with a transaction of at least two inputs.
fn with_two_inputs(seed: u64) -> (Chain, Undo, Height, usize) {
    let mut builder = builder(seed);
    builder.random_blocks(12, Shape::default());
    let chain = Chain::of(&builder);
    let undo = claimed(&chain);
    let differ = |coins: &Vec<Fields>| coins.len() > 1 && coins[0] != coins[1];
    let found =
        undo.iter().find_map(|(height, data)| Some((*height, read(data).iter().position(differ)?)));
    let (height, tx) = found.unwrap();
    (chain, undo, height, tx)
}

/// Swaps two coins: both exist, but under each other's outpoints.
#[test]
fn coins_of_one_transaction_in_each_others_place_are_noticed() {
    let (chain, mut undo, height, tx) = with_two_inputs(84);
    let mut spent = read(&undo[&height]);
    spent[tx].swap(0, 1);
    undo.insert(height, written(&spent));
    let division = random_division(chain.stop(), &mut Rng::new(5));
    let error = run(&chain, &undo, &chain.hints(), &division).unwrap_err();
    assert!(
        matches!(error, UndoPassError::SwiftSync(SwiftSyncError::CoinsUnbalanced { .. })),
        "{error}"
    );
}

/// The expected error text, and the change.
type Change<'c> = (&'c str, &'c dyn Fn(&mut BlockPrevouts));

/// Undo data must have the shape of their block.
#[test]
fn undo_data_of_another_shape_are_refused() {
    let (chain, undo, height, tx) = with_two_inputs(85);
    let division = random_division(chain.stop(), &mut Rng::new(6));
    let right = read(&undo[&height]);
    let of_shape = |change: &dyn Fn(&mut BlockPrevouts)| {
        let (mut spent, mut undo) = (right.clone(), undo.clone());
        change(&mut spent);
        undo.insert(height, written(&spent));
        run(&chain, &undo, &chain.hints(), &division)
    };
    assert!(of_shape(&|_| ()).is_ok());
    let extra = right[tx][0].clone();
    let changes: [Change<'_>; 4] = [
        ("inputs", &|spent| spent[tx].push(extra.clone())),
        ("inputs", &|spent| drop(spent[tx].pop())),
        ("transactions", &|spent| spent.push(vec![extra.clone()])),
        ("transactions", &|spent| drop(spent.pop())),
    ];
    for (expected, change) in changes {
        match of_shape(change).unwrap_err() {
            UndoPassError::Undo { block, what } => {
                assert_eq!(block.height, height);
                assert!(what.contains(expected), "{what}");
            }
            other => panic!("{other}"),
        }
    }
    let mut without = undo.clone();
    without.remove(&height);
    let error = run(&chain, &without, &chain.hints(), &division).unwrap_err();
    assert!(error.to_string().contains("there are none"), "{error}");
}

/// Changes one field of one coin, or the order of coins.
fn change(spent: &mut BTreeMap<Height, BlockPrevouts>, rng: &mut Rng) -> &'static str {
    let heights: Vec<Height> = spent.iter().filter(|it| !it.1.is_empty()).map(|it| *it.0).collect();
    let pick = |rng: &mut Rng, spent: &BTreeMap<Height, BlockPrevouts>| {
        let height = heights[rng.index(heights.len())];
        let tx = rng.index(spent[&height].len());
        (height, tx, rng.index(spent[&height][tx].len()))
    };
    let (height, tx, input) = pick(rng, spent);
    let kind = rng.below(7);
    if kind == 6 {
        // Two coins are swapped, within a block or across blocks.
        let (other, other_tx, other_input) = pick(rng, spent);
        let one = spent[&height][tx][input].clone();
        let two = spent[&other][other_tx][other_input].clone();
        spent.get_mut(&height).unwrap()[tx][input] = two;
        spent.get_mut(&other).unwrap()[other_tx][other_input] = one;
        return "two coins in each other's place";
    }
    let coin = &mut spent.get_mut(&height).unwrap()[tx][input];
    match kind {
        0 => coin.0 = coin.0.saturating_sub(1),
        1 => coin.0 += 1,
        2 => coin.1 = !coin.1,
        3 => coin.2 += 1,
        4 => coin.2 = coin.2.saturating_sub(1),
        _ => coin.3.push(0x51),
    }
    ["a height below", "a height above", "the mark", "more", "less", "the script"][kind as usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(150, 5_000) as u32))]

    /// Undo data that differ from the truth never produce a set, and neither do another block's records, or
    /// truncated ones.
    #[test]
    fn wrong_undo_data_are_refused(seed in 0u64..4, salt: u64, kind in 0u32..6) {
        let mut builder = builder(seed);
        builder.random_blocks(8, Shape::default());
        let (chain, mut rng) = (Chain::of(&builder), Rng::new(salt));
        let right = claimed(&chain);
        let mut wrong = right.clone();
        let what = match kind {
            0 => {
                let heights: Vec<Height> = (108..=chain.stop()).collect();
                let [one, other] = [(); 2].map(|()| heights[rng.index(heights.len())]);
                wrong.insert(one, right[&other].clone());
                "another block's"
            }
            1 => {
                let height = 108 + rng.below(u64::from(chain.stop() - 107)) as Height;
                let data = wrong.get_mut(&height).unwrap();
                let at = rng.index(data.len());
                data.truncate(at);
                "cut"
            }
            _ => {
                let mut spent = right.iter().map(|(height, data)| (*height, read(data))).collect();
                let what = change(&mut spent, &mut rng);
                wrong = spent.iter().map(|(height, spent)| (*height, written(spent))).collect();
                what
            }
        };
        let division = random_division(chain.stop(), &mut rng);
        let result = run(&chain, &wrong, &chain.hints(), &division);
        // Undo data of a block that spends nothing are not read.
        let spends = |height: &Height| chain.blocks[*height as usize].txdata.len() > 1;
        let same = right.iter().all(|(height, data)| !spends(height) || wrong[height] == *data);
        prop_assert_eq!(result.is_ok(), same, "{}: {:?}", what, result.err());
    }

    /// Wrong hints are refused even with right undo data.
    #[test]
    fn wrong_hints_are_refused(seed in 0u64..4, salt: u64) {
        let mut builder = builder(seed);
        builder.random_blocks(8, Shape::default());
        let (chain, mut rng) = (Chain::of(&builder), Rng::new(salt));
        let mut hints = chain.hints();
        let at = rng.index(hints.len());
        let of_block = &mut hints[at];
        match of_block.len() {
            0 => of_block.push(0),
            count => drop(of_block.remove(rng.index(count))),
        }
        let division = random_division(chain.stop(), &mut rng);
        prop_assert!(run(&chain, &claimed(&chain), &hints, &division).is_err());
    }
}
