//! Scripts that the spending input reveals: [`Form`], [`Spender`], [`LeafScript`].
//!
//! Each script contains the hash of a public key or script that the input must reveal to satisfy it.

use apus_chain::{
    InputView, OP_CHECKSIG, OP_DUP, OP_EQUAL, OP_EQUALVERIFY, OP_HASH160, WitnessView, last_push,
};
use bitcoin_hashes::{Hash, ripemd160};
use core::ops::Deref;

/// A form of script that need not be sent, numbered as in BIP-183.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    P2pkh = 1,
    P2wpkh = 2,
    P2sh = 3,
    P2wsh = 4,
}

impl Form {
    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        use Form::*;
        [P2pkh, P2wpkh, P2sh, P2wsh].into_iter().find(|form| form.byte() == byte)
    }

    pub(super) fn byte(self) -> u8 {
        self as u8
    }

    pub(super) fn of_script(script: &[u8]) -> Option<Self> {
        let (form, hash, length) = match script {
            [OP_DUP, OP_HASH160, 20, hash @ .., OP_EQUALVERIFY, OP_CHECKSIG] => {
                (Self::P2pkh, hash, 20)
            }
            [OP_HASH160, 20, hash @ .., OP_EQUAL] => (Self::P2sh, hash, 20),
            [0, 20, hash @ ..] => (Self::P2wpkh, hash, 20),
            [0, 32, hash @ ..] => (Self::P2wsh, hash, 32),
            _ => return None,
        };
        (hash.len() == length).then_some(form)
    }
}

/// The parts of an input that can reveal the script that it spends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spender<'a> {
    /// The unlocking script.
    pub script_sig: &'a [u8],
    /// The top witness item, if any.
    pub witness_top: Option<&'a [u8]>,
}

impl<'a> Spender<'a> {
    /// Takes these parts from an input and its witness.
    pub fn new(input: &InputView<'a>, witness: &WitnessView<'a>) -> Self {
        Self { script_sig: input.script_sig(), witness_top: witness.last() }
    }

    /// Rebuilds the script of that form from the key or script that this input reveals; `None` if it reveals
    /// none. In an unlocking script that is the data of its last push, if the script only pushes.
    pub(super) fn rebuild<'b>(&self, form: Form) -> Option<LeafScript<'b>> {
        let shown = match form {
            Form::P2pkh | Form::P2sh => last_push(self.script_sig)?,
            Form::P2wpkh | Form::P2wsh => self.witness_top?,
        };
        let hash = apus_hash::sha256(shown);
        let short = || ripemd160::Hash::hash(&hash).to_byte_array();
        Some(match form {
            Form::P2pkh => LeafScript::rebuilt([
                &[OP_DUP, OP_HASH160, 20],
                &short(),
                &[OP_EQUALVERIFY, OP_CHECKSIG],
            ]),
            Form::P2sh => LeafScript::rebuilt([&[OP_HASH160, 20], &short(), &[OP_EQUAL]]),
            Form::P2wpkh => LeafScript::rebuilt([&[0, 20], &short(), &[]]),
            Form::P2wsh => LeafScript::rebuilt([&[0, 32], &hash, &[]]),
        })
    }
}

/// Length of the longest rebuilt script: a version, a length and 32 bytes.
const REBUILT_MAX: usize = 34;

/// A locking script, borrowed from leaf data or rebuilt from the input.
#[derive(Clone, Debug)]
pub struct LeafScript<'a>(Bytes<'a>);

#[derive(Clone, Debug)]
enum Bytes<'a> {
    Whole(&'a [u8]),
    Rebuilt { bytes: [u8; REBUILT_MAX], length: usize },
}

impl<'a> LeafScript<'a> {
    pub(super) fn whole(script: &'a [u8]) -> Self {
        Self(Bytes::Whole(script))
    }

    fn rebuilt(parts: [&[u8]; 3]) -> Self {
        let (mut bytes, mut length) = ([0; REBUILT_MAX], 0);
        for part in parts {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        Self(Bytes::Rebuilt { bytes, length })
    }
}

impl Deref for LeafScript<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Whole(script) => script,
            Bytes::Rebuilt { bytes, length } => &bytes[..*length],
        }
    }
}

impl PartialEq for LeafScript<'_> {
    /// Compares the bytes, whether borrowed or rebuilt.
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for LeafScript<'_> {}
