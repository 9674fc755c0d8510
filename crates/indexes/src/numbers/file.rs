//! [`NumbersPlace`]: the file of the chain in numbers, in a format that the caller chooses.

use super::{NumbersPart, numbers_columns, write_numbers};
use crate::error::IndexesError;
use crate::making::MakeError;
use apus_chain::{BlockHash, Height};
use apus_storage::{DirStorage, Storage, StorageFile, parent};
use apus_sync::sink::FileDraft;
use apus_sync::{SyncError, draft_of};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes the numbers of blocks in one format.
pub trait NumbersWriter {
    /// Adds the next block; `numbers` are in the order of [`numbers_columns`].
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    fn put(&mut self, height: Height, hash: &BlockHash, numbers: &[u128]) -> io::Result<()>;

    /// Completes the file and returns it.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    fn finish(self: Box<Self>) -> io::Result<Box<dyn StorageFile>>;
}

/// Begins an empty file in a format. The path is that of this file, for a writer that reads it back.
pub type NumbersFormat =
    fn(file: Box<dyn StorageFile>, draft: &Path) -> io::Result<Box<dyn NumbersWriter>>;

/// Where the chain in numbers goes.
pub struct NumbersPlace {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    format: NumbersFormat,
    replace: bool,
}

/// The complete numbers under a draft name.
pub struct NumbersDraft {
    storage: Arc<dyn Storage>,
    name: String,
    file: Box<dyn StorageFile>,
    replace: bool,
}

impl NumbersPlace {
    /// With `replace`, the numbers take the place of an existing file.
    pub fn new(path: &Path, format: NumbersFormat, replace: bool) -> Self {
        Self::in_storage(Arc::new(DirStorage::new(parent(path))), path, format, replace)
    }

    /// Does the same in `storage`, which is the folder of `path`.
    pub fn in_storage(
        storage: Arc<dyn Storage>,
        path: &Path,
        format: NumbersFormat,
        replace: bool,
    ) -> Self {
        Self { path: path.to_owned(), storage, format, replace }
    }

    /// Writes the numbers of a chain under a draft name. `parts` are the whole chain from genesis on, in ascending order;
    /// `tip` is its last block.
    ///
    /// # Errors
    ///
    /// Fails if the parts do not make one chain that ends at `tip`, or if a file cannot be read or written.
    pub fn write(
        &self,
        parts: Vec<NumbersPart<'_>>,
        tip: &BlockHash,
    ) -> Result<NumbersDraft, SyncError> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let (_, file) = FileDraft::create(&*self.storage, &name)?;
        let path = draft_of(&self.path);
        let failed = |source| MakeError::File { file: path.display().to_string(), source };
        let written = || {
            let mut writer = (self.format)(file, &path).map_err(failed)?;
            write_numbers(parts, tip, &mut *writer, &failed)?;
            writer.finish().map_err(failed)
        };
        let file = written().map_err(IndexesError::from)?;
        let storage = Arc::clone(&self.storage);
        Ok(NumbersDraft { storage, name: name.into_owned(), file, replace: self.replace })
    }
}

impl NumbersDraft {
    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    ///
    /// Fails if another file has the name and is not to be replaced, and if the disk fails.
    pub fn publish(self) -> Result<(), SyncError> {
        FileDraft::of(&*self.storage, &self.name).publish_over(self.file, self.replace)
    }
}

/// CSV: a line with the names of the columns, then one for each block.
pub fn csv_numbers(file: Box<dyn StorageFile>, _: &Path) -> io::Result<Box<dyn NumbersWriter>> {
    let mut out = BufWriter::new(file);
    let names: Vec<String> = numbers_columns().into_iter().map(|column| column.name).collect();
    writeln!(out, "height,hash,{}", names.join(","))?;
    Ok(Box::new(NumbersCsv(out)))
}

struct NumbersCsv(BufWriter<Box<dyn StorageFile>>);

impl NumbersWriter for NumbersCsv {
    fn put(&mut self, height: Height, hash: &BlockHash, numbers: &[u128]) -> io::Result<()> {
        let numbers: Vec<String> = numbers.iter().map(u128::to_string).collect();
        writeln!(self.0, "{height},{hash},{}", numbers.join(","))
    }

    fn finish(self: Box<Self>) -> io::Result<Box<dyn StorageFile>> {
        self.0.into_inner().map_err(io::IntoInnerError::into_error)
    }
}
