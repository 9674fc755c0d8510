//! [`SignatureCheck`]: one signature check, with all that can be decided without curve arithmetic.
//!
//! The rules are those of Bitcoin Core's `CPubKey::Verify` and `XOnlyPubKey::VerifySchnorr`
//! (`src/pubkey.cpp`). A check that this module refuses is not proven invalid; libsecp256k1 decides
//! it.

use crate::der::parse_lax;
use crate::field::{P, U256, from_bytes, is_less};
use crate::portable::negated;
use crate::scalar::Scalar;
use apus_hash::Sha256;

/// One signature check as Core's interpreter asks for it (`script/interpreter.h`,
/// `BaseSignatureChecker`).
#[derive(Clone, Debug)]
pub struct SignatureCheck {
    pub(crate) equation: Option<Equation>,
    /// Of the y of R: of each BIP-340 signature, and of an ECDSA signature if a hint gives it.
    pub(crate) r_parity: Option<Parity>,
}

/// Whether a y coordinate is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// It is even.
    Even,
    /// It is odd.
    Odd,
}

impl Parity {
    /// Returns the parity of a number.
    pub(crate) fn of(number: &U256) -> Self {
        if number[0] & 1 == 0 { Self::Even } else { Self::Odd }
    }

    pub(crate) fn is_odd(self) -> bool {
        self == Self::Odd
    }
}

/// The equation `u1 * G + u2 * P = R` that a valid signature solves. Its parts are in range.
#[derive(Clone, Debug)]
pub(crate) struct Equation {
    /// The x coordinate of P, less than p.
    pub(crate) x: U256,
    pub(crate) y: KeyY,
    /// The x coordinate that R must have, less than p.
    pub(crate) r: U256,
    pub(crate) factors: Factors,
}

/// What a key says about its y coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyY {
    /// Its lowest bit.
    Parity(bool),
    /// All of it, less than p.
    Exact(U256),
}

/// What u1 and u2 are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factors {
    /// `u1 = hash / s` and `u2 = r / s`, where r and s are not zero (SEC 1, section 4.1.4).
    Ecdsa { r: Scalar, s: Scalar, hash: Scalar },
    /// `u1 = s` and `u2 = -challenge`; R has an even y (BIP-340).
    Schnorr { s: Scalar, challenge: Scalar },
}

impl Equation {
    /// The s of an ECDSA signature, which has to be inverted.
    pub(crate) fn ecdsa_s(&self) -> Option<Scalar> {
        match self.factors {
            Factors::Ecdsa { s, .. } => Some(s),
            Factors::Schnorr { .. } => None,
        }
    }

    /// u1 and u2; `inverses` are those of each `ecdsa_s`, in order.
    pub(crate) fn scalars(
        &self,
        inverses: &mut impl Iterator<Item = Scalar>,
    ) -> Option<[Scalar; 2]> {
        match self.factors {
            Factors::Ecdsa { r, hash, .. } => {
                let inverse = inverses.next()?;
                Some([hash.mul(&inverse), r.mul(&inverse)])
            }
            Factors::Schnorr { s, challenge } => Some([s, challenge.neg()]),
        }
    }
}

impl KeyY {
    /// Of `root` and `-root`, the one that fits.
    pub(crate) fn choose(&self, root: U256) -> Option<U256> {
        let other = || negated(&root);
        match *self {
            Self::Parity(is_odd) => Some(if (root[0] & 1 == 1) == is_odd { root } else { other() }),
            Self::Exact(exact) => [root, other()].into_iter().find(|y| *y == exact),
        }
    }
}

