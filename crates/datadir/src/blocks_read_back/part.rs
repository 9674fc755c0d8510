//! [`PartReader`]: reads blocks and undo data at the positions in the index.
//!
//! It never takes more memory than one block and its undo data can need: it checks the size that a record
//! states against that limit before it allocates.

use super::index::BlockSlot;
use super::{BlocksReadBack, ExpectedFolder, ReadBackError};
use crate::files::{self, BLOCK_SIZES, Obfuscation};
use crate::rev;
use apus_chain::{BlockChecker, BlockHash, BlockUndo, CoinAdder, MAX_SCRIPT_SIZE, OutPoint};
use apus_hash::{Sha256, sha256};
use core::ops::Range;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Magic and size before each record.
const HEAD: u64 = 8;

/// Bytes after undo data: SHA-256d of the previous block's hash followed by the data.
const CHECKSUM: usize = 32;

/// Upper bound for the bytes of a coin besides its script, and of a count besides its coins.
const UNDO_COIN_REST: usize = 40;

/// The result of checking a part.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PartRead {
    /// The number of blocks.
    pub blocks: u64,
    /// The number of blocks with undo data.
    pub undo: u64,
    /// The number of coins in the undo data.
    pub undo_coins: u64,
    /// Bytes read, of blocks and undo data.
    pub bytes: u64,
}

/// An open file.
struct RecordFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl RecordFile {
    fn open(path: PathBuf) -> Result<Self, ReadBackError> {
        let open = || {
            let file = File::open(&path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        match open() {
            Ok((file, length)) => Ok(Self { path, file, length }),
            Err(error) => Err(ReadBackError::io(&path, 0)(error)),
        }
    }

    fn read(&self, out: &mut [u8], offset: u64, key: Obfuscation) -> Result<(), ReadBackError> {
        self.file.read_exact_at(out, offset).map_err(ReadBackError::io(&self.path, offset))?;
        let mut key = key.key();
        key.rotate_left((offset % 8) as usize);
        for bytes in out.chunks_mut(key.len()) {
            bytes.iter_mut().zip(key).for_each(|(byte, mask)| *byte ^= mask);
        }
        Ok(())
    }

    /// The size in the record whose content begins at `offset`; `None` if no record of the chain is there.
    fn record_size(
        &self,
        offset: u64,
        all: &BlocksReadBack<'_>,
    ) -> Result<Option<u32>, ReadBackError> {
        let mut head = [0; HEAD as usize];
        let Some(start) = offset.checked_sub(HEAD).filter(|_| offset <= self.length) else {
            return Ok(None);
        };
        self.read(&mut head, start, all.key)?;
        let ([magic, size], _) = head.as_chunks::<4>() else { return Ok(None) };
        let is_record = *magic == all.written.params.network.magic();
        Ok(is_record.then_some(u32::from_le_bytes(*size)))
    }
}

/// Checks parts one by one. Each thread needs its own, because it holds the working buffers.
#[derive(Default)]
pub struct PartReader {
    checker: BlockChecker,
    block: Vec<u8>,
    undo: Vec<u8>,
    /// The number of inputs of each transaction after the coinbase.
    inputs: Vec<usize>,
    /// The outpoints that these inputs spend.
    outpoints: Vec<OutPoint>,
    /// A coin in its stored form.
    coin: Vec<u8>,
}

/// The position of a block.
struct RecordPlace<'a> {
    height: u32,
    slot: &'a BlockSlot,
    /// The neighbours in the same file: the preceding and the following block.
    before: Option<&'a BlockSlot>,
    behind: Option<&'a BlockSlot>,
}

impl<'a> RecordPlace<'a> {
    fn of(all: &'a BlocksReadBack<'_>, at: usize) -> Self {
        let height = all.order[at];
        let slot = all.index.slot(height);
        let other = |at: usize| {
            let other = all.order.get(at).map(|height| all.index.slot(*height));
            other.filter(|other| other.file == slot.file)
        };
        Self { height, slot, before: at.checked_sub(1).and_then(other), behind: other(at + 1) }
    }

