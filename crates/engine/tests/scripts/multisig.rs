//! CHECKMULTISIG: the verdict does not depend on the order in which keys are tried, nor on what is proven.

use crate::provers::pool_with;
use crate::{BLOCK, coin, verify};
use apus_chain::{VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH, VERIFY_WITNESS};
use apus_engine::script::{RawTx, ScriptPool, SignatureMode, interpreter};
use bitcoin::consensus::serialize;
use bitcoin::opcodes::all::{
    OP_CHECKMULTISIG, OP_CHECKSIG, OP_CODESEPARATOR, OP_DROP, OP_ELSE, OP_ENDIF, OP_IF, OP_NOP,
    OP_SWAP,
};
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{All, Message, PublicKey, Secp256k1, SecretKey};
use bitcoin::sighash::{EcdsaSighashType, SighashCache};
use bitcoin::{Amount, Script, ScriptBuf, Transaction, TxIn, TxOut, Witness};
use std::sync::Arc;

const AMOUNT: u64 = 1000;

fn secret(key: u8) -> SecretKey {
    SecretKey::from_slice(&[key + 1; 32]).unwrap()
}

fn push(bytes: &[u8]) -> PushBytesBuf {
    PushBytesBuf::try_from(bytes.to_vec()).unwrap()
}

/// `required` of these keys.
fn multisig(secp: &Secp256k1<All>, required: usize, keys: &[u8]) -> ScriptBuf {
    let mut script = Builder::new().push_int(required as i64);
    for key in keys {
        script =
            script.push_slice(push(&PublicKey::from_secret_key(secp, &secret(*key)).serialize()));
    }
    script.push_int(keys.len() as i64).push_opcode(OP_CHECKMULTISIG).into_script()
}

fn spending() -> Transaction {
    Transaction {
        version: bitcoin::transaction::Version::ONE,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: vec![TxIn::default()],
        output: vec![TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::new() }],
    }
}

/// A signature of the first input under pre-segwit rules.
fn sign(secp: &Secp256k1<All>, script: &Script, key: u8) -> Vec<u8> {
    let hash = SighashCache::new(spending()).legacy_signature_hash(0, script, 1).unwrap();
    let mut signature =
        secp.sign_ecdsa(&Message::from(hash), &secret(key)).serialize_der().to_vec();
    signature.push(1);
    signature
}

fn sign_segwit(secp: &Secp256k1<All>, script: &Script, key: u8) -> Vec<u8> {
    let mut cache = SighashCache::new(spending());
    let (amount, all) = (Amount::from_sat(AMOUNT), EcdsaSighashType::All);
    let hash = cache.p2wsh_signature_hash(0, script, amount, all).unwrap();
    let mut signature =
        secp.sign_ecdsa(&Message::from(hash), &secret(key)).serialize_der().to_vec();
    signature.push(1);
    signature
}

/// Whether the scripts pass, for each kind of output.
fn verdicts(secp: &Secp256k1<All>, script: &ScriptBuf, signers: &[u8]) -> [bool; 3] {
    let flags = VERIFY_P2SH | VERIFY_WITNESS | VERIFY_NULLDUMMY;
    let passes = |tx: &Transaction, lock: &Script| {
        verify(serialize(tx), vec![coin(lock.as_bytes(), AMOUNT)], flags).is_ok()
    };
    let mut unlock = Builder::new().push_int(0);
    for key in signers {
        unlock = unlock.push_slice(push(&sign(secp, script, *key)));
    }
    let mut bare = spending();
    bare.input[0].script_sig = unlock.clone().into_script();
    let mut p2sh = spending();
    p2sh.input[0].script_sig = unlock.push_slice(push(script.as_bytes())).into_script();
    let mut p2wsh = spending();
    let mut witness = vec![Vec::new()];
    witness.extend(signers.iter().map(|key| sign_segwit(secp, script, *key)));
    witness.push(script.to_bytes());
    p2wsh.input[0].witness = Witness::from_slice(&witness);
    [
        passes(&bare, script),
        passes(&p2sh, &ScriptBuf::new_p2sh(&script.script_hash())),
        passes(&p2wsh, &ScriptBuf::new_p2wsh(&script.wscript_hash())),
    ]
}

/// Whether the signers are among the keys, in their order.
fn are_in_order(signers: &[u8], keys: &[u8]) -> bool {
    let mut keys = keys.iter();
    signers.iter().all(|signer| keys.any(|key| key == signer))
}

/// Every choice of signers, in every order, with a stranger and with equal keys among them.
#[test]
fn signatures_are_in_the_order_of_their_keys() {
    let secp = Secp256k1::new();
    let (mut passed, mut failed) = (0, 0);
    for keys in [&[0][..], &[0, 1], &[0, 1, 2], &[0, 0, 1], &[0, 1, 0], &[0, 1, 2, 3]] {
        for required in 1..=keys.len().min(3) {
            let script = multisig(&secp, required, keys);
            for choice in 0..5_usize.pow(required as u32) {
                let signer = |place: usize| (choice / 5_usize.pow(place as u32) % 5) as u8;
                let signers: Vec<u8> = (0..required).map(signer).collect();
                let expected = are_in_order(&signers, keys);
                let found = verdicts(&secp, &script, &signers);
                assert_eq!(found, [expected; 3], "{required} of {keys:?}, signed by {signers:?}");
                *if expected { &mut passed } else { &mut failed } += 1;
            }
        }
    }
    assert!(passed > 30 && failed > 400, "{passed} {failed}");
}

