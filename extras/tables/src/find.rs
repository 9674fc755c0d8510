//! [`Wanted`]: scripts to find in a set, compared in their stored form, so that no coin is decompressed.

use apus_chain::{CoinError, CoinValue, Reader, read_coin_value, write_script};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A script to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedScript {
    /// The script.
    pub script: Vec<u8>,
    /// The descriptor of exactly this script, as Core infers it, with its checksum.
    pub descriptor: String,
}

/// A coin that was found.
#[derive(Debug, Clone, Copy)]
pub struct FoundCoin<'a> {
    /// Amount, height, and whether a coinbase created it.
    pub value: CoinValue,
    /// Its script.
    pub wanted: &'a WantedScript,
}

/// Scripts to find in a set.
#[derive(Debug, Default)]
pub struct Wanted {
    scripts: Vec<WantedScript>,
    /// The place in `scripts` of each stored form.
    places: HashMap<Box<[u8]>, usize>,
    /// A bit for each possible [`mark`], set for those of the scripts: nearly all coins end here.
    marks: Vec<u64>,
}

/// Fewest bits of marks: 64 KiB, which stays in the processor's cache.
const BITS_MIN: usize = 1 << 19;

/// Bits of marks for each script, so that few other coins pass.
const BITS_PER_SCRIPT: usize = 64;

impl Wanted {
    /// Collects scripts. Of equal ones, the first counts.
    pub fn new(wanted: impl IntoIterator<Item = WantedScript>) -> Self {
        let mut this = Self::default();
        for wanted in wanted {
            let mut stored = Vec::new();
            write_script(&mut stored, &wanted.script);
            if let Entry::Vacant(place) = this.places.entry(stored.into_boxed_slice()) {
                place.insert(this.scripts.len());
                this.scripts.push(wanted);
            }
        }
        let bits = (this.scripts.len() * BITS_PER_SCRIPT).next_power_of_two().max(BITS_MIN);
        this.marks = vec![0; bits / 64];
        for stored in this.places.keys() {
            let mark = mark(stored, bits);
            this.marks[mark / 64] |= 1 << (mark % 64);
        }
        this
    }

    /// Returns the number of different scripts.
    pub fn len(&self) -> usize {
        self.scripts.len()
    }

    /// Returns whether there is nothing to find.
    pub fn is_empty(&self) -> bool {
        self.scripts.is_empty()
    }

    /// Returns the coin if its script is wanted. `stored` is a whole coin in its stored form.
    #[inline]
    pub fn find(&self, stored: &[u8]) -> Result<Option<FoundCoin<'_>>, CoinError> {
        let is_marked = after_numbers(stored).is_none_or(|script| {
            let mark = mark(script, self.marks.len() * 64);
            self.marks[mark / 64] >> (mark % 64) & 1 == 1
        });
        if is_marked { self.look_up(stored) } else { Ok(None) }
    }

    #[cold]
    fn look_up(&self, stored: &[u8]) -> Result<Option<FoundCoin<'_>>, CoinError> {
        let mut reader = Reader::new(stored);
        let value = read_coin_value(&mut reader)?;
        let place = self.places.get(reader.unread());
        Ok(place.map(|place| FoundCoin { value, wanted: &self.scripts[*place] }))
    }
}

/// Skips the two numbers before a coin's script. Each ends with its first byte below 128.
#[inline]
fn after_numbers(mut stored: &[u8]) -> Option<&[u8]> {
    for _ in 0..2 {
        let end = stored.iter().position(|byte| *byte < 0x80)?;
        stored = &stored[end + 1..];
    }
    Some(stored)
}

/// Returns a number below `bits`, a power of two, that depends on the last bytes of a stored script.
#[inline]
fn mark(script: &[u8], bits: usize) -> usize {
    let last = match script.last_chunk() {
        Some(last) => u64::from_le_bytes(*last),
        None => script.iter().fold(1, |sum, byte| sum << 8 | u64::from(*byte)),
    };
    (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{CoinRef, write_coin};
    use proptest::prelude::*;

    fn any_script() -> impl Strategy<Value = Vec<u8>> {
        let hash = any::<[u8; 20]>();
        prop_oneof![
            hash.prop_map(|h| [&[0x76, 0xa9, 20], &h[..], &[0x88, 0xac]].concat()),
            proptest::collection::vec(0_u8..3, 0..4),
            proptest::collection::vec(any::<u8>(), 0..70),
        ]
    }

    proptest! {
        #[test]
        fn exactly_the_coins_of_wanted_scripts_are_found(
            scripts in proptest::collection::vec(any_script(), 1..20),
            height in 0_u32..1_000_000, amount in 0_u64..2_100_000_000_000_000, coinbase in any::<bool>()
        ) {
            let (wanted, others) = scripts.split_at(scripts.len() / 2);
            let of = |script: &Vec<u8>| WantedScript { script: script.clone(), descriptor: String::new() };
            let set = Wanted::new(wanted.iter().map(of));
            for script in wanted.iter().chain(others) {
                let mut stored = Vec::new();
                write_coin(&mut stored, CoinRef { height, coinbase, amount, script });
                let found = set.find(&stored).unwrap();
                prop_assert_eq!(found.is_some(), wanted.contains(script));
                if let Some(found) = found {
                    prop_assert_eq!(&found.wanted.script, script);
                    prop_assert_eq!(found.value, CoinValue { height, coinbase, amount });
                }
            }
        }
    }
}
