//! [`Fragment`]: the part of the forest above a range of leaves.
//!
//! A fragment is the list of the largest perfect trees that lie in its range, each aligned to its size: at
//! most two of each height. The nodes above them also cover leaves outside the range. The list does not
//! depend on how the range was put together, so adjacent fragments join in any tree order. Their positions
//! matter, so only adjacent fragments can be joined.

mod level;

use crate::position::LEAVES_MAX;
use crate::{NodeHash, Roots};
use level::Level;

/// A leaf that was not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveLeaf {
    /// Index among the leaves of its range, from 0.
    pub place: u64,
    /// Its hash.
    pub hash: NodeHash,
}

/// Why a fragment is invalid or cannot be extended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    /// Fragments that are not adjacent.
    #[error(
        "fragments are not adjacent: one ends before leaf {end}, the next begins at leaf {first}"
    )]
    NotAdjacent {
        /// The first leaf after the left fragment.
        end: u64,
        /// The first leaf of the right fragment.
        first: u64,
    },
    /// More leaves than any forest can have.
    #[error("{leaves} leaves from leaf {first} on are too many: a forest has at most 2^63")]
    TooMany {
        /// Where the range begins.
        first: u64,
        /// The claimed number.
        leaves: u64,
    },
    /// The length does not match the range.
    #[error(
        "the fragment of {leaves} leaves from leaf {first} on takes {needed} bytes, found {found}"
    )]
    Length {
        /// Where the range begins.
        first: u64,
        /// How many leaves it has.
        leaves: u64,
        /// Bytes that the fragment takes.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// A live leaf outside its range, or not after the live leaf before it.
    #[error("leaf {place} of {leaves} is out of place: live leaves come in ascending order")]
    OutOfPlace {
        /// Index of the leaf, from 0.
        place: u64,
        /// Number of leaves in the range.
        leaves: u64,
    },
    /// Too few bytes for the range.
    #[error("a fragment begins with 16 bytes, found {found}")]
    Head {
        /// Bytes found.
        found: usize,
    },
}

/// A perfect tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tree {
    /// Its height: it has 2^row leaves.
    row: u32,
    hash: NodeHash,
}

/// The trees above a range of leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    first: u64,
    end: u64,
    /// Ordered by the places of their leaves.
    trees: Vec<Tree>,
}

impl Fragment {
    /// Creates an empty fragment before leaf `first`, counted from 0.
    pub fn new(first: u64) -> Result<Self, FragmentError> {
        expect_room(first, 0)?;
        Ok(Self { first, end: first, trees: Vec::new() })
    }

    /// Creates the fragment of all leaves of a forest.
    pub(crate) fn of_forest(roots: &Roots) -> Self {
        let trees = rows(0, roots.leaves).zip(&roots.hashes);
        let trees = trees.map(|(row, hash)| Tree { row, hash: *hash }).collect();
        Self { first: 0, end: roots.leaves, trees }
    }

    /// The first leaf.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of leaves, empty ones included.
    pub fn leaves(&self) -> u64 {
        self.end - self.first
    }

    /// Appends a leaf.
    pub fn push(&mut self, leaf: NodeHash) -> Result<(), FragmentError> {
        expect_room(self.end, 1)?;
        self.push_tree(0, leaf);
        Ok(())
    }

    /// Appends `count` empty leaves, in time logarithmic in their number.
    pub fn push_empty(&mut self, count: u64) -> Result<(), FragmentError> {
        expect_room(self.end, count)?;
        for row in rows(self.end, self.end + count) {
            self.push_tree(row, NodeHash::EMPTY);
        }
        Ok(())
    }

