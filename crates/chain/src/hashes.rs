//! The 32-byte hashes [`BlockHash`], [`Txid`], [`Wtxid`], [`MerkleRoot`] and [`UtxoSetHash`]; the
//! 36-byte [`OutPoint`], which identifies an output of a transaction; and merkle roots.
//!
//! Hashes are kept in *internal* byte order, as hashed and as stored on disk. People and Core's RPC use the
//! reversed order; `Display` and `FromStr` convert. Each kind has its own type, so that a txid cannot be used
//! in place of a block hash.
//!
//! Merkle roots follow Core (`consensus/merkle.cpp`). An odd level repeats its last hash, so repeating the
//! tail of a list may leave its root unchanged (CVE-2012-2459). Two equal neighbours that form a pair reveal
//! such a list.

use core::fmt;
use core::str::FromStr;

/// The text of a hash is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text} is not a hash: a hash has 64 hexadecimal digits, and this has {found} characters, or some that are not \
     digits"
)]
pub struct ParseHashError {
    /// Number of characters given.
    pub found: usize,
    /// The text, shortened to 80 characters.
    pub text: String,
}

/// Parses 64 hexadecimal digits in display order into internal order.
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

        /// Compares byte by byte. The first eight bytes nearly always decide, so they are compared as one
        /// number.
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

            /// Returns the bytes in internal order.
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
    /// A hash over a whole UTXO set, as shown by `gettxoutsetinfo`.
    UtxoSetHash
}

/// Returns the key for hash tables of blocks. Block hashes are uniform in their low bytes, and an
/// attacker would need proof of work to choose them.
pub(crate) fn table_hash(hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The identity of a coin: the id of the transaction that created it and the index of its output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OutPoint {
    /// The transaction that created the output.
    pub txid: Txid,
    /// Index of the output in that transaction, from 0.
    pub vout: u32,
}

impl OutPoint {
    /// Length of the wire form.
    pub const SIZE: usize = 36;

    /// Returns the form used in a transaction input: txid in internal order, then vout,
    /// little-endian.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..32].copy_from_slice(&self.txid.0);
        bytes[32..].copy_from_slice(&self.vout.to_le_bytes());
        bytes
    }

    /// Parses the form that [`to_bytes`](Self::to_bytes) returns.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (mut txid, mut vout) = ([0; 32], [0; 4]);
        txid.copy_from_slice(&bytes[..32]);
        vout.copy_from_slice(&bytes[32..]);
        Self { txid: Txid(txid), vout: u32::from_le_bytes(vout) }
    }
}

impl fmt::Display for OutPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.txid, self.vout)
    }
}

/// From this vout on, VARINTs do not sort in numeric order: `80 80 00` (16,512) sorts before `81
/// 00` (256).
const VARINT_ORDER_DIFFERS: u32 = 16_512;

/// Compares two outputs of one transaction in the order of Core's database: by the bytes of their
/// VARINTs.
#[inline]
pub fn vout_order(left: u32, right: u32) -> core::cmp::Ordering {
    if left < VARINT_ORDER_DIFFERS && right < VARINT_ORDER_DIFFERS {
        return left.cmp(&right);
    }
    let bytes = |vout: u32| {
        let mut bytes = Vec::with_capacity(5);
        crate::read::write_varint(&mut bytes, u64::from(vout));
        bytes
    };
    bytes(left).cmp(&bytes(right))
}

/// Returns whether outputs in ascending order up to `last` are also in the order of Core's
/// database.
pub fn vouts_ascend(last: u32) -> bool {
    last < VARINT_ORDER_DIFFERS
}

/// Sorts entries for the outputs of one transaction in the order of Core's database. `entries` must be in
/// ascending order of vout, which is nearly always the right order already.
pub fn sort_vouts<T>(entries: &mut [T], vout: impl Fn(&T) -> u32) {
    if entries.last().is_some_and(|last| !vouts_ascend(vout(last))) {
        entries.sort_by(|left, right| vout_order(vout(left), vout(right)));
    }
}

/// A merkle root, and whether the list could be a mutation of a shorter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merkle {
    /// The root; zero for an empty list.
    pub root: [u8; 32],
    /// Whether two equal hashes form a pair (CVE-2012-2459).
    pub mutated: bool,
}

