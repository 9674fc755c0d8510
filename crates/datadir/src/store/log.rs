//! The log: lists the blocks and undo data in a folder with their positions, in order of arrival.
//!
//! It has a head, then records, each with a check over itself and its offset: a record that a crash tore, or
//! that was moved or changed by a flipped bit, is invalid. A crash can tear only the bytes written last, so
//! damage further from the end is reported instead of cut off.
//!
//! ```text
//! 8     41 50 55 53 4b 45 50 54   "APUSKEPT"
//! 4     version, 2
//! 4     magic of the network
//! 8     key of the block files
//! …     records
//!
//! 1     62 ("b"): a block                           1     75 ("u"): undo data of a block above
//! 80    its header                                  32    hash of the block
//! 4     its number of transactions                  4     their offset, after magic and size
//! 4     number of the file                          4     their size, without the checksum
//! 4     offset of the block, after magic and size   16    a key
//! 4     its size                                    8     the sum, under that key, of the coins that the block spends
//! 8     check                                       8     check
//! ```
//!
//! The check is the first 8 bytes of SHA-256 of the record's own offset (8) followed by its bytes before the
//! check. A record is written only when its data are on the disk, and the log is synced at least once per 1
//! MiB of records.

use super::BlockStoreError;
use crate::files::{BLOCK_SIZES, BlockLocation, Obfuscation, RECORD_HEAD};
use crate::rev;
use apus_chain::{BlockHash, Header, KeyedCoinSum, ReadError, Reader};
use apus_hash::sha256;
use hashbrown::HashTable;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"APUSKEPT";

const VERSION: u32 = 2;

/// The length of the head in bytes.
pub(super) const HEAD: u64 = 24;

/// The number of bytes that may be written before the next sync: a crash leaves no more than this after the
/// last intact record.
pub(super) const PIECE_BYTES: usize = 1 << 20;

const CHECK: usize = 8;

/// The first byte of a record, and the record's length including that byte and the check.
const BLOCK: (u8, usize) = (b'b', 1 + Header::SIZE + 16 + CHECK);
const UNDO: (u8, usize) = (b'u', 1 + 32 + 8 + KeyedCoinSum::SIZE + CHECK);

/// The position of a block's undo data; the file has the number of the block's file, with `rev` in
/// its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoLocation {
    /// The offset of the first byte, after magic and size.
    pub offset: u64,
    /// The length in bytes, without the checksum after them.
    pub size: u32,
}

/// A stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    /// The block's header.
    pub header: [u8; Header::SIZE],
    /// The number of its transactions.
    pub tx_count: u32,
    /// The position of the block.
    pub block: BlockLocation,
    /// The position of its undo data, if they are stored.
    pub undo: Option<UndoLocation>,
    /// The sum of the coins that it spends, as given by the caller that stored the undo data.
    pub spent: KeyedCoinSum,
}

/// The content of a log record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogRecord {
    /// A block: its header, number of transactions and position.
    Block([u8; Header::SIZE], u32, BlockLocation),
    /// The undo data of a block listed before, with the sum of its coins; they are in the undo file
    /// with the number of the block's file.
    Undo(BlockHash, UndoLocation, KeyedCoinSum),
}

impl LogRecord {
    /// Appends the record, which will begin at byte `at` of the log.
    pub(super) fn push(&self, out: &mut Vec<u8>, at: u64) {
        let from = out.len();
        let number = |out: &mut Vec<u8>, number: u32| out.extend_from_slice(&number.to_le_bytes());
        match self {
            Self::Block(header, tx_count, place) => {
                out.push(BLOCK.0);
                out.extend_from_slice(header);
                // Offsets fit 32 bits: `BlockPlaces` has accepted them.
                for field in [*tx_count, place.file, place.offset as u32, place.size] {
                    number(out, field);
                }
            }
            Self::Undo(hash, place, sum) => {
                out.push(UNDO.0);
                out.extend_from_slice(&hash.0);
                for field in [place.offset as u32, place.size] {
                    number(out, field);
                }
                out.extend_from_slice(&sum.to_bytes());
            }
        }
        let check = check(at, &out[from..]);
        out.extend_from_slice(&check);
    }

