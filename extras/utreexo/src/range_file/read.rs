//! [`RangeFile`]: a proof file opened for reading.
//!
//! Opening reads head, tail and foot, verifies their checksum, and requires the entries to fill the space
//! between them in order. An entry's own checksum is verified when the entry is read.

use super::{
    END_MAGIC, ENTRY_BYTES_MAX, FOOT_BYTES, HEAD_BYTES, MAGIC, RANGE_BLOCKS_MAX, RECORD_BYTES,
    RangeHead, VERSION, heights,
};
use crate::{Roots, RootsError};
use apus_chain::{BlockHash, Height, HeightRange, ReadError, Reader};
use crc32c::{crc32c, crc32c_append};
use std::io::{self, Read, Seek, SeekFrom};

/// The most bytes that roots take: one tree of every height.
const ROOTS_BYTES_MAX: u64 = 16 + 64 * 32;

/// Why a file is not a proof file, or an entry cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RangeFileError {
    /// The file cannot be read.
    #[error("cannot read the file at byte {offset}: {source}")]
    Io {
        /// Offset of the failure.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
    /// Fewer bytes than head, tail and foot take.
    #[error("a file of {length} bytes is not a proof file: it needs at least {needed}")]
    Short {
        /// Length of the file in bytes.
        length: u64,
        /// Minimum length of a proof file in bytes.
        needed: u64,
    },
    /// The magic at its start or end is wrong.
    #[error("not a proof file, or truncated: wrong magic {found:02x?} at byte {offset}")]
    Magic {
        /// Offset of the magic.
        offset: u64,
        /// The bytes found there.
        found: [u8; 8],
    },
    /// An unknown version.
    #[error("unknown version {found} at byte 8: only version {VERSION} is supported")]
    Version {
        /// The version.
        found: u32,
    },
    /// Head, tail or foot is damaged.
    #[error("the head, tail or foot of the file is damaged: wrong checksum at byte {offset}")]
    Checksum {
        /// Offset of the checksum.
        offset: u64,
    },
    /// Heights that a file cannot have.
    #[error(
        "{blocks} blocks from height {first} on are invalid for a proof file: 1 to {RANGE_BLOCKS_MAX}, the first at \
         height 1 or above"
    )]
    Heights {
        /// The first height.
        first: Height,
        /// The number of blocks.
        blocks: u32,
    },
    /// The tail is not where the foot says, or has no room for its blocks.
    #[error("the tail of {blocks} blocks cannot begin at byte {offset}")]
    Tail {
        /// Where it would begin.
        offset: u64,
        /// How many blocks it would have.
        blocks: u32,
    },
    /// Invalid roots.
    #[error("invalid roots at byte {offset}: {source}")]
    Roots {
        /// Offset of the roots.
        offset: u64,
        /// The cause.
        source: RootsError,
    },
    /// An entry that does not follow the one before it, or is too long.
    #[error("the entry of block {height} cannot have {length} bytes at byte {offset}")]
    Entry {
        /// Its block.
        height: Height,
        /// Where it would begin.
        offset: u64,
        /// How long it would be.
        length: u32,
    },
    /// Fewer leaves than before, or not as many as the roots after the last block have.
    #[error(
        "block {height} cannot have {found} leaves after it: there are {before} before it, and {last} after the \
         last block"
    )]
    Leaves {
        /// The block.
        height: Height,
        /// Leaves after it, according to its record.
        found: u64,
        /// Leaves after the block before it.
        before: u64,
        /// Leaves after the last block, according to the roots.
        last: u64,
    },
    /// A damaged entry.
    #[error(
        "the entry of block {height} is damaged: wrong checksum for {length} bytes at byte {offset}"
    )]
    EntryChecksum {
        /// Its block.
        height: Height,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u32,
    },
    /// A block outside the file's range.
    #[error("the file has no entry for block {height}: it covers blocks {heights}")]
    NoBlock {
        /// The block.
        height: Height,
        /// The heights that the file covers.
        heights: HeightRange,
    },
    /// A field could not be read although the checksums are right.
    #[error("the file has an invalid field: {0}")]
    Field(#[from] ReadError),
}

/// The record of a block in the tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeBlock {
    /// The block.
    pub hash: BlockHash,
    /// Leaves ever added, after this block.
    pub leaves_after: u64,
    /// Offset of its entry.
    pub offset: u64,
    /// Length of its entry in bytes.
    pub length: u32,
    /// CRC-32C of its entry.
    crc: u32,
}

