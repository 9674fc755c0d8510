//! [`Rng`]: randomness that a seed determines, on every machine and with every compiler.
//!
//! SplitMix64: 64 bits of state, an addition and a mix, in integers only. A failing seed can be written into a
//! test and means the same years later; a chain for measurements is identified by its seed. It is good enough
//! to choose shapes and to fill bytes, but not for secrets.

/// A stream of numbers determined by its seed.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Makes the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Makes the stream of a seed and a place, for data whose places are filled in any order.
    pub fn at(seed: u64, place: u64) -> Self {
        Self(Self(seed).next_u64() ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0: there is no such number.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index for `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true in `part` of 1,000 times.
    pub fn per_mille(&mut self, part: u64) -> bool {
        self.below(1_000) < part
    }

    /// Returns `len` random bytes, each from its own number. The meaning of seeds in tests depends on that;
    /// [`Rng::fill`] gets more bytes from a number.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next_u64() as u8).collect()
    }

    /// Fills a slice with random bytes, eight from a number.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Appends `len` random bytes, made like [`Rng::fill`]'s.
    pub fn append(&mut self, out: &mut Vec<u8>, len: usize) {
        let start = out.len();
        out.resize(start + len, 0);
        self.fill(&mut out[start..]);
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
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
    fn the_stream_never_changes() {
        // The published first outputs of SplitMix64 for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seed_and_place_both_matter() {
        let first = |seed, place| Rng::at(seed, place).next_u64();
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(1, 0), first(1, 1));
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1_000 {
            seen[rng.between(3, 9) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn bytes_match_the_numbers() {
        let mut rng = Rng::new(3);
        let numbers = [(); 13].map(|()| rng.next_u64());
        assert_eq!(Rng::new(3).bytes(13), numbers.map(|number| number as u8));
        let eight = [numbers[0].to_le_bytes(), numbers[1].to_le_bytes()].concat();
        let mut filled = [0; 13];
        Rng::new(3).fill(&mut filled);
        assert_eq!(filled, eight[..13]);
        let mut appended = vec![7];
        Rng::new(3).append(&mut appended, 13);
        assert_eq!(appended, [&[7], &filled[..]].concat());
    }

    #[test]
    fn a_shuffle_keeps_the_elements() {
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(5).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