impl SignatureCheck {
    /// An ECDSA signature. `der` comes without its byte for the hash type, and is parsed as
    /// leniently as Core's `ecdsa_signature_parse_der_lax`. Returns `None` if the arithmetic could
    /// prove nothing: a key of another size or prefix, an unreadable signature, r or s not in 1..n.
    pub fn ecdsa(key: &[u8], hash: &[u8; 32], der: &[u8]) -> Option<Self> {
        let (x, y) = parse_key(key)?;
        let (r, s) = parse_lax(der)?;
        let in_range = |number| Scalar::from_bytes(number).filter(|number| !number.is_zero());
        let (r, s) = (in_range(&r)?, in_range(&s)?);
        // Core normalises a high S. The equation with -s gives -R, which has the same x.
        let s = if s.is_high() { s.neg() } else { s };
        let hash = Scalar::from_bytes_reduced(hash);
        // n < p, so r is an x coordinate. The other candidate, r + n, is left to libsecp256k1.
        let equation = Equation { x, y, r: r.number(), factors: Factors::Ecdsa { r, s, hash } };
        Some(Self { equation: Some(equation), r_parity: None })
    }

    /// Adds a hint: the parity of the y of R, the sum that the equation gives once s is low. With it,
    /// one sum can prove many ECDSA signatures. A wrong hint costs time and proves nothing. BIP-340
    /// signatures need no hint and ignore it.
    pub fn with_hint(mut self, hint: Option<Parity>) -> Self {
        self.r_parity = self.r_parity.or(hint);
        self
    }

    /// A signature as in BIP-340: an x-only key, a message and 64 bytes of signature.
    pub fn schnorr(key: &[u8; 32], hash: &[u8; 32], signature: &[u8; 64]) -> Self {
        Self { equation: schnorr(key, hash, signature), r_parity: Some(Parity::Even) }
    }
}

fn schnorr(key: &[u8; 32], hash: &[u8; 32], signature: &[u8; 64]) -> Option<Equation> {
    let x = coordinate(key)?;
    let (r_bytes, s_bytes) = (signature.first_chunk()?, signature.last_chunk()?);
    let r = coordinate(r_bytes)?;
    let s = Scalar::from_bytes(s_bytes)?;
    let challenge = Scalar::from_bytes_reduced(&challenge(r_bytes, key, hash));
    let factors = Factors::Schnorr { s, challenge };
    Some(Equation { x, y: KeyY::Parity(false), r, factors })
}

/// Reads a number less than p.
fn coordinate(bytes: &[u8; 32]) -> Option<U256> {
    Some(from_bytes(bytes)).filter(|number| is_less(number, &P))
}

/// Reads a key of 33 or 65 bytes as libsecp256k1's `secp256k1_eckey_pubkey_parse` does; hybrid keys
/// say the parity of y twice.
fn parse_key(key: &[u8]) -> Option<(U256, KeyY)> {
    let (prefix, rest) = key.split_first()?;
    let (x, y) = rest.split_first_chunk()?;
    let x = coordinate(x)?;
    let y = match (prefix, y.len()) {
        (2 | 3, 0) => KeyY::Parity(*prefix == 3),
        (4 | 6 | 7, 32) => {
            let y = coordinate(y.first_chunk()?)?;
            if *prefix != 4 && u64::from(*prefix & 1) != y[0] & 1 {
                return None;
            }
            KeyY::Exact(y)
        }
        _ => return None,
    };
    Some((x, y))
}

/// SHA-256 of `BIP0340/challenge`, twice: the first block of each challenge.
fn challenge_tag() -> [u8; 64] {
    use std::sync::OnceLock;
    static TAG: OnceLock<[u8; 64]> = OnceLock::new();
    *TAG.get_or_init(|| {
        let tag = apus_hash::sha256(b"BIP0340/challenge");
        let mut twice = [0; 64];
        twice[..32].copy_from_slice(&tag);
        twice[32..].copy_from_slice(&tag);
        twice
    })
}

/// BIP-340's tagged hash of r, key and message, each as it stands.
fn challenge(r: &[u8; 32], key: &[u8; 32], hash: &[u8; 32]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [&challenge_tag()[..], r, key, hash] {
        digest.update(part);
    }
    digest.finalize()
}
