//! [`BlocksReadBack`]: reads a newly written `blocks` folder back from the disk and compares it
//! with the chain that it should hold.
//!
//! The check takes nothing from the writers, not even positions, except one number per block: the
//! sum of the coins that it spent, computed from the coins when it was connected.
//!
//! - The index is read through another implementation of LevelDB. It must name every block of the
//!   chain and nothing else.
//! - At the position in the index, the file must have a block that hashes to the entry's name and passes
//!   every rule that needs no coins. This ties each of the block's bytes to the header, through the merkle
//!   root or the witness commitment.
//! - At the stated position of undo data, the undo file must have a record with the checksum of that block,
//!   and for each transaction as many coins as the transaction has inputs. These coins, under the outpoints
//!   of those inputs, must have the sum of the coins that the block spent.
//! - The lengths of files, on disk and in the index, must follow from these records.
//!
//! This code shares only the rules of a block and the plain encodings of numbers and coins with the writers.
//!
//! It first drops pages still in the system's cache, if the system allows it, so that the compared data comes
//! from the disk.

mod index;
mod part;
#[cfg(test)]
mod tests;

pub use part::{PartRead, PartReader};

use crate::files::{self, Obfuscation};
use crate::independent::IndependentReadError;
use crate::rev;
use apus_chain::{BlockContext, KeyedCoinSum, Params};
use core::ops::ControlFlow;
use index::WrittenIndex;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The most bytes of blocks in a part, unless a single block is larger.
const PART_BYTES: u32 = 8 << 20;

/// The expected content of a `blocks` folder, without its index.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedFolder<'a> {
    /// The height of the first stored block. Blocks below were pruned.
    pub first: u32,
    /// If blocks were pruned: the number of transactions that the index should state for each
    /// block, by height.
    pub tx_counts: Option<&'a [u32]>,
    /// Whether all blocks have undo data and the files have no other bytes.
    pub whole: bool,
}

impl ExpectedFolder<'_> {
    /// Returns whether the block at this height is not stored, so that only its index entry exists.
    fn lacks(&self, height: u32) -> bool {
        height < self.first
    }
}

/// Returns the sum of the coins that the block at a height spent, recorded when it was connected; `None` if
/// unknown.
pub type SpentAt<'a> = dyn Fn(u32) -> Option<KeyedCoinSum> + Sync + 'a;

/// The facts about a `blocks` folder that the chain provides.
#[derive(Clone, Copy)]
pub struct WrittenBlocks<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// The chain's rules.
    pub params: &'a Params,
    /// The number of blocks: heights from 0 up to this, exclusive.
    pub blocks: u32,
    /// The expected content of the folder.
    pub holds: ExpectedFolder<'a>,
    /// Facts about the block at a height, first of all its hash.
    pub context: &'a (dyn Fn(u32) -> BlockContext<'a> + Sync),
    /// The expected sums of the undo data; `None` if the folder has no undo data.
    pub spent: Option<&'a SpentAt<'a>>,
}

/// A folder whose index has been read back and checked. Any number of threads can check its parts, in any
/// order.
pub struct BlocksReadBack<'a> {
    written: WrittenBlocks<'a>,
    key: Obfuscation,
    index: WrittenIndex,
    /// Heights in the order of the blocks on disk.
    order: Vec<u32>,
    /// The position in `order` at which each part begins.
    parts: Vec<usize>,
}

impl<'a> BlocksReadBack<'a> {
    /// Reads the index, and compares it with the chain and with the names and lengths of the files.
    /// Takes 20 bytes of memory per block. `reached` gets the number of entries read so far, and
    /// may cancel: then the result is `None`.
    ///
    /// # Errors
    /// [`ReadBackError`] if anything is missing, different, or superfluous.
    pub fn open(
        written: WrittenBlocks<'a>,
        reached: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Self>, ReadBackError> {
        let Some(index) = WrittenIndex::read(&written, reached)? else { return Ok(None) };
        expect_files(&written, &index)?;
        let key = read_key(&written.folder.join(KEY_FILE))?;
        let mut order: Vec<u32> = (written.holds.first..written.blocks).collect();
        order.sort_unstable_by_key(|height| index.slot(*height).place());
        let mut parts = Vec::new();
        let mut begun = None;
        for (at, height) in order.iter().enumerate() {
            let (file, offset) = index.slot(*height).place();
            match begun {
                Some((same, start)) if same == file && offset - start < PART_BYTES => {}
                _ => {
                    parts.push(at);
                    begun = Some((file, offset));
                }
            }
        }
        Ok(Some(Self { written, key, index, order, parts }))
    }

    /// The number of entries in the index.
    pub fn index_entries(&self) -> u64 {
        self.index.entries
    }

    /// The number of blocks in the folder.
    pub fn blocks(&self) -> u64 {
        self.order.len() as u64
    }

    /// The number of transactions in the blocks, according to the index.
    pub fn transactions(&self) -> u64 {
        self.index.transactions
    }

    /// The number of consecutive blocks with undo data at the end of the chain.
    pub fn undo_at_end(&self) -> u64 {
        self.index.slots.iter().rev().take_while(|slot| slot.undo > 0).count() as u64
    }

    /// The number of parts.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The total length of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.index.files.iter().map(|file| file.blocks_bytes + file.undo_bytes).sum()
    }

