//! [`Pile`]: records in the order in which they come, to be had in the order of their bytes.

use crate::workdir::index::{RunIndex, prefix};
use apus_engine::sort::sort_by_number;

/// Of a record: its first bytes, to sort by, where it begins among all, and how long it is.
type Place = (u64, u32, u32);

/// A pile has no more memory: places are counted in 32 bits, and the last record may be long.
pub(super) const PILE_BYTES_MAX: u64 = 2 << 30;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pile {
    bytes: Vec<u8>,
    records: Vec<Place>,
    /// To sort them with.
    spare: Vec<Place>,
}

impl Pile {
    /// Adds a record of eight bytes at least.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let record = &self.bytes[start..];
        self.records.push((prefix(record), start as u32, record.len() as u32));
    }

    /// Memory that the records take, in bytes, and that it takes to sort them. What is kept for more of them may be as
    /// much again.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + 2 * self.records.len() * size_of::<Place>()) as u64
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
        let Self { bytes, records, spare } = self;
        let of = |place: &Place| &bytes[place.1 as usize..][..place.2 as usize];
        let by_bytes = |a: &Place, b: &Place| a.0.cmp(&b.0).then_with(|| of(a).cmp(of(b)));
        sort_by_number(records, spare, |place| place.0, by_bytes);
    }

    /// The records, in the order in which they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.records
            .iter()
            .map(|(_, start, length)| &self.bytes[*start as usize..][..*length as usize])
    }

    /// The records as a run that stays in memory, sorted.
    pub(super) fn into_run(mut self) -> (Vec<u8>, RunIndex) {
        self.sort();
        let mut run = Vec::with_capacity(self.bytes.len());
        let mut index = RunIndex::default();
        self.iter().for_each(|record| {
            index.take_held(record);
            run.extend_from_slice(record);
        });
        (run, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piled(records: &[Vec<u8>]) -> Pile {
        let mut pile = Pile::default();
        records.iter().for_each(|record| pile.push(|out| out.extend_from_slice(record)));
        pile
    }

    proptest! {
        /// Also where their first bytes are alike, and they are not equally long.
        #[test]
        fn records_come_in_the_order_of_their_bytes(
            records in proptest::collection::vec(
                (0u8..3, proptest::collection::vec(0u8..3, 0..4))
                    .prop_map(|(first, rest)| [&[first; 8][..], &rest[..]].concat()),
                0..40,
            ),
        ) {
            let mut pile = piled(&records);
            let bytes: usize = records.iter().map(Vec::len).sum();
            prop_assert_eq!(pile.is_empty(), records.is_empty());
            prop_assert_eq!(pile.run_bytes(), bytes as u64);
            let places = 2 * records.len() * size_of::<Place>();
            prop_assert_eq!(pile.memory_bytes(), (bytes + places) as u64);
            prop_assert!(pile.iter().eq(records.iter().map(Vec::as_slice)));
            let mut sorted = records.clone();
            sorted.sort();
            pile.sort();
            prop_assert!(pile.iter().eq(sorted.iter().map(Vec::as_slice)));
            let (run, index) = piled(&records).into_run();
            prop_assert_eq!(&run, &sorted.concat());
            prop_assert_eq!(index.run_bytes(), run.len() as u64);
            pile.clear();
            prop_assert!(pile.is_empty() && pile.iter().next().is_none());
            prop_assert_eq!(pile.memory_bytes(), 0);
        }
    }
}
