//! [`AppendFile`]: a file written at its end, through a buffer.
//!
//! Bytes go to the system at an offset of their own, so that a failed write can be tried again and
//! leaves nothing twice. Nothing is durable before [`sync`](AppendFile::sync).

use super::BlockStoreError;
use crate::obfuscation::Obfuscation;
use apus_storage::open_or_create;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Written with one call. The buffer is this long and one record.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct AppendFile {
    path: PathBuf,
    file: Arc<File>,
    /// How much of the file the system has.
    written: u64,
    buffer: Vec<u8>,
    /// Whether the system has bytes that need not be on the disk yet.
    dirty: bool,
}

impl AppendFile {
    /// Opens a file, makes it if it is not there, cuts it at `length` and goes on behind. The file
    /// must be as long.
    pub(super) fn open(path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        Self::open_with(false, path, length)
    }

    /// As [`open`](Self::open); one that is made by it is for no other user to read.
    pub(super) fn open_private(path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        Self::open_with(true, path, length)
    }

    fn open_with(private: bool, path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        let file = open_or_create(&path, private).map_err(BlockStoreError::io("open", &path))?;
        file.set_len(length).map_err(BlockStoreError::io("shorten", &path))?;
        Ok(Self { path, file: Arc::new(file), written: length, buffer: Vec::new(), dirty: true })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file in bytes, what is in the buffer included.
    pub(super) fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The file, for readers: what is in the buffer is not in it.
    pub(super) fn handle(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// `length` bytes from `offset` on as they will lie in the file, if all are in the buffer.
    pub(super) fn buffered(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.written)?).ok()?;
        self.buffer.get(from..from.checked_add(length)?)
    }

    /// The file, if bytes that the system has need not be on the disk yet. The caller syncs it: it
    /// counts as done.
    pub(super) fn take_dirty(&mut self) -> Option<Arc<File>> {
        std::mem::take(&mut self.dirty).then(|| self.handle())
    }

    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_BYTES
    }

    /// Appends, obfuscated. Cannot fail: the caller makes room before, by [`write`](Self::write)
    /// where the buffer [is full](Self::is_full).
    pub(super) fn push(&mut self, parts: &[&[u8]], key: Obfuscation) {
        let (at, from) = (self.end(), self.buffer.len());
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        key.apply(&mut self.buffer[from..], at);
    }

    /// Hands the buffer to the system.
    pub(super) fn write(&mut self) -> Result<(), BlockStoreError> {
        if !self.buffer.is_empty() {
            self.dirty = true;
            let write = self.file.write_all_at(&self.buffer, self.written);
            write.map_err(BlockStoreError::io("write", &self.path))?;
            self.written = self.end();
            self.buffer.clear();
        }
        Ok(())
    }

    /// Makes all bytes durable, and the length.
    pub(super) fn sync(&mut self) -> Result<(), BlockStoreError> {
        self.write()?;
        if self.dirty {
            self.file.sync_data().map_err(BlockStoreError::io("sync", &self.path))?;
            self.dirty = false;
        }
        Ok(())
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_names(folder: &Path) -> Result<(), BlockStoreError> {
    apus_storage::place::sync_names_of(folder).map_err(BlockStoreError::io("sync", folder))
}
