//! [`Page`]: six rows of the forest above 64 nodes, and [`Shape`]: which of its nodes have hashes of their own.
//!
//! A node next to nothing has its sibling's hash for a parent's, so a page of `n` nodes in its bottom row
//! has `n - 1` more hashes in all, those of nodes with two children. They lie row after row, the bottom row first,
//! each row from left to right. Node `k` of row `r` is bit `k << r` in the mask of its row, which is that of the
//! first of the bottom row's nodes below it.
//!
//! Stored is the bottom row alone, of which all else is computed: a mask of its nodes, 8 bytes, little-endian; CRC-32C
//! of these, 4 bytes, little-endian; and the nodes' hashes. A reader of a page has to compute its root in any case,
//! since nothing else shows that hashes are the right ones. The root does not show which of the places beside nothing
//! a node has, so the mask has a checksum.

use super::id::ROWS;
use crate::NodeHash;

/// The bits of a row's nodes.
const ROW_MASKS: [u64; ROWS as usize + 1] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// A mask of nodes for each row; that of the root last.
pub(super) type RowMasks = [u64; ROWS as usize + 1];

/// The bit of the right child of a node of row `row`. The left one has the node's own bit.
pub(super) fn right_child(row: usize, bit: u64) -> u64 {
    bit << (1 << (row - 1))
}

/// The nodes above those of the bottom row that are in `mask`.
pub(super) fn above(mask: u64) -> RowMasks {
    let mut masks = [mask; ROWS as usize + 1];
    for row in 1..masks.len() {
        let below = masks[row - 1];
        masks[row] = (below | below >> (1 << (row - 1))) & ROW_MASKS[row];
    }
    masks
}

/// The bits of a mask, lowest first.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = mask & mask.wrapping_neg();
        mask ^= bit;
        (bit != 0).then_some(bit)
    })
}

/// How many bits of the mask are below that one.
pub(super) fn rank(mask: u64, bit: u64) -> usize {
    (mask & (bit - 1)).count_ones() as usize
}

/// Which nodes a page has.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Those that are not empty.
    pub(super) live: RowMasks,
    /// Those with a hash of their own: of the bottom row the live ones, else those with two live children.
    pub(super) own: RowMasks,
    /// Where the hashes of each row begin.
    starts: [u8; ROWS as usize + 1],
}

impl Shape {
    /// That of a page with these nodes in its bottom row.
    pub(super) fn new(live: u64) -> Self {
        let live = above(live);
        let (mut own, mut starts) = (live, [0; ROWS as usize + 1]);
        for row in 1..own.len() {
            let below = live[row - 1];
            own[row] = below & below >> (1 << (row - 1)) & ROW_MASKS[row];
            starts[row] = starts[row - 1] + own[row - 1].count_ones() as u8;
        }
        Self { live, own, starts }
    }

    /// Where the hash of a node lies that has one of its own.
    pub(super) fn place(&self, row: usize, bit: u64) -> usize {
        usize::from(self.starts[row]) + rank(self.own[row], bit)
    }

    /// Where the hash of a live node lies: its own, or that of the one below it that has moved up.
    pub(super) fn place_of_live(&self, mut row: usize, mut bit: u64) -> usize {
        while self.own[row] & bit == 0 {
            row -= 1;
            if self.live[row] & bit == 0 {
                bit <<= 1 << row;
            }
        }
        self.place(row, bit)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// The nodes of the bottom row that are not empty.
    live: u64,
    hashes: Vec<NodeHash>,
}

/// What is wrong with the bytes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageFault {
    /// Too few bytes for a mask of nodes.
    #[error("it begins with 12 bytes, and there are {found}")]
    Head {
        /// Bytes that there are.
        found: usize,
    },
    /// Another length than its mask of nodes needs.
    #[error("it needs {needed} bytes, and there are {found}")]
    Length {
        /// Bytes that its nodes take.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// A mask of nodes that is not the one that was written.
    #[error("the checksum of its mask is wrong")]
    Checksum,
    /// No node, or one whose hash is that of none.
    #[error("it has an empty node among those that are not empty")]
    Empty,
    /// Another root than the page above has for it.
    #[error("its root is {found}, and should be {expected}")]
    Root {
        /// As the page above or the forest's roots have it.
        expected: NodeHash,
        /// That of the bytes.
        found: NodeHash,
    },
}

impl Page {
    /// A page whose first node alone is not empty, unless this one is.
    pub(super) fn of_first(hash: NodeHash) -> Self {
        match hash.is_empty() {
            true => Self::default(),
            false => Self { live: 1, hashes: vec![hash] },
        }
    }

    pub(super) fn live(&self) -> u64 {
        self.live
    }

