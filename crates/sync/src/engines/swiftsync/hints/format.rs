//! [`Format`]: the encodings of hints by name, and the detection of encodings with a magic.

use super::block::IndexSpace;
use super::{btcd, file};
use apus_chain::Height;
use core::fmt;
use core::str::FromStr;

/// An encoding of hints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// The hintsfile of BIP-456.
    Bip456,
    /// btcd's hintsfile, plain or in a gzip member.
    Btcd,
    /// One bit for each output.
    Bitmap,
    /// Gaps as CompactSizes.
    Delta,
    /// A stop block's hash, then indices.
    Offsets,
    /// Stop height and hash, then distances.
    OffsetsWithHeight,
}

/// What the first bytes of a file show.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DetectedFormat {
    /// Hints in this encoding.
    Hints(Format),
    /// A gzip member with any content: of all hints, only btcd's are published in this form.
    Gzip,
}

/// The text does not name an encoding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown encoding of hints {0:?}: use bip456, btcd, bitmap, delta, offsets or offsets-height"
)]
pub struct UnknownFormat(pub String);

impl Format {
    /// All encodings.
    pub const ALL: [Self; 6] = [
        Self::Bip456,
        Self::Btcd,
        Self::Bitmap,
        Self::Delta,
        Self::Offsets,
        Self::OffsetsWithHeight,
    ];

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bip456 => "bip456",
            Self::Btcd => "btcd",
            Self::Bitmap => "bitmap",
            Self::Delta => "delta",
            Self::Offsets => "offsets",
            Self::OffsetsWithHeight => "offsets-height",
        }
    }

    /// Returns what an index counts.
    pub const fn index_space(self) -> IndexSpace {
        match self {
            Self::Bip456 | Self::Btcd => IndexSpace::Spendable,
            Self::Bitmap | Self::Delta | Self::Offsets | Self::OffsetsWithHeight => {
                IndexSpace::AllOutputs
            }
        }
    }

    /// Returns the height of the first block with hints. A hintsfile of BIP-456 may have an element for the
    /// genesis block, but it is always empty.
    pub const fn start_height(self) -> Height {
        match self {
            Self::Bitmap | Self::Delta => 0,
            Self::Bip456 | Self::Btcd | Self::Offsets | Self::OffsetsWithHeight => 1,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

/// Detects the encoding from the first five bytes of a file, if they are conclusive. Encodings without a
/// magic are never guessed: the user must name them.
pub fn detect_format(first: &[u8]) -> Option<DetectedFormat> {
    if first.starts_with(&btcd::GZIP_MAGIC) {
        return Some(DetectedFormat::Gzip);
    }
    match *first.strip_prefix(&file::MAGIC)?.first()? {
        file::VERSION => Some(DetectedFormat::Hints(Format::Bip456)),
        btcd::VERSION => Some(DetectedFormat::Hints(Format::Btcd)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_encodings_with_a_magic_are_detected() {
        assert_eq!(detect_format(b"UTXO\0more"), Some(DetectedFormat::Hints(Format::Bip456)));
        assert_eq!(detect_format(b"UTXO\x01"), Some(DetectedFormat::Hints(Format::Btcd)));
        assert_eq!(detect_format(b"\x1f\x8b\x08\0"), Some(DetectedFormat::Gzip));
        for other in [&b""[..], b"UTXO", b"UTXO\x02", b"\x1f\x8b", b"\x01\0\0", b"utxo\0"] {
            assert_eq!(detect_format(other), None);
        }
    }

    #[test]
    fn names_parse_back() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("xz".parse::<Format>().is_err());
    }
}
