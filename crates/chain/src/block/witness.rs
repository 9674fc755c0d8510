//! [`WitnessView`]: the witness of one input, item by item.
//!
//! A transaction's witnesses lie one after the other behind its outputs, and only walking through
//! the items of one finds the next. Nothing here asks what an item means.

use super::TxView;
use crate::read::Reader;

/// The witness stack of one input, in wire form.
#[derive(Debug, Clone, Copy, Default)]
pub struct WitnessView<'a> {
    /// The items with their lengths, without their count.
    bytes: &'a [u8],
    count: usize,
    last: Option<&'a [u8]>,
}

impl<'a> WitnessView<'a> {
    /// How many items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The item on top of the stack.
    pub fn last(&self) -> Option<&'a [u8]> {
        self.last
    }

    /// The items, the top of the stack last.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        (0..self.count).map(move |_| item(&mut reader))
    }

    /// Reads one stack.
    fn read(reader: &mut Reader<'a>, all: &'a [u8]) -> Self {
        let count = reader.compact_size().expect(WHOLE);
        let start = reader.position();
        let mut last = None;
        for _ in 0..count {
            last = Some(item(reader));
        }
        Self { bytes: &all[start..reader.position()], count, last }
    }
}

const WHOLE: &str = "the layout holds only whole witnesses";

fn item<'a>(reader: &mut Reader<'a>) -> &'a [u8] {
    let length = reader.compact_size().expect(WHOLE);
    reader.take(length).expect(WHOLE)
}

impl<'a> TxView<'a> {
    /// The witness of each input, in the order of the inputs; empty ones where the transaction is
    /// not in the form of BIP-144.
    pub fn witnesses(&self) -> impl ExactSizeIterator<Item = WitnessView<'a>> + use<'a> {
        // In an odd form without outputs or with unknown flags there may be no bytes at all.
        let all = self.witness();
        let mut reader = Reader::new(all);
        (0..self.inputs().len()).map(move |_| match all {
            [] => WitnessView::default(),
            _ => WitnessView::read(&mut reader, all),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::block::testing::{bare_tx, input, with_tx};
    use bitcoin::Witness;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_input_has_its_own_items(
            stacks in vec(
                vec(prop_oneof![4 => vec(any::<u8>(), 0..5), 1 => vec(any::<u8>(), 250..260)], 0..4),
                1..6,
            ),
        ) {
            let mut tx = bare_tx();
            for (vin, stack) in (0..).zip(&stacks) {
                tx.input.push(input(vin));
                tx.input[vin as usize].witness = Witness::from_slice(stack);
            }
            with_tx(&tx, |view| {
            prop_assert_eq!(view.witnesses().len(), stacks.len());
            for (witness, stack) in view.witnesses().zip(&stacks) {
                let items: Vec<&[u8]> = witness.items().collect();
                prop_assert_eq!(witness.items().len(), stack.len());
                prop_assert_eq!(witness.len(), stack.len());
                prop_assert_eq!(witness.is_empty(), stack.is_empty());
                prop_assert_eq!(witness.last(), stack.last().map(Vec::as_slice));
                prop_assert_eq!(&items, stack);
            }
            Ok(())
            })?;
        }
    }
}