/// An open proof file.
#[derive(Debug)]
pub struct RangeFile<R> {
    file: R,
    head: RangeHead,
    heights: HeightRange,
    blocks: Vec<RangeBlock>,
    after: Roots,
}

/// The foot, which locates the tail.
struct Foot {
    tail: u64,
    blocks: u32,
    crc: u32,
    bytes: [u8; FOOT_BYTES],
    offset: u64,
}

impl<R: Read + Seek> RangeFile<R> {
    /// Opens a file and reads everything but the entries.
    pub fn open(mut file: R) -> Result<Self, RangeFileError> {
        let foot = read_foot(&mut file)?;
        let mut bytes = Vec::new();
        let head = read_head(&mut file, &foot, &mut bytes)?;
        let heights = heights(head.first, foot.blocks)
            .ok_or(RangeFileError::Heights { first: head.first, blocks: foot.blocks })?;
        let (crc, entries) = (crc32c(&bytes), bytes.len() as u64);
        read_at(&mut file, foot.tail, foot.offset - foot.tail, &mut bytes)?;
        if crc32c_append(crc32c_append(crc, &bytes), &foot.bytes[..12]) != foot.crc {
            return Err(RangeFileError::Checksum { offset: foot.offset + 12 });
        }
        let mut tail = Reader::new(&bytes);
        let blocks = read_blocks(&mut tail, heights, entries..foot.tail)?;
        let offset = foot.tail + tail.position() as u64;
        let after = Roots::read(tail.take(tail.remaining())?)
            .map_err(|source| RangeFileError::Roots { offset, source })?;
        expect_leaves(heights, &blocks, head.roots.leaves, after.leaves)?;
        Ok(Self { file, head, heights, blocks, after })
    }

    /// Reads the entry of a block into `out`, replacing its content.
    pub fn entry(&mut self, height: Height, out: &mut Vec<u8>) -> Result<(), RangeFileError> {
        let no_block = RangeFileError::NoBlock { height, heights: self.heights };
        let RangeBlock { offset, length, crc, .. } = *self.block(height).ok_or(no_block)?;
        read_at(&mut self.file, offset, length.into(), out)?;
        if crc32c(out) != crc {
            return Err(RangeFileError::EntryChecksum { height, offset, length });
        }
        Ok(())
    }
}

impl<R> RangeFile<R> {
    /// The start of the range and the roots there.
    pub fn head(&self) -> &RangeHead {
        &self.head
    }

    /// The heights of its blocks, at least one.
    pub fn heights(&self) -> HeightRange {
        self.heights
    }

    /// The records of its blocks, by ascending height.
    pub fn blocks(&self) -> &[RangeBlock] {
        &self.blocks
    }

    /// The record of the block at a height.
    pub fn block(&self, height: Height) -> Option<&RangeBlock> {
        self.blocks.get(height.checked_sub(self.heights.start)? as usize)
    }

    /// The roots after its last block.
    pub fn after(&self) -> &Roots {
        &self.after
    }
}

fn read_foot(file: &mut (impl Read + Seek)) -> Result<Foot, RangeFileError> {
    let length = file.seek(SeekFrom::End(0)).map_err(at(0))?;
    // The shortest file has empty roots (16 bytes) in the head and in the tail, and one record.
    let needed = HEAD_BYTES + 16 + RECORD_BYTES + 16 + FOOT_BYTES;
    if length < needed as u64 {
        return Err(RangeFileError::Short { length, needed: needed as u64 });
    }
    let offset = length - FOOT_BYTES as u64;
    let mut bytes = [0; FOOT_BYTES];
    file.seek(SeekFrom::Start(offset)).map_err(at(offset))?;
    file.read_exact(&mut bytes).map_err(at(offset))?;
    let mut foot = Reader::new(&bytes);
    let (tail, blocks, crc, magic) = (foot.u64()?, foot.u32()?, foot.u32()?, *foot.array()?);
    if magic != END_MAGIC {
        return Err(RangeFileError::Magic { offset: offset + 16, found: magic });
    }
    let room = offset.checked_sub(tail).and_then(|room| room.checked_sub(records_bytes(blocks)));
    match room {
        Some(16..=ROOTS_BYTES_MAX) if blocks <= RANGE_BLOCKS_MAX => {
            Ok(Foot { tail, blocks, crc, bytes, offset })
        }
        _ => Err(RangeFileError::Tail { offset: tail, blocks }),
    }
}

