//! The 32-byte names of things: [`BlockHash`], [`Txid`], [`Wtxid`], [`MerkleRoot`],
//! [`UtxoSetHash`].
//!
//! Kept in *internal* byte order (as hashed and as stored on disk); people and Core's RPC see the
//! bytes reversed, which is what `Display` and `FromStr` do. One type each, so that a txid can
//! never be looked up where a block hash is meant.

use core::fmt;
use core::str::FromStr;

/// A hash in text was not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 hexadecimal digits, this has {found} characters or other symbols: {text}")]
pub struct ParseHashError {
    /// How many characters were given.
    pub found: usize,
    /// The text, shortened to 80 characters.
    pub text: String,
}

/// Reads 64 hexadecimal digits in display order into internal order.
pub(crate) fn parse_reversed_hex(text: &str) -> Result<[u8; 32], ParseHashError> {
    let fail =
        || ParseHashError { found: text.chars().count(), text: text.chars().take(80).collect() };
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(fail());
    }
    let nibble = |c: u8| (c as char).to_digit(16).ok_or_else(fail);
    let mut out = [0u8; 32];
    for (i, pair) in digits.chunks_exact(2).enumerate() {
        out[31 - i] = (nibble(pair[0])? * 16 + nibble(pair[1])?) as u8;
    }
    Ok(out)
}

macro_rules! hash_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub [u8; 32]);

        /// Byte by byte. The first eight nearly always tell, and are one number.
        impl Ord for $name {
            #[inline]
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                let first = |hash: &Self| hash.0.first_chunk().map(|it| u64::from_be_bytes(*it));
                first(self).cmp(&first(other)).then_with(|| self.0.cmp(&other.0))
            }
        }

        impl PartialOrd for $name {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// All zero bytes: "none" in Core's formats.
            pub const ZERO: Self = Self([0; 32]);

            /// The bytes in internal order.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().rev().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = ParseHashError;
            fn from_str(text: &str) -> Result<Self, ParseHashError> {
                parse_reversed_hex(text).map(Self)
            }
        }
    };
}

hash_type! {
    /// Double SHA-256 of an 80-byte block header.
    BlockHash
}
hash_type! {
    /// Double SHA-256 of a transaction without its witness.
    Txid
}
hash_type! {
    /// Double SHA-256 of a transaction with its witness (BIP-141).
    Wtxid
}
hash_type! {
    /// Root of the tree of transaction ids that a header commits to.
    MerkleRoot
}
hash_type! {
    /// A hash over a whole UTXO set, as `gettxoutsetinfo` shows it.
    UtxoSetHash
}

/// What tables of blocks go by. Block hashes are uniform in their low bytes, and choosing those
/// costs proof of work.
pub(crate) fn table_hash(hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_reversed_and_parses_back() {
        let mut bytes = [0u8; 32];
        bytes[0] = 0x6f;
        bytes[31] = 0x01;
        let hash = BlockHash(bytes);
        let text = hash.to_string();
        assert!(text.starts_with("01") && text.ends_with("6f"));
        assert_eq!(text.parse::<BlockHash>().unwrap(), hash);
    }

    #[test]
    fn the_order_is_that_of_the_bytes() {
        let with = |at: usize, byte: u8| {
            let mut bytes = [7; 32];
            bytes[at] = byte;
            Txid(bytes)
        };
        let all: Vec<_> =
            (0..32).flat_map(|at| [0, 6, 8, 0xff].map(|byte| with(at, byte))).collect();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            assert_eq!(a.cmp(b), a.0.cmp(&b.0), "{a} and {b}");
        }
    }

    #[test]
    fn rejects_other_lengths_and_digits() {
        assert!("00".parse::<Txid>().is_err());
        assert!("é".repeat(32).parse::<Txid>().is_err());
        assert!("g".repeat(64).parse::<Txid>().is_err());
    }
}
