//! [`StoredFile`]: a file behind the door, read at any place.

use apus_storage::Storage;
use std::io::{self, Read, Seek, SeekFrom};

/// See the module.
pub(crate) struct StoredFile<'s> {
    storage: &'s dyn Storage,
    name: String,
    length: u64,
    at: u64,
    /// What reads on from there, if it was not left.
    reader: Option<Box<dyn Read + Send>>,
}

impl<'s> StoredFile<'s> {
    pub(crate) fn open(storage: &'s dyn Storage, name: &str) -> io::Result<Self> {
        let length = storage.len(name)?;
        Ok(Self { storage, name: name.to_owned(), length, at: 0, reader: None })
    }
}

impl Read for StoredFile<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(self.storage.open(&self.name, self.at)?),
        };
        let count = reader.read(out)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for StoredFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if at != self.at {
            (self.at, self.reader) = (at, None);
        }
        Ok(at)
    }
}
