//! [`Rng`]: numbers that a seed fixes for ever, on every machine.
//!
//! SplitMix64, in whole numbers alone: nothing here depends on how a machine rounds. Good enough
//! to choose shapes and to fill bytes; of no use for secrets.

/// A stream of numbers that its seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream that belongs to a seed and a place in the chain.
    pub(crate) fn new(seed: u64, place: u64) -> Self {
        let mut rng = Self(seed);
        Self(rng.next() ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something with `len` elements.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `part` of 1,000 times.
    pub(crate) fn per_mille(&mut self, part: u64) -> bool {
        self.below(1_000) < part
    }

    /// Appends `len` random bytes.
    pub(crate) fn fill(&mut self, out: &mut Vec<u8>, len: usize) {
        let end = out.len() + len;
        while out.len() < end {
            let bytes = self.next().to_le_bytes();
            out.extend_from_slice(&bytes[..(end - out.len()).min(8)]);
        }
    }

    /// Puts a slice into random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_fixed_for_ever() {
        // The published first outputs of SplitMix64 for seed 1234567.
        let mut rng = Rng(1_234_567);
        assert_eq!(rng.next(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seed_and_place_both_matter() {
        let first = |seed, place| Rng::new(seed, place).next();
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(1, 0), first(1, 1));
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut rng = Rng::new(1, 1);
        let mut seen = [false; 7];
        (0..1_000).for_each(|_| seen[rng.between(3, 9) as usize - 3] = true);
        assert_eq!(seen, [true; 7]);
        assert_eq!(rng.below(0), 0);
        let mut bytes = vec![1];
        rng.fill(&mut bytes, 13);
        assert_eq!(bytes.len(), 14);
    }
}