/// Computes the root of `leaves`. `level` and `above` are scratch space, reused between calls.
pub fn merkle_root(leaves: &[[u8; 32]], scratch: &mut MerkleScratch) -> Merkle {
    let MerkleScratch { level, above } = scratch;
    level.clear();
    level.extend_from_slice(leaves);
    let mut mutated = false;
    while level.len() > 1 {
        mutated |= level.as_chunks::<2>().0.iter().any(|[left, right]| left == right);
        if let (1, Some(&last)) = (level.len() % 2, level.last()) {
            level.push(last);
        }
        let pairs = level.as_flattened().as_chunks::<64>().0;
        above.clear();
        above.resize(pairs.len(), [0; 32]);
        apus_hash::sha256d_pairs(pairs, above);
        core::mem::swap(level, above);
    }
    Merkle { root: level.first().copied().unwrap_or_default(), mutated }
}

/// Working space of [`merkle_root`].
#[derive(Debug, Default)]
pub struct MerkleScratch {
    level: Vec<[u8; 32]>,
    above: Vec<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn hashes_are_ordered_by_their_bytes() {
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
    fn other_lengths_and_digits_are_rejected() {
        assert!("00".parse::<Txid>().is_err());
        assert!("é".repeat(32).parse::<Txid>().is_err());
        assert!("g".repeat(64).parse::<Txid>().is_err());
    }

    proptest! {
        #[test]
        fn bytes_round_trip(txid: [u8; 32], vout: u32) {
            let outpoint = OutPoint { txid: Txid(txid), vout };
            prop_assert_eq!(OutPoint::from_bytes(&outpoint.to_bytes()), outpoint);
        }

        #[test]
        fn vouts_sort_as_their_varints(a in 0u32..40_000, b in 0u32..40_000) {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            crate::read::write_varint(&mut x, u64::from(a));
            crate::read::write_varint(&mut y, u64::from(b));
            prop_assert_eq!(vout_order(a, b), x.cmp(&y));
        }
    }

    #[test]
    fn many_outputs_are_not_in_numeric_order() {
        let mut vouts: Vec<u32> = (0..20_001).collect();
        sort_vouts(&mut vouts, |&vout| vout);
        assert!(vouts.is_sorted_by(|&a, &b| vout_order(a, b).is_lt()));
        assert!(!vouts.is_sorted());
    }

    /// Computes a root by definition, one pair at a time.
    fn plain(leaves: &[[u8; 32]]) -> [u8; 32] {
        let mut level = leaves.to_vec();
        while level.len() > 1 {
            if level.len() % 2 == 1 {
                level.push(level[level.len() - 1]);
            }
            level = level
                .chunks(2)
                .map(|pair| apus_hash::sha256d(&[pair[0], pair[1]].concat()))
                .collect();
        }
        level.first().copied().unwrap_or_default()
    }

    fn leaf(n: usize) -> [u8; 32] {
        apus_hash::sha256(&n.to_le_bytes())
    }

    proptest! {
        #[test]
        fn equals_the_definition(count in 0usize..200) {
            let leaves: Vec<_> = (0..count).map(leaf).collect();
            let merkle = merkle_root(&leaves, &mut MerkleScratch::default());
            prop_assert_eq!(merkle, Merkle { root: plain(&leaves), mutated: false });
        }

        /// Repeating the tail that an odd level would repeat preserves the root, but is detected.
        #[test]
        fn a_repeated_tail_is_noticed(count in 1usize..100) {
            let leaves: Vec<_> = (0..count).map(leaf).collect();
            let tail = 1 << count.trailing_zeros();
            // A full binary tree has no odd level, so no repetition preserves its root.
            prop_assume!(tail != count);
            let mut longer = leaves.clone();
            longer.extend_from_slice(&leaves[count - tail..]);
            let mut scratch = MerkleScratch::default();
            let honest = merkle_root(&leaves, &mut scratch);
            let forged = merkle_root(&longer, &mut scratch);
            prop_assert_eq!(honest.root, forged.root);
            prop_assert!(!honest.mutated && forged.mutated);
        }
    }
}
