//! [`BlockPositions`]: the file that says what a [`BlockStore`](crate::BlockStore) holds and where.
//!
//! A head, which names the first height, then a record of one size for each height from there on, so that
//! any is found by its height alone.
//! Each carries a check over itself and its height: a record torn by a crash, moved, or of a
//! flipped bit is none. Format: `docs/formats/workdir.md`.

use super::BlockStoreError;
use crate::files::{BLOCK_SIZES, BlockLocation, RECORD_HEAD};
use crate::obfuscation::Obfuscation;
use apus_chain::{BlockHash, Header, KeyedCoinSum, ReadError, Reader};
use apus_hash::sha256;
use core::ops::Range;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"APUSPOSN";

const VERSION: u32 = 2;

/// Length of the head in bytes.
pub(super) const HEAD: u64 = 28;

/// Length of what a record says.
const BODY: usize = 128;

/// Length of a record in bytes, its check included.
pub(super) const RECORD: u64 = BODY as u64 + CHECK as u64;

const CHECK: usize = 8;

/// Records that are read with one call when all are.
const AT_ONCE: u64 = 1_000;

/// Where the undo data of a block lie; the file is that of the block, with `rev` in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoLocation {
    /// Offset of the first byte, after magic and size.
    pub offset: u64,
    /// Length in bytes, without the checksum behind them.
    pub size: u32,
}

/// A block that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its header.
    pub header: [u8; Header::SIZE],
    /// How many transactions it has.
    pub tx_count: u32,
    /// Where it lies.
    pub block: BlockLocation,
    /// Where its undo data lie; the genesis block has none.
    pub undo: Option<UndoLocation>,
    /// The sum of the coins that it spends, as told by the caller that stored it.
    pub spent: KeyedCoinSum,
}

impl StoredBlock {
    /// The block's name.
    pub fn hash(&self) -> BlockHash {
        Header::parse(&self.header).hash()
    }

    /// The record of this block at `height`.
    pub(super) fn to_bytes(self, height: u32) -> [u8; RECORD as usize] {
        let undo = self.undo.unwrap_or(UndoLocation { offset: 0, size: 0 });
        let numbers = [
            self.tx_count,
            self.block.file,
            // Both fit: see `BlockStore::append`.
            self.block.offset as u32,
            self.block.size,
            undo.offset as u32,
            undo.size,
        ];
        let mut out = [0; RECORD as usize];
        out[..Header::SIZE].copy_from_slice(&self.header);
        for (field, number) in out[Header::SIZE..].chunks_exact_mut(4).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        out[BODY - KeyedCoinSum::SIZE..BODY].copy_from_slice(&self.spent.to_bytes());
        let check = check(height, &out[..BODY]);
        out[BODY..].copy_from_slice(&check);
        out
    }

    /// `None` unless the check holds and the places can be some.
    fn from_bytes(bytes: &[u8], height: u32) -> Option<Self> {
        let (body, found) = bytes.split_last_chunk::<CHECK>()?;
        if check(height, body) != *found {
            return None;
        }
        let stored = Self::parse(body).ok()?;
        // Offset 0 stands for no undo data: none can lie there, behind magic and size.
        let sound = BLOCK_SIZES.contains(&stored.block.size)
            && stored.block.offset >= RECORD_HEAD
            && stored.undo.is_none_or(|undo| undo.offset >= RECORD_HEAD)
            && stored.undo.is_none() == (height == 0);
        sound.then_some(stored)
    }

