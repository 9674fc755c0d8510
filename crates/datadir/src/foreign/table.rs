//! [`Table`] and [`Cursor`]: one sorted table, asked for a key as a node asks, or gone through from its first entry.
//!
//! In memory are its index, its filters and one block. Each block's checksum is verified before anything is believed of it.

use super::block::{At, Block, NO_BLOCK, TAG, order, split};
use super::bloom::{NAME, may_have};
use super::bytes::{Bytes, stored_sum};
use super::shape::TableName;
use super::{ForeignError, fault};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A table's last bytes: where the list of further blocks and the index are, filled up to 40, and a number.
const FOOTER: u64 = 48;
const PLACES: usize = 40;
const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();

/// Behind each block: 0 for no compression, checksum.
const TAIL: u64 = 5;

/// The tag that no version of a key comes before: the highest sequence number, and a put.
const NEWEST: u64 = u64::MAX << 8 | 1;

/// The kinds of an entry, in the low byte of its tag.
const DELETED: u64 = 0;
const PUT: u64 = 1;

/// Where a block is.
struct BlockHandle {
    offset: u64,
    length: u64,
}

impl BlockHandle {
    fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        Some(Self { offset: bytes.varint()?, length: bytes.varint()? })
    }
}

/// What a table has under a key.
pub(super) enum Found {
    Value(Vec<u8>),
    Deleted,
    Nothing,
}

pub(super) struct Table {
    path: PathBuf,
    file: File,
    /// Where its last bytes begin.
    end: u64,
    index: Block,
    filters: Option<Vec<u8>>,
}

impl Table {
    pub(super) fn open(dir: &Path, name: &TableName) -> Result<Self, ForeignError> {
        let path = name.path(dir);
        let file = File::open(&path).map_err(|error| fault(&path, 0, error))?;
        let length = file.metadata().map_err(|error| fault(&path, 0, error))?.len();
        if length != name.length {
            let what = format!("it has {length} bytes, and {} in the manifest", name.length);
            return Err(fault(&path, 0, what));
        }
        let Some(end) = length.checked_sub(FOOTER) else {
            return Err(fault(&path, 0, "it is shorter than any table"));
        };
        let mut footer = [0; FOOTER as usize];
        file.read_exact_at(&mut footer, end).map_err(|error| fault(&path, end, error))?;
        let mut places = Bytes(&footer[..PLACES]);
        let (list, index) = (BlockHandle::read(&mut places), BlockHandle::read(&mut places));
        let (Some(list), Some(index), true) = (list, index, footer[PLACES..] == MAGIC) else {
            return Err(fault(&path, end, "it does not end as a table does"));
        };
        let none = Block::new(vec![0, 0, 0, 0, 1, 0, 0, 0]).expect("a block of no entries");
        let mut table = Self { path, file, end, index: none, filters: None };
        table.index = table.block(&index)?;
        table.filters = table.filters(&list)?;
        Ok(table)
    }

    fn fault(&self, offset: u64, what: impl ToString) -> ForeignError {
        fault(&self.path, offset, what)
    }

