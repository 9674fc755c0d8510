//! Tests reading witnesses, item by item.

use crate::tests::{bare_tx, input, with_tx};
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
