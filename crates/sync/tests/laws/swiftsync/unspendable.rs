//! Tests of unspendable outputs: they are not coins and have no index, but their amounts count.

use crate::swiftsync::harness::{Chain, KINDS, index_hints, model_coins};
use crate::swiftsync::shapes::{coin, mined, pay, pay_to};
use apus_chain::HeightRange;
use apus_sync::engines::pass::Pass;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind};
use bitcoin::TxOut;

/// Makes a chain of one block whose coinbase has these outputs.
fn one_block(outputs: Vec<TxOut>) -> Chain {
    let mut builder = ChainBuilder::new(30);
    let coinbase_outputs = Some(outputs);
    builder.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
    Chain::of(&builder)
}

/// Returns whether an output with this script is a coin, by the index of the output after it.
fn is_coin(script: Vec<u8>) -> bool {
    let chain = one_block(vec![pay(1), pay_to(2, script), pay(3)]);
    let answers = [vec![0, 1], vec![0, 1, 2]].map(|hints| {
        let outcome = chain.run(KINDS[0], &[hints]).ok()?;
        assert_eq!(outcome.coins, model_coins(&chain.utxo()));
        let lost = 6 - outcome.verdict.coins.amount;
        assert_eq!(outcome.whole.unspendable_amount, lost, "each amount counts once");
        Some(outcome.verdict.coins.coins)
    });
    match answers {
        [Some(2), None] => false,
        [None, Some(3)] => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn op_return_as_the_first_byte() {
    // Core `script/script.h`, `CScript::IsUnspendable`.
    assert!(!is_coin(vec![0x6a]));
    assert!(!is_coin(vec![0x6a, 0x51]));
    assert!(is_coin(vec![0x51, 0x6a]), "not first");
    assert!(is_coin(vec![0x00, 0x6a]));
    assert!(is_coin(vec![0x69]) && is_coin(vec![0x6b]));
}

#[test]
fn more_than_10_000_bytes() {
    assert!(is_coin(vec![0x51; 10_000]));
    assert!(!is_coin(vec![0x51; 10_001]));
    assert!(!is_coin([&[0x6a][..], &[0; 10_000]].concat()));
}

#[test]
fn no_script_at_all_is_a_coin() {
    assert!(is_coin(vec![]));
}

#[test]
fn indices_skip_them_in_every_transaction() {
    let mut builder = ChainBuilder::new(31);
    let first = mined(&mut builder);
    let mut output =
        |kind| TxOut { value: bitcoin::Amount::ONE_SAT, script_pubkey: { builder.script(kind) } };
    use ScriptKind::{Longest, OpReturn, OpReturnBare, OpTrue, TooLong};
    let outputs = [OpReturn, Longest, TooLong, OpReturnBare, OpTrue, OpReturn].map(&mut output);
    let more = [TooLong, OpTrue].map(&mut output);
    let tx = builder.spend(&[coin(&first, 0)], outputs.to_vec());
    let next = builder.spend(&[coin(&tx, 1)], more.to_vec());
    builder.block_with(vec![tx, next]);
    let chain = Chain::of(&builder);
    // Coinbase 0; outputs 1 (spent at once) and 4 of the first are 1 and 2; output 1 of the next 3.
    assert_eq!(chain.hints(), [vec![], vec![0, 2, 3]]);
    for kind in KINDS {
        let outcome = chain.run(kind, &chain.hints()).unwrap();
        assert_eq!(outcome.coins, model_coins(&chain.utxo()));
        assert_eq!(outcome.whole.unspendable_amount, 5);
        let raw_places = [vec![], vec![0, 5, 8]];
        assert!(chain.run(kind, &raw_places).is_err(), "numbered with the unspendable ones");
    }
}

#[test]
fn they_are_in_no_sum() {
    let chain = one_block(vec![pay_to(9, vec![0x6a]), pay_to(9, vec![0x51; 10_001])]);
    let engine = chain.engine(KINDS[0]);
    let hints = index_hints(&[vec![]], HeightRange::new(1, 2));
    let partial = chain.segment(&engine, hints, &[1]).unwrap().partial;
    assert_eq!(partial.sums, engine.nothing().sums);
    assert_eq!((partial.created, partial.unspendable_amount), (0, 18));
}
