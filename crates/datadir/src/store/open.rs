//! Opens a folder: creates, resumes or refuses it.
//!
//! A folder is ours if its log matches it: its key, the length of each file, the last block in each. Opening
//! checks all of that before it changes anything. The log's head is on the disk before the folder gets its
//! first file, and a new folder must be empty, so a folder without a log was never ours. If the first block
//! is the genesis block, it is on the disk before any other block. So if the log has no record, but the
//! folder has more files, other programs made them.

use super::log::{self, BlockPlaces, LogContents, LogLookUp};
use super::state::{AppendFile, BlockStoreState, sync_names};
use super::{BlockStore, BlockStoreError, FILE_BYTES_MAX, expect_block, read_at};
use crate::files::{self, Obfuscation, RECORD_HEAD};
use crate::rev;
use apus_chain::{BlockHash, Header};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const KEY_FILE: &str = "xor.dat";

/// The parameters of a folder, new or not.
struct StoreFolder<'a> {
    dir: &'a Path,
    log: &'a Path,
    magic: [u8; 4],
    /// The genesis block, if the folder should have it.
    genesis: Option<&'a [u8]>,
    file_bytes_max: u64,
}

impl BlockStore {
    /// Creates the folder `dir`, with the genesis block in it if given, or resumes from the data that an
    /// earlier start synced. `log` is a file outside the folder that belongs to the sync: it lists the
    /// content of `dir` and proves that `dir` is ours. `magic` begins each record. `key` obfuscates the files
    /// of a new folder; an existing folder keeps its own key.
    ///
    /// # Errors
    /// [`BlockStoreError::Foreign`] if `dir` has block files without a log that lists them, or a folder
    /// `index`. That includes an index of ours: a caller that continues after writing one removes it first.
    /// [`BlockStoreError::Damaged`] if data that the log lists is missing. Both errors leave everything
    /// unchanged.
    pub fn open(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        genesis: Option<&[u8]>,
    ) -> Result<Self, BlockStoreError> {
        let wanted = StoreFolder { dir, log, magic, genesis, file_bytes_max: FILE_BYTES_MAX };
        wanted.open(key, None)
    }

    /// Resumes with the blocks that an earlier start stored in chain order, up to the block `last` and its
    /// undo data. Discards later blocks; but keeps all blocks if the undo data of `last` are not stored.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub fn open_up_to(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        last: &BlockHash,
    ) -> Result<Self, BlockStoreError> {
        let wanted = StoreFolder { dir, log, magic, genesis: None, file_bytes_max: FILE_BYTES_MAX };
        wanted.open(key, Some(last))
    }

    /// Like [`open`](Self::open), with another length limit of files.
    #[cfg(test)]
    pub(crate) fn open_with(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        genesis: Option<&[u8]>,
        file_bytes_max: u64,
    ) -> Result<Self, BlockStoreError> {
        StoreFolder { dir, log, magic, genesis, file_bytes_max }.open(key, None)
    }

    /// Removes the log and the block and undo files of a folder that a sync of ours made, then starts over.
    pub fn remove(dir: &Path, log: &Path) -> Result<(), BlockStoreError> {
        // Remove the log first, so that it never lists missing data.
        match fs::remove_file(log) {
            Err(error) if !is_absent(&error) => Err(BlockStoreError::io("remove", log)(error)),
            _ => remove_from(dir, 0),
        }
    }
}

