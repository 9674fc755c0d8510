//! Core's compressed forms of output scripts, as used in the chainstate, undo files and snapshots.
//!
//! Six kinds of script are stored as one byte and a hash or coordinate: pay to public key hash (`00`), pay to
//! script hash (`01`), pay to compressed public key (`02`, `03`) and pay to uncompressed public key (`04`,
//! `05`, depending on the parity of its y). Every other script is stored unchanged after `VARINT(length +
//! 6)`. Core writes each script in exactly one form; strict reading accepts only that form. This module does
//! not check whether a script can be spent.

use crate::amount::MAX_MONEY;
use crate::read::{ReadError, Reader, extend_short, write_varint};
use crate::script::{
    MAX_SCRIPT_SIZE, OP_CHECKSIG, OP_DUP, OP_EQUAL, OP_EQUALVERIFY, OP_HASH160, OP_RETURN,
};
use core::ops::Deref;
use k256::AffinePoint;
use k256::elliptic_curve::point::{AffineCoordinates, DecompressPoint};
use k256::elliptic_curve::subtle::Choice;

/// Why bytes are not a coin. Offsets count from the start of the slice being read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoinError {
    /// A field could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The amount is outside the valid range.
    #[error("the amount at byte {offset} is above the limit of {MAX_MONEY} satoshi")]
    Amount {
        /// Offset of the amount.
        offset: usize,
    },
    /// The script is too long to be spent.
    #[error(
        "the script at byte {offset} has {length} bytes, more than the {MAX_SCRIPT_SIZE} that can \
         be run"
    )]
    ScriptTooLong {
        /// Offset of its length.
        offset: usize,
        /// Its length.
        length: usize,
    },
    /// A compressed public key that is not on the curve.
    #[error("the public key at byte {offset} is not on the curve")]
    NotOnCurve {
        /// Offset of its x coordinate.
        offset: usize,
    },
    /// A script stored whole although it has a compressed form.
    #[error("the script at byte {offset} is stored whole, but has a compressed form")]
    NotCompressed {
        /// Offset of its length.
        offset: usize,
    },
    /// A script that no input can ever satisfy; such an output never becomes a coin.
    #[error("the script at byte {offset} can never be spent, so its output is not a coin")]
    Unspendable {
        /// Offset of the script.
        offset: usize,
    },
}

/// Number of kinds with a compressed form (Core `compressor.h`, `nSpecialScripts`).
const SPECIAL_SCRIPTS: usize = 6;

/// A script in one of the six compressed forms, as kind and payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressedScript {
    bytes: [u8; 33],
    length: usize,
}

impl CompressedScript {
    fn new<const N: usize>(kind: u8, payload: &[u8; N]) -> Self {
        let mut bytes = [0; 33];
        bytes[0] = kind;
        bytes[1..=N].copy_from_slice(payload);
        Self { bytes, length: 1 + N }
    }

    /// Returns the stored form, 21 or 33 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Returns whether this is a point of secp256k1 with both coordinates below the field's prime.
fn is_point(x: &[u8; 32], y: &[u8; 32]) -> bool {
    bool::from(AffinePoint::from_coordinates(&(*x).into(), &(*y).into()).is_some())
}

/// Returns the y of the point with this x, if the curve has such a point.
fn y_of(x: &[u8; 32], y_is_odd: bool) -> Option<[u8; 32]> {
    let point = AffinePoint::decompress(&(*x).into(), Choice::from(u8::from(y_is_odd)));
    Option::<AffinePoint>::from(point).map(|point| point.y().into())
}

/// Compresses a script if it has a compressed form (Core `compressor.cpp`, `CompressScript`).
///
/// An uncompressed public key has one only if it is a point on the curve, because only then can y be computed
/// from x and the parity. Hybrid keys (`06` and `07`) are never compressed.
pub fn compress_script(script: &[u8]) -> Option<CompressedScript> {
    match script {
        [OP_DUP, OP_HASH160, 20, hash @ .., OP_EQUALVERIFY, OP_CHECKSIG] if hash.len() == 20 => {
            Some(CompressedScript::new::<20>(0, hash.first_chunk()?))
        }
        [OP_HASH160, 20, hash @ .., OP_EQUAL] if hash.len() == 20 => {
            Some(CompressedScript::new::<20>(1, hash.first_chunk()?))
        }
        [33, mark @ (2 | 3), x @ .., OP_CHECKSIG] if x.len() == 32 => {
            Some(CompressedScript::new::<32>(*mark, x.first_chunk()?))
        }
        [65, 4, key @ .., OP_CHECKSIG] if key.len() == 64 => {
            let (x, y) = (key.first_chunk::<32>()?, key.last_chunk::<32>()?);
            is_point(x, y).then(|| CompressedScript::new(4 | y[31] & 1, x))
        }
        _ => None,
    }
}

/// Appends the script in the form in which Core stores it (`compressor.h`,
/// `ScriptCompression::Ser`).
pub fn write_script(out: &mut Vec<u8>, script: &[u8]) {
    match compress_script(script) {
        Some(short) => extend_short(out, &short.bytes, short.length),
        None => {
            write_varint(out, (script.len() + SPECIAL_SCRIPTS) as u64);
            // Witness programs: constant lengths avoid a call to `memcpy`.
            match script.len() {
                22 => out.extend_from_slice(&script[..22]),
                34 => out.extend_from_slice(&script[..34]),
                _ => out.extend_from_slice(script),
            }
        }
    }
}

/// A script that was read: a slice of the input if stored whole, else rebuilt on the stack.
#[derive(Clone, Debug)]
pub struct StoredScript<'a>(ScriptForm<'a>);

