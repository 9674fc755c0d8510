//! [`UndoFiles`]: the undo data in the `revNNNNN.dat` files of a `blocks` folder.
//!
//! A record is magic, size, undo data, checksum (Core `node/blockstorage.cpp`, `WriteBlockUndo`),
//! and lies in the file with the number of its block's. Where in it, the block index tells, or a search.
//! The checksum covers the hash of the block before, so data of another block is
//! noticed. What the data mean is not looked at.

mod search;

pub use search::has_undo_file;

use crate::error::{BlkError, ErrorKind};
use crate::files::{RECORD_HEAD, read_key};
use crate::obfuscation::Obfuscation;
use apus_chain::{BlockHash, undo_checksum};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes behind the undo data: their checksum.
pub(crate) const CHECKSUM: u64 = 32;

/// Why undo data could not be read. Offsets are those of the data, behind magic and size.
#[derive(Debug, thiserror::Error)]
pub enum RevError {
    /// The key beside the files could not be read.
    #[error(transparent)]
    Key(#[from] BlkError),
    /// A file is not there, or cannot be opened.
    #[error(
        "cannot open {path}, which should hold undo data at byte {offset}: {source}; it was \
         pruned, or may not be read"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Where the data should begin.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the data begin.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What lies there is no undo data of that block.
    #[error(
        "{path} is damaged at byte {offset}, or undo data never were there: {what}; the blocks can \
         be connected again without them"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the data should begin.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

impl RevError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Key(error) => error.kind(),
            Self::Open { .. } => ErrorKind::Recoverable,
            Self::Read { .. } => ErrorKind::Fatal,
            Self::Damaged { .. } => ErrorKind::Invalid,
        }
    }
}

/// The undo files of one folder, one of them open.
#[derive(Debug)]
pub struct UndoFiles {
    dir: PathBuf,
    magic: [u8; 4],
    obfuscation: Obfuscation,
    /// The file read last.
    open: Option<(u32, PathBuf, File)>,
}

impl UndoFiles {
    /// The undo files in `dir`, whose records begin with `magic`. Looks at `xor.dat` alone.
    pub fn open(dir: &Path, magic: [u8; 4]) -> Result<Self, RevError> {
        let obfuscation = read_key(&dir.join("xor.dat"))?;
        Ok(Self { dir: dir.to_owned(), magic, obfuscation, open: None })
    }

    /// The undo data at byte `offset` of file number `file` as they lie there, for
    /// [`BlockUndo`](apus_chain::BlockUndo) to read. `prev` is the block before the one that they
    /// are of. No more memory is taken than the file is long.
    pub fn read(&mut self, file: u32, offset: u64, prev: &BlockHash) -> Result<Vec<u8>, RevError> {
        let (path, handle) = match self.open.take() {
            Some((open, path, handle)) if open == file => (path, handle),
            _ => self.open_file(file, offset)?,
        };
        let undo = self.read_in(&path, &handle, offset, prev);
        self.open = Some((file, path, handle));
        undo
    }

    /// Where the record of the undo data at byte `offset` of a file ends, by its size; none where no record lies
    /// there.
    pub fn end(&self, file: u32, offset: u64) -> Option<u64> {
        let (_, handle) = self.open_file(file, offset).ok()?;
        let start = offset.checked_sub(RECORD_HEAD)?;
        let mut head = [0; RECORD_HEAD as usize];
        handle.read_exact_at(&mut head, start).ok()?;
        self.obfuscation.apply(&mut head, start);
        let (magic, size) = head.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size.first_chunk()?);
        (*magic == self.magic).then(|| offset + u64::from(size) + CHECKSUM)
    }

    /// Length of a file; none where it is not there.
    pub fn length(&self, file: u32) -> Option<u64> {
        Some(std::fs::metadata(self.dir.join(file_name(file))).ok()?.len())
    }

    fn open_file(&self, number: u32, offset: u64) -> Result<(PathBuf, File), RevError> {
        let path = self.dir.join(file_name(number));
        match File::open(&path) {
            Ok(handle) => Ok((path, handle)),
            Err(source) => Err(RevError::Open { path, offset, source }),
        }
    }

    fn read_in(
        &self,
        path: &Path,
        handle: &File,
        offset: u64,
        prev: &BlockHash,
    ) -> Result<Vec<u8>, RevError> {
        let damaged = |what: String| RevError::Damaged { path: path.to_owned(), offset, what };
        let reading = |source| RevError::Read { path: path.to_owned(), offset, source };
        // Asked each time: the file of a node at work grows.
        let length = handle.metadata().map_err(reading)?.len();
        let Some(start) = offset.checked_sub(RECORD_HEAD).filter(|_| offset <= length) else {
            return Err(damaged(format!("no record can lie there in a file of {length} bytes")));
        };
        let mut head = [0; RECORD_HEAD as usize];
        handle.read_exact_at(&mut head, start).map_err(reading)?;
        self.obfuscation.apply(&mut head, start);
        let [m0, m1, m2, m3, size @ ..] = head;
        if [m0, m1, m2, m3] != self.magic {
            return Err(damaged("there is no record".to_owned()));
        }
        let size = u32::from_le_bytes(size);
        let whole = u64::from(size) + CHECKSUM;
        if whole > length - offset {
            let left = length - offset;
            return Err(damaged(format!(
                "{size} bytes are claimed and a checksum, {left} are left"
            )));
        }
        let mut undo = vec![0; whole as usize];
        handle.read_exact_at(&mut undo, offset).map_err(reading)?;
        self.obfuscation.apply(&mut undo, offset);
        let sum = undo.split_off(size as usize);
        if sum != undo_checksum(prev, &undo) {
            return Err(damaged(format!("the checksum is of other data than behind block {prev}")));
        }
        Ok(undo)
    }
}

