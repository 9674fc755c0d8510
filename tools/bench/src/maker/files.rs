//! [`ChainFolder`]: the files of a chain in the making, removed unless it is finished.
//!
//! Block files have Bitcoin Core's layout (`node/blockstorage.cpp`): records of magic, size and block, a new
//! file when one would reach 128 MiB, all XORed with a key by offset in the file. There is neither an index
//! nor undo data.

use super::ChainOutput;
use super::build::BuiltBlock;
use crate::error::{AtPath, BenchError};
use crate::manifest;
use apus_chain::{Network, Params};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Core `node/blockstorage.h`, `MAX_BLOCKFILE_SIZE`.
const FILE_BYTES_MAX: usize = 0x0800_0000;

/// Name of the file of headers, which follow each other from the genesis block's on, 80 bytes each.
pub(super) const HEADERS_NAME: &str = "headers.dat";

/// Whether the folder of a chain has this output.
pub(super) fn has(folder: &Path, output: ChainOutput) -> bool {
    match output {
        ChainOutput::Files => folder.join("blocks").is_dir(),
        ChainOutput::Headers => folder.join(HEADERS_NAME).is_file(),
    }
}

/// A folder that is removed with its new files, unless it is [kept](Self::keep).
pub(super) struct ChainFolder {
    folder: PathBuf,
    /// The paths to remove; all were created here.
    ours: Vec<PathBuf>,
}

impl ChainFolder {
    /// Creates the folder, or uses an existing empty one.
    pub(super) fn create(folder: &Path, output: ChainOutput) -> Result<Self, BenchError> {
        let mut this = Self { folder: folder.to_owned(), ours: Vec::new() };
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        if let Some(topmost) = folder.ancestors().take_while(is_missing).last() {
            this.ours.push(topmost.to_owned());
            fs::create_dir_all(folder).at(folder)?;
        }
        let mut entries = fs::read_dir(folder).at(folder)?;
        if entries.next().is_some() {
            return Err(BenchError::usage(format_args!(
                "{} is not empty, and its contents are not a chain with these arguments: use another folder, or remove it",
                folder.display()
            )));
        }
        let names =
            ["blocks", HEADERS_NAME, "chain.hints", manifest::DRAFT_NAME, manifest::FILE_NAME];
        this.ours.extend(names.map(|name| folder.join(name)));
        if output == ChainOutput::Files {
            let blocks = this.blocks();
            fs::create_dir(&blocks).at(&blocks)?;
        }
        Ok(this)
    }

    fn headers(&self) -> PathBuf {
        self.folder.join(HEADERS_NAME)
    }

    pub(super) fn blocks(&self) -> PathBuf {
        self.folder.join("blocks")
    }

    pub(super) fn hints(&self) -> PathBuf {
        self.folder.join("chain.hints")
    }

    /// Marks the chain as complete.
    pub(super) fn keep(mut self) {
        self.ours.clear();
    }
}