    /// Parses a record; `None` unless it is complete and was written for offset `at`.
    fn parse(bytes: &[u8], at: u64) -> Option<Self> {
        let (body, found) = bytes.split_last_chunk::<CHECK>()?;
        if check(at, body) != *found {
            return None;
        }
        let record = Self::parse_body(body).ok()?;
        let sound = match record {
            Self::Block(_, tx_count, place) => BLOCK_SIZES.contains(&place.size) && tx_count > 0,
            Self::Undo(_, place, _) => place.offset >= RECORD_HEAD,
        };
        sound.then_some(record)
    }

    fn parse_body(body: &[u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(body);
        let is_block = reader.u8()? == BLOCK.0;
        let record = if is_block {
            let (header, tx_count) = (*reader.array()?, reader.u32()?);
            let (file, offset, size) = (reader.u32()?, u64::from(reader.u32()?), reader.u32()?);
            Self::Block(header, tx_count, BlockLocation { file, offset, size })
        } else {
            let hash = BlockHash(*reader.array()?);
            let place = UndoLocation { offset: u64::from(reader.u32()?), size: reader.u32()? };
            Self::Undo(hash, place, KeyedCoinSum::from_bytes(*reader.array()?))
        };
        reader.finish()?;
        Ok(record)
    }
}

fn check(at: u64, body: &[u8]) -> [u8; CHECK] {
    let mut whole = at.to_le_bytes().to_vec();
    whole.extend_from_slice(body);
    let [a, b, c, d, e, f, g, h, ..] = sha256(&whole);
    [a, b, c, d, e, f, g, h]
}

fn record_len(first: u8) -> Option<usize> {
    [BLOCK, UNDO].into_iter().find(|(kind, _)| *kind == first).map(|(_, length)| length)
}

/// Makes the first bytes of the file: magic, version, the network's magic, the folder's key.
pub(super) fn head(magic: [u8; 4], key: Obfuscation) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&magic);
    out.extend_from_slice(&key.key());
    out
}

/// The content of a whole log.
#[derive(Debug)]
pub(super) struct LogContents {
    /// The key of the files.
    pub(super) key: Obfuscation,
    pub(super) places: BlockPlaces,
    /// The end of its intact records.
    pub(super) end: u64,
}

/// Reads the log of a folder of this network, up to the undo data of the block `until` if it lists them.
/// `None` if the log is missing, or has only a head that a crash cut short.
pub(super) fn read(
    path: &Path,
    magic: [u8; 4],
    until: Option<&BlockHash>,
) -> Result<Option<LogContents>, BlockStoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(BlockStoreError::io("open", path)(error)),
    };
    let length = file.metadata().map_err(BlockStoreError::io("read", path))?.len();
    let mut input = BufReader::with_capacity(PIECE_BYTES, file).take(length);
    let mut found = [0; HEAD as usize];
    if length < HEAD {
        return Ok(None);
    }
    input.read_exact(&mut found).map_err(BlockStoreError::io("read", path))?;
    let Some(key) = found.last_chunk().map(|key| Obfuscation::new(*key)) else { return Ok(None) };
    if found[..] != head(magic, key) {
        if length == HEAD {
            return Ok(None);
        }
        let what = "it does not begin like a log of this version and chain";
        return Err(BlockStoreError::damaged(path, what));
    }
    let mut contents = LogContents { key, places: BlockPlaces::default(), end: HEAD };
    while let Some((record, bytes)) = next(&mut input, path, contents.end)? {
        let (places, at) = (&mut contents.places, contents.end);
        let taken = match record {
            LogRecord::Block(header, _, place) => {
                places.add_block(Header::parse(&header).hash(), place, at)
            }
            LogRecord::Undo(hash, place, _) => places.add_undo(&hash, place, at),
        };
        taken.ok_or_else(|| {
            let what = format!("the record at byte {at} does not follow those before it");
            BlockStoreError::damaged(path, what)
        })?;
        contents.end += bytes as u64;
        if matches!(&record, LogRecord::Undo(hash, ..) if Some(hash) == until) {
            return Ok(Some(contents));
        }
    }
    if length - contents.end > PIECE_BYTES as u64 {
        let what = format!("the record at byte {} of {length} is not intact", contents.end);
        return Err(BlockStoreError::damaged(path, what));
    }
    Ok(Some(contents))
}

