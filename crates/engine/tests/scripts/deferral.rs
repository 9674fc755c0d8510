//! Random scripts with several signature checks: the verdict does not depend on deferral.
//!
//! A script is a list of conditions, which may be negated, joined by "and" or "or": signatures of
//! one key or of `m` among `n` keys. Each signature is valid for some key, or for none.

use crate::{bytes, coin, verify};
use apus_chain::VERIFY_P2SH;
use bitcoin::consensus::serialize;
use bitcoin::opcodes::all::{
    OP_BOOLAND, OP_BOOLOR, OP_CHECKMULTISIG, OP_CHECKSIG, OP_FROMALTSTACK, OP_NOT, OP_TOALTSTACK,
};
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{All, Message, PublicKey, Secp256k1, SecretKey};
use bitcoin::sighash::SighashCache;
use bitcoin::{Amount, Script, ScriptBuf, Transaction, TxIn, TxOut};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::Cell;

const KEYS: u8 = 4;

/// A signature of a key; `nonce` distinguishes signatures of the same hash.
#[derive(Debug, Clone)]
struct Signature {
    key: u8,
    nonce: u8,
    hash_type: u8,
    /// The hash type that it claims.
    claims: u8,
    is_forged: bool,
}

#[derive(Debug, Clone)]
struct Condition {
    /// Several for `OP_CHECKMULTISIG`.
    keys: Vec<u8>,
    signatures: Vec<Signature>,
    negated: bool,
    /// Joins it to the conditions before it.
    or: bool,
}

fn signature() -> impl Strategy<Value = Signature> {
    let wrong = || prop::bool::weighted(0.1);
    (0..KEYS, 0u8..2, 1u8..4, wrong(), wrong()).prop_map(
        |(key, nonce, hash_type, lies, is_forged)| {
            let claims = if lies { hash_type % 3 + 1 } else { hash_type };
            Signature { key, nonce, hash_type, claims, is_forged }
        },
    )
}

fn condition() -> impl Strategy<Value = Condition> {
    let negated = prop::bool::weighted(0.2);
    (vec(0..KEYS, 1..5), vec(signature(), 1..5), negated, any::<bool>(), any::<bool>()).prop_map(
        |(keys, mut signatures, negated, or, fits)| {
            signatures.truncate(keys.len());
            if fits {
                // In most real scripts, the signatures are of these keys, in order.
                let skipped = keys.len() - signatures.len();
                for (signature, key) in signatures.iter_mut().zip(&keys[skipped / 2..]) {
                    signature.key = *key;
                }
            }
            Condition { keys, signatures, negated, or }
        },
    )
}

fn secret(key: u8) -> SecretKey {
    SecretKey::from_slice(&[key + 1; 32]).unwrap()
}

fn push(bytes: &[u8]) -> PushBytesBuf {
    PushBytesBuf::try_from(bytes.to_vec()).unwrap()
}

fn lock(secp: &Secp256k1<All>, conditions: &[Condition]) -> ScriptBuf {
    let key = |key: &u8| push(&PublicKey::from_secret_key(secp, &secret(*key)).serialize());
    let mut script = Builder::new();
    for condition in conditions {
        if let [one] = &condition.keys[..] {
            script = script.push_slice(key(one)).push_opcode(OP_CHECKSIG);
        } else {
            script = script.push_int(condition.signatures.len() as i64);
            script = condition.keys.iter().fold(script, |script, of| script.push_slice(key(of)));
            let count = condition.keys.len() as i64;
            script = script.push_int(count).push_opcode(OP_CHECKMULTISIG);
        }
        if condition.negated {
            script = script.push_opcode(OP_NOT);
        }
        script = script.push_opcode(OP_TOALTSTACK);
    }
    script = script.push_opcode(OP_FROMALTSTACK);
    for condition in &conditions[1..] {
        let join = if condition.or { OP_BOOLOR } else { OP_BOOLAND };
        script = script.push_opcode(OP_FROMALTSTACK).push_opcode(join);
    }
    script.into_script()
}

fn sign(secp: &Secp256k1<All>, tx: &Transaction, lock: &Script, by: &Signature) -> PushBytesBuf {
    let hash = SighashCache::new(tx).legacy_signature_hash(0, lock, by.hash_type.into()).unwrap();
    let message = Message::from(hash);
    let signature = secp.sign_ecdsa_with_noncedata(&message, &secret(by.key), &[by.nonce; 32]);
    let mut bytes = signature.serialize_der().to_vec();
    *bytes.last_mut().unwrap() ^= u8::from(by.is_forged);
    bytes.push(by.claims);
    push(&bytes)
}