#[derive(Clone, Debug)]
enum ScriptForm<'a> {
    Whole(&'a [u8]),
    Rebuilt { bytes: [u8; 67], length: usize },
}

impl<'a> StoredScript<'a> {
    fn rebuilt<const A: usize, const B: usize, const C: usize>(
        first: &[u8; A],
        payload: &[u8; B],
        last: &[u8; C],
    ) -> Self {
        let mut bytes = [0; 67];
        bytes[..A].copy_from_slice(first);
        bytes[A..A + B].copy_from_slice(payload);
        bytes[A + B..A + B + C].copy_from_slice(last);
        Self(ScriptForm::Rebuilt { bytes, length: A + B + C })
    }

    /// Reads a script as Core does (`compressor.h`, `ScriptCompression::Unser`).
    ///
    /// `strict` rejects forms that Core reads but never writes: a compressed key that is not a point (Core
    /// returns an empty script), a script too long to run (Core returns `OP_RETURN`), and a script stored
    /// whole that has a compressed form.
    pub(crate) fn read(reader: &mut Reader<'a>, strict: bool) -> Result<Self, CoinError> {
        let offset = reader.position();
        match read_size(reader)? {
            Size::Special(kind) => Self::read_special(reader, kind, strict),
            Size::Whole(length) if length > MAX_SCRIPT_SIZE => {
                if strict {
                    return Err(CoinError::ScriptTooLong { offset, length });
                }
                reader.take(length)?;
                Ok(Self(ScriptForm::Whole(&[OP_RETURN])))
            }
            Size::Whole(length) => {
                let script = reader.take(length)?;
                if strict && compress_script(script).is_some() {
                    return Err(CoinError::NotCompressed { offset });
                }
                Ok(Self(ScriptForm::Whole(script)))
            }
        }
    }

    /// Reads the payload of a compressed form (Core `compressor.cpp`, `DecompressScript`).
    fn read_special(reader: &mut Reader<'a>, kind: u8, strict: bool) -> Result<Self, CoinError> {
        let offset = reader.position();
        Ok(match kind {
            0 => Self::rebuilt(
                &[OP_DUP, OP_HASH160, 20],
                reader.array::<20>()?,
                &[OP_EQUALVERIFY, OP_CHECKSIG],
            ),
            1 => Self::rebuilt(&[OP_HASH160, 20], reader.array::<20>()?, &[OP_EQUAL]),
            2 | 3 => Self::rebuilt(&[33, kind], reader.array::<32>()?, &[OP_CHECKSIG]),
            _ => {
                let x = reader.array::<32>()?;
                match y_of(x, kind == 5) {
                    Some(y) => {
                        let mut last = [OP_CHECKSIG; 33];
                        last[..32].copy_from_slice(&y);
                        Self::rebuilt(&[65, 4], x, &last)
                    }
                    None if strict => return Err(CoinError::NotOnCurve { offset }),
                    None => Self(ScriptForm::Whole(&[])),
                }
            }
        })
    }
}

impl Deref for StoredScript<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ScriptForm::Whole(script) => script,
            ScriptForm::Rebuilt { bytes, length } => &bytes[..*length],
        }
    }
}