    /// Appends `count` leaves: the `live` ones, in ascending order, and empty leaves everywhere else. Much
    /// faster than appending them one by one, because the nodes of a row are hashed together; a few thousand
    /// live leaves per call are enough for that.
    pub fn push_live(&mut self, count: u64, live: &[LiveLeaf]) -> Result<(), FragmentError> {
        expect_room(self.end, count)?;
        expect_places(count, live)?;
        let (first, mut right) = (self.end, Vec::new());
        let mut level = Level::of_leaves(first, count, live);
        loop {
            if let Some((row, hash)) = level.take_left() {
                self.push_tree(row, hash);
            }
            right.extend(level.take_right());
            if level.is_empty() {
                break;
            }
            level = level.parents();
        }
        right.into_iter().rev().for_each(|(row, hash)| self.push_tree(row, hash));
        Ok(())
    }

    /// Appends the fragment of the leaves that follow.
    pub fn append(&mut self, next: &Self) -> Result<(), FragmentError> {
        if next.first != self.end {
            return Err(FragmentError::NotAdjacent { end: self.end, first: next.first });
        }
        next.trees.iter().for_each(|tree| self.push_tree(tree.row, tree.hash));
        Ok(())
    }

    /// Appends a tree and joins it with the trees before it. The end must be aligned to the tree's size.
    fn push_tree(&mut self, mut row: u32, mut hash: NodeHash) {
        let mut place = self.end >> row;
        self.end += 1 << row;
        // A right child joins its left sibling, unless that begins before the fragment's first leaf.
        while place & 1 == 1
            && let Some(left) = self.trees.pop_if(|left| left.row == row)
        {
            hash = NodeHash::parent(&left.hash, &hash);
            (row, place) = (row + 1, place >> 1);
        }
        self.trees.push(Tree { row, hash });
    }

    /// The forest's roots, if the fragment begins with the first leaf.
    pub fn roots(&self) -> Option<Roots> {
        let hashes = self.trees.iter().map(|tree| tree.hash).collect();
        (self.first == 0).then_some(Roots { leaves: self.end, hashes })
    }

    /// Appends the encoding: the first leaf and the number of leaves, 8 bytes each, little-endian; then the
    /// hashes of its trees. Their heights follow from the range.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.leaves().to_le_bytes());
        self.trees.iter().for_each(|tree| out.extend_from_slice(&tree.hash.0));
    }

    /// Reads the fragment that [`write`](Self::write) wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, FragmentError> {
        let head = FragmentError::Head { found: bytes.len() };
        let (first, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| head.clone())?;
        let (leaves, hashes) = rest.split_first_chunk::<8>().ok_or(head)?;
        let (first, leaves) = (u64::from_le_bytes(*first), u64::from_le_bytes(*leaves));
        expect_room(first, leaves)?;
        let rows: Vec<u32> = rows(first, first + leaves).collect();
        let (hashes, rest) = hashes.as_chunks::<32>();
        if hashes.len() != rows.len() || !rest.is_empty() {
            let needed = 16 + rows.len() * 32;
            return Err(FragmentError::Length { first, leaves, needed, found: bytes.len() });
        }
        let trees = rows.into_iter().zip(hashes);
        let trees = trees.map(|(row, hash)| Tree { row, hash: NodeHash(*hash) }).collect();
        Ok(Self { first, end: first + leaves, trees })
    }
}

fn expect_room(first: u64, leaves: u64) -> Result<(), FragmentError> {
    match first.checked_add(leaves) {
        Some(end) if end <= LEAVES_MAX => Ok(()),
        _ => Err(FragmentError::TooMany { first, leaves }),
    }
}

fn expect_places(leaves: u64, live: &[LiveLeaf]) -> Result<(), FragmentError> {
    let mut free = 0;
    for &LiveLeaf { place, .. } in live {
        if !(free..leaves).contains(&place) {
            return Err(FragmentError::OutOfPlace { place, leaves });
        }
        free = place + 1;
    }
    Ok(())
}

/// The heights of the largest aligned trees in `first..end`, from left to right.
fn rows(mut first: u64, end: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let fits = (end - first).checked_ilog2()?;
        let row = first.trailing_zeros().min(fits);
        first += 1 << row;
        Some(row)
    })
}

#[cfg(test)]
mod tests;