#[test]
fn many_keys_may_be_passed_over() {
    let secp = Secp256k1::new();
    let keys: Vec<u8> = (0..15).collect();
    for (required, first) in [(1, 0), (2, 0), (3, 5), (8, 0), (15, 0)] {
        let script = multisig(&secp, required, &keys);
        let signers = &keys[first..first + required];
        assert_eq!(verdicts(&secp, &script, signers), [true; 3], "{required}");
        let stranger = [&signers[..required - 1], &[99]].concat();
        assert_eq!(verdicts(&secp, &script, &stranger), [false; 3]);
    }
}

/// What Core says, and what a pool says whose prover proves nothing; the two must agree.
fn passes_unproven(unproven: &ScriptPool, tx: &Transaction, lock: &Script, flags: u32) -> bool {
    let (raw, spent) = (serialize(tx), vec![coin(lock.as_bytes(), AMOUNT)]);
    let passes = verify(raw.clone(), spent.clone(), flags).is_ok();
    let mut batch = unproven.begin(BLOCK, flags);
    let length = raw.len();
    batch.add(1, RawTx::new(Arc::new(raw), 0..length), spent);
    let verdict = batch.finish().wait();
    assert_eq!(verdict.is_ok(), passes, "{lock:?}, {:?}, flags {flags}", tx.input[0].script_sig);
    passes
}

/// In a scriptSig, the result of CHECKMULTISIG is not the end: the output's script can use a "no". So a check
/// that could not be proven must not count as invalid there.
#[test]
fn a_script_sig_does_not_gain_from_what_is_not_proven() {
    let secp = Secp256k1::new();
    let unproven = pool_with(interpreter().unwrap(), SignatureMode::Fast, 1);
    let script = multisig(&secp, 1, &[0, 0]);
    let key = push(&PublicKey::from_secret_key(&secp, &secret(2)).serialize());
    // With a valid signature of key 0, a signature of key 2 is needed, too. Its length is that of `script`.
    let padding = ScriptBuf::from_bytes(vec![OP_NOP.to_u8(); script.len() - 40]);
    let lock = Builder::from(padding.into_bytes())
        .push_opcode(OP_IF)
        .push_slice(key)
        .push_opcode(OP_CHECKSIG)
        .push_opcode(OP_ELSE)
        .push_opcode(OP_DROP)
        .push_int(1)
        .push_opcode(OP_ENDIF)
        .into_script();
    assert_eq!(lock.len(), script.len());
    for (signer, expected) in [(2, true), (3, false)] {
        let unlock = Builder::new()
            .push_slice(push(&sign(&secp, &lock, signer)))
            .push_int(0)
            .push_slice(push(&sign(&secp, &script, 0)))
            .push_opcode(OP_CODESEPARATOR);
        let mut tx = spending();
        tx.input[0].script_sig = [unlock.into_bytes(), script.to_bytes()].concat().into();
        assert_eq!(passes_unproven(&unproven, &tx, &lock, VERIFY_P2SH), expected);
    }
}

/// A script that surrounds CHECKMULTISIG in ways that its scriptCode does not show: signatures are deleted from it,
/// and it begins after a code separator. A trailing push makes the script true whatever CHECKMULTISIG said, but
/// Core fails if it visits a signature with a wrong encoding (BIP-66).
#[test]
fn what_surrounds_checkmultisig_decides() {
    let secp = Secp256k1::new();
    let unproven = pool_with(interpreter().unwrap(), SignatureMode::Fast, 1);
    let script = multisig(&secp, 3, &[0, 1, 2]);
    let strict = vec![0x30, 6, 2, 1, 1, 2, 1, 1, 1];
    let other_strict = push(&[0x30, 6, 2, 1, 2, 2, 1, 2, 1]);
    let all = [
        vec![1],
        strict.clone(),
        sign(&secp, &script, 0),
        sign(&secp, &script, 1),
        sign(&secp, &script, 2),
    ];
    // If a signature of key 7 is valid, the second-last one is replaced. It never is.
    let replacing = Builder::new()
        .push_slice(push(&PublicKey::from_secret_key(&secp, &secret(7)).serialize()))
        .push_opcode(OP_CHECKSIG)
        .push_opcode(OP_IF)
        .push_opcode(OP_SWAP)
        .push_opcode(OP_DROP)
        .push_slice(push(&strict))
        .push_opcode(OP_SWAP)
        .push_opcode(OP_ENDIF)
        .into_script();
    let (mut passed, mut failed) = (0, 0);
    for shape in 0..12 {
        let (has_check, is_separated, tail) = (shape % 2 == 1, shape / 2 % 2 == 1, shape / 4);
        let mut lock = if has_check { replacing.to_bytes() } else { Vec::new() };
        lock.extend(is_separated.then_some(OP_CODESEPARATOR.to_u8()));
        lock.extend(script.to_bytes());
        if tail > 0 {
            lock.extend(
                Builder::new().push_slice(push(&all[if tail == 1 { 1 } else { 4 }])).into_bytes(),
            );
        }
        let lock = ScriptBuf::from_bytes(lock);
        for choice in 0..125 {
            let mut unlock = Builder::new().push_int(0);
            for place in [1, 5, 25] {
                unlock = unlock.push_slice(push(&all[choice / place % 5]));
            }
            if has_check {
                unlock = unlock.push_slice(&other_strict);
            }
            let mut tx = spending();
            tx.input[0].script_sig = unlock.into_script();
            for flags in [VERIFY_P2SH, VERIFY_P2SH | VERIFY_DERSIG] {
                let passes = passes_unproven(&unproven, &tx, &lock, flags);
                *if passes { &mut passed } else { &mut failed } += 1;
            }
        }
    }
    assert!(passed > 100 && failed > 1000, "{passed} {failed}");
}
