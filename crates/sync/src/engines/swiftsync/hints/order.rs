//! [`OrderTrial`]: finds the bit order of a hintsfile from the strict rules alone.
//!
//! One version byte covers both orders. Lengths do not depend on the order, so a file can be walked before it
//! is known; each element is tried in both until one order has failed. The state is one verdict for each order,
//! regardless of the length of the file. The trial never guesses: if both orders fit every element and mean
//! different coins, the user must name the order.

use super::elias_fano::{self, BitOrder};
use super::error::{HintsError, HintsFault};
use apus_chain::Height;

/// How the bit order is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderEvidence {
    /// The user stated it.
    Given,
    /// The hints at this height are invalid in the other order.
    Settled(Height),
    /// Both orders mean the same coins in every block.
    Irrelevant,
}

/// A place in the file.
#[derive(Clone, Copy, Debug)]
struct OutputPlace {
    height: Height,
    offset: u64,
}

pub(super) struct OrderTrial {
    /// The only order still possible, or the one to try first.
    order: BitOrder,
    state: OrderState,
    other: Vec<u32>,
}

enum OrderState {
    Given,
    /// Both fit so far; holds the first element that they read differently.
    Open {
        differs: Option<OutputPlace>,
    },
    /// The other order failed at this place.
    Settled(OutputPlace),
}

impl OrderTrial {
    pub(super) fn new(given: Option<BitOrder>) -> Self {
        let state =
            if given.is_some() { OrderState::Given } else { OrderState::Open { differs: None } };
        Self { order: given.unwrap_or(BitOrder::MsbFirst), state, other: Vec::new() }
    }

    /// Tries one whole element, which begins at `offset`.
    pub(super) fn element(
        &mut self,
        height: Height,
        offset: u64,
        bytes: &[u8],
        indices: &mut Vec<u32>,
    ) -> Result<(), HintsError> {
        let here = OutputPlace { height, offset };
        let first = elias_fano::decode(bytes, self.order, indices);
        match &mut self.state {
            OrderState::Given => first.map(drop).map_err(|fault| self.invalid(here, fault)),
            OrderState::Settled(before) => {
                let before = *before;
                first.map(drop).map_err(|fault| self.contradiction(before, here, bytes, fault))
            }
            OrderState::Open { differs } => {
                let second = elias_fano::decode(bytes, self.order.other(), &mut self.other);
                match (first, second) {
                    (Ok(_), Ok(_)) => {
                        if differs.is_none() && *indices != self.other {
                            *differs = Some(here);
                        }
                    }
                    (Ok(_), Err(_)) => self.state = OrderState::Settled(here),
                    (Err(_), Ok(_)) => {
                        self.order = self.order.other();
                        self.state = OrderState::Settled(here);
                        indices.clone_from(&self.other);
                    }
                    (Err(fault), Err(_)) => {
                        return Err(HintsError::block(height, offset, fault));
                    }
                }
                Ok(())
            }
        }
    }

    fn invalid(&self, here: OutputPlace, fault: HintsFault) -> HintsError {
        let OutputPlace { height, offset } = here;
        HintsError::Block { height, offset, order: Some(self.order), fault }
    }

    /// The error if `here` is invalid in the order that `before` determined.
    fn contradiction(
        &mut self,
        before: OutputPlace,
        here: OutputPlace,
        bytes: &[u8],
        fault: HintsFault,
    ) -> HintsError {
        if elias_fano::decode(bytes, self.order.other(), &mut self.other).is_err() {
            return self.invalid(here, fault);
        }
        HintsError::MixedBitOrders {
            first: before.height,
            first_offset: before.offset,
            first_order: self.order,
            second: here.height,
            second_offset: here.offset,
            second_order: self.order.other(),
        }
    }

