//! [`RunReader`]: reads the records of a run, section by section.
//!
//! It returns a record only after the checksum of its section was verified, so that results need not be checked
//! again. It reads only the sections that are needed.

use super::KeyRange;
use super::form::RunForm;
use crate::error::{IoError, StorageResult, SyncError};
use crate::workdir::index::{RunIndex, Section, checksum, prefix};
use crate::workdir::{HeldRun, RunInfo};
use apus_hash::prefetch;
use apus_storage::Storage;
use core::marker::PhantomData;
use core::ops::Range;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

/// Prefetch distance in bytes: a few records, or some cache lines.
const AHEAD_BYTES: usize = 256;

/// A run with the index of its sections.
#[derive(Clone)]
pub(super) struct IndexedRun {
    pub(super) info: RunInfo,
    /// The run's name, shared with its readers.
    name: Arc<str>,
    pub(super) index: Arc<RunIndex>,
}

impl IndexedRun {
    /// Reads the index, if it is not in memory.
    pub(super) fn open(storage: &dyn Storage, info: RunInfo) -> Result<Self, SyncError> {
        if let Some(held) = &info.held {
            let index = Arc::clone(&held.index);
            return Ok(Self { name: info.name.as_str().into(), info, index });
        }
        let name = &info.name;
        let mut bytes = vec![0; (info.file_bytes() - info.bytes) as usize];
        let mut file = storage.open(name, info.bytes).at(storage, name)?;
        read(storage, name, &mut *file, &mut bytes)?;
        let index = (checksum(&bytes) == info.checksum).then(|| RunIndex::read(&bytes, info.bytes));
        let index = index.flatten().ok_or_else(|| damaged(storage, name))?;
        Ok(Self { name: info.name.as_str().into(), info, index: Arc::new(index) })
    }

    /// The first section that may have records from a key on, and its offset: the section before may end with
    /// records of that key.
    pub(super) fn section_of(&self, from: u64) -> (usize, usize) {
        let all = &self.index.sections;
        let first = all.partition_point(|section| section.prefix < from).saturating_sub(1);
        (first, all[..first].iter().map(|section| section.bytes as usize).sum())
    }
}

/// Consecutive records of a run.
#[derive(Clone)]
pub struct ScanChunk {
    pub(super) of: ChunkSource,
    pub(super) range: Range<usize>,
}

/// The memory of a chunk.
#[derive(Clone)]
pub(super) enum ChunkSource {
    /// A section that was read.
    Section(Arc<Vec<u8>>),
    /// A whole run in memory.
    Held(Arc<HeldRun>),
}

impl ScanChunk {
    /// A chunk of a run in memory.
    pub(super) fn held(held: &Arc<HeldRun>, range: Range<usize>) -> Self {
        Self { of: ChunkSource::Held(Arc::clone(held)), range }
    }

    /// Splits off the rest after the first `bytes`; `None` if nothing follows them.
    pub(super) fn split_off(&mut self, bytes: usize) -> Option<Self> {
        let at = self.range.start + bytes;
        let rest = Self { of: self.of.clone(), range: at..self.range.end };
        self.range.end = at;
        (!rest.range.is_empty()).then_some(rest)
    }

    /// The records.
    pub fn bytes(&self) -> &[u8] {
        let bytes = match &self.of {
            ChunkSource::Section(bytes) => bytes,
            ChunkSource::Held(held) => &held.bytes,
        };
        &bytes[self.range.clone()]
    }
}

/// The chunks of a run that a thread takes: usually one, seldom more from the following sections.
pub struct Lot {
    pub(super) run: usize,
    pub(super) first: ScanChunk,
    pub(super) rest: Vec<ScanChunk>,
}

impl Lot {
    pub fn pieces(&self) -> impl Iterator<Item = &ScanChunk> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(super) fn into_pieces(self) -> (ScanChunk, Vec<ScanChunk>) {
        (self.first, self.rest)
    }
}

/// The input of a reader.
enum RunInput {
    /// A file, one section at a time: the sections of the index not read yet.
    File {
        file: Box<dyn Read + Send>,
        index: Arc<RunIndex>,
        sections: Range<usize>,
        buffer: Vec<u8>,
    },
    /// Chunks in memory, which need no check: the current one, and the rest.
    Pieces { at: Option<ScanChunk>, left: std::vec::IntoIter<ScanChunk> },
}

