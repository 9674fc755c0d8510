//! [`RunCursor`]: a way through a run that is in memory, from one number to the next.

use super::form::RunForm;
use super::reader::first_record;
use crate::workdir::HeldRun;
use crate::workdir::index::{Section, prefix};
use core::marker::PhantomData;

/// See the module. Sections are passed as a whole, so few records are looked at where many are taken at a time.
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
