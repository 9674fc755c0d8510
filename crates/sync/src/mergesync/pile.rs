//! [`Pile`]: records in the order in which they come, to be had in the order of their bytes.

use crate::workdir::index::prefix;

/// Of a record: its first bytes, where it begins among all, how long it is.
type Place = (u64, usize, u32);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pile {
    bytes: Vec<u8>,
    /// The first bytes of each record, to sort by, where it begins, and how long it is.
    records: Vec<Place>,
}

impl Pile {
    /// Adds a record of eight bytes at least.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let length = (self.bytes.len() - start) as u32;
        self.records.push((prefix(&self.bytes[start..]), start, length));
    }

    /// Memory that the records take, in bytes. What is kept for more of them may be as much again.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + self.records.len() * size_of::<Place>()) as u64
    }

    /// Length in bytes of the records as a run.
    pub(super) fn run_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there are no records.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes all records, and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
    }

    /// Sorts the records.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        let of = |start: usize, length: u32| &bytes[start..start + length as usize];
        self.records
            .sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| of(a.1, a.2).cmp(of(b.1, b.2))));
    }

    /// The records, in the order in which they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(|(_, start, length)| &self.bytes[*start..*start + *length as usize])
    }

    /// The records as a run, sorted.
    pub(super) fn into_run(mut self) -> Vec<u8> {
        self.sort();
        let mut run = Vec::with_capacity(self.bytes.len());
        self.iter().for_each(|record| run.extend_from_slice(record));
        run
    }
}