impl Drop for ChainFolder {
    fn drop(&mut self) {
        for path in self.ours.iter().rev() {
            // Leftovers are harmless: without a manifest they are not a chain.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// The output of a chain being written.
pub(super) enum ChainWriter {
    Files(BlockFileWriter),
    Headers(PathBuf, BufWriter<File>),
}

impl ChainWriter {
    /// Starts with the genesis block: a node that reads files without an index needs it first.
    pub(super) fn create(
        chain: &ChainFolder,
        output: ChainOutput,
        key: [u8; 8],
    ) -> Result<Self, BenchError> {
        let params = Params::of(Network::Regtest);
        match output {
            ChainOutput::Files => {
                let magic = Network::Regtest.magic();
                let mut files = BlockFileWriter::create(&chain.blocks(), magic, key)?;
                files.put(&params.genesis_block())?;
                Ok(Self::Files(files))
            }
            ChainOutput::Headers => {
                let path = chain.headers();
                let mut file = BufWriter::new(File::create(&path).at(&path)?);
                file.write_all(&params.genesis_header.to_bytes()).at(&path)?;
                Ok(Self::Headers(path, file))
            }
        }
    }

    /// Adds the next block.
    pub(super) fn put(&mut self, block: &BuiltBlock) -> Result<(), BenchError> {
        match self {
            Self::Files(files) => files.put(&block.bytes),
            Self::Headers(path, file) => file.write_all(block.header()).at(path),
        }
    }

    /// Syncs everything to disk.
    pub(super) fn finish(self) -> Result<(), BenchError> {
        match self {
            Self::Files(files) => files.finish(),
            Self::Headers(path, file) => {
                let file = file.into_inner().map_err(|error| error.into_error()).at(&path)?;
                file.sync_all().at(&path)
            }
        }
    }
}

/// Block files being written.
pub(super) struct BlockFileWriter {
    folder: PathBuf,
    magic: [u8; 4],
    key: [u8; 8],
    number: usize,
    path: PathBuf,
    file: File,
    offset: usize,
    record: Vec<u8>,
    file_bytes_max: usize,
}

impl BlockFileWriter {
    /// Starts the first file, and writes the key into `xor.dat`.
    pub(super) fn create(folder: &Path, magic: [u8; 4], key: [u8; 8]) -> Result<Self, BenchError> {
        let xor = folder.join("xor.dat");
        fs::write(&xor, key).at(&xor)?;
        let path = path_of(folder, 0);
        Ok(Self {
            folder: folder.to_owned(),
            magic,
            key,
            number: 0,
            file: File::create(&path).at(&path)?,
            path,
            offset: 0,
            record: Vec::new(),
            file_bytes_max: FILE_BYTES_MAX,
        })
    }

    /// Adds a block.
    pub(super) fn put(&mut self, block: &[u8]) -> Result<(), BenchError> {
        if self.offset > 0 && self.offset + 8 + block.len() >= self.file_bytes_max {
            self.next_file()?;
        }
        self.record.clear();
        self.record.extend(self.magic);
        self.record.extend((block.len() as u32).to_le_bytes());
        self.record.extend_from_slice(block);
        xor(&mut self.record, self.key, self.offset);
        self.file.write_all(&self.record).at(&self.path)?;
        self.offset += self.record.len();
        Ok(())
    }

    fn next_file(&mut self) -> Result<(), BenchError> {
        self.file.sync_data().at(&self.path)?;
        self.number += 1;
        self.path = path_of(&self.folder, self.number);
        self.file = File::create(&self.path).at(&self.path)?;
        self.offset = 0;
        Ok(())
    }

    /// Syncs everything to disk.
    pub(super) fn finish(self) -> Result<(), BenchError> {
        self.file.sync_data().at(&self.path)?;
        sync_names(&self.folder)
    }
}

/// Makes a folder's entries durable.
pub(super) fn sync_names(folder: &Path) -> Result<(), BenchError> {
    File::open(folder).and_then(|folder| folder.sync_all()).at(folder)
}

fn path_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("blk{number:05}.dat"))
}

fn xor(bytes: &mut [u8], mut key: [u8; 8], offset: usize) {
    key.rotate_left(offset % 8);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_le_bytes(*word) ^ u64::from_le_bytes(key)).to_le_bytes();
    }
    rest.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use apus_testkit::blkfile;
    use apus_testkit::chain::{ChainBuilder, Shape};
    use bitcoin::consensus::serialize;
    use proptest::prelude::*;

    /// The bytes match independent code, and new files start at the same points as Core's.
    #[test]
    fn files_have_cores_layout() {
        let mut builder = ChainBuilder::new(1);
        builder.random_blocks(130, Shape::default());
        let (blocks, magic, key) = (builder.blocks(), [0xfa, 0xbf, 0xb5, 0xda], [3; 8]);
        let folder = tempfile::tempdir().unwrap();
        let mut files = BlockFileWriter::create(folder.path(), magic, key).unwrap();
        files.file_bytes_max = 30_000;
        let mut theirs = blkfile::BlockFiles::new(magic).key(key);
        let mut size = 0;
        for block in &blocks {
            let bytes = serialize(block);
            if size > 0 && size + 8 + bytes.len() >= 30_000 {
                theirs.next_file();
                size = 0;
            }
            size += 8 + bytes.len();
            theirs.record(&bytes);
            files.put(&bytes).unwrap();
        }
        files.finish().unwrap();
        let expected = theirs.contents();
        assert!(expected.len() > 2);
        for (number, content) in expected.iter().enumerate() {
            assert!(fs::read(path_of(folder.path(), number)).unwrap() == *content, "file {number}");
        }
        assert!(!path_of(folder.path(), expected.len()).exists());
        assert_eq!(fs::read(folder.path().join("xor.dat")).unwrap(), key);
    }

    #[test]
    fn a_failed_folder_leaves_no_files() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "not ours").unwrap();
        assert!(
            matches!(ChainFolder::create(&file, ChainOutput::Files), Err(error) if error.kind() == ErrorKind::Io)
        );
        assert!(
            matches!(ChainFolder::create(&file.join("below"), ChainOutput::Files), Err(error) if error.kind() == ErrorKind::Io)
        );
        assert!(file.is_file());
        assert!(
            matches!(ChainFolder::create(parent.path(), ChainOutput::Headers), Err(error) if error.kind() == ErrorKind::Usage)
        );
        assert_eq!(fs::read(&file).unwrap(), b"not ours");
    }

    proptest! {
        #[test]
        fn xor_depends_on_the_offset(bytes: Vec<u8>, key: [u8; 8], offset in 0usize..100) {
            let expected: Vec<u8> = bytes
                .iter()
                .zip(offset..)
                .map(|(byte, place)| byte ^ key[place % 8])
                .collect();
            let mut found = bytes;
            xor(&mut found, key, offset);
            prop_assert_eq!(found, expected);
        }
    }
}
