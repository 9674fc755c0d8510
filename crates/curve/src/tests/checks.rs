//! Signed checks for tests, libsecp256k1's verdict on them, and all kernels.

use super::out_of_line::OutOfLine;
use super::scalar::order;
use super::{Random, big, words};
use crate::check::{Parity, SignatureCheck};
use crate::lanes::{Room, prove};
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::verifier::{Kernel, Verifier};
use crate::words::emulated::Emulated;
use num_bigint::BigUint;
use secp256k1::{
    Keypair, Message, PublicKey, SECP256K1, SecretKey, XOnlyPublicKey, ecdsa, schnorr,
};

/// A check as Core asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) is_schnorr: bool,
    pub(crate) key: Vec<u8>,
    pub(crate) hash: [u8; 32],
    pub(crate) signature: Vec<u8>,
}

impl Asked {
    /// What libsecp256k1 says, called as Core does (`src/pubkey.cpp`).
    pub(crate) fn is_valid(&self) -> bool {
        let message = Message::from_digest(self.hash);
        if self.is_schnorr {
            let key = XOnlyPublicKey::from_slice(&self.key);
            let signature = schnorr::Signature::from_slice(&self.signature);
            let (Ok(key), Ok(signature)) = (key, signature) else { return false };
            return SECP256K1.verify_schnorr(&signature, &message, &key).is_ok();
        }
        let key = PublicKey::from_slice(&self.key);
        let signature = ecdsa::Signature::from_der_lax(&self.signature);
        let (Ok(key), Ok(mut signature)) = (key, signature) else { return false };
        signature.normalize_s();
        SECP256K1.verify_ecdsa(&message, &signature, &key).is_ok()
    }

    /// `None` if nothing could be proven.
    pub(crate) fn check(&self) -> Option<SignatureCheck> {
        if self.is_schnorr {
            let key = self.key[..].try_into().unwrap();
            return Some(SignatureCheck::schnorr(
                key,
                &self.hash,
                self.signature[..].try_into().unwrap(),
            ));
        }
        SignatureCheck::ecdsa(&self.key, &self.hash, &self.signature)
    }

    pub(crate) fn ecdsa(key: Vec<u8>, hash: &BigUint, r: &BigUint, s: &BigUint) -> Self {
        let signature = der(&bytes(r), &bytes(s));
        Self { is_schnorr: false, key, hash: bytes(hash), signature }
    }
}

/// 32 bytes, the most significant first.
pub(crate) fn bytes(number: &BigUint) -> [u8; 32] {
    let bytes: Vec<u8> = words(number).iter().rev().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().unwrap()
}

/// A signature with numbers of 32 bytes, which are negative in strict DER.
pub(crate) fn der(r: &[u8; 32], s: &[u8; 32]) -> Vec<u8> {
    [&[0x30, 68, 2, 32][..], r, &[2, 32], s].concat()
}

pub(crate) fn secret(number: &BigUint) -> SecretKey {
    SecretKey::from_slice(&bytes(&(number % order()))).unwrap()
}

/// The key in one of the encodings that Core accepts: compressed, uncompressed, hybrid.
pub(crate) fn encoded(key: &PublicKey, encoding: usize) -> Vec<u8> {
    let mut long = key.serialize_uncompressed().to_vec();
    match encoding % 4 {
        0 | 1 => return key.serialize().to_vec(),
        2 => {}
        _ => long[0] = 6 | (long[64] & 1),
    }
    long
}

/// A valid check.
pub(crate) fn signed(random: &mut Random) -> Asked {
    let secret = secret(&(big(&random.number()) % (order() - 1u8) + 1u8));
    let hash = bytes(&big(&random.any()));
    let message = Message::from_digest(hash);
    if random.below(3) == 0 {
        let pair = Keypair::from_secret_key(SECP256K1, &secret);
        let signature = SECP256K1.sign_schnorr_no_aux_rand(&message, &pair).serialize().to_vec();
        let key = pair.x_only_public_key().0.serialize().to_vec();
        return Asked { is_schnorr: true, key, hash, signature };
    }
    let signature = SECP256K1.sign_ecdsa(&message, &secret).serialize_compact();
    let (r, s) = (signature[..32].try_into().unwrap(), signature[32..].try_into().unwrap());
    let s = if random.below(2) == 0 { s } else { negated(&s) };
    let key = encoded(&secret.public_key(SECP256K1), random.below(4));
    Asked { is_schnorr: false, key, hash, signature: der(&r, &s) }
}

/// n minus a number of 32 bytes, if it is less than n.
pub(crate) fn negated(number: &[u8; 32]) -> [u8; 32] {
    let number = BigUint::from_bytes_be(number);
    bytes(&if number < order() { order() - number } else { number })
}

type Prover = Box<dyn FnMut(&[SignatureCheck]) -> Vec<bool>>;

/// The kernels of this machine, and the emulated ones.
pub(crate) fn provers() -> Vec<(String, Prover)> {
    let mut all: Vec<(String, Prover)> = vec![];
    for kernel in Kernel::available() {
        let mut verifier = Verifier::new(*kernel);
        let prover = move |checks: &[SignatureCheck]| {
            let mut proven = vec![Some(Parity::Odd)];
            verifier.verify(checks, &mut proven);
            assert_eq!((proven.len(), proven[0]), (1 + checks.len(), Some(Parity::Odd)));
            proven.iter().skip(1).map(Option::is_some).collect()
        };
        all.push((format!("{kernel:?}"), Box::new(prover)));
    }
    macro_rules! emulated {
        ($name:literal, $field:ty) => {
            let mut room = Room::<OutOfLine<$field>>::new();
            let prover = move |checks: &[SignatureCheck]| {
                let mut proven = vec![None; checks.len()];
                prove(&mut room, checks, &mut proven);
                proven.iter().map(Option::is_some).collect()
            };
            all.push(($name.to_owned(), Box::new(prover)));
        };
    }
    emulated!("emulated AVX2", Radix29<Emulated<4>>);
    emulated!("emulated IFMA", Radix52<Emulated<8>>);
    all
}

/// Whether each check is proven; all kernels must agree.
#[track_caller]
pub(crate) fn proven(provers: &mut [(String, Prover)], asked: &[Asked]) -> Vec<bool> {
    let checks: Vec<_> = asked.iter().map(Asked::check).collect();
    let present: Vec<SignatureCheck> = checks.iter().flatten().cloned().collect();
    let mut results = provers.iter_mut().map(|(name, prover)| (&*name, prover(&present)));
    let (_, first) = results.next().unwrap();
    for (name, result) in results {
        assert_eq!(result, first, "{name}");
    }
    let mut first = first.into_iter();
    checks.iter().map(|check| check.is_some() && first.next().unwrap()).collect()
}

/// Asserts that exactly the valid checks are proven.
#[track_caller]
pub(crate) fn assert_proven(provers: &mut [(String, Prover)], asked: &[Asked]) -> usize {
    let expected: Vec<bool> = asked.iter().map(Asked::is_valid).collect();
    assert_eq!(proven(provers, asked), expected);
    expected.into_iter().filter(|valid| *valid).count()
}