    /// Checks where a record begins and ends; returns the fault, if any. `begin` is the offset after the
    /// record's head, and `of` returns the same offset for its neighbours.
    fn fault(
        &self,
        holds: ExpectedFolder<'_>,
        (begin, end): (u32, u64),
        length: u64,
        of: fn(&BlockSlot) -> u32,
    ) -> Option<String> {
        let behind = self.behind.map(of).filter(|behind| *behind > begin);
        let is_dense = holds.whole;
        let limit = match behind {
            Some(behind) if is_dense => u64::from(behind) - HEAD,
            _ => length,
        };
        let is_first = self.before.map_or(0, of) == 0;
        if is_dense && is_first && u64::from(begin) != HEAD {
            Some(format!("there is unexpected data before it, up to byte {begin}"))
        } else if is_dense && end != limit {
            Some(format!("its record ends at byte {end}, not at {limit}"))
        } else if end > limit {
            Some(format!("its record ends at byte {end}, after the limit {limit}"))
        } else {
            None
        }
    }
}

impl PartReader {
    /// Starts with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the blocks at these positions in the folder's order, all in one file.
    pub(super) fn check(
        &mut self,
        all: &BlocksReadBack<'_>,
        places: Range<usize>,
    ) -> Result<PartRead, ReadBackError> {
        let mut found = PartRead::default();
        let slots = || all.order[places.clone()].iter().map(|height| all.index.slot(*height));
        let Some(first) = slots().next() else { return Ok(found) };
        let blocks = RecordFile::open(all.path(files::file_name(first.file)))?;
        let undo = match slots().any(|slot| slot.undo > 0) {
            true => Some(RecordFile::open(all.path(rev::file_name(first.file)))?),
            false => None,
        };
        forget(&blocks.file, slots().map(|slot| slot.data));
        if let Some(undo) = &undo {
            forget(&undo.file, slots().map(|slot| slot.undo).filter(|at| *at > 0));
        }
        for at in places.clone() {
            let place = RecordPlace::of(all, at);
            found.blocks += 1;
            found.bytes += self.check_block(all, &place, &blocks)?;
            if let Some(undo) = undo.as_ref().filter(|_| place.slot.undo > 0) {
                found.undo += 1;
                found.bytes += self.check_undo(all, &place, undo)?;
                found.undo_coins += self.inputs.iter().map(|inputs| *inputs as u64).sum::<u64>();
            }
        }
        Ok(found)
    }

    /// Reads and checks a block; returns the length of its record.
    fn check_block(
        &mut self,
        all: &BlocksReadBack<'_>,
        place: &RecordPlace<'_>,
        file: &RecordFile,
    ) -> Result<u64, ReadBackError> {
        let (height, offset) = (place.height, u64::from(place.slot.data));
        let wrong = |what: String| {
            Err(ReadBackError::place(&file.path, offset, &format!("block {height}"), &what))
        };
        let size = match file.record_size(offset, all)? {
            Some(size) if BLOCK_SIZES.contains(&size) => size,
            Some(size) => return wrong(format!("its record has the impossible size {size}")),
            None => return wrong("there is no record".to_owned()),
        };
        let span = (place.slot.data, offset + u64::from(size));
        let fault = place.fault(all.written.holds, span, file.length, |slot| slot.data);
        if let Some(what) = fault {
            return wrong(what);
        }
        self.block.resize(size as usize, 0);
        file.read(&mut self.block, offset, all.key)?;
        self.inputs.clear();
        self.outpoints.clear();
        if height == 0 {
            if self.block != all.written.params.genesis_block() {
                return wrong("it is not the chain's genesis block".to_owned());
            }
            return Ok(HEAD + u64::from(size));
        }
        let block = match self.checker.check(&self.block, &(all.written.context)(height)) {
            Ok(block) => block,
            Err(error) => return wrong(format!("it is not that block: {error}")),
        };
        let length = block.view().raw().len();
        if length != size as usize {
            return wrong(format!("its record has {size} bytes, but the block has {length}"));
        }
        let txs = block.view().tx_count();
        if txs != place.slot.tx_count as usize {
            let stated = place.slot.tx_count;
            return wrong(format!("it has {txs} transactions, but the block index says {stated}"));
        }
        self.inputs.extend(block.view().txs().skip(1).map(|tx| tx.inputs().count()));
        let inputs = block.view().txs().skip(1).flat_map(|tx| tx.inputs());
        self.outpoints.extend(inputs.map(|input| OutPoint::from_bytes(input.outpoint())));
        Ok(HEAD + u64::from(size))
    }

