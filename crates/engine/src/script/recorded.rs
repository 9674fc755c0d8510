//! [`RecordedCheck`]: a signature check that a script requested, as Core's interpreter passes it on.
//!
//! All encodings were already checked under the rules of the block; what remains is the equation on
//! the curve. [`SignatureProver`] decides it for many checks at once.

use core::fmt;

/// The kind of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureKind {
    /// Keys of 33 or 65 bytes, signatures in DER, possibly with Core's lax encoding.
    Ecdsa,
    /// BIP-340: x-only keys, signatures of 64 bytes.
    Schnorr,
}

/// The script that requests a check, if it is the only one of the input that requests any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckPlace {
    /// Any other script.
    Other = 0,
    /// `<key> CHECKSIG` or its form with a key hash: the script passes only if the check is valid.
    Single = 1,
    /// `m <key>... n CHECKMULTISIG` and nothing else: keys may be passed over.
    Multisig = 2,
}

/// The parity of the y of R, the point of an ECDSA signature with a low s (SEC 1, section 4.1.4). Blocks do not contain it.
/// With it as a hint, a signature is proven faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RParity {
    /// y is even.
    Even,
    /// y is odd.
    Odd,
}

impl RParity {
    /// Returns the parity that a bit stands for.
    pub fn of_bit(is_odd: bool) -> Self {
        if is_odd { Self::Odd } else { Self::Even }
    }
}

/// A signature check (Core `script/interpreter.h`, `VerifyECDSASignature` and
/// `VerifySchnorrSignature`). Longer keys and signatures are never recorded.
// The layout of `ApusCheck` in `verify.cpp`: bytes only, so every content is valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RecordedCheck {
    kind: u8,
    place: u8,
    key_length: u8,
    signature_length: u8,
    key: [u8; 65],
    hash: [u8; 32],
    signature: [u8; 72],
    /// 0, or 2 and the parity of R.
    hint: u8,
}

const _: () = assert!(size_of::<RecordedCheck>() == 174, "the layout in verify.cpp");

impl RecordedCheck {
    /// An empty record, to be overwritten. It proves nothing: no key is empty.
    pub(super) const EMPTY: Self = Self {
        kind: 0,
        place: 0,
        key_length: 0,
        signature_length: 0,
        key: [0; 65],
        hash: [0; 32],
        signature: [0; 72],
        hint: 0,
    };

    /// Records a check; `None` if the key or the signature is too long.
    pub fn new(kind: SignatureKind, key: &[u8], hash: [u8; 32], signature: &[u8]) -> Option<Self> {
        let mut check = Self { kind: kind as u8, hash, ..Self::EMPTY };
        check.key.get_mut(..key.len())?.copy_from_slice(key);
        check.signature.get_mut(..signature.len())?.copy_from_slice(signature);
        (check.key_length, check.signature_length) = (key.len() as u8, signature.len() as u8);
        Some(check)
    }

    /// Returns its kind.
    pub fn kind(&self) -> SignatureKind {
        if self.kind == SignatureKind::Ecdsa as u8 {
            SignatureKind::Ecdsa
        } else {
            SignatureKind::Schnorr
        }
    }

    /// Returns where the script requests it.
    pub fn place(&self) -> CheckPlace {
        match self.place {
            1 => CheckPlace::Single,
            2 => CheckPlace::Multisig,
            _ => CheckPlace::Other,
        }
    }

    /// Returns the same check at another place.
    pub fn at(self, place: CheckPlace) -> Self {
        Self { place: place as u8, ..self }
    }

    /// Returns the parity of R, if it is known: from a hint, or from a proof.
    pub fn hint(&self) -> Option<RParity> {
        (self.hint != 0).then(|| RParity::of_bit(self.hint & 1 == 1))
    }

    /// Sets the parity of R.
    pub fn set_hint(&mut self, hint: Option<RParity>) {
        self.hint = hint.map_or(0, |parity| 2 + parity as u8);
    }

    /// Returns the public key, in the script's encoding.
    pub fn key(&self) -> &[u8] {
        self.key.get(..usize::from(self.key_length)).unwrap_or_default()
    }

    /// Returns the signed hash.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Returns the signature, without its hash type.
    pub fn signature(&self) -> &[u8] {
        self.signature.get(..usize::from(self.signature_length)).unwrap_or_default()
    }
}

