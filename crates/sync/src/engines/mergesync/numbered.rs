//! [`NumberedCoin`]: a coin with the number of its leaf.
//!
//! The number is that among the leaves of the coin's own block. It stands in four bytes behind the coin's stored form,
//! big-endian, from the first walk over the blocks to the second one, and the join carries it along without
//! looking. What its own block spends is no leaf (BIP-182, draft), and has all ones there.

const NO_LEAF: u32 = u32::MAX;

/// Length in bytes of what stands behind the coin.
const SIZE: usize = 4;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberedCoin<'a> {
    /// The coin in its stored form.
    pub coin: &'a [u8],
    /// Which one of its block's leaves it is; none where that block spends it.
    pub leaf: Option<u32>,
}

impl<'a> NumberedCoin<'a> {
    /// The coin and what stands behind it; none where these bytes have no room for both.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (coin, leaf) = bytes.split_last_chunk::<SIZE>()?;
        let leaf = Some(u32::from_be_bytes(*leaf)).filter(|leaf| *leaf != NO_LEAF);
        (!coin.is_empty()).then_some(Self { coin, leaf })
    }

    /// Appends to a coin that it is no leaf.
    pub(super) fn no_leaf(out: &mut Vec<u8>) {
        out.extend_from_slice(&NO_LEAF.to_be_bytes());
    }

    /// Makes the number of a coin this one.
    pub(super) fn set_leaf(bytes: &mut [u8], leaf: u32) {
        if let Some(number) = bytes.last_chunk_mut::<SIZE>() {
            *number = leaf.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(coin in prop::collection::vec(any::<u8>(), 1..50), leaf in 0..NO_LEAF) {
            let mut bytes = coin.clone();
            NumberedCoin::no_leaf(&mut bytes);
            prop_assert_eq!(NumberedCoin::read(&bytes), Some(NumberedCoin { coin: &coin, leaf: None }));
            NumberedCoin::set_leaf(&mut bytes, leaf);
            let numbered = NumberedCoin { coin: &coin, leaf: Some(leaf) };
            prop_assert_eq!(NumberedCoin::read(&bytes), Some(numbered));
        }
    }

    #[test]
    fn there_is_a_coin_before_the_number() {
        assert!((0..5).all(|length| NumberedCoin::read(&[7; 5][..length]).is_none()));
    }
}