impl StoreFolder<'_> {
    fn open(
        &self,
        key: Obfuscation,
        last: Option<&BlockHash>,
    ) -> Result<BlockStore, BlockStoreError> {
        match fs::symlink_metadata(self.dir.join("index")) {
            Ok(_) => return Err(self.foreign("a block index")),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(BlockStoreError::io("read", self.dir)(error)),
        }
        match log::read(self.log, self.magic, last)? {
            Some(contents) if !contents.places.entries().is_empty() => self.resume(contents),
            begun => self.begin(key, begun.is_some()),
        }
    }

    fn foreign(&self, what: impl Into<String>) -> BlockStoreError {
        BlockStoreError::Foreign { path: self.dir.to_owned(), what: what.into() }
    }

    /// Creates a folder. If an earlier start has already `begun` it, overwrites its first files.
    fn begin(&self, key: Obfuscation, begun: bool) -> Result<BlockStore, BlockStoreError> {
        for (name, length) in block_and_undo_files(self.dir)? {
            let could_be = |genesis: &[u8]| {
                name == files::file_name(0) && length <= RECORD_HEAD + genesis.len() as u64
            };
            let is_ours = begun && self.genesis.is_none_or(could_be);
            if !is_ours {
                return Err(self.foreign(format!("the file {name}")));
            }
        }
        let mut log = AppendFile::open_private(self.log.to_owned(), 0)?;
        log.push(&[&log::head(self.magic, key)], Obfuscation::NONE);
        log.sync()?;
        sync_name_of(self.log)?;
        fs::create_dir_all(self.dir).map_err(BlockStoreError::io("create", self.dir))?;
        sync_name_of(self.dir)?;
        remove_from(self.dir, 0)?;
        write_key(self.dir, key)?;
        let store = self.store(key, BlockPlaces::default(), log::HEAD, log)?;
        if let Some(genesis) = self.genesis {
            // Refuses a block that is too short for a header, even if its hash matches.
            store.put(&hash_of(genesis).unwrap_or_default(), genesis)?;
        }
        store.sync()?;
        Ok(store)
    }

    fn resume(&self, contents: LogContents) -> Result<BlockStore, BlockStoreError> {
        let LogContents { key, places, end } = contents;
        self.expect(key, &places)?;
        // Truncate the log first, so that it never lists data that is about to be removed.
        let mut log = AppendFile::open_private(self.log.to_owned(), end)?;
        log.sync()?;
        self.trim(&places)?;
        self.store(key, places, end, log)
    }

    fn store(
        &self,
        key: Obfuscation,
        places: BlockPlaces,
        log_end: u64,
        log: AppendFile,
    ) -> Result<BlockStore, BlockStoreError> {
        let state =
            BlockStoreState::new(self.dir, self.magic, key, self.file_bytes_max, places, log_end)?;
        Ok(BlockStore {
            dir: self.dir.to_owned(),
            magic: self.magic,
            key,
            state: Mutex::new(state),
            lookup: LogLookUp::new(self.log, log.handle()),
            log: Mutex::new(log),
        })
    }

    /// Fails unless the folder has the key and long enough files, and each file ends with the right block.
    fn expect(&self, key: Obfuscation, places: &BlockPlaces) -> Result<(), BlockStoreError> {
        let first = places.entries().first().map(|entry| entry.hash);
        if let Some(genesis) = self.genesis
            && first != hash_of(genesis)
        {
            let what = "the first block that it lists is not the genesis block";
            return Err(BlockStoreError::damaged(self.log, what));
        }
        expect_key(self.dir, key)?;
        for (number, lengths) in (0..).zip(places.files()) {
            expect_length(&self.block_path(number), lengths.blocks)?;
            if lengths.undo > 0 {
                expect_length(&self.undo_path(number), lengths.undo)?;
            }
        }
        for in_file in places.entries().chunk_by(|a, b| a.place().file == b.place().file) {
            let Some(last) = in_file.last() else { continue };
            let (place, path) = (last.place(), self.block_path(last.place().file));
            let file = File::open(&path).map_err(BlockStoreError::io("open", &path))?;
            let start = place.offset - RECORD_HEAD;
            let mut head = read_at(&path, &file, start, RECORD_HEAD as usize + Header::SIZE)?;
            key.apply(&mut head, start);
            expect_block(&path, &head, self.magic, &last.hash, place)?;
        }
        Ok(())
    }

    /// Cuts off all data that the log does not list.
    fn trim(&self, places: &BlockPlaces) -> Result<(), BlockStoreError> {
        remove_from(self.dir, places.files().len() as u32)?;
        for (number, lengths) in (0..).zip(places.files()) {
            let undo = (self.undo_path(number), lengths.undo);
            for (path, length) in [(self.block_path(number), lengths.blocks), undo] {
                match fs::metadata(&path) {
                    Ok(_) if length == 0 => {
                        fs::remove_file(&path).map_err(BlockStoreError::io("remove", &path))?;
                    }
                    Ok(meta) if meta.len() > length => AppendFile::open(path, length)?.sync()?,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound && length == 0 => {}
                    Err(error) => return Err(BlockStoreError::io("read", &path)(error)),
                }
            }
        }
        sync_names(self.dir)
    }

    fn block_path(&self, number: u32) -> PathBuf {
        self.dir.join(files::file_name(number))
    }

    fn undo_path(&self, number: u32) -> PathBuf {
        self.dir.join(rev::file_name(number))
    }
}

/// Hashes a block's header; `None` if the block is too short to have one.
fn hash_of(block: &[u8]) -> Option<BlockHash> {
    block.first_chunk().map(|header| Header::parse(header).hash())
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Lists the names and lengths of the block and undo files in a folder, which may be missing.
fn block_and_undo_files(dir: &Path) -> Result<Vec<(String, u64)>, BlockStoreError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(found),
        Err(error) => return Err(BlockStoreError::io("list", dir)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(BlockStoreError::io("list", dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if files::file_number(&name).or_else(|| rev::file_number(&name)).is_some() {
            let path = entry.path();
            let meta = fs::metadata(&path).map_err(BlockStoreError::io("read", &path))?;
            found.push((name, meta.len()));
        }
    }
    Ok(found)
}

/// Makes the name of a file or folder durable.
fn sync_name_of(path: &Path) -> Result<(), BlockStoreError> {
    match path.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => sync_names(above),
        None => Ok(()),
    }
}

/// Writes `xor.dat`; eight zeros mean plain files, as in Core.
fn write_key(dir: &Path, key: Obfuscation) -> Result<(), BlockStoreError> {
    let mut file = AppendFile::open(dir.join(KEY_FILE), 0)?;
    file.push(&[&key.key()], Obfuscation::NONE);
    file.sync()?;
    sync_names(dir)
}

/// Removes the block and undo files with number `first` and higher.
fn remove_from(dir: &Path, first: u32) -> Result<(), BlockStoreError> {
    for (name, _) in block_and_undo_files(dir)? {
        let number = files::file_number(&name).or_else(|| rev::file_number(&name));
        if number.is_some_and(|number| number >= first) {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(BlockStoreError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Fails unless the folder has this key.
fn expect_key(dir: &Path, key: Obfuscation) -> Result<(), BlockStoreError> {
    let path = dir.join(KEY_FILE);
    expect_length(&path, Obfuscation::KEY_SIZE as u64)?;
    let found = files::read_key(&path).ok();
    if found != Some(key) {
        return Err(BlockStoreError::damaged(&path, "it holds a wrong key"));
    }
    Ok(())
}

/// Fails unless the file exists and is at least `length` bytes long.
fn expect_length(path: &Path, length: u64) -> Result<(), BlockStoreError> {
    let found = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(_) => return Err(BlockStoreError::damaged(path, "it is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BlockStoreError::damaged(path, "it is missing"));
        }
        Err(source) => return Err(BlockStoreError::io("read", path)(source)),
    };
    if found < length {
        let what = format!("it has {found} bytes but needs {length}");
        return Err(BlockStoreError::damaged(path, what));
    }
    Ok(())
}