/// Reads the next record and its length; `None` if it is not intact.
fn next(
    input: &mut impl Read,
    path: &Path,
    at: u64,
) -> Result<Option<(LogRecord, usize)>, BlockStoreError> {
    let mut bytes = [0; BLOCK.1];
    let mut fill = |bytes: &mut [u8]| match input.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(BlockStoreError::io("read", path)(error)),
    };
    if !fill(&mut bytes[..1])? {
        return Ok(None);
    }
    let Some(length) = record_len(bytes[0]) else { return Ok(None) };
    if !fill(&mut bytes[1..length])? {
        return Ok(None);
    }
    Ok(LogRecord::parse(&bytes[..length], at).map(|record| (record, length)))
}

/// Looks up single records of a log.
#[derive(Debug)]
pub(super) struct LogLookUp {
    path: PathBuf,
    file: Arc<File>,
}

impl LogLookUp {
    pub(super) fn new(path: &Path, file: Arc<File>) -> Self {
        Self { path: path.to_owned(), file }
    }

    /// Reads all records about a block.
    pub(super) fn stored(&self, entry: &StoreEntry) -> Result<StoredBlock, BlockStoreError> {
        let wrong = |at: u32| {
            let what = format!("the record at byte {at} is not that of block {}", entry.hash);
            BlockStoreError::damaged(&self.path, what)
        };
        let (header, tx_count) = match self.record(entry.record, BLOCK.1)? {
            Some(LogRecord::Block(header, tx_count, place)) if place == entry.place() => {
                (header, tx_count)
            }
            _ => return Err(wrong(entry.record)),
        };
        let (undo, spent) = match entry.undo_record() {
            None => (None, KeyedCoinSum::NONE),
            Some(at) => match self.record(at, UNDO.1)? {
                Some(LogRecord::Undo(hash, place, sum)) if hash == entry.hash => (Some(place), sum),
                _ => return Err(wrong(at)),
            },
        };
        Ok(StoredBlock { header, tx_count, block: entry.place(), undo, spent })
    }

    fn record(&self, at: u32, length: usize) -> Result<Option<LogRecord>, BlockStoreError> {
        let mut bytes = [0; BLOCK.1];
        let bytes = &mut bytes[..length];
        let read = self.file.read_exact_at(bytes, u64::from(at));
        read.map_err(BlockStoreError::io("read", &self.path))?;
        Ok(LogRecord::parse(bytes, u64::from(at)))
    }
}

/// The lengths in bytes of a block file and of the undo file with the same number.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLengths {
    /// The length of the block file.
    pub(crate) blocks: u64,
    /// The length of the undo file; 0 if there is none.
    pub(crate) undo: u64,
}

/// A stored block, as kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreEntry {
    pub(super) hash: BlockHash,
    /// The number, offset and size in the block files; offsets have 32 bits there.
    file: u32,
    offset: u32,
    size: u32,
    /// The offset of its record in the log.
    pub(super) record: u32,
    /// The offset of its undo record in the log; 0, the offset of the head, if it has none.
    undo_record: u32,
}

impl StoreEntry {
    pub(super) fn place(&self) -> BlockLocation {
        BlockLocation { file: self.file, offset: u64::from(self.offset), size: self.size }
    }

