//! [`BlocksReadBack`]: a `blocks` folder that was written, read once more from the disk and compared
//! with the chain that it is to hold.
//!
//! Nothing is taken from the writers, not even where they put what, save one number for each block:
//! the sum of the coins that it spent, computed from the coins when it was connected. The index is
//! read through another implementation of LevelDB; it has to name every block of the chain and
//! nothing else. Where it says that a block lies has to be one that hashes to the name and passes
//! every rule that needs no coins, so that each of its bytes is bound to the header: by the merkle
//! root or by the commitment to witnesses. Where it says that undo data lie has to be a record with
//! the checksum of that block's, of as many coins for each transaction as it has inputs, and these
//! coins, under the names that its inputs give them, have to have the sum of those that it spent.
//! Lengths of files, and what the index says of them, have to be those that follow.
//!
//! What is shared with the writers are the rules of a block and the plain forms of numbers and coins.
//!
//! Pages that the system still has are dropped before, where it lets itself be asked, so that what is
//! compared comes from the disk.

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

/// A part is no longer than this in bytes of blocks, or one block.
const PART_BYTES: u32 = 8 << 20;

/// What a `blocks` folder is to hold beside its index.
#[derive(Debug, Clone, Copy)]
pub struct Holds<'a> {
    /// The height of the first block that is there. Those below were pruned.
    pub first: u32,
    /// Where blocks were pruned, what the index is to say of the numbers of transactions of all blocks,
    /// by height.
    pub tx_counts: Option<&'a [u32]>,
    /// Whether all blocks have undo data, and not a byte is in the folder beyond.
    pub whole: bool,
}

impl Holds<'_> {
    /// Whether a block at this height is not there, but for what the index says of it.
    fn lacks(&self, height: u32) -> bool {
        height < self.first
    }
}

/// The sum of the coins that the block at a height spent, from when it was connected; none where it
/// is not known.
pub type SpentAt<'a> = dyn Fn(u32) -> Option<KeyedCoinSum> + Sync + 'a;

/// What is known of a `blocks` folder from the chain.
#[derive(Clone, Copy)]
pub struct WrittenBlocks<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// The chain's rules.
    pub params: &'a Params,
    /// How many blocks: the heights from 0 up to this, exclusive.
    pub blocks: u32,
    /// What lies in it.
    pub holds: Holds<'a>,
    /// What is known of the block at a height, first of all its hash.
    pub context: &'a (dyn Fn(u32) -> BlockContext<'a> + Sync),
    /// What the undo data have to come to; none where there are none.
    pub spent: Option<&'a SpentAt<'a>>,
}

/// A folder whose index was read back. What is left to do are its parts, in any order and by any number
/// of threads.
pub struct BlocksReadBack<'a> {
    written: WrittenBlocks<'a>,
    key: Obfuscation,
    index: WrittenIndex,
    /// Heights in the order in which their blocks lie.
    order: Vec<u32>,
    /// Where in `order` each part begins.
    parts: Vec<usize>,
}

impl<'a> BlocksReadBack<'a> {
    /// Reads the index, and compares it with the chain and with the names and lengths of the files.
    /// Takes 20 bytes of memory a block. `reached` is told how many entries were read, and may break it
    /// off: then there is nothing.
    ///
    /// # Errors
    /// [`ReadBackError`] if anything is missing, different, or too much.
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

    /// How many entries the index has.
    pub fn index_entries(&self) -> u64 {
        self.index.entries
    }

    /// How many blocks the folder has.
    pub fn blocks(&self) -> u64 {
        self.order.len() as u64
    }

    /// How many transactions the blocks have, by the index.
    pub fn transactions(&self) -> u64 {
        self.index.transactions
    }

    /// How many blocks at the end have undo data, one after the other.
    pub fn undo_at_end(&self) -> u64 {
        self.index.slots.iter().rev().take_while(|slot| slot.undo > 0).count() as u64
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.index.files.iter().map(|file| file.blocks_bytes + file.undo_bytes).sum()
    }

    /// Reads the blocks of a part with their undo data, and compares.
    ///
    /// # Errors
    /// [`ReadBackError`] for the first block in the file that is not as it should be.
    ///
    /// # Panics
    /// When there is no such part.
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
    let wrong = || ReadBackError::folder(path, &format!("it has {length} bytes, which is no key"));
    if length != Obfuscation::KEY_SIZE as u64 {
        return Err(wrong());
    }
    let bytes = fs::read(path).map_err(ReadBackError::io(path, 0))?;
    Ok(Obfuscation::new(bytes.try_into().map_err(|_| wrong())?))
}

/// Fails unless the folder has the files that the index tells of, of these lengths, and no other.
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
                    return Err(ReadBackError::folder(&path, "it is not there"));
                }
                Err(error) => return Err(ReadBackError::io(&path, 0)(error)),
            };
            if found != length {
                let what = format!("it has {found} bytes, and {length} by the block index");
                return Err(ReadBackError::folder(&path, &what));
            }
        }
    }
    Ok(())
}

/// In what a `blocks` folder differs from what it is to hold. The caller, which made the folder,
/// says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ReadBackError {
    /// The index could not be read by the code that reads back.
    #[error("the block index was read back: {0}")]
    Independent(#[from] IndependentReadError),
    /// The index says something else than it should.
    #[error("the block index {path} was read back, and {what}")]
    Index {
        /// The folder of the index.
        path: PathBuf,
        /// In what it differs, with block or file.
        what: String,
    },
    /// A file is missing, too much, or of another length, or has not where it should what it should.
    #[error("{0}")]
    Files(String),
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl ReadBackError {
    /// Whether it is about the index alone, and blocks and undo data may be as they should.
    pub fn is_about_index(&self) -> bool {
        matches!(self, Self::Independent(_) | Self::Index { .. })
    }

    fn folder(path: &Path, what: &str) -> Self {
        Self::Files(format!("{} was looked at once more, and {what}", path.display()))
    }

    /// What the index says of the content of a file is not so: `of` is whose place it was to be.
    fn place(path: &Path, offset: u64, of: &str, what: &str) -> Self {
        let path = path.display();
        Self::Files(format!(
            "{path} was read back at byte {offset}, where {of} should lie, and {what}"
        ))
    }

    fn io(path: &Path, offset: u64) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, offset, source }
    }
}
