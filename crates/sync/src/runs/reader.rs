//! [`RunReader`]: the records of a run, section by section, each as it was written.
//!
//! A record is handed out when the checksum of its section was right, so what is made of it need not be
//! doubted afterwards. Only the sections that are asked for are read.

use super::KeyRange;
use super::form::Form;
use crate::error::{IoError, StorageResult, SyncError};
use crate::workdir::index::{Index, checksum, prefix};
use crate::workdir::{Held, RunInfo};
use apus_hash::prefetch;
use apus_storage::Storage;
use core::ops::Range;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

/// How far ahead of a record memory is asked for: a few records, which is some cache lines.
const AHEAD_BYTES: usize = 256;

/// A run whose sections are known.
#[derive(Clone)]
pub(super) struct IndexedRun {
    pub(super) info: RunInfo,
    pub(super) index: Arc<Index>,
}

impl IndexedRun {
    /// Reads the index, if it is not in memory.
    pub(super) fn open(storage: &dyn Storage, info: RunInfo) -> Result<Self, SyncError> {
        if let Some(held) = &info.held {
            let index = Arc::clone(&held.index);
            return Ok(Self { info, index });
        }
        let name = &info.name;
        let mut bytes = vec![0; (info.file_bytes() - info.bytes) as usize];
        let mut file = storage.open(name, info.bytes).at(storage, name)?;
        read(storage, name, &mut *file, &mut bytes)?;
        let index = (checksum(&bytes) == info.checksum).then(|| Index::read(&bytes, info.bytes));
        let index = index.flatten().ok_or_else(|| damaged(storage, name))?;
        Ok(Self { info, index: Arc::new(index) })
    }
}

/// Where a run's sections are looked at.
enum Input {
    /// In a buffer, one at a time.
    File { file: Box<dyn Read + Send>, buffer: Vec<u8> },
    /// In memory, where they need no proof.
    Held(Arc<Held>),
}

/// A part of a run, read from start to end.
pub(super) struct RunReader<F: Form> {
    name: String,
    input: Input,
    index: Arc<Index>,
    /// Which sections were not looked at yet.
    sections: Range<usize>,
    keys: KeyRange,
    /// What can be looked at and was not passed yet.
    start: usize,
    end: usize,
    /// Length of the record at `start`; 0 before the first.
    record: usize,
    /// The key of the record before, and its first bytes, which nearly always decide.
    last: Option<(u64, F::Key)>,
}

impl<F: Form> RunReader<F> {
    pub(super) fn open(
        storage: &dyn Storage,
        run: &IndexedRun,
        keys: KeyRange,
    ) -> Result<Self, SyncError> {
        let all = &run.index.sections;
        // The section before may end with records of the first key that is wanted.
        let first = all.partition_point(|section| section.prefix < keys.from).saturating_sub(1);
        let until =
            |section: &crate::workdir::index::Section| keys.has_begun_before(section.prefix);
        let sections = first..all.partition_point(until).max(first);
        let before: u64 = all[..first].iter().map(|section| u64::from(section.bytes)).sum();
        let (input, end) = match &run.info.held {
            Some(held) => (Input::Held(Arc::clone(held)), before as usize),
            None => {
                let file = storage.open(&run.info.name, before).at(storage, &run.info.name)?;
                (Input::File { file, buffer: Vec::new() }, 0)
            }
        };
        let (name, index) = (run.info.name.clone(), Arc::clone(&run.index));
        Ok(Self { name, input, index, sections, keys, start: end, end, record: 0, last: None })
    }

    /// The buffer, or all bytes.
    fn bytes(&self) -> &[u8] {
        match &self.input {
            Input::File { buffer, .. } => buffer,
            Input::Held(held) => &held.bytes,
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

    /// Moves to the next record of the part; `false` after the last.
    pub(super) fn next(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        loop {
            if self.record > 0 {
                let key = self.key();
                self.last = Some((prefix(key.as_ref()), key));
            }
            self.start += self.record;
            self.record = 0;
            if self.start == self.end && !self.next_section(storage)? {
                return Ok(false);
            }
            let unread = &self.bytes()[self.start..self.end];
            // A merge reads from more runs than a processor follows.
            unread.get(AHEAD_BYTES).inspect(|soon| prefetch(*soon));
            let record = first_record::<F>(unread).filter(|bytes| *bytes <= unread.len());
            let Some(record) = record else { return Err(damaged(storage, &self.name)) };
            self.record = record;
            let at = prefix(self.record());
            if self.last.is_some_and(|last| last >= (at, self.key())) {
                return Err(damaged(storage, &self.name));
            }
            if !self.keys.has_begun_before(at) {
                (self.sections.start, self.record) = (self.sections.end, 0);
                self.start = self.end;
                return Ok(false);
            }
            if at >= self.keys.from {
                return Ok(true);
            }
        }
    }

    /// Has the next section to look at; `false` after the last.
    fn next_section(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        let Some(at) = self.sections.next() else { return Ok(false) };
        let section = &self.index.sections[at];
        let length = section.bytes as usize;
        match &mut self.input {
            Input::File { file, buffer } => {
                buffer.resize(length, 0);
                read(storage, &self.name, &mut **file, buffer)?;
                if !section.is_of(buffer) {
                    return Err(damaged(storage, &self.name));
                }
                (self.start, self.end) = (0, length);
            }
            Input::Held(_) => (self.start, self.end) = (self.end, self.end + length),
        }
        Ok(true)
    }
}

/// Length in bytes of the record that some bytes begin with; none where they begin with none, or with less
/// than its head.
pub(crate) fn first_record<F: Form>(bytes: &[u8]) -> Option<usize> {
    Some(F::HEAD + F::body(bytes.get(..F::HEAD)?)?)
}

fn read(
    storage: &dyn Storage,
    name: &str,
    file: &mut dyn Read,
    bytes: &mut [u8],
) -> Result<(), SyncError> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(damaged(storage, name)),
        read => read.at(storage, name),
    }
}

fn damaged(storage: &dyn Storage, name: &str) -> SyncError {
    SyncError::Io(IoError::RunDamaged { run: name.to_owned(), file: storage.describe(name) })
}