    pub(super) fn undo_record(&self) -> Option<u32> {
        (self.undo_record > 0).then_some(self.undo_record)
    }
}

/// The stored blocks and their positions.
///
/// It is the state that the log's records describe. It accepts a record only if that may directly follow the
/// one before, so a log that can be read is exactly as it was written. Memory is about 70 bytes per block.
#[derive(Debug, Default)]
pub(super) struct BlockPlaces {
    /// The stored blocks, in disk order.
    entries: Vec<StoreEntry>,
    /// Indexes of entries, by hash.
    table: HashTable<u32>,
    /// Indexed by file number.
    files: Vec<FileLengths>,
}

impl BlockPlaces {
    pub(super) fn entries(&self) -> &[StoreEntry] {
        &self.entries
    }

    pub(super) fn files(&self) -> &[FileLengths] {
        &self.files
    }

    pub(super) fn find(&self, hash: &BlockHash) -> Option<&StoreEntry> {
        self.table
            .find(key(hash), |index| self.entries[*index as usize].hash == *hash)
            .map(|index| &self.entries[*index as usize])
    }

    /// Adds a block. Returns `None`, without a change, if the block is already stored or does not directly
    /// follow the block before it on the disk.
    pub(super) fn add_block(
        &mut self,
        hash: BlockHash,
        place: BlockLocation,
        record: u64,
    ) -> Option<()> {
        let (number, index) = (place.file as usize, u32::try_from(self.entries.len()).ok()?);
        let behind = match self.files.last() {
            Some(last) if number + 1 == self.files.len() => last.blocks,
            _ if number == self.files.len() => 0,
            _ => return None,
        };
        if place.offset != behind + RECORD_HEAD || self.find(&hash).is_some() {
            return None;
        }
        let entry = StoreEntry {
            hash,
            file: place.file,
            offset: u32::try_from(place.offset).ok()?,
            size: place.size,
            record: u32::try_from(record).ok()?,
            undo_record: 0,
        };
        if number == self.files.len() {
            self.files.push(FileLengths::default());
        }
        self.files[number].blocks = place.end();
        self.entries.push(entry);
        let entries = &self.entries;
        self.table.insert_unique(key(&hash), index, |index| key(&entries[*index as usize].hash));
        Some(())
    }

    /// Returns the position for undo data of `size` bytes for `entry`; `None` if they would end beyond the
    /// range of 32-bit offsets.
    pub(super) fn undo_place(&self, entry: &StoreEntry, size: usize) -> Option<UndoLocation> {
        let offset = self.files[entry.file as usize].undo + RECORD_HEAD;
        let size = u32::try_from(size).ok()?;
        let end = offset + u64::from(size) + rev::CHECKSUM;
        (end <= u64::from(u32::MAX)).then_some(UndoLocation { offset, size })
    }

    /// Adds undo data. Returns `None`, without a change, if their block is not stored or already has undo
    /// data, or if they do not directly follow the undo data before them on the disk.
    pub(super) fn add_undo(
        &mut self,
        hash: &BlockHash,
        place: UndoLocation,
        record: u64,
    ) -> Option<()> {
        let (entries, record) = (&self.entries, u32::try_from(record).ok()?);
        let same = |index: &u32| entries[*index as usize].hash == *hash;
        let index = *self.table.find(key(hash), same)? as usize;
        let entry = &self.entries[index];
        let free = self.undo_place(entry, place.size as usize);
        if entry.undo_record > 0 || free != Some(place) {
            return None;
        }
        self.files[entry.file as usize].undo = place.offset + u64::from(place.size) + rev::CHECKSUM;
        self.entries[index].undo_record = record;
        Some(())
    }
}

/// Hashes a block hash for a table: it is already a hash, and its first bytes in internal order lack the
/// zeros that mining produces.
fn key(hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