/// The meaning of the number before a script.
enum Size {
    Special(u8),
    Whole(usize),
}

/// Reads the number before a script; Core reads it into 32 bits (`compressor.h`, `ScriptCompression::Unser`).
fn read_size(reader: &mut Reader<'_>) -> Result<Size, CoinError> {
    let size = reader.varint_u32()?;
    Ok(match (size as usize).checked_sub(SPECIAL_SCRIPTS) {
        None => Size::Special(size as u8),
        Some(length) => Size::Whole(length),
    })
}

/// Length of a stored script with its one-byte size, indexed by that byte.
pub(crate) const SHORT_SCRIPTS: [u8; 128] = {
    let mut lengths = [0; 128];
    let mut size = 0;
    while size < lengths.len() {
        lengths[size] = 1 + match size {
            0 | 1 => 20,
            ..SPECIAL_SCRIPTS => 32,
            _ => size - SPECIAL_SCRIPTS,
        } as u8;
        size += 1;
    }
    lengths
};

/// Skips a stored script without rebuilding it; rejects one that is too long to run.
pub(crate) fn skip_script(reader: &mut Reader<'_>) -> Result<(), CoinError> {
    pass_script(reader, MAX_SCRIPT_SIZE)
}

/// Skips a stored script without rebuilding it; rejects one that is stored whole and longer than
/// `length_max`.
pub(crate) fn pass_script(reader: &mut Reader<'_>, length_max: usize) -> Result<(), CoinError> {
    let offset = reader.position();
    let length = match read_size(reader)? {
        Size::Special(0 | 1) => 20,
        Size::Special(_) => 32,
        Size::Whole(length) if length > length_max => {
            return Err(CoinError::ScriptTooLong { offset, length });
        }
        Size::Whole(length) => length,
    };
    reader.take(length)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitcoin::secp256k1::{PublicKey, Secp256k1, SecretKey};
    use proptest::prelude::*;

    fn stored(script: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_script(&mut out, script);
        out
    }

    fn read(bytes: &[u8], strict: bool) -> Result<Vec<u8>, CoinError> {
        let mut reader = Reader::new(bytes);
        let script = StoredScript::read(&mut reader, strict)?.to_vec();
        reader.finish()?;
        Ok(script)
    }

    fn pay_to_key(key: &[u8]) -> Vec<u8> {
        [&[key.len() as u8], key, &[OP_CHECKSIG]].concat()
    }

    /// Compresses a script with libsecp256k1.
    fn oracle(script: &[u8]) -> Option<Vec<u8>> {
        let b = bitcoin::Script::from_bytes(script);
        if b.is_p2pkh() {
            return Some([&[0], &script[3..23]].concat());
        }
        if b.is_p2sh() {
            return Some([&[1], &script[2..22]].concat());
        }
        match (script.first(), script.last(), script.len()) {
            (Some(33), Some(&OP_CHECKSIG), 35) if matches!(script[1], 2 | 3) => {
                Some(script[1..34].to_vec())
            }
            (Some(65), Some(&OP_CHECKSIG), 67) if script[1] == 4 => {
                let key = PublicKey::from_slice(&script[1..66]).ok()?.serialize();
                Some([&[key[0] + 2], &key[1..]].concat())
            }
            _ => None,
        }
    }

    /// Makes scripts of every kind, near misses of each, and noise.
    fn any_script() -> impl Strategy<Value = Vec<u8>> {
        let key = (any::<[u8; 32]>(), any::<bool>()).prop_filter_map("zero", |(bytes, full)| {
            let key = SecretKey::from_slice(&bytes).ok()?.public_key(&Secp256k1::new());
            Some(if full { key.serialize_uncompressed().to_vec() } else { key.serialize().into() })
        });
        let template = prop_oneof![
            key.prop_map(|key| pay_to_key(&key)),
            any::<[u8; 32]>().prop_map(|x| pay_to_key(&[&[2], &x[..]].concat())),
            any::<[u8; 32]>().prop_map(|x| pay_to_key(&[&[4], &x[..], &x[..]].concat())),
            any::<[u8; 20]>().prop_map(|h| [&[0x76, 0xa9, 20], &h[..], &[0x88, 0xac]].concat()),
            any::<[u8; 20]>().prop_map(|h| [&[0xa9, 20], &h[..], &[0x87]].concat()),
            proptest::collection::vec(any::<u8>(), 0..200),
        ];
        (template, any::<proptest::sample::Index>(), 0u8..8, any::<bool>()).prop_map(
            |(mut script, at, bits, spoil)| {
                if spoil && !script.is_empty() {
                    let at = at.index(script.len());
                    script[at] ^= 1 << bits;
                }
                script
            },
        )
    }

    proptest! {
        #[test]
        fn agrees_with_libsecp256k1_and_round_trips(script in any_script()) {
            let short = compress_script(&script).map(|short| short.as_bytes().to_vec());
            prop_assert_eq!(&short, &oracle(&script));
            let bytes = stored(&script);
            prop_assert_eq!(bytes.len() < script.len(), short.is_some());
            prop_assert_eq!(read(&bytes, true), Ok(script.clone()));
            prop_assert_eq!(read(&bytes, false), Ok(script));
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(skip_script(&mut reader), Ok(()));
            prop_assert_eq!(reader.remaining(), 0);
        }

        #[test]
        fn keys_come_back_as_libsecp256k1_has_them(x in any::<[u8; 32]>(), odd in any::<bool>()) {
            let bytes = [&[4 + u8::from(odd)], &x[..]].concat();
            let key = PublicKey::from_slice(&[&[2 + u8::from(odd)], &x[..]].concat());
            let expected = key.map(|key| pay_to_key(&key.serialize_uncompressed()));
            prop_assert_eq!(read(&bytes, true).ok(), expected.clone().ok());
            prop_assert_eq!(read(&bytes, false), Ok(expected.unwrap_or_default()));
        }

        #[test]
        fn strict_reading_accepts_one_form_only(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(script) = read(&bytes, true) {
                prop_assert_eq!(stored(&script), bytes);
            }
        }
    }

    #[test]
    fn strict_reading_rejects_a_whole_script_with_a_compressed_form() {
        let script = [&[OP_HASH160, 20], &[7; 20][..], &[OP_EQUAL]].concat();
        let whole = [&[23 + 6], &script[..]].concat();
        assert_eq!(read(&whole, false), Ok(script));
        assert_eq!(read(&whole, true), Err(CoinError::NotCompressed { offset: 0 }));
    }

    #[test]
    fn a_coordinate_at_or_above_the_prime_is_not_a_point() {
        // p = 2^256 - 2^32 - 977; x = 1 is on the curve, so x = p + 1 would be a second encoding of
        // it.
        let mut x = [0xff; 32];
        x[27..].copy_from_slice(&[0xfe, 0xff, 0xff, 0xfc, 0x30]);
        assert_eq!(y_of(&x, false), None);
        let mut one = [0; 32];
        one[31] = 1;
        let y = y_of(&one, false).unwrap();
        assert!(is_point(&one, &y) && !is_point(&x, &y));
    }

    #[test]
    fn hybrid_keys_are_stored_whole() {
        let key = SecretKey::from_slice(&[1; 32]).unwrap().public_key(&Secp256k1::new());
        let mut bytes = key.serialize_uncompressed();
        bytes[0] = 6 + (bytes[64] & 1);
        assert!(PublicKey::from_slice(&bytes).is_ok(), "a valid hybrid key");
        assert_eq!(compress_script(&pay_to_key(&bytes)), None);
    }

    #[test]
    fn a_script_too_long_to_run_reads_as_op_return() {
        let longest = vec![0x51; MAX_SCRIPT_SIZE];
        assert_eq!(read(&stored(&longest), true), Ok(longest));
        let over = stored(&[0x51; MAX_SCRIPT_SIZE + 1]);
        let error = CoinError::ScriptTooLong { offset: 0, length: MAX_SCRIPT_SIZE + 1 };
        assert_eq!(read(&over, false), Ok(vec![OP_RETURN]));
        assert_eq!(read(&over, true), Err(error.clone()));
        assert_eq!(skip_script(&mut Reader::new(&over)), Err(error));
    }

    #[test]
    fn a_length_beyond_the_input_or_32_bits_is_an_error() {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, u64::from(u32::MAX));
        assert!(matches!(read(&bytes, false), Err(CoinError::Read(ReadError::End { .. }))));
        bytes.clear();
        write_varint(&mut bytes, u64::from(u32::MAX) + 1);
        assert!(matches!(read(&bytes, false), Err(CoinError::Read(ReadError::TooLarge { .. }))));
    }
}