/// A part of a run, read from start to end.
pub(super) struct RunReader<F: RunForm> {
    name: Arc<str>,
    input: RunInput,
    keys: KeyRange,
    /// Start of the bytes not read yet.
    start: usize,
    end: usize,
    /// Length of the record at `start`; 0 before the first and after the last.
    record: usize,
    /// Start of the previous record. If that is in another section, its key is that section's `last`.
    before: Option<usize>,
    last: Vec<u8>,
    form: PhantomData<F>,
}

impl<F: RunForm> RunReader<F> {
    pub(super) fn open(
        storage: &dyn Storage,
        run: &IndexedRun,
        keys: KeyRange,
    ) -> Result<Self, SyncError> {
        let all = &run.index.sections;
        let (first, before) = run.section_of(keys.from);
        let until = all.partition_point(|section| keys.has_begun_before(section.prefix));
        let sections = first..until.max(first);
        let input = match &run.info.held {
            Some(held) => {
                let bytes =
                    all[sections].iter().map(|section| section.bytes as usize).sum::<usize>();
                let piece = (bytes > 0).then(|| ScanChunk::held(held, before..before + bytes));
                RunInput::Pieces { at: None, left: Vec::from_iter(piece).into_iter() }
            }
            None => {
                let name = &run.info.name;
                let file = storage.open(name, before as u64).at(storage, name)?;
                let index = Arc::clone(&run.index);
                RunInput::File { file, index, sections, buffer: Vec::new() }
            }
        };
        Ok(Self::new(run, input, keys))
    }

    /// Reads a lot of a run.
    pub(super) fn of_lot(run: &IndexedRun, lot: Lot) -> Self {
        let (first, rest) = lot.into_pieces();
        let end = first.bytes().len();
        let input = RunInput::Pieces { at: Some(first), left: rest.into_iter() };
        Self { end, ..Self::new(run, input, KeyRange::ALL) }
    }

    fn new(run: &IndexedRun, input: RunInput, keys: KeyRange) -> Self {
        let name = Arc::clone(&run.name);
        Self {
            name,
            input,
            keys,
            start: 0,
            end: 0,
            record: 0,
            before: None,
            last: Vec::new(),
            form: PhantomData,
        }
    }

    /// The buffer, or the current chunk.
    fn bytes(&self) -> &[u8] {
        match &self.input {
            RunInput::File { buffer, .. } => buffer,
            RunInput::Pieces { at, .. } => at.as_ref().map_or(&[], ScanChunk::bytes),
        }
    }

    /// The bytes of the key; empty if there is no record.
    pub(super) fn key(&self) -> &[u8] {
        self.record().get(..F::KEY).unwrap_or_default()
    }

    /// Whether there is no record: before the first and after the last.
    pub(super) fn is_over(&self) -> bool {
        self.record == 0
    }

    /// The bytes of the previous record's key.
    #[inline]
    pub(super) fn passed(&self) -> Option<&[u8]> {
        match self.before {
            Some(start) => self.bytes()[start..].get(..F::KEY),
            None => (!self.last.is_empty()).then_some(&self.last),
        }
    }

    /// The whole record.
    pub(super) fn record(&self) -> &[u8] {
        &self.bytes()[self.start..self.start + self.record]
    }

    /// Moves to the next record of the part; `false` after the last.
    pub(super) fn next(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        loop {
            if self.record > 0 {
                self.before = Some(self.start);
            }
            self.start += self.record;
            self.record = 0;
            if self.start == self.end {
                if self.before.is_some() {
                    self.last = self.passed().unwrap_or_default().to_vec();
                    self.before = None;
                }
                if !self.next_section(storage)? {
                    return Ok(false);
                }
            }
            let unread = &self.bytes()[self.start..self.end];
            // A merge reads from more runs than the processor prefetches by itself.
            unread.get(AHEAD_BYTES).inspect(|soon| prefetch(*soon));
            let record = first_record::<F>(unread).filter(|bytes| *bytes <= unread.len());
            let Some(record) = record else { return Err(damaged(storage, &self.name)) };
            self.record = record;
            let at = prefix(self.record());
            // The first bytes nearly always decide.
            let ascends = |last: &[u8]| {
                let before = prefix(last);
                before < at || before == at && last < self.key()
            };
            if !self.passed().is_none_or(ascends) {
                return Err(damaged(storage, &self.name));
            }
            if !self.keys.has_begun_before(at) {
                self.input.end();
                (self.start, self.record) = (self.end, 0);
                return Ok(false);
            }
            if at >= self.keys.from {
                return Ok(true);
            }
        }
    }

