//! [`Window`]: a file seen through a buffer of a stated size, de-obfuscated.
//!
//! Asking again for bytes that are still in the buffer costs nothing, so callers may step back and
//! forth within it. It never reads past the length that the file had when it was opened.

use crate::error::BlkError;
use crate::files::BlockFile;
use crate::obfuscation::Obfuscation;
use std::fs::File;

/// See the module.
pub(crate) struct Window<'a> {
    file: &'a BlockFile,
    handle: &'a File,
    obfuscation: Obfuscation,
    buffer: Vec<u8>,
    /// File offset of the buffer's first byte.
    start: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(file: &'a BlockFile, handle: &'a File, obfuscation: Obfuscation) -> Self {
        Self { file, handle, obfuscation, buffer: Vec::new(), start: 0, filled: 0 }
    }

    /// The bytes from `offset` on: `least` of them, more if they are in the buffer anyway, fewer
    /// only at the end of the file. When it has to read, it reads `ahead` bytes.
    pub(crate) fn at_least(
        &mut self,
        offset: u64,
        least: usize,
        ahead: usize,
    ) -> Result<&[u8], BlkError> {
        let left = self.file.length.saturating_sub(offset);
        let here = |count: usize| usize::try_from(left).map_or(count, |left| count.min(left));
        if let Some(skip) = offset.checked_sub(self.start)
            && let Ok(skip) = usize::try_from(skip)
            && skip.saturating_add(here(least)) <= self.filled
        {
            return Ok(&self.buffer[skip..self.filled]);
        }
        let count = here(least.max(ahead));
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        // Not valid until the read has succeeded.
        self.filled = 0;
        let bytes = &mut self.buffer[..count];
        self.file.read(self.handle, bytes, offset)?;
        self.obfuscation.apply(bytes, offset);
        (self.start, self.filled) = (offset, count);
        Ok(&self.buffer[..count])
    }
}
