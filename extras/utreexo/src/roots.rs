//! [`Roots`]: the roots of a forest, and their encoding.

use crate::NodeHash;
use crate::position::LEAVES_MAX;
use std::fmt;

/// Why bytes are not roots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    /// The length does not match the number of leaves.
    #[error("the roots of {leaves} leaves take {needed} bytes, found {found}")]
    Length {
        /// How many leaves the forest has had.
        leaves: u64,
        /// Bytes that the roots take.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// Too few bytes for the two counts.
    #[error("roots begin with 16 bytes, found {found}")]
    Head {
        /// Bytes found.
        found: usize,
    },
    /// More leaves than a forest can have.
    #[error("{leaves} leaves are too many: a forest has at most 2^63")]
    TooMany {
        /// The claimed number.
        leaves: u64,
    },
    /// The number of roots does not match the number of leaves.
    #[error("a forest of {leaves} leaves has {needed} roots, but {found} are claimed")]
    Count {
        /// How many leaves the forest has had.
        leaves: u64,
        /// How many roots such a forest has.
        needed: u32,
        /// The claimed number.
        found: u64,
    },
}

/// The roots of a forest, highest tree first. The root of a tree whose leaves are all deleted is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roots {
    pub(crate) leaves: u64,
    pub(crate) hashes: Vec<NodeHash>,
}

impl Roots {
    /// Number of leaves ever added, deleted ones included.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// The root hashes, highest tree first.
    pub fn hashes(&self) -> &[NodeHash] {
        &self.hashes
    }

    /// Appends the encoding: the number of leaves and the number of roots, 8 bytes each, little-endian, then
    /// the roots. (`rustreexo` prefixes each root with one more byte.)
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.leaves.to_le_bytes());
        out.extend_from_slice(&(self.hashes.len() as u64).to_le_bytes());
        self.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0));
    }

    /// Reads the roots that [`write`](Self::write) wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, RootsError> {
        let head = RootsError::Head { found: bytes.len() };
        let (leaves, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| head.clone())?;
        let (count, hashes) = rest.split_first_chunk::<8>().ok_or(head)?;
        let (leaves, found) = (u64::from_le_bytes(*leaves), u64::from_le_bytes(*count));
        if leaves > LEAVES_MAX {
            return Err(RootsError::TooMany { leaves });
        }
        let needed = leaves.count_ones();
        if found != u64::from(needed) {
            return Err(RootsError::Count { leaves, needed, found });
        }
        let (hashes, rest) = hashes.as_chunks::<32>();
        if hashes.len() != needed as usize || !rest.is_empty() {
            let needed = 16 + needed as usize * 32;
            return Err(RootsError::Length { leaves, needed, found: bytes.len() });
        }
        Ok(Self { leaves, hashes: hashes.iter().copied().map(NodeHash).collect() })
    }
}

impl fmt::Display for Roots {
    /// The number of leaves, then the roots in hex, highest tree first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.leaves)?;
        self.hashes.iter().try_for_each(|hash| write!(f, " {hash}"))
    }
}
