//! [`RunReader`]: the records of a run, section by section, each as it was written.
//!
//! A record is handed out when the checksum of its section was right, so what is made of it need not be
//! doubted afterwards. Only the sections that are asked for are read.

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

/// How far ahead of a record memory is asked for: a few records, which is some cache lines.
const AHEAD_BYTES: usize = 256;

/// A run whose sections are known.
#[derive(Clone)]
pub(super) struct IndexedRun {
    pub(super) info: RunInfo,
    /// Its name, for those who read it.
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

    /// The first section that may have records from a key on, and where it begins: the section before ends perhaps
    /// with records of that key.
    pub(super) fn section_of(&self, from: u64) -> (usize, usize) {
        let all = &self.index.sections;
        let first = all.partition_point(|section| section.prefix < from).saturating_sub(1);
        (first, all[..first].iter().map(|section| section.bytes as usize).sum())
    }
}

/// Records that follow one another in a run.
#[derive(Clone)]
pub struct LanePiece {
    pub(super) of: LaneSource,
    pub(super) range: Range<usize>,
}

/// What they lie in.
#[derive(Clone)]
pub(super) enum LaneSource {
    /// A section that was read.
    Section(Arc<Vec<u8>>),
    /// A whole run in memory.
    Held(Arc<HeldRun>),
}

impl LanePiece {
    /// Of a run in memory.
    pub(super) fn held(held: &Arc<HeldRun>, range: Range<usize>) -> Self {
        Self { of: LaneSource::Held(Arc::clone(held)), range }
    }

    /// What lies behind so many bytes, which stay; none where that is nothing.
    pub(super) fn split_off(&mut self, bytes: usize) -> Option<Self> {
        let at = self.range.start + bytes;
        let rest = Self { of: self.of.clone(), range: at..self.range.end };
        self.range.end = at;
        (!rest.range.is_empty()).then_some(rest)
    }

    /// The records.
    pub fn bytes(&self) -> &[u8] {
        let bytes = match &self.of {
            LaneSource::Section(bytes) => bytes,
            LaneSource::Held(held) => &held.bytes,
        };
        &bytes[self.range.clone()]
    }
}

/// What a thread takes of a run: a piece, and seldom some more of the sections behind it.
pub struct Lot {
    pub(super) run: usize,
    pub(super) first: LanePiece,
    pub(super) rest: Vec<LanePiece>,
}

impl Lot {
    pub fn pieces(&self) -> impl Iterator<Item = &LanePiece> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(super) fn into_pieces(self) -> (LanePiece, Vec<LanePiece>) {
        (self.first, self.rest)
    }
}

/// Where a run's sections are looked at.
enum RunInput {
    /// In a buffer, one at a time: those of the index that were not looked at yet.
    File {
        file: Box<dyn Read + Send>,
        index: Arc<RunIndex>,
        sections: Range<usize>,
        buffer: Vec<u8>,
    },
    /// In memory, where they need no proof: the piece at hand, and those behind it.
    Pieces { at: Option<LanePiece>, left: std::vec::IntoIter<LanePiece> },
}

/// A part of a run, read from start to end.
pub(super) struct RunReader<F: RunForm> {
    name: Arc<str>,
    input: RunInput,
    keys: KeyRange,
    /// What can be looked at and was not passed yet.
    start: usize,
    end: usize,
    /// Length of the record at `start`; 0 before the first and after the last.
    record: usize,
    /// Where the record before begins. If it is of another section, its key is the `last` of that.
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
                let piece = (bytes > 0).then(|| LanePiece::held(held, before..before + bytes));
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

    /// What was taken of a run.
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

    /// The buffer, or the piece at hand.
    fn bytes(&self) -> &[u8] {
        match &self.input {
            RunInput::File { buffer, .. } => buffer,
            RunInput::Pieces { at, .. } => at.as_ref().map_or(&[], LanePiece::bytes),
        }
    }

    /// The bytes of the key; none where there is no record.
    pub(super) fn key(&self) -> &[u8] {
        self.record().get(..F::KEY).unwrap_or_default()
    }

    /// Whether there is no record, before the first and after the last.
    pub(super) fn is_over(&self) -> bool {
        self.record == 0
    }

    /// The bytes of the key of the record before.
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
            // A merge reads from more runs than a processor follows.
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

    /// Has the next section or piece to look at; `false` after the last.
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
    /// Nothing more is looked at.
    fn end(&mut self) {
        match self {
            Self::File { sections, .. } => sections.start = sections.end,
            Self::Pieces { left, .. } => left.by_ref().for_each(drop),
        }
    }
}

/// Length in bytes of the record that some bytes begin with; none where they begin with none, or with less
/// than its head.
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

// [`RunCursor`]: a way through a run that is in memory, from one number to the next.

/// A way through a run that is in memory. Sections are passed as a whole, so few records are looked at where many are taken at a time.
pub struct RunCursor<'r, F> {
    run: &'r [u8],
    /// What was not taken yet begins here.
    at: usize,
    /// The section that holds this place or comes before it, and those behind it.
    sections: &'r [Section],
    section_start: usize,
    form: PhantomData<F>,
}

impl<'r, F: RunForm> RunCursor<'r, F> {
    pub fn new(held: &'r HeldRun) -> Self {
        let sections = &held.index.sections;
        Self { run: &held.bytes, at: 0, sections, section_start: 0, form: PhantomData }
    }

    /// The next records, as far as they begin with lesser numbers.
    pub fn below(&mut self, number: u64) -> &'r [u8] {
        while let [passed, next, ..] = self.sections
            && next.prefix < number
        {
            self.section_start += passed.bytes as usize;
            self.sections = &self.sections[1..];
        }
        let mut end = self.at.max(self.section_start);
        while end < self.run.len() && prefix(&self.run[end..]) < number {
            // What this program wrote are whole records.
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
        /// Whether steps are within a section, over one, over many or over none.
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