/// Equal checks ask for the same, whatever their hints.
impl PartialEq for RecordedCheck {
    fn eq(&self, other: &Self) -> bool {
        let lengths = |it: &Self| (it.kind, it.place, it.key_length, it.signature_length);
        lengths(self) == lengths(other)
            && self.key == other.key
            && self.hash == other.hash
            && self.signature == other.signature
    }
}

impl Eq for RecordedCheck {}

impl fmt::Debug for RecordedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedCheck").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

/// What is known about the checks of an input that was run before.
#[derive(Debug, Clone, Default)]
pub struct KnownChecks {
    /// Proven valid.
    pub proven: Vec<RecordedCheck>,
    /// Could not be proven, which says nothing.
    pub unproven: Vec<RecordedCheck>,
}

impl KnownChecks {
    /// Returns whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.proven.is_empty() && self.unproven.is_empty()
    }
}

/// Room for new checks of an input.
pub struct CheckRoom<'r> {
    /// Where they are written.
    pub checks: &'r mut [RecordedCheck],
    /// Whether ECDSA checks may be. If not, libsecp256k1 answers them at once.
    pub takes_ecdsa: bool,
    /// Returns whether hints say that a new check of [`CheckPlace::Multisig`] is invalid.
    pub passes_over: &'r mut dyn FnMut(&RecordedCheck) -> bool,
}

/// Proves signatures. A thread uses one for all its work, so it may keep tables and memory.
pub trait SignatureProver: Send {
    /// Appends to `proven`, for each check, the parity of R if the check is *proven* valid. `None` says nothing:
    /// then libsecp256k1 decides. The prover may use hints, and trusts none; it returns how many were wrong.
    fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize;
}

/// Proves nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoProver;

impl SignatureProver for NoProver {
    fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
        proven.resize(proven.len() + checks.len(), None);
        0
    }
}

/// Creates a prover for a thread.
pub type NewProver = dyn Fn() -> Box<dyn SignatureProver> + Send + Sync;

/// How a pool checks signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignatureMode {
    /// libsecp256k1 checks each signature where the script requests it.
    #[default]
    Libsecp256k1,
    /// A prover proves many at once; libsecp256k1 checks the inputs that have any other.
    Fast,
    /// Both, compared. If they differ, the block is neither valid nor invalid.
    Shadow,
}

/// How a pool has checked signatures so far. All 0 with [`SignatureMode::Libsecp256k1`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignatureCounts {
    /// Inputs whose scripts were run.
    pub inputs: u64,
    /// ECDSA signatures that were proven.
    pub ecdsa: u64,
    /// Schnorr signatures that were proven.
    pub schnorr: u64,
    /// Inputs that were run a second time, because a check was not proven.
    pub retried: u64,
    /// Inputs that had to be decided by libsecp256k1.
    pub unproven: u64,
    /// Calls of a prover.
    pub batches: u64,
    /// Signatures that were proven with a right hint.
    pub hinted: u64,
    /// Hints that were wrong.
    pub wrong_hints: u64,
}

impl core::ops::AddAssign for SignatureCounts {
    fn add_assign(&mut self, other: Self) {
        self.inputs += other.inputs;
        self.ecdsa += other.ecdsa;
        self.schnorr += other.schnorr;
        self.retried += other.retried;
        self.unproven += other.unproven;
        self.batches += other.batches;
        self.hinted += other.hinted;
        self.wrong_hints += other.wrong_hints;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_keeps_its_parts() {
        let (key, signature) = ([3; 65], [4; 72]);
        for (kind, key, signature) in [
            (SignatureKind::Ecdsa, &key[..33], &signature[..]),
            (SignatureKind::Ecdsa, &key[..], &signature[..8]),
            (SignatureKind::Schnorr, &key[..32], &signature[..64]),
        ] {
            let check = RecordedCheck::new(kind, key, [5; 32], signature).unwrap();
            let parts = (check.kind(), check.key(), check.hash(), check.signature());
            assert_eq!(parts, (kind, key, &[5; 32], signature));
        }
        assert_eq!(RecordedCheck::new(SignatureKind::Ecdsa, &[2; 66], [5; 32], &[]), None);
        assert_eq!(RecordedCheck::new(SignatureKind::Ecdsa, &[2; 33], [5; 32], &[6; 73]), None);
    }
}