fn records_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * RECORD_BYTES as u64
}

/// Reads the head, and leaves its bytes in `bytes`.
fn read_head(
    file: &mut (impl Read + Seek),
    foot: &Foot,
    bytes: &mut Vec<u8>,
) -> Result<RangeHead, RangeFileError> {
    let no_room = RangeFileError::Tail { offset: foot.tail, blocks: foot.blocks };
    let most = ROOTS_BYTES_MAX + HEAD_BYTES as u64;
    read_at(file, 0, foot.tail.min(most), bytes)?;
    if bytes.len() < HEAD_BYTES + 16 {
        return Err(no_room);
    }
    let mut head = Reader::new(bytes);
    let (magic, version) = (*head.array()?, head.u32()?);
    if magic != MAGIC {
        return Err(RangeFileError::Magic { offset: 0, found: magic });
    }
    if version != VERSION {
        return Err(RangeFileError::Version { found: version });
    }
    let (network, first, before) = (*head.array()?, head.u32()?, BlockHash(*head.array()?));
    // Roots begin with the numbers of leaves and of roots; the second one gives their length.
    let roots = &bytes[HEAD_BYTES..];
    let (_, count) = (head.u64()?, head.u64()?);
    let length =
        usize::try_from(count).ok().and_then(|count| count.checked_mul(32)?.checked_add(16));
    let roots = length.and_then(|length| roots.get(..length)).unwrap_or(roots);
    let end = HEAD_BYTES + roots.len();
    let roots = Roots::read(roots)
        .map_err(|source| RangeFileError::Roots { offset: HEAD_BYTES as u64, source })?;
    bytes.truncate(end);
    Ok(RangeHead { network, first, before, roots })
}

/// Reads the records of the blocks. Their entries must fill `entries` in order, without gaps.
fn read_blocks(
    tail: &mut Reader<'_>,
    heights: HeightRange,
    entries: std::ops::Range<u64>,
) -> Result<Vec<RangeBlock>, RangeFileError> {
    let mut blocks = Vec::with_capacity(heights.count() as usize);
    let mut end = entries.start;
    for height in heights.heights() {
        let hash = BlockHash(*tail.array()?);
        let (leaves_after, offset) = (tail.u64()?, tail.u64()?);
        let (length, crc) = (tail.u32()?, tail.u32()?);
        let block = RangeBlock { hash, leaves_after, offset, length, crc };
        let room = entries.end.checked_sub(offset);
        // The last entry ends where the tail begins.
        let is_last = height == heights.end - 1;
        let fits = room.is_some_and(|room| match is_last {
            true => u64::from(length) == room,
            false => u64::from(length) <= room,
        });
        if offset != end || length > ENTRY_BYTES_MAX || !fits {
            return Err(RangeFileError::Entry { height, offset, length });
        }
        end = offset + u64::from(length);
        blocks.push(block);
    }
    Ok(blocks)
}

/// Checks that the number of leaves never falls from block to block, and ends at the number in the roots.
fn expect_leaves(
    heights: HeightRange,
    blocks: &[RangeBlock],
    mut before: u64,
    last: u64,
) -> Result<(), RangeFileError> {
    for (height, block) in heights.heights().zip(blocks) {
        let found = block.leaves_after;
        let is_last = height == heights.end - 1;
        if found < before || found > last || (is_last && found != last) {
            return Err(RangeFileError::Leaves { height, found, before, last });
        }
        before = found;
    }
    Ok(())
}

/// Reads `length` bytes into `out`, replacing its content. Memory grows with the bytes actually read, not
/// with the claimed length.
fn read_at(
    file: &mut (impl Read + Seek),
    offset: u64,
    length: u64,
    out: &mut Vec<u8>,
) -> Result<(), RangeFileError> {
    out.clear();
    file.seek(SeekFrom::Start(offset)).map_err(at(offset))?;
    let read = file.take(length).read_to_end(out).map_err(at(offset))? as u64;
    if read != length {
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends here");
        return Err(at(offset + read)(ended));
    }
    Ok(())
}

fn at(offset: u64) -> impl Fn(io::Error) -> RangeFileError {
    move |source| RangeFileError::Io { offset, source }
}
