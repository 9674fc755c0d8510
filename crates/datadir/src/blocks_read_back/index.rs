//! [`WrittenIndex`]: a block index that was compared with the chain, entry by entry.
//!
//! Its key names and constants repeat Core's definitions instead of sharing the writer's: otherwise a mistake
//! in the writer would go unnoticed.

use super::{ReadBackError, WrittenBlocks};
use crate::independent::DatabaseEntries;
use apus_chain::{BlockHash, Header, ReadError, Reader};
use core::ops::ControlFlow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Magic and size before each record.
const RECORD_HEAD: u32 = 8;

/// The flag of a pruning node, as key and value (Core `node/blockstorage.cpp`, `WriteFlag`).
const PRUNED: (&[u8], &[u8]) = (b"F\x10prunedblockfiles", b"1");

/// The number of blocks between two progress reports.
const REPORT_EVERY: u32 = 4096;

/// The index's facts about a block. It stores offsets in 32 bits.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct BlockSlot {
    pub(super) file: u32,
    /// The offset of the block, after magic and size.
    pub(super) data: u32,
    /// The offset of its undo data; 0 if it has no undo data.
    pub(super) undo: u32,
    /// 0 until the entry has been read.
    pub(super) tx_count: u32,
}

impl BlockSlot {
    pub(super) fn place(&self) -> (u32, u32) {
        (self.file, self.data)
    }
}

/// The index's facts about a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileSlot {
    pub(super) blocks_bytes: u64,
    pub(super) undo_bytes: u64,
}

/// What a file's blocks imply about the file (Core `node/blockstorage.h`, `CBlockFileInfo`).
#[derive(Debug, Default, Clone, Copy)]
struct FileTally {
    blocks: u64,
    heights: (u64, u64),
    times: (u64, u64),
}

impl FileTally {
    fn add(&mut self, height: u32, time: u32) {
        let (height, time) = (u64::from(height), u64::from(time));
        if self.blocks == 0 {
            (self.heights, self.times) = ((height, height), (time, time));
        }
        self.blocks += 1;
        self.heights = (self.heights.0.min(height), self.heights.1.max(height));
        self.times = (self.times.0.min(time), self.times.1.max(time));
    }
}

/// The content of a block index that matches the chain.
pub(super) struct WrittenIndex {
    pub(super) entries: u64,
    pub(super) transactions: u64,
    /// Indexed by file number.
    pub(super) files: Vec<FileSlot>,
    /// Indexed by height.
    pub(super) slots: Vec<BlockSlot>,
}

impl WrittenIndex {
    /// Reads the whole index. Returns `None` if `reached` cancels.
    pub(super) fn read(
        written: &WrittenBlocks<'_>,
        reached: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Self>, ReadBackError> {
        let path = written.folder.join("index");
        let mut reading = IndexCheck::new(written, &path);
        let mut entries = DatabaseEntries::open(&path)?;
        while let Some((key, value)) = entries.next()? {
            reading.take(key, value).map_err(|what| reading.error(what))?;
            if reading.found.is_multiple_of(REPORT_EVERY) && reached(reading.found).is_break() {
                return Ok(None);
            }
        }
        reading.end().map(Some)
    }

    pub(super) fn slot(&self, height: u32) -> &BlockSlot {
        &self.slots[height as usize]
    }
}

/// An index being read.
struct IndexCheck<'w, 'a> {
    written: &'w WrittenBlocks<'a>,
    path: PathBuf,
    pruned: bool,
    /// The number of blocks in the chain.
    found: u32,
    transactions: u64,
    slots: Vec<BlockSlot>,
    seen: BTreeMap<u32, FileTally>,
    /// The seven numbers that the index states for each file, by file number.
    files: BTreeMap<u32, [u64; 7]>,
    last_file: Option<i32>,
    others: u64,
}

impl<'w, 'a> IndexCheck<'w, 'a> {
    fn new(written: &'w WrittenBlocks<'a>, path: &std::path::Path) -> Self {
        Self {
            written,
            path: path.to_owned(),
            pruned: false,
            found: 0,
            transactions: 0,
            slots: vec![BlockSlot::default(); written.blocks as usize],
            seen: BTreeMap::new(),
            files: BTreeMap::new(),
            last_file: None,
            others: 0,
        }
    }

    fn error(&self, what: String) -> ReadBackError {
        ReadBackError::Index { path: self.path.clone(), what }
    }