    /// Reads and checks the undo data of the block read last; returns the length of the undo record.
    fn check_undo(
        &mut self,
        all: &BlocksReadBack<'_>,
        place: &RecordPlace<'_>,
        file: &RecordFile,
    ) -> Result<u64, ReadBackError> {
        let (height, offset) = (place.height, u64::from(place.slot.undo));
        let wrong = |what: String| {
            Err(ReadBackError::place(
                &file.path,
                offset,
                &format!("the undo data of block {height}"),
                &what,
            ))
        };
        let Some(size) = file.record_size(offset, all)? else {
            return wrong("there is no record".to_owned());
        };
        let size = size as usize;
        let coins: usize = self.inputs.iter().sum();
        if size > (coins + self.inputs.len() + 1) * (MAX_SCRIPT_SIZE + UNDO_COIN_REST) {
            return wrong(format!(
                "the record claims {size} bytes, more than {coins} coins can take"
            ));
        }
        let span = (place.slot.undo, offset + (size + CHECKSUM) as u64);
        let fault = place.fault(all.written.holds, span, file.length, |slot| slot.undo);
        if let Some(what) = fault {
            return wrong(what);
        }
        self.undo.resize(size + CHECKSUM, 0);
        file.read(&mut self.undo, offset, all.key)?;
        let (undo, sum) = self.undo.split_at(size);
        let prev = height
            .checked_sub(1)
            .map_or(BlockHash::ZERO, |height| (all.written.context)(height).hash);
        let mut hash = Sha256::new();
        hash.update(&prev.0);
        hash.update(undo);
        if sum != sha256(&hash.finalize()) {
            return wrong("the checksum does not match".to_owned());
        }
        let undo = match BlockUndo::read(undo) {
            Ok(undo) => undo,
            Err(error) => return wrong(format!("they cannot be read: {error}")),
        };
        let txs = self.inputs.len() + 1;
        if undo.tx_count() != txs {
            return wrong(format!("they cover {} transactions, not {txs}", undo.tx_count()));
        }
        for (tx, inputs) in (1..).zip(&self.inputs) {
            let coins = undo.spent_by(tx).map_or(0, <[_]>::len);
            if coins != *inputs {
                let what = format!("transaction {tx} has {inputs} inputs but {coins} coins");
                return wrong(what);
            }
        }
        if let Some(spent_at) = all.written.spent {
            let Some(spent) = spent_at(height) else {
                return wrong("the sum of the coins that the block spent is unknown".to_owned());
            };
            let mut adder = CoinAdder::new(spent.key);
            for (outpoint, coin) in self.outpoints.iter().zip(undo.coins()) {
                self.coin.clear();
                coin.write_stored(&mut self.coin);
                adder.add(outpoint, &self.coin);
            }
            if adder.sum() != spent.sum {
                return wrong("they do not match the coins that the block spent".to_owned());
            }
        }
        Ok(HEAD + self.undo.len() as u64)
    }
}

/// Asks the system to drop the cached pages between the lowest and the highest of these offsets, so that the
/// next read comes from the disk. Only a hint.
#[cfg(target_os = "linux")]
fn forget(file: &File, offsets: impl Iterator<Item = u32> + Clone) {
    use core::num::NonZeroU64;
    use rustix::fs::{Advice, fadvise};
    let (least, most) = (offsets.clone().min(), offsets.max());
    if let (Some(least), Some(most)) = (least, most) {
        // Include the last record, which is rarely longer than this.
        let length = NonZeroU64::new(u64::from(most - least) + (4 << 20));
        let _ = fadvise(file, u64::from(least), length, Advice::DontNeed);
    }
}

/// Other systems may read from their cache.
#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: impl Iterator<Item = u32> + Clone) {}