    /// Returns the order and how it is known, after the last element. All heights were `shift` too high.
    pub(super) fn verdict(&self, shift: u32) -> Result<(BitOrder, OrderEvidence), HintsError> {
        match self.state {
            OrderState::Given => Ok((self.order, OrderEvidence::Given)),
            OrderState::Settled(place) => {
                Ok((self.order, OrderEvidence::Settled(place.height - shift)))
            }
            OrderState::Open { differs: None } => Ok((self.order, OrderEvidence::Irrelevant)),
            OrderState::Open { differs: Some(OutputPlace { height, offset }) } => {
                Err(HintsError::AmbiguousBitOrder { height: height - shift, offset })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use BitOrder::{LsbFirst as Lsb, MsbFirst as Msb};

    /// Valid only in the order in which it was written.
    const LONE: [u32; 1] = [0];
    /// The same bytes in both orders: H is 10100101.
    const SAME: [u32; 4] = [0, 1, 3, 4];
    /// Valid in both, with different meanings: H is 01010010, and reversed the set is [1, 3, 4].
    const TWIN: [u32; 3] = [1, 2, 4];

    fn trial(
        given: Option<BitOrder>,
        elements: &[(&[u32], BitOrder)],
    ) -> Result<String, HintsError> {
        let mut trial = OrderTrial::new(given);
        let (mut bytes, mut indices) = (Vec::new(), Vec::new());
        for (height, (set, order)) in (1..).zip(elements) {
            bytes.clear();
            elias_fano::encode(set, *order, &mut bytes).unwrap();
            trial.element(height, 100 * u64::from(height), &bytes, &mut indices)?;
        }
        trial.verdict(0).map(|(order, evidence)| format!("{} {evidence:?}", order.name()))
    }

    #[test]
    fn one_conclusive_element_settles_the_order() {
        let got = trial(None, &[(&[], Msb), (&TWIN, Lsb), (&LONE, Lsb), (&LONE, Lsb)]);
        assert_eq!(got.unwrap(), "lsb Settled(3)");
        let got = trial(None, &[(&TWIN, Msb), (&LONE, Msb), (&SAME, Msb)]);
        assert_eq!(got.unwrap(), "msb Settled(2)");
    }

    #[test]
    fn elements_that_mean_the_same_need_no_order() {
        assert_eq!(trial(None, &[]).unwrap(), "msb Irrelevant");
        assert_eq!(trial(None, &[(&[], Lsb), (&SAME, Lsb)]).unwrap(), "msb Irrelevant");
    }

    #[test]
    fn elements_that_differ_without_evidence_are_ambiguous() {
        let got = trial(None, &[(&SAME, Msb), (&TWIN, Msb), (&TWIN, Lsb)]).unwrap_err();
        assert!(matches!(got, HintsError::AmbiguousBitOrder { height: 2, offset: 200 }));
        assert_eq!(trial(Some(Lsb), &[(&SAME, Lsb), (&TWIN, Lsb)]).unwrap(), "lsb Given");
    }

    #[test]
    fn contradicting_elements_are_named_with_both_heights() {
        for order in [Msb, Lsb] {
            let elements: [(&[u32], BitOrder); 4] =
                [(&TWIN, order), (&LONE, order), (&LONE, order), (&LONE, order.other())];
            let got = trial(None, &elements).unwrap_err();
            assert!(
                matches!(
                    got,
                    HintsError::MixedBitOrders { first: 2, second: 4, first_order, second_order, .. }
                        if first_order == order && second_order == order.other()
                ),
                "{got}"
            );
        }
    }

    #[test]
    fn a_stated_order_is_enforced() {
        let got = trial(Some(Msb), &[(&LONE, Msb), (&LONE, Lsb)]).unwrap_err();
        assert!(matches!(got, HintsError::Block { height: 2, offset: 200, order: Some(Msb), .. }));
    }

    #[test]
    fn an_element_that_fits_neither_order_is_invalid() {
        let mut trial = OrderTrial::new(None);
        let got = trial.element(5, 9, &[1, 0, 0], &mut Vec::new()).unwrap_err();
        assert!(matches!(got, HintsError::Block { height: 5, offset: 9, order: None, .. }));
        trial.element(5, 9, &[1, 0, 0x80], &mut Vec::new()).unwrap();
        let got = trial.element(6, 12, &[1, 0, 0], &mut Vec::new()).unwrap_err();
        assert!(matches!(got, HintsError::Block { height: 6, order: Some(Msb), .. }));
    }
}