    /// Checks an entry; the error names its fault.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let unknown = || {
            let key = &key[..key.len().min(40)];
            format!("unexpected entry with the key {key:02x?}")
        };
        match key.split_first() {
            Some((b'b', hash)) => {
                let hash = BlockHash(hash.try_into().map_err(|_| unknown())?);
                self.take_block(hash, value)
                    .map_err(|what| format!("the entry of block {hash} {what}"))
            }
            Some((b'f', number)) => {
                let number = i32::from_le_bytes(number.try_into().map_err(|_| unknown())?);
                let number = u32::try_from(number).map_err(|_| unknown())?;
                let unread = |error| format!("the entry of file {number} cannot be read: {error}");
                let numbers = seven(value).map_err(unread)?;
                self.others += 1;
                self.files.insert(number, numbers);
                Ok(())
            }
            Some((b'l', [])) => {
                let number =
                    value.try_into().map_err(|_| "the number of the last file is invalid")?;
                self.others += 1;
                self.last_file = Some(i32::from_le_bytes(number));
                Ok(())
            }
            _ if (key, value) == PRUNED && self.written.holds.tx_counts.is_some() => {
                self.others += 1;
                self.pruned = true;
                Ok(())
            }
            _ => Err(unknown()),
        }
    }

    fn take_block(&mut self, hash: BlockHash, value: &[u8]) -> Result<(), String> {
        let entry =
            BlockIndexEntry::read(value).map_err(|error| format!("cannot be read: {error}"))?;
        let BlockIndexEntry { height, status, slot, header } = entry;
        let blocks = self.written.blocks;
        if height >= blocks {
            return Err(format!("has height {height}, where the chain has {blocks} blocks"));
        }
        let on_chain = (self.written.context)(height).hash;
        if hash != on_chain {
            return Err(format!("has height {height}, where the chain has block {on_chain}"));
        }
        let named = BlockHash(apus_hash::sha256d(header));
        if named != hash {
            return Err(format!("has the header of block {named}"));
        }
        let wanted = self.status(height, slot.undo > 0);
        if status != wanted {
            return Err(format!("has status {status}, not {wanted}"));
        }
        if slot.tx_count == 0 {
            return Err("has no transactions".to_owned());
        }
        if let Some(tx_counts) = self.written.holds.tx_counts
            && tx_counts.get(height as usize) != Some(&slot.tx_count)
        {
            return Err(format!("has a wrong number of transactions: {}", slot.tx_count));
        }
        if !self.written.holds.lacks(height) {
            // A block without undo data has zero here.
            let may_lack = height == 0 || !self.written.holds.whole;
            let undo_fits = slot.undo >= RECORD_HEAD || slot.undo == 0 && may_lack;
            if slot.data < RECORD_HEAD || !undo_fits {
                return Err("states an impossible position".to_owned());
            }
            self.seen.entry(slot.file).or_default().add(height, Header::parse(header).time);
        }
        self.slots[height as usize] = slot;
        self.found += 1;
        self.transactions += u64::from(slot.tx_count);
        Ok(())
    }

    /// The expected status of a block (Core `chain.h`, `BlockStatus`): its scripts are valid (for the genesis
    /// block, which is never connected, its transactions); its witnesses were checked; and the block and its
    /// undo data are stored or not.
    fn status(&self, height: u32, undo: bool) -> u64 {
        let holds = self.written.holds;
        match height {
            0 if holds.lacks(0) => 128 + 3,
            _ if holds.lacks(height) => 128 + 5,
            0 => 128 + 8 + 3,
            _ if !holds.whole && !undo => 128 + 8 + 5,
            _ => 128 + 16 + 8 + 5,
        }
    }

    /// Checks properties that only all entries together show.
    fn end(self) -> Result<WrittenIndex, ReadBackError> {
        if let Some(height) = self.slots.iter().position(|slot| slot.tx_count == 0) {
            let hash = (self.written.context)(height as u32).hash;
            return Err(self.error(format!("block {height} ({hash}) is missing")));
        }
        let pruned = self.written.holds.tx_counts.is_some();
        if pruned != self.pruned {
            return Err(self.error("its flag for pruned blocks is missing".to_owned()));
        }
        let count = self.files.len() as u32;
        if self.files.keys().copied().ne(0..count) {
            return Err(self.error("a file before its last one has no entry".to_owned()));
        }
        if self.last_file != Some(count as i32 - 1) {
            let stated = self.last_file;
            return Err(self.error(format!("it states {stated:?} as the last of {count} files")));
        }
        if let Some(number) = self.seen.keys().find(|number| !self.files.contains_key(number)) {
            return Err(
                self.error(format!("it has blocks in file {number} but no entry for that file"))
            );
        }
        let mut files = Vec::new();
        for (number, stated) in &self.files {
            let seen = self.seen.get(number).copied().unwrap_or_default();
            let [_, blocks_bytes, undo_bytes, ..] = *stated;
            let FileTally { blocks, heights, times } = seen;
            let (least, most) = (heights.0, heights.1);
            let wanted = [blocks, blocks_bytes, undo_bytes, least, most, times.0, times.1];
            if *stated != wanted {
                let what = format!("the entry of file {number} is {stated:?}, not {wanted:?}");
                return Err(self.error(what));
            }
            files.push(FileSlot { blocks_bytes, undo_bytes });
        }
        let entries = u64::from(self.found) + self.others;
        Ok(WrittenIndex { entries, transactions: self.transactions, files, slots: self.slots })
    }
}

/// Parses an entry (Core `chain.h`, `CDiskBlockIndex`).
struct BlockIndexEntry<'a> {
    height: u32,
    status: u64,
    slot: BlockSlot,
    header: &'a [u8; Header::SIZE],
}

impl<'a> BlockIndexEntry<'a> {
    fn read(value: &'a [u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(value);
        let _version = reader.varint()?;
        let height = small(&mut reader)?;
        let status = reader.varint()?;
        let mut slot = BlockSlot { tx_count: small(&mut reader)?, ..BlockSlot::default() };
        if status & (8 | 16) != 0 {
            slot.file = small(&mut reader)?;
        }
        if status & 8 != 0 {
            slot.data = small(&mut reader)?;
        }
        if status & 16 != 0 {
            slot.undo = small(&mut reader)?;
        }
        let header = reader.array()?;
        reader.finish()?;
        Ok(Self { height, status, slot, header })
    }
}

/// A number of at most 32 bits.
fn small(reader: &mut Reader<'_>) -> Result<u32, ReadError> {
    let (offset, value) = (reader.position(), reader.varint()?);
    let limit = u64::from(u32::MAX);
    u32::try_from(value).map_err(|_| ReadError::TooLarge { offset, value, limit })
}

fn seven(value: &[u8]) -> Result<[u64; 7], ReadError> {
    let mut reader = Reader::new(value);
    let mut numbers = [0; 7];
    for number in &mut numbers {
        *number = reader.varint()?;
    }
    reader.finish()?;
    Ok(numbers)
}
