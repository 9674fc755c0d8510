//! A signature: what Apus proves is valid for libsecp256k1.
//!
//! Starts from valid signatures, and changes bytes of key, hash and signature. An input has the kind, the secret key,
//! and a place and a mask for each change.
//!
//! Inputs: at most 64 bytes.

#![no_main]

use apus_curve::{Kernel, SignatureCheck, Verifier};
use libfuzzer_sys::fuzz_target;
use secp256k1::{
    Keypair, Message, PublicKey, SECP256K1, SecretKey, XOnlyPublicKey, ecdsa, schnorr,
};
use std::sync::{LazyLock, Mutex};

static VERIFIER: LazyLock<Mutex<Verifier>> = LazyLock::new(|| {
    let kernel = Kernel::fastest_lanes().unwrap_or(Kernel::Portable);
    Mutex::new(Verifier::new(kernel))
});

fuzz_target!(|data: &[u8]| {
    let [kind, secret, changes @ ..] = data else { return };
    let pair = Keypair::from_secret_key(
        SECP256K1,
        &SecretKey::from_slice(&[secret & 0x7f | 1; 32]).expect("less than the order"),
    );
    let mut hash = [*secret; 32];
    let message = Message::from_digest(hash);
    let (mut key, mut signature) = match kind % 3 {
        0 => {
            let signature = SECP256K1.sign_schnorr_no_aux_rand(&message, &pair);
            (pair.x_only_public_key().0.serialize().to_vec(), signature.serialize().to_vec())
        }
        kind => {
            let signature = SECP256K1.sign_ecdsa(&message, &pair.secret_key());
            let key = pair.public_key();
            let key = if kind == 1 {
                key.serialize().to_vec()
            } else {
                key.serialize_uncompressed().to_vec()
            };
            (key, signature.serialize_der().to_vec())
        }
    };
    for change in changes.chunks_exact(2) {
        let place = usize::from(change[0]) % (key.len() + hash.len() + signature.len());
        let bytes = key.iter_mut().chain(&mut hash).chain(&mut signature);
        bytes.skip(place).take(1).for_each(|byte| *byte ^= change[1]);
    }
    let message = Message::from_digest(hash);
    let (check, is_valid) = if kind % 3 == 0 {
        let key: &[u8; 32] = key[..].try_into().unwrap();
        let signature: &[u8; 64] = signature[..].try_into().unwrap();
        let valid = XOnlyPublicKey::from_slice(key).is_ok_and(|key| {
            let signature = schnorr::Signature::from_slice(signature).expect("64 bytes");
            SECP256K1.verify_schnorr(&signature, &message, &key).is_ok()
        });
        (Some(SignatureCheck::schnorr(key, &hash, signature)), valid)
    } else {
        let parts = PublicKey::from_slice(&key).and_then(|key| {
            let mut signature = ecdsa::Signature::from_der_lax(&signature)?;
            signature.normalize_s();
            Ok((key, signature))
        });
        let valid = parts.is_ok_and(|(key, signature)| {
            SECP256K1.verify_ecdsa(&message, &signature, &key).is_ok()
        });
        (SignatureCheck::ecdsa(&key, &hash, &signature), valid)
    };
    let Some(check) = check else { return };
    let mut proven = Vec::new();
    VERIFIER.lock().unwrap().verify(&[check], &mut proven);
    let is_proven = proven[0].is_some();
    assert!(!is_proven || is_valid, "proved an invalid signature");
    // The only valid ones that stay unproven are too rare to be found.
    assert!(is_proven || !is_valid, "did not prove a valid signature");
});
