//! [`CoinBytes`]: one coin as the cache and the store hold it, in Core's stored form.
//!
//! It is the form of Core's chainstate (`coins.h`, `Coin::Serialize`): height and coinbase flag,
//! amount and script, all compressed. A flush writes it and a look-up reads it, so neither converts
//! anything; the few fields that rules need are decoded on demand. Nearly all coins fit inline,
//! without an allocation. The others are shared by all their holders: a block may spend a quarter
//! of a gigabyte of them.

use apus_chain::{Coin, CoinError, CoinRef, Reader, read_coin, read_coin_strict, write_coin};
use std::sync::Arc;

/// Bytes stored inline: enough for every coin with a common script.
const INLINE_BYTES: usize = 46;

/// Length of the longest script whose form alone determines the maximum cost of spending it: a
/// witness program of 40 bytes (BIP-141).
const RULE_SCRIPT_BYTES: usize = 42;

/// A coin in its stored form, known to be well-formed.
#[derive(Clone, PartialEq, Eq)]
pub struct CoinBytes(CoinForm);

#[derive(Clone, PartialEq, Eq)]
enum CoinForm {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Arc<[u8]>),
}

const _: () = assert!(size_of::<CoinBytes>() == 48, "the cache's memory plan assumes this size");

impl CoinBytes {
    /// Stores a coin. Its script must be spendable.
    pub fn new(coin: CoinRef<'_>) -> Self {
        let mut bytes = Vec::with_capacity(INLINE_BYTES);
        write_coin(&mut bytes, coin);
        Self::of(&bytes)
    }

    /// Wraps bytes from a store; fails if they are not the one valid form of a coin.
    pub fn read(bytes: &[u8]) -> Result<Self, CoinError> {
        let mut reader = Reader::new(bytes);
        read_coin_strict(&mut reader)?;
        reader.finish()?;
        Ok(Self::of(bytes))
    }

    /// Wraps bytes that are known to be a coin.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() > INLINE_BYTES {
            return Self(CoinForm::Heap(bytes.into()));
        }
        let mut inline = [0; INLINE_BYTES];
        inline[..bytes.len()].copy_from_slice(bytes);
        Self(CoinForm::Inline { length: bytes.len() as u8, bytes: inline })
    }

    /// Returns the stored form.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            CoinForm::Inline { length, bytes } => &bytes[..usize::from(*length)],
            CoinForm::Heap(bytes) => bytes,
        }
    }

    /// Returns the coin.
    pub fn coin(&self) -> Coin<'_> {
        read_coin(&mut Reader::new(self.as_bytes()))
            .expect("the bytes were written or checked as a coin")
    }

    /// Returns the coin without its script if that is longer than any that rules read without
    /// running it: scripts that pay to a script's hash, and witness programs.
    pub fn without_long_script(self) -> Self {
        let CoinForm::Heap(_) = &self.0 else { return self };
        let coin = self.coin();
        let coin = coin.as_ref();
        match coin.script.len() > RULE_SCRIPT_BYTES {
            true => Self::new(CoinRef { script: &[], ..coin }),
            false => self,
        }
    }

    /// Returns the memory in use in addition to the value itself, in bytes.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            CoinForm::Inline { .. } => 0,
            // The bytes, the reference counts, and the allocator's overhead.
            CoinForm::Heap(bytes) => bytes.len() + 32,
        }
    }
}

impl AsRef<[u8]> for CoinBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl std::fmt::Debug for CoinBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.coin().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_coin_comes_back(
            height in 0u32..2_000_000,
            coinbase: bool,
            amount in 0u64..=apus_chain::MAX_MONEY,
            script in vec(0u8..0x60, 0..90),
        ) {
            let coin = CoinRef { height, coinbase, amount, script: &script };
            let stored = CoinBytes::new(coin);
            let read = stored.coin();
            prop_assert_eq!(read.as_ref(), coin);
            prop_assert_eq!(CoinBytes::read(stored.as_bytes()).unwrap(), stored);
        }

        #[test]
        fn invalid_coin_bytes_are_refused(bytes in vec(any::<u8>(), 0..60)) {
            if let Ok(coin) = CoinBytes::read(&bytes) {
                prop_assert_eq!(coin.as_bytes(), &bytes[..]);
                prop_assert_eq!(CoinBytes::new(coin.coin().as_ref()), coin);
            }
        }
    }

    #[test]
    fn only_a_long_script_is_removed() {
        for length in [0, 34, 42, 60, 500, 10_000] {
            let script = vec![0x51; length];
            let coin = CoinRef { height: 7, coinbase: true, amount: 9, script: &script };
            let left = CoinBytes::new(coin).without_long_script();
            let script = if length > 42 { &[][..] } else { &script };
            assert_eq!(left.coin().as_ref(), CoinRef { script, ..coin }, "{length}");
            assert!(length <= 42 || left.heap_bytes() == 0);
        }
    }

    #[test]
    fn common_scripts_need_no_allocation() {
        for script in [&[0u8; 25][..], &[0x51; 34]] {
            let amount = 123_456_789_012;
            let coin = CoinRef { height: 2_000_000, coinbase: true, amount, script };
            assert_eq!(CoinBytes::new(coin).heap_bytes(), 0);
        }
        let long = CoinRef { height: 1, coinbase: false, amount: 1, script: &[0x51; 47] };
        assert!(CoinBytes::new(long).heap_bytes() >= 47);
    }
}
