//! Tests the total cost of signature operations against the `bitcoin` crate.

use super::{spread_sigops, *};
use crate::tests::{bare_tx, input, output, with_tx};
use bitcoin::{ScriptBuf, Transaction, TxOut, Witness};
use proptest::collection::vec;
use proptest::prelude::*;

const BOTH: u32 = VERIFY_P2SH | VERIFY_WITNESS;
const CHECKSIG: u8 = 0xac;
const CHECKMULTISIG: u8 = 0xae;

fn p2sh() -> Vec<u8> {
    [&[0xa9, 20][..], &[7; 20], &[0x87]].concat()
}

fn program(version: u8, length: usize) -> Vec<u8> {
    [&[version, length as u8][..], &vec![7; length]].concat()
}

fn push(script: &[u8]) -> Vec<u8> {
    [&[0x4c, script.len() as u8][..], script].concat()
}

fn cost(tx: &Transaction, spent: &[Vec<u8>], flags: u32) -> u64 {
    with_tx(tx, |tx| transaction_sigop_cost(&tx, spent.iter().map(Vec::as_slice), flags))
}

/// Returns the cost of one input with this script, witness and coin.
fn input_cost(script_sig: &[u8], witness: &[&[u8]], script_pubkey: &[u8], flags: u32) -> u64 {
    let mut tx = bare_tx();
    tx.input.push(input(0));
    tx.input[0].script_sig = ScriptBuf::from_bytes(script_sig.to_vec());
    tx.input[0].witness = Witness::from_slice(witness);
    cost(&tx, &[script_pubkey.to_vec()], flags)
}

#[test]
fn visible_operations_cost_four_each() {
    let mut tx = bare_tx();
    tx.input.push(input(0));
    tx.input[0].script_sig = ScriptBuf::from_bytes(vec![CHECKSIG]);
    tx.output.push(output(1));
    tx.output[0].script_pubkey = ScriptBuf::from_bytes(vec![0x52, CHECKMULTISIG]);
    for flags in [0, BOTH] {
        assert_eq!(cost(&tx, &[vec![CHECKSIG; 5]], flags), 4 * (1 + 20));
    }
}

#[test]
fn a_coinbase_has_only_visible_operations() {
    let mut tx = bare_tx();
    tx.input.push(input(0));
    tx.input[0].previous_output = bitcoin::OutPoint::null();
    tx.input[0].script_sig = ScriptBuf::from_bytes(vec![CHECKSIG, CHECKSIG]);
    assert_eq!(cost(&tx, &[], BOTH), 8);
    assert_eq!(cost(&tx, &[program(0, 20)], BOTH), 8);
}

#[test]
fn redeem_scripts_count_from_bip16_on() {
    let redeem = [0x52, CHECKMULTISIG, CHECKSIG];
    let script_sig = push(&redeem);
    assert_eq!(input_cost(&script_sig, &[], &p2sh(), VERIFY_P2SH), 4 * 3);
    assert_eq!(input_cost(&script_sig, &[], &p2sh(), BOTH), 4 * 3);
    assert_eq!(input_cost(&script_sig, &[], &p2sh(), 0), 0);
    assert_eq!(input_cost(&script_sig, &[], &[0x51], BOTH), 0);
    // After anything but pushes, Core ignores the redeem script.
    assert_eq!(input_cost(&[&[0x61], &script_sig[..]].concat(), &[], &p2sh(), BOTH), 0);
    assert_eq!(input_cost(&[&script_sig[..], &[0x51]].concat(), &[], &p2sh(), BOTH), 0);
    assert_eq!(input_cost(&script_sig[..3], &[], &p2sh(), BOTH), 0);
}

#[test]
fn witnesses_count_from_segwit_on() {
    let script = [0x53, CHECKMULTISIG];
    let stack: [&[u8]; 2] = [&[CHECKSIG; 9], &script];
    assert_eq!(input_cost(&[], &stack, &program(0, 32), BOTH), 3);
    assert_eq!(input_cost(&[], &stack, &program(0, 20), BOTH), 1);
    assert_eq!(input_cost(&[], &[], &program(0, 20), BOTH), 1);
    assert_eq!(input_cost(&[], &[], &program(0, 32), BOTH), 0);
    assert_eq!(input_cost(&[], &stack, &program(0, 32), VERIFY_P2SH), 0);
    assert_eq!(input_cost(&[], &stack, &program(0, 20), VERIFY_P2SH), 0);
    // Later versions, including taproot, and other lengths have no such limit.
    assert_eq!(input_cost(&[], &stack, &program(0x51, 32), BOTH), 0);
    assert_eq!(input_cost(&[], &stack, &program(0x51, 20), BOTH), 0);
    assert_eq!(input_cost(&[], &stack, &program(0, 21), BOTH), 0);
    // A push of the right length is a program only if it is the whole script.
    for (pushed, length) in [(20, 19), (20, 21), (32, 31), (32, 33)] {
        let other = [&[0, pushed][..], &vec![7; length]].concat();
        assert_eq!(input_cost(&[], &stack, &other, BOTH), 0, "{length} bytes after {pushed}");
    }
}

