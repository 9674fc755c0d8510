//! [`Wanted`]: scripts to find in a set, compared in their stored form, so that no coin is decompressed.

use apus_chain::{CoinError, CoinValue, Reader, compress_script, read_coin_value, write_script};
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
    ///
    /// # Errors
    /// If a coin that is looked at is damaged. If any coin's script is stored whole but has a compressed form, which Core
    /// never writes: a look-up would miss it.
    #[inline]
    pub fn find(&self, stored: &[u8]) -> Result<Option<FoundCoin<'_>>, CoinError> {
        let script = after_numbers(stored);
        if script.is_some_and(may_be_compressible) {
            expect_compressed(stored)?;
        }
        let is_marked = script.is_none_or(|script| {
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

/// Stored sizes of the scripts of 23, 25, 35 and 67 bytes, the lengths that have compressed forms.
const COMPRESSIBLE: [u8; 4] = [23 + 6, 25 + 6, 35 + 6, 67 + 6];

#[inline]
fn may_be_compressible(script: &[u8]) -> bool {
    script.first().is_some_and(|size| COMPRESSIBLE.contains(size))
}

/// Fails if a script that is stored whole has a compressed form.
#[cold]
fn expect_compressed(stored: &[u8]) -> Result<(), CoinError> {
    let script = after_numbers(stored).and_then(|script| script.get(1..)).unwrap_or_default();
    match compress_script(script) {
        Some(_) => Err(CoinError::NotCompressed { offset: stored.len() - script.len() - 1 }),
        None => Ok(()),
    }
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

    #[test]
    fn a_script_that_is_stored_whole_but_has_a_short_form_is_refused() {
        let point = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798\
                     483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";
        let byte = |at: usize| u8::from_str_radix(&point[2 * at..][..2], 16).unwrap();
        let point: Vec<u8> = (0..64).map(byte).collect();
        let set = Wanted::new([WantedScript { script: vec![0x51], descriptor: String::new() }]);
        for script in [
            [&[0x76, 0xa9, 20], &[7; 20][..], &[0x88, 0xac]].concat(),
            [&[0xa9, 20], &[7; 20][..], &[0x87]].concat(),
            [&[33, 2], &point[..32], &[0xac]].concat(),
            [&[65, 4], &point[..], &[0xac]].concat(),
        ] {
            let whole = |script: &[u8]| [&[2, 0, script.len() as u8 + 6], script].concat();
            let refused = set.find(&whole(&script));
            assert!(matches!(refused, Err(CoinError::NotCompressed { offset: 2 })), "{refused:?}");
            // One of the same length that has no short form.
            let mut other = script.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(matches!(set.find(&whole(&other)), Ok(None)));
        }
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
