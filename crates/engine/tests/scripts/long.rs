//! Long scripts, which the interpreter gets from the coins only while they run: each input has its
//! own, and a taproot signature covers all of them.

use crate::{coin, verify};
use apus_chain::{VERIFY_P2SH, VERIFY_TAPROOT, VERIFY_WITNESS};
use apus_engine::utxo::CoinBytes;
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use bitcoin::key::TapTweak;
use bitcoin::secp256k1::{Keypair, Message, Secp256k1};
use bitcoin::sighash::{Prevouts, SighashCache};
use bitcoin::{
    Amount, OutPoint, ScriptBuf, Sequence, TapSighashType, Transaction, TxIn, TxOut, Txid, Witness,
};

const FLAGS: u32 = VERIFY_P2SH | VERIFY_WITNESS | VERIFY_TAPROOT;

/// Inputs of the transaction: enough for the pool to use both of its threads.
const INPUTS: usize = 60;

/// Requires the number of an input, and adds `pushes` pushes of 520 bytes, which are dropped.
fn script_of(number: usize, pushes: usize) -> Vec<u8> {
    let dropped = [&[0x4d, 8, 2][..], &[number as u8; 520], &[0x75]].concat();
    [&[1, 0x80 | number as u8, 0x88][..], &dropped.repeat(pushes), &[0x51]].concat()
}

/// Returns outputs whose scripts grow from none, through short and barely long, to the longest.
fn outputs() -> Vec<TxOut> {
    let script = |number| script_of(number, [0, 1, 2, 19][number % 4]);
    let output = |number| TxOut {
        value: Amount::from_sat(1_000 + number as u64),
        script_pubkey: ScriptBuf::from(script(number)),
    };
    (0..INPUTS).map(output).collect()
}

fn spend() -> Transaction {
    let input = |number: usize| TxIn {
        previous_output: OutPoint { txid: Txid::from_byte_array([7; 32]), vout: number as u32 },
        script_sig: ScriptBuf::from(vec![1, 0x80 | number as u8]),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    };
    let output = TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::new() };
    Transaction {
        version: bitcoin::transaction::Version::TWO,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: (0..INPUTS).map(input).collect(),
        output: vec![output],
    }
}

fn coins(outputs: &[TxOut]) -> Vec<CoinBytes> {
    let of = |output: &TxOut| coin(output.script_pubkey.as_bytes(), output.value.to_sat());
    outputs.iter().map(of).collect()
}

#[test]
fn each_input_runs_against_its_own_script() {
    let (raw, spent) = (serialize(&spend()), coins(&outputs()));
    assert_eq!(verify(raw.clone(), spent.clone(), FLAGS), Ok(()));
    // Two long scripts that differ only in the required number; and a long script with a short one.
    for (one, other) in [(3, 7), (3, 4), (58, 59)] {
        let mut swapped = spent.clone();
        swapped.swap(one, other);
        let failure = verify(raw.clone(), swapped, FLAGS).unwrap_err();
        assert_eq!((failure.tx_index, failure.input), (1, one), "{failure}");
    }
}

#[test]
fn a_taproot_signature_covers_long_scripts() {
    let signer = Secp256k1::new();
    let key = Keypair::from_seckey_slice(&signer, &[9; 32]).unwrap();
    let mut spent = outputs();
    spent[5].script_pubkey = ScriptBuf::new_p2tr(&signer, key.x_only_public_key().0, None);
    let mut tx = spend();
    tx.input[5].script_sig = ScriptBuf::new();
    let hash = SighashCache::new(&tx)
        .taproot_key_spend_signature_hash(5, &Prevouts::All(&spent), TapSighashType::Default)
        .unwrap();
    let key = key.tap_tweak(&signer, None).to_keypair();
    let message = Message::from_digest(hash.to_byte_array());
    let signature = signer.sign_schnorr_no_aux_rand(&message, &key);
    tx.input[5].witness = Witness::from_slice(&[signature.serialize()]);
    let raw = serialize(&tx);
    assert_eq!(verify(raw.clone(), coins(&spent), FLAGS), Ok(()));

    // Changing a dropped byte or an amount fails only the input that signs.
    for (number, amount) in [(3, 0), (59, 0), (3, 1)] {
        let mut other = spent.clone();
        let mut script = other[number].script_pubkey.to_bytes();
        script[100] ^= u8::from(amount == 0);
        other[number].script_pubkey = script.into();
        other[number].value += Amount::from_sat(amount);
        let failure = verify(raw.clone(), coins(&other), FLAGS).unwrap_err();
        assert_eq!((failure.tx_index, failure.input), (1, 5), "{number}: {failure}");
    }
}