#[test]
fn wrapped_witnesses_count_as_witnesses() {
    let script = [0x53, CHECKMULTISIG];
    for (length, expected) in [(20, 1), (32, 3)] {
        let script_sig = push(&program(0, length));
        assert_eq!(input_cost(&script_sig, &[&script], &p2sh(), BOTH), expected);
        assert_eq!(input_cost(&script_sig, &[&script], &p2sh(), VERIFY_P2SH), 0);
        let not_only = [&[0x61], &script_sig[..]].concat();
        assert_eq!(input_cost(&not_only, &[&script], &p2sh(), BOTH), 0);
    }
}

/// If the bound were too high, every block with many inputs would take the slow path.
#[test]
fn the_bound_is_reached() {
    let script = [0x53, CHECKMULTISIG];
    let max_of = |script_sig: &[u8], witness: &[&[u8]]| {
        let mut tx = bare_tx();
        tx.input.push(input(0));
        tx.input[0].script_sig = ScriptBuf::from_bytes(script_sig.to_vec());
        tx.input[0].witness = Witness::from_slice(witness);
        with_tx(&tx, |tx| spending_sigop_cost_max(&tx))
    };
    assert_eq!(max_of(&[], &[]), 1);
    assert_eq!(max_of(&[], &[&[CHECKSIG; 9], &script]), 3);
    assert_eq!(max_of(&push(&script), &[]), 3 * 4 + 1);
    assert_eq!(max_of(&push(&program(0, 32)), &[&script]), 3);
    assert_eq!(max_of(&[&[0x61], &push(&script)[..]].concat(), &[]), 1, "not only pushes");
}

#[test]
fn a_missing_coin_exceeds_the_limit() {
    let mut tx = bare_tx();
    tx.input.extend([input(0), input(1)]);
    tx.output.push(output(1));
    tx.output[0].script_pubkey = ScriptBuf::from_bytes(vec![CHECKSIG]);
    assert_eq!(cost(&tx, &[vec![], vec![]], BOTH), 4);
    for spent in [&[][..], &[vec![]]] {
        assert!(cost(&tx, spent, BOTH) > BLOCK_SIGOPS_COST_MAX);
    }
}

/// Makes scripts of relevant forms, near misses of them, and noise.
fn any_script() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![0xa9u8..0xb0, 0x4fu8..0x62, 0u8..4, any::<u8>()];
    prop_oneof![
        (0u8..2, prop_oneof![18usize..22, 31usize..34])
            .prop_map(|(version, length)| program(version * 0x51, length)),
        Just(p2sh()),
        vec(opcode, 0..12).prop_map(|mut script| {
            spread_sigops(&mut script);
            script
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Makes only pushes before a redeem script: the other crate counts operations after anything else, but
    /// Core ignores them.
    #[test]
    fn the_cost_matches_the_bitcoin_crate(
        inputs in vec(
            (any_script(), vec(any_script(), 0..3), vec(any_script(), 0..3), any_script()),
            1..4,
        ),
        outputs in vec(any_script(), 0..3),
    ) {
        let mut tx = bare_tx();
        for (vin, (noise, pushes, witness, coin)) in (0..).zip(&inputs) {
            tx.input.push(input(vin));
            let redeem = *coin == p2sh();
            let pushes: Vec<u8> = pushes.iter().flat_map(|script| push(script)).collect();
            let script_sig = if redeem { pushes } else { noise.clone() };
            tx.input[vin as usize].script_sig = ScriptBuf::from_bytes(script_sig);
            tx.input[vin as usize].witness = Witness::from_slice(witness);
        }
        for script in outputs {
            tx.output.push(TxOut { script_pubkey: ScriptBuf::from_bytes(script), ..output(1) });
        }
        let coins: Vec<Vec<u8>> = inputs.into_iter().map(|(.., coin)| coin).collect();
        let expected = tx.total_sigop_cost(|outpoint| {
            let script_pubkey = ScriptBuf::from_bytes(coins[outpoint.vout as usize].clone());
            Some(TxOut { script_pubkey, ..output(1) })
        });
        prop_assert_eq!(cost(&tx, &coins, BOTH), expected as u64);
        let most = with_tx(&tx, |tx| {
            tx_legacy_sigops(&tx) * WITNESS_SCALE_FACTOR + spending_sigop_cost_max(&tx)
        });
        prop_assert!(expected as u64 <= most);
    }
}
