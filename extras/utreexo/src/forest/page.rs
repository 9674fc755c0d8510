//! [`Page`]: six rows of the forest above 64 nodes, and [`Shape`]: which of its nodes have their own hash.
//!
//! The parent of a node with an empty sibling has that node's hash, so a page with `n` nodes in its bottom
//! row has `n - 1` more hashes: those of nodes with two children. In memory they lie row after row, the
//! bottom row first, each row from left to right. Node `k` of row `r` is bit `k << r` in the mask of its row: the
//! bit of the first node of the bottom row below it.
//!
//! Only the bottom row is stored, from which the rest is computed: a mask of its nodes, 8 bytes,
//! little-endian; the CRC-32C of these, 4 bytes, little-endian; and the nodes' hashes. A reader must compute
//! a page's root in any case, since nothing else shows that the hashes are right. The root does not show
//! which of two sibling places a node has if the other is empty, so the mask has a checksum.

use super::id::ROWS;
use crate::NodeHash;

/// The bits of the nodes of each row.
const ROW_MASKS: [u64; ROWS as usize + 1] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// A mask of nodes for each row, from the bottom row to the root.
pub(super) type RowMasks = [u64; ROWS as usize + 1];

/// The bit of the right child of a node in row `row`. The left child has the same bit as the node.
pub(super) fn right_child(row: usize, bit: u64) -> u64 {
    bit << (1 << (row - 1))
}

/// The nodes above the bottom-row nodes in `mask`, for each row.
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

/// Number of bits of the mask below `bit`.
pub(super) fn rank(mask: u64, bit: u64) -> usize {
    (mask & (bit - 1)).count_ones() as usize
}

/// Which nodes of a page are live, and where their hashes are.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// The nodes that are not empty.
    pub(super) live: RowMasks,
    /// The nodes with their own hash: live ones in the bottom row, nodes with two live children above it.
    pub(super) own: RowMasks,
    /// Where the hashes of each row begin.
    starts: [u8; ROWS as usize + 1],
}

impl Shape {
    /// The shape of a page with these nodes in its bottom row.
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

    /// Index of the hash of a node that has its own.
    pub(super) fn place(&self, row: usize, bit: u64) -> usize {
        usize::from(self.starts[row]) + rank(self.own[row], bit)
    }

    /// Index of the hash of a live node: its own, or the hash of the node below it that moved up.
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

/// Six rows of the forest above 64 nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// The nodes of the bottom row that are not empty.
    live: u64,
    hashes: Vec<NodeHash>,
}

/// Why a page is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageFault {
    /// Too few bytes for a mask of nodes.
    #[error("a page begins with 12 bytes, found {found}")]
    Head {
        /// Bytes found.
        found: usize,
    },
    /// The length does not match its mask of nodes.
    #[error("it needs {needed} bytes, found {found}")]
    Length {
        /// Bytes that its nodes take.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// The mask of nodes is damaged.
    #[error("its mask has a wrong checksum")]
    Checksum,
    /// The mask has no node, or a node in it has an empty hash.
    #[error("a node that must not be empty is empty")]
    Empty,
    /// The root differs from the one in the page above.
    #[error("its root is {found} instead of {expected}")]
    Root {
        /// The root in the page above or from the forest's roots.
        expected: NodeHash,
        /// The root computed from the bytes.
        found: NodeHash,
    },
}

impl Page {
    /// A page with only its first node set; an empty page if `hash` is empty.
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

    /// The page's bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<NodeHash>()
    }

    /// The hash of any node. `shape` must be this page's shape.
    pub(super) fn hash(&self, shape: &Shape, row: usize, bit: u64) -> NodeHash {
        match shape.live[row] & bit {
            0 => NodeHash::EMPTY,
            _ => self.hashes[shape.place_of_live(row, bit)],
        }
    }

    /// The hash at an index.
    pub(super) fn hash_at(&self, place: usize) -> NodeHash {
        self.hashes[place]
    }

    /// Its root, valid once all its hashes are computed.
    pub(super) fn root(&self, shape: &Shape) -> NodeHash {
        self.hash(shape, ROWS as usize, 1)
    }

    /// Sets the hash at an index.
    pub(super) fn set(&mut self, place: usize, hash: NodeHash) {
        self.hashes[place] = hash;
    }

    /// Appends the page's stored form.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let live = self.live.to_le_bytes();
        out.extend_from_slice(&live);
        out.extend_from_slice(&crc32c::crc32c(&live).to_le_bytes());
        let bottom = &self.hashes[..self.live.count_ones() as usize];
        bottom.iter().for_each(|hash| out.extend_from_slice(&hash.0));
    }

    /// Reads a page from its stored form. The hashes above its bottom row are not computed yet.
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

    /// Sets the hashes of the nodes `mask` of the bottom row, and returns the new shape; `shape` is the one
    /// before. The caller must then set the hashes of the nodes above them.
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

    /// Removes the hashes of nodes that no longer exist.
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
        // Shrinks only now and then: doing so each time would cost more in the allocator than it saves.
        if 4 * to < 3 * self.hashes.capacity() {
            self.hashes.shrink_to_fit();
        }
    }

    /// Makes room for the hashes of new nodes.
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