/// Name of an undo file (Core `flatfile.cpp`).
pub(crate) fn file_name(number: u32) -> String {
    format!("rev{number:05}.dat")
}

/// The number in a name that Core would give to an undo file.
pub(crate) fn file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("rev")?.strip_suffix(".dat")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{KEY, MAGIC, fixtures};
    use apus_chain::{BlockUndo, Header, Network};
    use core::ops::ControlFlow;
    use std::fs;

    const PREV: BlockHash = BlockHash([7; 32]);

    /// A folder with one record in file 3; the data begin at byte 13.
    fn folder(change: impl Fn(&mut Vec<u8>)) -> (tempfile::TempDir, UndoFiles) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = vec![0xee; 5];
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&3u32.to_le_bytes());
        bytes.extend_from_slice(b"abc");
        bytes.extend_from_slice(&undo_checksum(&PREV, b"abc"));
        change(&mut bytes);
        Obfuscation::new(KEY).apply(&mut bytes, 0);
        fs::write(dir.path().join("rev00003.dat"), bytes).unwrap();
        fs::write(dir.path().join("xor.dat"), KEY).unwrap();
        let files = UndoFiles::open(dir.path(), MAGIC).unwrap();
        (dir, files)
    }

    #[test]
    fn a_record_is_read_where_it_lies_and_nowhere_else() {
        let (dir, mut files) = folder(|_| ());
        assert_eq!(files.read(3, 13, &PREV).unwrap(), b"abc");
        for offset in [0, 7, 8, 12, 14, 48, 49, u64::MAX] {
            let error = files.read(3, offset, &PREV).unwrap_err();
            assert!(matches!(error, RevError::Damaged { .. }), "{error}");
        }
        let error = files.read(3, 13, &BlockHash([8; 32])).unwrap_err();
        assert!(error.to_string().contains("rev00003.dat is damaged at byte 13"), "{error}");
        assert!(matches!(files.read(4, 13, &PREV), Err(RevError::Open { .. })));
        // A failed read of another file does no harm.
        assert_eq!(files.read(3, 13, &PREV).unwrap(), b"abc");
        fs::write(dir.path().join("xor.dat"), b"short").unwrap();
        assert!(matches!(UndoFiles::open(dir.path(), MAGIC), Err(RevError::Key(_))));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        for bit in 5 * 8..(13 + 3 + 32) * 8 {
            let (_dir, mut files) = folder(|bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let error = files.read(3, 13, &PREV).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        for length in 0..48 {
            let (_dir, mut files) = folder(|bytes| bytes.truncate(length));
            assert!(files.read(3, 13, &PREV).is_err());
        }
    }

    #[test]
    fn a_nodes_undo_data_are_all_read() {
        let blocksdir = fixtures().join("regtest-315/regtest/blocks");
        let mut files = UndoFiles::open(&blocksdir, Network::Regtest.magic()).unwrap();
        let mut coins = 0;
        crate::read_index(&blocksdir, &mut |entry| {
            if let Some((file, offset)) = entry.undo {
                let prev = Header::parse(&entry.header).prev;
                let undo = files.read(file, offset, &prev).unwrap();
                let undo = BlockUndo::read(&undo).unwrap();
                assert_eq!(undo.tx_count(), entry.tx_count as usize);
                coins += undo.coins().len();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(coins, 10, "what the chain spends");
    }
}