    pub(super) fn shape(&self) -> Shape {
        Shape::new(self.live)
    }

    /// Bytes that it takes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<NodeHash>()
    }

    /// The hash of any node, by this page's shape.
    pub(super) fn hash(&self, shape: &Shape, row: usize, bit: u64) -> NodeHash {
        match shape.live[row] & bit {
            0 => NodeHash::EMPTY,
            _ => self.hashes[shape.place_of_live(row, bit)],
        }
    }

    /// The hash that lies there.
    pub(super) fn hash_at(&self, place: usize) -> NodeHash {
        self.hashes[place]
    }

    /// Its root, if its hashes are all known.
    pub(super) fn root(&self, shape: &Shape) -> NodeHash {
        self.hash(shape, ROWS as usize, 1)
    }

    /// Sets the hash of a node that has one of its own.
    pub(super) fn set(&mut self, place: usize, hash: NodeHash) {
        self.hashes[place] = hash;
    }

    /// Appends its stored form.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let live = self.live.to_le_bytes();
        out.extend_from_slice(&live);
        out.extend_from_slice(&crc32c::crc32c(&live).to_le_bytes());
        let bottom = &self.hashes[..self.live.count_ones() as usize];
        bottom.iter().for_each(|hash| out.extend_from_slice(&hash.0));
    }

    /// The page of a stored form; the hashes above its bottom row are still to be computed.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, PageFault> {
        let found = bytes.len();
        let head = PageFault::Head { found };
        let (mask, rest) = bytes.split_first_chunk::<8>().ok_or(head)?;
        let (checksum, rest) = rest.split_first_chunk::<4>().ok_or(head)?;
        if crc32c::crc32c(mask) != u32::from_le_bytes(*checksum) {
            return Err(PageFault::Checksum);
        }
        let live = u64::from_le_bytes(*mask);
        let (bottom, end) = rest.as_chunks::<32>();
        let count = live.count_ones() as usize;
        if bottom.len() != count || !end.is_empty() {
            return Err(PageFault::Length { needed: 12 + 32 * count, found });
        }
        let mut hashes = Vec::with_capacity((2 * count).saturating_sub(1));
        hashes.extend(bottom.iter().copied().map(NodeHash));
        if live == 0 || hashes.contains(&NodeHash::EMPTY) {
            return Err(PageFault::Empty);
        }
        hashes.resize(2 * count - 1, NodeHash::EMPTY);
        Ok(Self { live, hashes })
    }

    /// Gives the nodes `mask` of the bottom row these hashes, one for each, and returns its shape after, having had
    /// this one before. The hashes of those above them are then to be set.
    pub(super) fn change(&mut self, shape: &Shape, mask: u64, values: &[NodeHash]) -> Shape {
        let mut live = self.live;
        for (bit, value) in bits(mask).zip(values) {
            live = if value.is_empty() { live & !bit } else { live | bit };
        }
        let mut changed = *shape;
        if live != self.live {
            changed = Shape::new(live);
            match live & !self.live {
                0 => self.shrink(shape, &changed),
                _ => self.grow(shape, &changed),
            }
            self.live = live;
        }
        for (bit, value) in bits(mask).zip(values).filter(|(_, value)| !value.is_empty()) {
            self.hashes[rank(live, bit)] = *value;
        }
        changed
    }

    /// Leaves out the hashes of nodes that are no more.
    fn shrink(&mut self, old: &Shape, new: &Shape) {
        let (mut from, mut to) = (0, 0);
        for (row, new) in new.own.into_iter().enumerate() {
            for bit in bits(old.own[row] & !new) {
                let gone = old.place(row, bit);
                self.hashes.copy_within(from..gone, to);
                to += gone - from;
                from = gone + 1;
            }
        }
        self.hashes.copy_within(from.., to);
        to += self.hashes.len() - from;
        self.hashes.truncate(to);
        // Not each time: the allocator costs more than what it gets back.
        if 4 * to < 3 * self.hashes.capacity() {
            self.hashes.shrink_to_fit();
        }
    }

    /// Makes room for the hashes of nodes that were not there.
    fn grow(&mut self, old: &Shape, new: &Shape) {
        let count = new.own.iter().map(|own| own.count_ones() as usize).sum();
        let (mut hashes, mut old_hashes) = (Vec::with_capacity(count), self.hashes.iter());
        for (old, new) in old.own.into_iter().zip(new.own) {
            for bit in bits(old | new) {
                let hash = if old & bit == 0 { None } else { old_hashes.next() };
                if new & bit != 0 {
                    hashes.push(hash.copied().unwrap_or_default());
                }
            }
        }
        self.hashes = hashes;
    }
}
