//! [`Layout`]: how long the files of a folder are, as far as its blocks are to be kept.

use super::{AppendFile, BlockPositions, BlockStoreError, KEY_FILE, StoredBlock};
use crate::files::{self, RECORD_HEAD};
use crate::obfuscation::Obfuscation;
use crate::rev;
use core::ops::Range;
use std::fs;
use std::io;
use std::path::Path;

/// Lengths of the files, by number.
#[derive(Debug, Default)]
pub(super) struct Layout {
    files: Vec<Lengths>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Lengths {
    blocks: u64,
    undo: u64,
}

impl Layout {
    /// That of the blocks of the heights `keep`. Fails unless the files are there, and
    /// at least as long. Changes nothing.
    pub(super) fn read(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        keep: Range<u32>,
    ) -> Result<Self, BlockStoreError> {
        let positions = BlockPositions::open(log)?;
        positions.expect(magic, key, keep.start)?;
        let mut layout = Self::default();
        positions.for_each(keep.end, &mut |height, stored| {
            layout.add(&stored).ok_or_else(|| {
                let what = format!("block {height} does not lie behind the one before it");
                BlockStoreError::damaged(log, what)
            })
        })?;
        expect_key(dir, key)?;
        for (number, lengths) in (0..).zip(&layout.files) {
            expect_length(&dir.join(files::file_name(number)), lengths.blocks)?;
            expect_length(&dir.join(rev::file_name(number)), lengths.undo)?;
        }
        Ok(layout)
    }

    /// `None` unless the block lies where it would have been appended.
    fn add(&mut self, stored: &StoredBlock) -> Option<()> {
        let number = stored.block.file as usize;
        if number == self.files.len() {
            self.files.push(Lengths::default());
        }
        if number + 1 != self.files.len() {
            return None;
        }
        let lengths = self.files.last_mut()?;
        if stored.block.offset != lengths.blocks + RECORD_HEAD {
            return None;
        }
        lengths.blocks = stored.block.end();
        if let Some(undo) = stored.undo {
            if undo.offset != lengths.undo + RECORD_HEAD {
                return None;
            }
            lengths.undo = undo.offset + u64::from(undo.size) + rev::CHECKSUM;
        }
        Some(())
    }

    /// Cuts off what lies behind the kept part of each file but the last ones.
    pub(super) fn trim(&self, dir: &Path) -> Result<(), BlockStoreError> {
        for (number, lengths) in (0..self.last()).zip(&self.files) {
            let blocks = (files::file_name(number), lengths.blocks);
            for (name, length) in [blocks, (rev::file_name(number), lengths.undo)] {
                let path = dir.join(name);
                let meta = fs::metadata(&path).map_err(BlockStoreError::io("read", &path))?;
                if meta.len() > length {
                    AppendFile::open(path, length)?.sync()?;
                }
            }
        }
        Ok(())
    }

    /// Number of the last files.
    pub(super) fn last(&self) -> u32 {
        self.files.len().saturating_sub(1) as u32
    }

    /// Length of the last block file in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.files.last().map_or(0, |lengths| lengths.blocks)
    }

    /// Length of the last undo file in bytes.
    pub(super) fn undo_bytes(&self) -> u64 {
        self.files.last().map_or(0, |lengths| lengths.undo)
    }
}

/// Fails unless the folder has this key.
pub(crate) fn expect_key(dir: &Path, key: Obfuscation) -> Result<(), BlockStoreError> {
    let path = dir.join(KEY_FILE);
    expect_length(&path, Obfuscation::KEY_SIZE as u64)?;
    let found = files::read_key(&path).ok();
    if found != Some(key) {
        return Err(BlockStoreError::damaged(&path, "it holds another key than it should"));
    }
    Ok(())
}

/// Fails unless the file is there and has at least `length` bytes.
pub(crate) fn expect_length(path: &Path, length: u64) -> Result<(), BlockStoreError> {
    let found = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(_) => return Err(BlockStoreError::damaged(path, "it is no file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BlockStoreError::damaged(path, "it is not there"));
        }
        Err(source) => return Err(BlockStoreError::io("read", path)(source)),
    };
    if found < length {
        let what = format!("it has {found} bytes, {length} are needed");
        return Err(BlockStoreError::damaged(path, what));
    }
    Ok(())
}
