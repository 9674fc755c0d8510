//! [`RunIndex`]: the sections of a run. With it, readers find any part of the run and check that it is intact.
//!
//! A section consists of whole records. A reader holds one section in memory at a time. Its checksum is XXH3
//! with 128 bits, which detects what a disk loses or changes. An attacker can construct bytes that pass; but an
//! attacker who can write here can write the checksum too.
//!
//! A run is its records in order, then for each section 28 bytes:
//!
//! ```text
//! 8     the first 8 bytes of its first record, as a big-endian number
//! 4     its length in bytes
//! 16    XXH3 with 128 bits of its bytes, seed 0
//! ```
//!
//! A `.run` has its records by txid, strictly ascending: txid (32), length (4), and the coins as in a group of
//! a snapshot (`docs/formats/snapshot.md`). A `.hints` is BIP-456 elements, a `.leaves` is leaves of the
//! Utreexo forest: CompactSize (leaves between this one and the one before, or the segment's first), hash (32).
//! A `spill-N.run` is outpoints of 36 bytes, sorted by segment.

use apus_chain::Reader;
use xxhash_rust::xxh3::xxh3_128;

/// Length of a section, unless a record is longer or the section is the last one.
pub const SECTION_BYTES: usize = 128 << 10;

/// Length of a section of a run in memory, if readers search for places in the run.
const HELD_SECTION_BYTES: usize = 16 << 10;

/// XXH3 with 128 bits.
pub type Checksum = [u8; 16];

pub fn checksum(bytes: &[u8]) -> Checksum {
    xxh3_128(bytes).to_le_bytes()
}

/// Returns the first bytes of a record, which begin its key, as a number.
pub fn prefix(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// A section: some consecutive records of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// The first bytes of the first record.
    pub prefix: u64,
    /// Length of all records.
    pub bytes: u32,
    checksum: Checksum,
}

impl Section {
    /// Describes a section with these records.
    pub fn of(records: &[u8]) -> Self {
        // Records and sections are shorter than four gigabytes.
        let bytes = records.len() as u32;
        Self { prefix: prefix(records), bytes, checksum: checksum(records) }
    }

    /// Describes a section with these records, without a checksum, for runs that are never checked.
    fn unproven(records: &[u8]) -> Self {
        let bytes = records.len() as u32;
        Self { prefix: prefix(records), bytes, checksum: Checksum::default() }
    }

    /// Returns whether the section describes these bytes.
    pub fn is_of(&self, records: &[u8]) -> bool {
        self.checksum == checksum(records)
    }
}

/// The sections of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunIndex {
    pub sections: Vec<Section>,
}

impl RunIndex {
    /// Length of a section's entry in bytes.
    pub const ENTRY_BYTES: u64 = 8 + 4 + 16;

    /// Cuts a run into sections of about `SECTION_BYTES`. `first_record` returns the length of the first record
    /// of some bytes; `None` if they do not begin with a whole record.
    pub fn cut(
        run: &[u8],
        section_bytes: usize,
        first_record: impl Fn(&[u8]) -> Option<usize>,
    ) -> Self {
        let (mut sections, mut rest) = (Vec::new(), run);
        while !rest.is_empty() {
            let mut end = 0;
            while end < rest.len() && end < section_bytes {
                let record = first_record(&rest[end..]).filter(|bytes| *bytes <= rest.len() - end);
                end = record.map_or(rest.len().min(end + section_bytes), |bytes| end + bytes);
            }
            let (section, after) = rest.split_at(end);
            sections.push(Section::of(section));
            rest = after;
        }
        Self { sections }
    }

    /// Makes the index of a run that stays in memory unchecked: a single section, without a checksum. `None` if
    /// the run is too long for one.
    pub fn of_held(run: &[u8]) -> Option<Self> {
        u32::try_from(run.len()).ok()?;
        let section = (!run.is_empty()).then(|| Section::unproven(run));
        Some(Self { sections: Vec::from_iter(section) })
    }

    /// Adds the next record of such a run, if readers will search for places in it.
    pub fn take_held(&mut self, record: &[u8]) {
        match self.sections.last_mut() {
            Some(section) if (section.bytes as usize) < HELD_SECTION_BYTES => {
                section.bytes += record.len() as u32;
            }
            _ => self.sections.push(Section::unproven(record)),
        }
    }