    /// Reads the blocks of a part with their undo data, and checks them.
    ///
    /// # Errors
    /// [`ReadBackError`] for the first faulty block in the file.
    ///
    /// # Panics
    /// If the folder has no such part.
    pub fn check(&self, part: usize, reader: &mut PartReader) -> Result<PartRead, ReadBackError> {
        let end = self.parts.get(part + 1).copied().unwrap_or(self.order.len());
        reader.check(self, self.parts[part]..end)
    }

    fn path(&self, name: String) -> PathBuf {
        self.written.folder.join(name)
    }
}

const KEY_FILE: &str = "xor.dat";

fn read_key(path: &Path) -> Result<Obfuscation, ReadBackError> {
    let length = fs::metadata(path).map_err(ReadBackError::io(path, 0))?.len();
    let wrong =
        || ReadBackError::folder(path, &format!("the file has {length} bytes, but a key has 8"));
    if length != Obfuscation::KEY_SIZE as u64 {
        return Err(wrong());
    }
    let bytes = fs::read(path).map_err(ReadBackError::io(path, 0))?;
    Ok(Obfuscation::new(bytes.try_into().map_err(|_| wrong())?))
}

/// Fails unless the folder contains exactly the files that the index lists, with these lengths.
fn expect_files(written: &WrittenBlocks<'_>, index: &WrittenIndex) -> Result<(), ReadBackError> {
    let dir = written.folder;
    let count = index.files.len();
    for entry in fs::read_dir(dir).map_err(ReadBackError::io(dir, 0))? {
        let entry = entry.map_err(ReadBackError::io(dir, 0))?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let number = files::file_number(name).or_else(|| rev::file_number(name));
        let belongs = match number {
            Some(number) => (number as usize) < count,
            None => !written.holds.whole || [KEY_FILE, "index"].contains(&name),
        };
        if !belongs {
            return Err(ReadBackError::folder(&entry.path(), "it does not belong there"));
        }
    }
    for (number, file) in (0..).zip(&index.files) {
        let blocks = (files::file_name(number), file.blocks_bytes);
        for (name, length) in [blocks, (rev::file_name(number), file.undo_bytes)] {
            let path = dir.join(name);
            let found = match fs::metadata(&path) {
                Ok(meta) => meta.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound && length == 0 => 0,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(ReadBackError::folder(&path, "it is missing"));
                }
                Err(error) => return Err(ReadBackError::io(&path, 0)(error)),
            };
            if found != length {
                let what = format!("it has {found} bytes, but the block index says {length}");
                return Err(ReadBackError::folder(&path, &what));
            }
        }
    }
    Ok(())
}

/// A difference between a `blocks` folder and its expected content. The caller, which wrote the folder, adds
/// what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ReadBackError {
    /// The independent reader could not read the index.
    #[error("cannot read the block index back: {0}")]
    Independent(#[from] IndependentReadError),
    /// The index has wrong content.
    #[error("the block index {path} was read back and is wrong: {what}")]
    Index {
        /// The folder of the index.
        path: PathBuf,
        /// The difference, with its block or file.
        what: String,
    },
    /// A file is missing or superfluous, or has the wrong length or content.
    #[error("{0}")]
    Files(String),
    /// The system failed to read.
    #[error("cannot read {path} at byte {offset}: {source}. Check the disk")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The offset at which the read began.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
}

impl ReadBackError {
    /// Returns whether only the index is affected: blocks and undo data may be fine.
    pub fn is_about_index(&self) -> bool {
        matches!(self, Self::Independent(_) | Self::Index { .. })
    }

    fn folder(path: &Path, what: &str) -> Self {
        Self::Files(format!("{} was checked after writing: {what}", path.display()))
    }

    /// Reports that the index is wrong about a file: `of` names what it claims to be at this offset.
    fn place(path: &Path, offset: u64, of: &str, what: &str) -> Self {
        let path = path.display();
        Self::Files(format!("{path} was read back at byte {offset}, where {of} should be: {what}"))
    }

    fn io(path: &Path, offset: u64) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, offset, source }
    }
}