fn unlock(
    secp: &Secp256k1<All>,
    tx: &Transaction,
    lock: &Script,
    conditions: &[Condition],
) -> ScriptBuf {
    let mut script = Builder::new();
    for Condition { keys, signatures, .. } in conditions.iter().rev() {
        if keys.len() > 1 {
            script = script.push_int(0);
        }
        for signature in signatures {
            script = script.push_slice(sign(secp, tx, lock, signature));
        }
    }
    script.into_script()
}

/// Returns whether the scripts pass.
fn passes(secp: &Secp256k1<All>, conditions: &[Condition]) -> bool {
    let lock = lock(secp, conditions);
    let output = TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::new() };
    let mut tx = Transaction {
        version: bitcoin::transaction::Version::ONE,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: vec![TxIn::default()],
        output: vec![output],
    };
    let script_sig = unlock(secp, &tx, &lock, conditions);
    tx.input[0].script_sig = script_sig;
    verify(serialize(&tx), vec![coin(lock.as_bytes(), 1)], VERIFY_P2SH).is_ok()
}

#[test]
fn random_scripts_have_the_same_verdict() {
    let secp = Secp256k1::new();
    let passed = Cell::new(0);
    let config = ProptestConfig::with_cases(512);
    proptest!(config, |(conditions in vec(condition(), 1..4))| {
        passed.set(passed.get() + u32::from(passes(&secp, &conditions)));
    });
    assert!((100..400).contains(&passed.get()), "{}", passed.get());
}

/// Bytes that more often than not are keys and signatures.
fn script_bytes() -> impl Strategy<Value = Vec<u8>> {
    const CHECKS: [u8; 6] = [0xac, 0xad, 0xae, 0xaf, 0xba, 0x91];
    let byte = || prop_oneof![3 => 0xe0u8.., 2 => prop::sample::select(&CHECKS[..]), 2 => 0u8..4, 1 => 0x51u8..0x54, 1 => any::<u8>()];
    let one = (0u8..4, any::<bool>(), vec(byte(), 0..12)).prop_map(|(form, signs, rest)| {
        // A script that one signature unlocks, then others.
        let start: &[u8] = if signs { &[0xf1, 0xac] } else { &[] };
        [&[form, (start.len() + rest.len() / 2) as u8], start, &rest[..]].concat()
    });
    prop_oneof![
        one,
        (0u8..4, vec(byte(), 1..30)).prop_map(|(form, rest)| [&[form], &rest[..]].concat())
    ]
}

#[test]
fn bytes_as_scripts_have_the_same_verdict() {
    let (passed, failed) = (Cell::new(0), Cell::new(0));
    proptest!(ProptestConfig::with_cases(1024), |(bytes in script_bytes())| {
        match bytes::passes(&bytes) {
            Some(true) => passed.set(passed.get() + 1),
            Some(false) => failed.set(failed.get() + 1),
            None => {}
        }
    });
    assert!(passed.get() > 20 && failed.get() > 300, "{} and {}", passed.get(), failed.get());
    // One key in each kind of output, two of three keys, and a signature that must be wrong.
    for valid in [
        &[0, 2, 0xf1, 0xac, 0xe1, 1][..],
        &[1, 2, 0xf5, 0xac, 0xe1, 2],
        &[2, 2, 0xf1, 0xac, 0xe1, 0x81],
        &[3, 2, 0xf1, 0xac, 0xe1, 0],
        &[0, 6, 0x52, 0xf0, 0xf1, 0xf2, 0x53, 0xae, 0, 0xe0, 1, 0xe2, 1],
        &[0, 3, 0xf1, 0xac, 0x91, 0xe9, 1],
    ] {
        assert_eq!(bytes::passes(valid), Some(true), "{valid:x?}");
    }
}

/// A valid check, and one that differs only in the signature, the hash or the key: the proof of one is
/// none for the other.
#[test]
fn a_proof_is_for_one_check() {
    let secp = Secp256k1::new();
    let right = Condition {
        keys: vec![0],
        signatures: vec![Signature { key: 0, nonce: 0, hash_type: 1, claims: 1, is_forged: false }],
        negated: false,
        or: false,
    };
    assert!(passes(&secp, &[right.clone(), right.clone()]));
    let wrongs: [fn(&mut Condition); 3] = [
        |wrong| wrong.signatures[0].is_forged = true,
        |wrong| wrong.signatures[0].claims = 2,
        |wrong| wrong.keys[0] = 1,
    ];
    for change in wrongs {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert!(!passes(&secp, &[right.clone(), wrong.clone()]));
        assert!(!passes(&secp, &[wrong.clone(), right.clone()]));
        wrong.negated = true;
        assert!(passes(&secp, &[right.clone(), wrong.clone()]));
    }
}