    /// What stands at a place, with the right checksum.
    fn content(&self, place: &BlockHandle) -> Result<Vec<u8>, ForeignError> {
        let BlockHandle { offset, length } = *place;
        let end = offset.checked_add(length).and_then(|end| end.checked_add(TAIL));
        if end.is_none_or(|end| end > self.end) {
            return Err(self.fault(self.end, "a block is said to be where none can be"));
        }
        let mut bytes = vec![0; (length + TAIL) as usize];
        let read: io::Result<()> = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| self.fault(offset, error))?;
        let tail = bytes.split_off(length as usize);
        if tail[0] != 0 {
            return Err(self.fault(offset, "a block is compressed, which Bitcoin Core never does"));
        }
        if tail[1..] != stored_sum([&bytes, &tail[..1]]).to_le_bytes() {
            return Err(self.fault(offset, "a block has a wrong checksum"));
        }
        Ok(bytes)
    }

    fn block(&self, place: &BlockHandle) -> Result<Block, ForeignError> {
        Block::new(self.content(place)?).ok_or_else(|| self.fault(place.offset, NO_BLOCK))
    }

    /// The filters, where the list of further blocks has some of the kind that Core uses. Its keys have no tags.
    fn filters(&self, list: &BlockHandle) -> Result<Option<Vec<u8>>, ForeignError> {
        let content = self.content(list)?;
        let mut rest = Bytes(&content);
        let mut first = || {
            let (shared, own, length) = (rest.varint()?, rest.varint()?, rest.varint()?);
            let name = (shared == 0).then(|| rest.take(own))??;
            Some((name, BlockHandle::read(&mut Bytes(rest.take(length)?))?))
        };
        match first() {
            Some((NAME, place)) => self.content(&place).map(Some),
            _ => Ok(None),
        }
    }

    /// The block that an entry of the index leads to.
    fn place(&self, at: &At) -> Result<BlockHandle, ForeignError> {
        let place = BlockHandle::read(&mut Bytes(self.index.value(at)));
        place.ok_or_else(|| self.fault(self.end, NO_BLOCK))
    }

    /// What it has under a user's key: by the index to a block, by its filter away from it, by whole keys to an entry.
    pub(super) fn get(&self, key: &[u8]) -> Result<Found, ForeignError> {
        let target = [key, &NEWEST.to_le_bytes()].concat();
        let mut at = At::default();
        let sought = self.index.seek(&target, &mut at);
        if !sought.ok_or_else(|| self.fault(self.end, NO_BLOCK))? {
            return Ok(Found::Nothing);
        }
        let place = self.place(&at)?;
        if self.filters.as_ref().is_some_and(|filters| !may_have(filters, place.offset, key)) {
            return Ok(Found::Nothing);
        }
        let (block, mut at) = (self.block(&place)?, At::default());
        let no_block = || self.fault(place.offset, NO_BLOCK);
        if !block.seek(&target, &mut at).ok_or_else(no_block)? {
            return Ok(Found::Nothing);
        }
        match split(&at.key).ok_or_else(no_block)? {
            (found, _) if found != key => Ok(Found::Nothing),
            (_, tag) if tag & 0xff == PUT => Ok(Found::Value(block.value(&at).to_vec())),
            (_, tag) if tag & 0xff == DELETED => Ok(Found::Deleted),
            _ => Err(no_block()),
        }
    }
}

/// Goes through a table.
pub(super) struct Cursor {
    table: Table,
    in_index: At,
    offset: u64,
    block: Option<Block>,
    at: At,
    /// The key before this one.
    before: Vec<u8>,
}

impl Cursor {
    /// Before the first entry.
    pub(super) fn new(table: Table) -> Self {
        let (in_index, at) = (At::default(), At::default());
        Self { table, in_index, offset: 0, block: None, at, before: Vec::new() }
    }

    /// Goes to the next entry: whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, ForeignError> {
        self.before.clone_from(&self.at.key);
        loop {
            if let Some(block) = &self.block {
                let next = block.next(&mut self.at);
                if next.ok_or_else(|| self.fault(NO_BLOCK))? {
                    return self.expect_order().map(|()| true);
                }
            }
            let next = self.table.index.next(&mut self.in_index);
            if !next.ok_or_else(|| self.fault(NO_BLOCK))? {
                return Ok(false);
            }
            let place = self.table.place(&self.in_index)?;
            self.offset = place.offset;
            self.block = Some(self.table.block(&place)?);
            self.at = At::default();
        }
    }

    fn expect_order(&self) -> Result<(), ForeignError> {
        let ascends = self.before.len() < TAG
            || order(&self.before, &self.at.key).is_some_and(core::cmp::Ordering::is_lt);
        ascends.then_some(()).ok_or_else(|| self.fault("its keys do not ascend"))
    }

    fn fault(&self, what: &str) -> ForeignError {
        self.table.fault(self.offset, what)
    }

    /// The key with its tag, and the value, of the entry that it is at.
    pub(super) fn entry(&self) -> (&[u8], &[u8]) {
        (&self.at.key, self.block.as_ref().map_or(&[], |block| block.value(&self.at)))
    }
}