    /// Moves to the next section or chunk; `false` after the last.
    fn next_section(&mut self, storage: &dyn Storage) -> Result<bool, SyncError> {
        let length = match &mut self.input {
            RunInput::File { file, index, sections, buffer } => {
                let Some(at) = sections.next() else { return Ok(false) };
                let section = &index.sections[at];
                buffer.resize(section.bytes as usize, 0);
                read(storage, &self.name, &mut **file, buffer)?;
                if !section.is_of(buffer) {
                    return Err(damaged(storage, &self.name));
                }
                buffer.len()
            }
            RunInput::Pieces { at, left } => {
                let Some(piece) = left.next() else { return Ok(false) };
                at.insert(piece).bytes().len()
            }
        };
        (self.start, self.end) = (0, length);
        Ok(true)
    }
}

impl RunInput {
    /// Marks the end of the part.
    fn end(&mut self) {
        match self {
            Self::File { sections, .. } => sections.start = sections.end,
            Self::Pieces { left, .. } => left.by_ref().for_each(drop),
        }
    }
}

/// Length in bytes of the record at the start of `bytes`; `None` if it is invalid or shorter than its head.
pub fn first_record<F: RunForm>(bytes: &[u8]) -> Option<usize> {
    Some(F::HEAD + F::body(bytes.get(..F::HEAD)?)?)
}

pub(super) fn read(
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

pub(super) fn damaged(storage: &dyn Storage, name: &str) -> SyncError {
    SyncError::Io(IoError::RunDamaged { run: name.to_owned(), file: storage.describe(name) })
}

// [`RunCursor`]: moves through a run in memory, from one number to the next.

/// Moves through a run in memory. It skips whole sections, so it looks at few records if many are taken at a
/// time.
pub struct RunCursor<'r, F> {
    run: &'r [u8],
    /// Offset of the first record not taken yet.
    at: usize,
    /// The section at or before this offset, and all later ones.
    sections: &'r [Section],
    section_start: usize,
    form: PhantomData<F>,
}

impl<'r, F: RunForm> RunCursor<'r, F> {
    pub fn new(held: &'r HeldRun) -> Self {
        let sections = &held.index.sections;
        Self { run: &held.bytes, at: 0, sections, section_start: 0, form: PhantomData }
    }

    /// Returns the next records, as long as they begin with a number below `number`.
    pub fn below(&mut self, number: u64) -> &'r [u8] {
        while let [passed, next, ..] = self.sections
            && next.prefix < number
        {
            self.section_start += passed.bytes as usize;
            self.sections = &self.sections[1..];
        }
        let mut end = self.at.max(self.section_start);
        while end < self.run.len() && prefix(&self.run[end..]) < number {
            // This program wrote only whole records.
            let record = first_record::<F>(&self.run[end..]).unwrap_or(usize::MAX);
            end = end.saturating_add(record).min(self.run.len());
        }
        let taken = &self.run[self.at..end];
        self.at = end;
        taken
    }

    /// Whether all records were taken.
    pub fn is_over(&self) -> bool {
        self.at == self.run.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::PlacesForm;
    use crate::workdir::index::RunIndex;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        /// Holds whether steps stay within a section, or skip one, many or none.
        #[test]
        fn records_are_taken_up_to_each_number(
            (mut numbers, mut steps) in prop_oneof![Just(40u64), Just(20_000)]
                .prop_flat_map(|end| (vec(0..end, 0..6_000), vec(0..=end, 0..20))),
            is_one_section: bool,
        ) {
            numbers.sort_unstable();
            steps.sort_unstable();
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            let mut index = RunIndex::default();
            bytes.chunks(8).for_each(|record| index.take_held(record));
            if is_one_section {
                index = RunIndex::of_held(&bytes).unwrap();
            }
            let held = HeldRun { bytes, index: Arc::new(index) };
            let mut cursor = RunCursor::<PlacesForm>::new(&held);
            let mut rest = &numbers[..];
            for step in steps {
                let (below, after) = rest.split_at(rest.partition_point(|number| *number < step));
                let expected: Vec<u8> = below.iter().flat_map(|it| it.to_be_bytes()).collect();
                prop_assert_eq!(cursor.below(step), expected);
                rest = after;
                prop_assert_eq!(cursor.is_over(), rest.is_empty());
            }
        }
    }
}