    /// Returns the byte form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.sections.len() * Self::ENTRY_BYTES as usize);
        for Section { prefix, bytes, checksum } in &self.sections {
            out.extend_from_slice(&prefix.to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(checksum);
        }
        out
    }

    /// Reads the byte form of the index of a run with `run_bytes` bytes; `None` if it is invalid.
    pub fn read(bytes: &[u8], run_bytes: u64) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut sections = Vec::with_capacity(bytes.len() / Self::ENTRY_BYTES as usize);
        while reader.remaining() > 0 {
            let (prefix, bytes) = (reader.u64().ok()?, reader.u32().ok()?);
            sections.push(Section { prefix, bytes, checksum: *reader.array().ok()? });
        }
        let index = Self { sections };
        (index.run_bytes() == run_bytes).then_some(index)
    }

    /// Returns the length of the run in bytes.
    pub fn run_bytes(&self) -> u64 {
        self.sections.iter().map(|section| u64::from(section.bytes)).sum()
    }

    /// Returns whether the index describes this run.
    pub fn is_of(&self, run: &[u8]) -> bool {
        let mut rest = run;
        let mut all = self.sections.iter().map(|section| {
            let (bytes, after) = rest.split_at_checked(section.bytes as usize)?;
            rest = after;
            section.is_of(bytes).then_some(())
        });
        all.all(|section| section.is_some()) && rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_belongs_to_one_run() {
        let run: Vec<u8> = (0..3 * SECTION_BYTES + 16).map(|at| (at / 7) as u8).collect();
        for record in [None, Some(16)] {
            let index = RunIndex::cut(&run, SECTION_BYTES, |_| record);
            assert_eq!(index.sections.len(), 4, "{record:?}");
            assert_eq!(index.run_bytes(), run.len() as u64);
            assert!(index.is_of(&run));
            let bytes = index.to_bytes();
            assert_eq!(bytes.len() as u64, 4 * RunIndex::ENTRY_BYTES);
            assert_eq!(RunIndex::read(&bytes, run.len() as u64), Some(index.clone()));
            assert_eq!(RunIndex::read(&bytes, run.len() as u64 + 1), None);
            assert_eq!(RunIndex::read(&bytes[1..], run.len() as u64), None);
            assert!(!index.is_of(&run[1..]) && !index.is_of(&[&run[..], &[0]].concat()));
            for at in [0, SECTION_BYTES - 1, SECTION_BYTES, run.len() - 1] {
                let mut copy = run.clone();
                copy[at] ^= 1;
                assert!(!index.is_of(&copy), "{at}");
            }
        }
        assert_eq!(RunIndex::cut(&[], SECTION_BYTES, |_| None), RunIndex::default());
        let held = RunIndex::of_held(&run).unwrap();
        assert_eq!((held.sections.len(), held.run_bytes()), (1, run.len() as u64));
        assert_eq!(held.sections[0].prefix, prefix(&run));
        assert_eq!(RunIndex::of_held(&[]), Some(RunIndex::default()));
    }

    /// Sections begin where records begin.
    #[test]
    fn records_are_not_divided() {
        let record = |key: u8, bytes: usize| {
            [&[key; 8][..], &(bytes as u32).to_le_bytes(), &vec![9; bytes]].concat()
        };
        let first =
            |bytes: &[u8]| Some(12 + u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?) as usize);
        let lengths = [100, 2 * SECTION_BYTES, 5, 7, SECTION_BYTES - 36 - 1, 3, 1];
        let records = (1..).zip(lengths).map(|(key, bytes)| record(key, bytes));
        let run = records.collect::<Vec<_>>().concat();
        let index = RunIndex::cut(&run, SECTION_BYTES, first);
        let starts: Vec<u64> = index.sections.iter().map(|section| section.prefix).collect();
        let key = |key: u8| u64::from_be_bytes([key; 8]);
        assert_eq!(starts, [key(1), key(3), key(6)]);
        assert!(index.is_of(&run));
        let mut held = RunIndex::default();
        (1..).zip(lengths).for_each(|(key, bytes)| held.take_held(&record(key, bytes)));
        let same = RunIndex::cut(&run, HELD_SECTION_BYTES, first);
        let places = |index: &RunIndex| -> Vec<(u64, u32)> {
            index.sections.iter().map(|section| (section.prefix, section.bytes)).collect()
        };
        assert_eq!(places(&held), places(&same));
    }
}
