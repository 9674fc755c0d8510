//! [`Pile`]: records in the order in which they come, to be had in the order of their bytes.

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pile {
    bytes: Vec<u8>,
    /// The first bytes of each record, to sort by, and where it begins and ends.
    records: Vec<(u64, u32, u32)>,
}

impl Pile {
    /// Adds a record of eight bytes at least.
    ///
    /// # Panics
    /// When all records together have more than 4 GiB, which no segment comes near.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end =
            u32::try_from(self.bytes.len()).expect("a segment has less than 4 GiB of records");
        let prefix = self.bytes[start..].first_chunk().map_or(0, |it| u64::from_be_bytes(*it));
        self.records.push((prefix, start as u32, end));
    }

    /// Sorts the records.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        let of = |start: u32, end: u32| &bytes[start as usize..end as usize];
        self.records
            .sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| of(a.1, a.2).cmp(of(b.1, b.2))));
    }

    /// The records, in the order in which they are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(|(_, start, end)| &self.bytes[*start as usize..*end as usize])
    }

    /// The records as a run, sorted.
    pub(super) fn into_run(mut self) -> Vec<u8> {
        self.sort();
        let mut run = Vec::with_capacity(self.bytes.len());
        self.iter().for_each(|record| run.extend_from_slice(record));
        run
    }
}