    fn parse(body: &[u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(body);
        let header = *reader.array()?;
        let tx_count = reader.u32()?;
        let (file, offset, size) = (reader.u32()?, u64::from(reader.u32()?), reader.u32()?);
        let block = BlockLocation { file, offset, size };
        let undo = UndoLocation { offset: u64::from(reader.u32()?), size: reader.u32()? };
        let spent = KeyedCoinSum::from_bytes(*reader.array()?);
        reader.finish()?;
        Ok(Self { header, tx_count, block, undo: (undo.offset > 0).then_some(undo), spent })
    }
}

fn check(height: u32, body: &[u8]) -> [u8; CHECK] {
    let mut whole = height.to_le_bytes().to_vec();
    whole.extend_from_slice(body);
    let [a, b, c, d, e, f, g, h, ..] = sha256(&whole);
    [a, b, c, d, e, f, g, h]
}

/// The first bytes of the file of blocks from the height `first` on.
pub(super) fn head(magic: [u8; 4], key: Obfuscation, first: u32) -> Vec<u8> {
    let mut head = super::log_head(MAGIC, VERSION, magic, key);
    head.extend_from_slice(&first.to_le_bytes());
    head
}

/// What a block store holds, by height. It sees what the file holds when it is opened.
#[derive(Debug)]
pub struct BlockPositions {
    path: PathBuf,
    file: File,
    head: [u8; HEAD as usize],
    first: u32,
    len: u32,
}

impl BlockPositions {
    /// Opens the file for reading.
    pub fn open(path: &Path) -> Result<Self, BlockStoreError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BlockStoreError::damaged(path, "it is not there"),
            _ => BlockStoreError::io("open", path)(error),
        })?;
        let length = file.metadata().map_err(BlockStoreError::io("read", path))?.len();
        let mut head = [0; HEAD as usize];
        if length < HEAD {
            let what = format!("it has {length} bytes, less than its head");
            return Err(BlockStoreError::damaged(path, what));
        }
        file.read_exact_at(&mut head, 0).map_err(BlockStoreError::io("read", path))?;
        let [known, version] = [&head[..8] == MAGIC, head[8..12] == VERSION.to_le_bytes()];
        if !known || !version {
            let what = "it does not begin as one of this version".to_owned();
            return Err(BlockStoreError::damaged(path, what));
        }
        let first = head.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        // A record that a crash cut short is none; heights have 31 bits in Core.
        let records = (length - HEAD) / RECORD;
        let len = u64::from(first).saturating_add(records).min(i32::MAX as u64) as u32;
        if first > len {
            let what = format!("it begins at height {first}, which no block has");
            return Err(BlockStoreError::damaged(path, what));
        }
        Ok(Self { path: path.to_owned(), file, head, first, len })
    }

    /// The heights that there are records for, ascending.
    pub fn heights(&self) -> Range<u32> {
        self.first..self.len
    }

    /// The block at `height`.
    pub fn read(&self, height: u32) -> Result<StoredBlock, BlockStoreError> {
        let mut bytes = [0; RECORD as usize];
        self.fill(&mut bytes, height)?;
        self.record(&bytes, height)
    }

    /// The blocks from the first height to `until`, exclusive, in order.
    pub fn for_each(
        &self,
        until: u32,
        each: &mut dyn FnMut(u32, StoredBlock) -> Result<(), BlockStoreError>,
    ) -> Result<(), BlockStoreError> {
        let mut height = self.first;
        let count = u64::from(until.saturating_sub(height));
        let mut buffer = vec![0; (RECORD * AT_ONCE.min(count)) as usize];
        while height < until {
            let count = AT_ONCE.min(u64::from(until - height));
            let bytes = &mut buffer[..(RECORD * count) as usize];
            self.fill(bytes, height)?;
            for bytes in bytes.chunks_exact(RECORD as usize) {
                each(height, self.record(bytes, height)?)?;
                height += 1;
            }
        }
        Ok(())
    }

    /// Fails unless the file belongs to blocks of this chain under this key, from the height `first` on.
    pub(super) fn expect(
        &self,
        magic: [u8; 4],
        key: Obfuscation,
        first: u32,
    ) -> Result<(), BlockStoreError> {
        if self.head[..] == head(magic, key, first) {
            return Ok(());
        }
        let what =
            "it belongs to blocks of another chain, under another key, or from another height on";
        Err(BlockStoreError::damaged(&self.path, what))
    }

    fn fill(&self, bytes: &mut [u8], height: u32) -> Result<(), BlockStoreError> {
        let end = u64::from(height) + bytes.len() as u64 / RECORD;
        let Some(index) = height.checked_sub(self.first).filter(|_| end <= self.len.into()) else {
            let (first, len) = (self.first, self.len);
            let what = format!(
                "it has records for the heights from {first} on and below {len}, those from {height} \
                 on and below {end} are wanted"
            );
            return Err(BlockStoreError::damaged(&self.path, what));
        };
        let read = self.file.read_exact_at(bytes, HEAD + u64::from(index) * RECORD);
        read.map_err(BlockStoreError::io("read", &self.path))
    }

    fn record(&self, bytes: &[u8], height: u32) -> Result<StoredBlock, BlockStoreError> {
        StoredBlock::from_bytes(bytes, height).ok_or_else(|| {
            let offset = HEAD + u64::from(height - self.first) * RECORD;
            let what = format!("the record of height {height} at byte {offset} is not intact");
            BlockStoreError::damaged(&self.path, what)
        })
    }
}
