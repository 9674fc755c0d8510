//! [`Fragment`]: what a range of leaves makes of the forest.
//!
//! A range of leaves is the list of the largest perfect trees that lie in it, each aligned to its size: at
//! most two of each height. The nodes above them also cover leaves outside. That list is the same however the
//! range came together, so fragments next to each other join in any tree order; where leaves lie matters,
//! which is why they do not join in any other order.

mod level;

use crate::position::LEAVES_MAX;
use crate::{NodeHash, Roots};
use level::Level;

/// A leaf that was not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveLeaf {
    /// Which one of the leaves of its range it is, counted from 0.
    pub place: u64,
    /// Its hash.
    pub hash: NodeHash,
}

/// Why a fragment cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    /// Fragments that do not lie next to each other.
    #[error(
        "leaves up to {end} are followed by leaves from {first} on: others must come between, or fewer"
    )]
    NotAdjacent {
        /// The first leaf behind the one.
        end: u64,
        /// The first leaf of the other.
        first: u64,
    },
    /// More leaves than any forest can have.
    #[error("{leaves} leaves from leaf {first} on are more than a forest has: at most 2^63")]
    TooMany {
        /// Where the range begins.
        first: u64,
        /// How many are claimed.
        leaves: u64,
    },
    /// The bytes of a fragment are not as many as its range needs.
    #[error(
        "the fragment of {leaves} leaves from leaf {first} on has {needed} bytes, and there are {found}"
    )]
    Length {
        /// Where the range begins.
        first: u64,
        /// How many leaves it has.
        leaves: u64,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// A live leaf that is not among those it is said to be among, or does not come behind the one before it.
    #[error("leaf {place} of {leaves} is out of place: live leaves come in ascending order")]
    OutOfPlace {
        /// Which one of the leaves, counted from 0.
        place: u64,
        /// How many there are.
        leaves: u64,
    },
    /// Too few bytes to say of which leaves.
    #[error("a fragment begins with 16 bytes, and there are {found}")]
    Head {
        /// Bytes that there are.
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

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    first: u64,
    end: u64,
    /// By the places of their leaves.
    trees: Vec<Tree>,
}

impl Fragment {
    /// That of no leaf, before leaf `first`, counted from 0.
    pub fn new(first: u64) -> Result<Self, FragmentError> {
        expect_room(first, 0)?;
        Ok(Self { first, end: first, trees: Vec::new() })
    }

    /// That of all leaves of a forest.
    pub(crate) fn of_forest(roots: &Roots) -> Self {
        let trees = rows(0, roots.leaves).zip(&roots.hashes);
        let trees = trees.map(|(row, hash)| Tree { row, hash: *hash }).collect();
        Self { first: 0, end: roots.leaves, trees }
    }

    /// The first leaf.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many leaves it has, empty ones included.
    pub fn leaves(&self) -> u64 {
        self.end - self.first
    }

    /// Appends a leaf.
    pub fn push(&mut self, leaf: NodeHash) -> Result<(), FragmentError> {
        expect_room(self.end, 1)?;
        self.push_tree(0, leaf);
        Ok(())
    }

    /// Appends so many empty leaves, in a time that grows with the logarithm of their number.
    pub fn push_empty(&mut self, count: u64) -> Result<(), FragmentError> {
        expect_room(self.end, count)?;
        for row in rows(self.end, self.end + count) {
            self.push_tree(row, NodeHash::EMPTY);
        }
        Ok(())
    }

    /// Appends so many leaves, of which these are live, in ascending order, and all others empty. Much faster
    /// than one after the other: the nodes of one height are hashed together. Leaves of some thousand live ones
    /// at a time are enough for that.
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

    /// Appends a tree, to whose height the end must be aligned, and joins it with those before it.
    fn push_tree(&mut self, mut row: u32, mut hash: NodeHash) {
        let mut place = self.end >> row;
        self.end += 1 << row;
        // The right one of two trees, of which the left one may lie before the first leaf, or in part.
        while place & 1 == 1
            && let Some(left) = self.trees.pop_if(|left| left.row == row)
        {
            hash = NodeHash::parent(&left.hash, &hash);
            (row, place) = (row + 1, place >> 1);
        }
        self.trees.push(Tree { row, hash });
    }

    /// The forest's roots, if it begins with the first leaf.
    pub fn roots(&self) -> Option<Roots> {
        let hashes = self.trees.iter().map(|tree| tree.hash).collect();
        (self.first == 0).then_some(Roots { leaves: self.end, hashes })
    }

    /// Appends its bytes: the first leaf and how many there are, 8 bytes each, little-endian; then the hashes of
    /// its trees. Their heights follow from the range.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.leaves().to_le_bytes());
        self.trees.iter().for_each(|tree| out.extend_from_slice(&tree.hash.0));
    }

    /// The fragment that [`write`](Self::write) wrote.
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

/// The heights of the largest aligned trees that the leaves from `first` to before `end` make.
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
