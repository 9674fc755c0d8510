//! [`RangeFile`]: a file of proofs, opened.
//!
//! Opening reads head, tail and foot, holds them against their checksum, and wants the entries to lie one after the
//! other between them. An entry is held against its own checksum when it is read.

use super::{
    END_MAGIC, ENTRY_BYTES_MAX, FOOT_BYTES, HEAD_BYTES, MAGIC, RANGE_BLOCKS_MAX, RECORD_BYTES,
    RangeHead, VERSION, heights,
};
use crate::{Roots, RootsError};
use apus_chain::{BlockHash, Height, HeightRange, ReadError, Reader};
use crc32c::{crc32c, crc32c_append};
use std::io::{self, Read, Seek, SeekFrom};

/// The most bytes that roots have: those of all heights of trees.
const ROOTS_BYTES_MAX: u64 = 16 + 64 * 32;

/// Why a file is no file of proofs, or an entry is not there.
#[derive(Debug, thiserror::Error)]
pub enum RangeFileError {
    /// The file cannot be read.
    #[error("cannot read the file at byte {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// Fewer bytes than head and foot have.
    #[error("a file of {length} bytes is no file of proofs: it has {needed} at least")]
    Short {
        /// Bytes that there are.
        length: u64,
        /// Bytes that it takes.
        needed: u64,
    },
    /// It begins or ends with something else.
    #[error(
        "the file is no file of proofs, or not whole: bytes {found:02x?} stand at byte {offset}"
    )]
    Magic {
        /// Where the bytes stand.
        offset: u64,
        /// The bytes.
        found: [u8; 8],
    },
    /// A version that is not known.
    #[error("the file has version {found} at byte 8, and known is {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// Head, tail or foot is not what was written.
    #[error("head, tail or foot of the file is damaged: their checksum at byte {offset} is wrong")]
    Checksum {
        /// Where the checksum stands.
        offset: u64,
    },
    /// Heights that no file has.
    #[error(
        "{blocks} blocks from height {first} on make no file of proofs: 1 to {RANGE_BLOCKS_MAX}, the first at \
         height 1 or above"
    )]
    Heights {
        /// The first.
        first: Height,
        /// How many.
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
    /// Roots that are none.
    #[error("the roots at byte {offset} are none: {source}")]
    Roots {
        /// Where they begin.
        offset: u64,
        /// Why.
        source: RootsError,
    },
    /// An entry that is not behind the one before it, or too long.
    #[error("the entry of block {height} cannot have {length} bytes at byte {offset}")]
    Entry {
        /// Its block.
        height: Height,
        /// Where it would begin.
        offset: u64,
        /// How long it would be.
        length: u32,
    },
    /// Fewer leaves than before, or others than the roots after the last block have.
    #[error(
        "block {height} cannot have {found} leaves after it: before it there are {before}, and after the last \
         block {last}"
    )]
    Leaves {
        /// The block.
        height: Height,
        /// Leaves after it, by its record.
        found: u64,
        /// Leaves after the block before it.
        before: u64,
        /// Leaves after the last block, by the roots.
        last: u64,
    },
    /// An entry that is not what was written.
    #[error(
        "the entry of block {height} is damaged: the checksum of {length} bytes at byte {offset} is wrong"
    )]
    EntryChecksum {
        /// Its block.
        height: Height,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u32,
    },
    /// A block that the file is not about.
    #[error("the file has no entry of block {height}: it is about blocks {heights}")]
    NoBlock {
        /// The block.
        height: Height,
        /// Those that it is about.
        heights: HeightRange,
    },
    /// A field could not be read, though checksums are right.
    #[error("the file has a field that is none: {0}")]
    Field(#[from] ReadError),
}

/// What the tail says of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeBlock {
    /// The block.
    pub hash: BlockHash,
    /// Leaves that there ever were after it.
    pub leaves_after: u64,
    /// Where its entry begins.
    pub offset: u64,
    /// Bytes of its entry.
    pub length: u32,
    /// CRC-32C of its entry.
    crc: u32,
}

/// See the module.
#[derive(Debug)]
pub struct RangeFile<R> {
    file: R,
    head: RangeHead,
    heights: HeightRange,
    blocks: Vec<RangeBlock>,
    after: Roots,
}

/// The foot: where the tail is.
struct Foot {
    tail: u64,
    blocks: u32,
    crc: u32,
    bytes: [u8; FOOT_BYTES],
    offset: u64,
}

impl<R: Read + Seek> RangeFile<R> {
    /// Reads all but the entries.
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

    /// Puts the entry of a block in place of what `out` held.
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
    /// Where the range begins, and by which roots.
    pub fn head(&self) -> &RangeHead {
        &self.head
    }

    /// The heights of its blocks, one at least.
    pub fn heights(&self) -> HeightRange {
        self.heights
    }

    /// What it says of its blocks, by ascending height.
    pub fn blocks(&self) -> &[RangeBlock] {
        &self.blocks
    }

    /// What it says of the block at a height.
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
    // Roots without a leaf stand in the head, and in the tail.
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

/// The head, and its bytes.
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
    // The numbers of leaves and of roots come first; the latter says where they end.
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

/// The records of the blocks, whose entries lie one after the other and fill `entries`.
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

/// From block to block leaves never become fewer, and after the last one there are those of the roots.
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

/// So many bytes in place of what `out` held. Memory grows with what is read.
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
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends there");
        return Err(at(offset + read)(ended));
    }
    Ok(())
}

fn at(offset: u64) -> impl Fn(io::Error) -> RangeFileError {
    move |source| RangeFileError::Io { offset, source }
}
