//! Opening: a folder is made, gone on with, or refused.
//!
//! Ours is a folder whose log tells of it: its key, the length of each file, the last block in
//! each. Until all of that is seen nothing is changed. The log's head is on the disk before the
//! folder gets its first file, and the first block is the genesis block, so a folder without a log
//! was never ours, and one whose log tells of no block holds at most a piece of that one.

use super::log::{self, Contents};
use super::places::Places;
use super::state::State;
use super::{KeptBlocks, KeptBlocksError, expect_block, read_at};
use crate::files::{self, RECORD_HEAD};
use crate::obfuscation::Obfuscation;
use crate::rev;
use crate::store::{
    AppendFile, BlockStoreError, FILE_BYTES_MAX, expect_key, expect_length, remove_above,
    sync_names, write_key,
};
use apus_chain::Header;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What belongs to a folder, whether it is new or not.
struct Wanted<'a> {
    dir: &'a Path,
    log: &'a Path,
    magic: [u8; 4],
    genesis: &'a [u8],
    file_bytes_max: u64,
}

impl KeptBlocks {
    /// Makes the folder `dir` with the genesis block in it, or goes on with what an earlier start
    /// synced. `log` is a file outside of it that belongs to the run: it says what `dir` holds, and
    /// that it is ours. `magic` begins each record; `key` is for the files of a new folder, an
    /// older one keeps its own.
    ///
    /// # Errors
    /// [`KeptBlocksError::Foreign`] if `dir` has block files without a log that tells of them, or a
    /// folder `index`, even our own: a caller that goes on after writing one removes it before.
    /// [`BlockStoreError::Damaged`] if not all is there that the log tells of. Nothing was changed
    /// then.
    pub fn open(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        genesis: &[u8],
    ) -> Result<Self, KeptBlocksError> {
        Self::open_with(dir, log, magic, key, genesis, FILE_BYTES_MAX)
    }

    /// [`open`](Self::open) with files of another length.
    pub(crate) fn open_with(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        genesis: &[u8],
        file_bytes_max: u64,
    ) -> Result<Self, KeptBlocksError> {
        let wanted = Wanted { dir, log, magic, genesis, file_bytes_max };
        match fs::symlink_metadata(dir.join("index")) {
            Ok(_) => return Err(wanted.foreign("a block index")),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(BlockStoreError::io("read", dir)(error).into()),
        }
        match log::read(log, magic)? {
            Some(contents) if !contents.places.entries().is_empty() => wanted.go_on(contents),
            begun => wanted.begin(key, begun.is_some()),
        }
    }
}

impl Wanted<'_> {
    fn foreign(&self, what: impl Into<String>) -> KeptBlocksError {
        KeptBlocksError::Foreign { path: self.dir.to_owned(), what: what.into() }
    }

    /// Makes a folder. If it was `begun` before, what it can have come to is written over.
    fn begin(&self, key: Obfuscation, begun: bool) -> Result<KeptBlocks, KeptBlocksError> {
        for (name, length) in block_and_undo_files(self.dir)? {
            let ours = begun
                && name == files::file_name(0)
                && length <= RECORD_HEAD + self.genesis.len() as u64;
            if !ours {
                return Err(self.foreign(format!("the file {name}")));
            }
        }
        let mut log = AppendFile::open_private(self.log.to_owned(), 0)?;
        log.push(&[&log::head(self.magic, key)], Obfuscation::NONE);
        log.sync()?;
        sync_name_of(self.log)?;
        fs::create_dir_all(self.dir).map_err(BlockStoreError::io("create", self.dir))?;
        sync_name_of(self.dir)?;
        write_key(self.dir, key)?;
        let kept = self.kept(key, Places::default(), log::HEAD, log)?;
        let hash = self.genesis.first_chunk().map(|header| Header::parse(header).hash());
        // Too short a block is refused whatever its name.
        kept.put(&hash.unwrap_or_default(), self.genesis)?;
        kept.sync()?;
        Ok(kept)
    }

    fn go_on(&self, contents: Contents) -> Result<KeptBlocks, KeptBlocksError> {
        let Contents { key, places, end } = contents;
        self.expect(key, &places)?;
        // First, so that it never tells of what is about to go.
        let mut log = AppendFile::open_private(self.log.to_owned(), end)?;
        log.sync()?;
        self.trim(&places)?;
        self.kept(key, places, end, log)
    }

    fn kept(
        &self,
        key: Obfuscation,
        places: Places,
        log_end: u64,
        log: AppendFile,
    ) -> Result<KeptBlocks, KeptBlocksError> {
        let state = State::new(self.dir, self.magic, key, self.file_bytes_max, places, log_end)?;
        Ok(KeptBlocks {
            dir: self.dir.to_owned(),
            log_path: self.log.to_owned(),
            magic: self.magic,
            key,
            state: Mutex::new(state),
            log: Mutex::new(log),
        })
    }

    /// Fails unless the folder has the key, files that are long enough, and in each of them the
    /// block that should be its last.
    fn expect(&self, key: Obfuscation, places: &Places) -> Result<(), KeptBlocksError> {
        let genesis = self.genesis.first_chunk().map(|header| Header::parse(header).hash());
        let first = places.entries().first().map(|entry| entry.hash);
        if first != genesis {
            let what = "the first block that it tells of is not the genesis block";
            return Err(BlockStoreError::damaged(self.log, what).into());
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

    /// Cuts off what the log does not tell of.
    fn trim(&self, places: &Places) -> Result<(), BlockStoreError> {
        remove_above(self.dir, places.files().len().saturating_sub(1) as u32)?;
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

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Names and lengths of the block and undo files in a folder that need not be there.
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
