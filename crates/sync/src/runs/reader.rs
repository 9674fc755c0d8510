//! [`RunReader`]: one run, record by record, compared with what was written.
//!
//! Bytes are hashed and parsed where they were read to, a buffer at a time. A record is handed out
//! before the run's end has shown whether the run is intact, so nothing that was made of records may
//! be shown before [`RunReader::next`] said `false`.

use super::MergeBudget;
use super::form::Form;
use crate::error::{IoError, StorageResult, SyncError};
use crate::workdir::RunInfo;
use apus_hash::Sha256;
use apus_storage::Storage;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

/// Where a run's bytes are looked at.
enum Input {
    /// In a buffer that is filled from a file, with what is to be found in it.
    File { file: Box<dyn Read + Send>, buffer: Vec<u8>, hash: Sha256, sha256: [u8; 32] },
    /// In memory, all of them, which need no proof.
    Held(Arc<Vec<u8>>),
}

/// One run, read from start to end.
pub(super) struct RunReader<F: Form> {
    name: String,
    input: Input,
    /// Bytes that were not read yet.
    unread: u64,
    /// What can be looked at and was not passed yet.
    start: usize,
    end: usize,
    /// Length of the record at `start`; 0 before the first.
    record: usize,
    /// The key of the record before.
    last: Option<F::Key>,
}

impl<F: Form> RunReader<F> {
    pub(super) fn open(
        storage: &dyn Storage,
        run: &RunInfo,
        budget: MergeBudget,
    ) -> Result<Self, SyncError> {
        let (input, end) = match &run.held {
            Some(bytes) => (Input::Held(Arc::clone(bytes)), bytes.len()),
            None => {
                let file = storage.open(&run.name, 0).at(storage, &run.name)?;
                let buffer = vec![0; budget.buffer_bytes.max(F::HEAD)];
                (Input::File { file, buffer, hash: Sha256::new(), sha256: run.sha256 }, 0)
            }
        };
        let unread = run.bytes - end as u64;
        Ok(Self { name: run.name.clone(), input, unread, start: 0, end, record: 0, last: None })
    }

    /// The buffer, or all bytes.
    fn bytes(&self) -> &[u8] {
        match &self.input {
            Input::File { buffer, .. } => buffer,
            Input::Held(bytes) => bytes,
        }
    }

    /// The key of the record.
    pub(super) fn key(&self) -> F::Key {
        F::key(&self.bytes()[self.start..])
    }

    /// The whole record.
    pub(super) fn record(&self) -> &[u8] {
        &self.bytes()[self.start..self.start + self.record]
    }

    /// Moves to the next record; `false` after the last, once the whole run proved intact.
    pub(super) fn next(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        if self.record > 0 {
            self.last = Some(self.key());
        }
        self.start += self.record;
        self.record = 0;
        if self.start == self.end && self.unread == 0 {
            return self.expect_intact(storage).map(|()| false);
        }
        self.need(F::HEAD, storage)?;
        let body = F::body(&self.bytes()[self.start..self.start + F::HEAD]);
        let Some(body) = body.filter(|_| self.last.is_none_or(|last| last < self.key())) else {
            return Err(self.damaged(storage));
        };
        self.need(F::HEAD + body, storage)?;
        self.record = F::HEAD + body;
        Ok(true)
    }

    /// Reads on until so many bytes from `start` on are in the buffer.
    fn need(&mut self, bytes: usize, storage: &dyn Storage) -> Result<(), SyncError> {
        if self.end - self.start >= bytes {
            return Ok(());
        }
        if (bytes - (self.end - self.start)) as u64 > self.unread {
            return Err(self.damaged(storage));
        }
        if let Input::File { buffer, .. } = &mut self.input {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if buffer.len() < bytes {
                buffer.resize(bytes, 0);
            }
        }
        self.fill(storage)
    }

    /// Reads as many bytes as there are and the buffer has room for.
    fn fill(&mut self, storage: &dyn Storage) -> Result<(), SyncError> {
        let Input::File { file, buffer, hash, .. } = &mut self.input else { return Ok(()) };
        let room = &mut buffer[self.end..];
        let length = self.unread.min(room.len() as u64) as usize;
        let bytes = &mut room[..length];
        match file.read_exact(bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(self.damaged(storage));
            }
            read => read.at(storage, &self.name)?,
        }
        hash.update(bytes);
        self.end += length;
        self.unread -= length as u64;
        Ok(())
    }

    /// Reads what is left without looking at it, and says whether the run is as it was written.
    pub(super) fn expect_rest_intact(&mut self, storage: &dyn Storage) -> Result<(), SyncError> {
        while self.unread > 0 {
            (self.start, self.end, self.record) = (0, 0, 0);
            self.fill(storage)?;
        }
        self.expect_intact(storage)
    }

    /// Compares what was read, all of the run, with what was written.
    fn expect_intact(&self, storage: &dyn Storage) -> Result<(), SyncError> {
        match &self.input {
            Input::File { hash, sha256, .. } if hash.clone().finalize() != *sha256 => {
                Err(self.damaged(storage))
            }
            _ => Ok(()),
        }
    }

    fn damaged(&self, storage: &dyn Storage) -> SyncError {
        SyncError::Io(IoError::RunDamaged {
            run: self.name.clone(),
            file: storage.describe(&self.name),
        })
    }
}
