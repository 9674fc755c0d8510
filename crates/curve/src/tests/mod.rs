//! Tests of each layer against big integers and libsecp256k1.

mod batch;
mod bip340;
pub(crate) mod checks;
mod exhaustive;
mod field;
mod limbs;
mod msm;
mod out_of_line;
mod point;
mod scalar;
mod verify;
mod wycheproof;

use num_bigint::BigUint;

/// Whether the processor has AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2")
}

/// Whether the processor has AVX-512 IFMA.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_ifma() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512ifma")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("bmi2")
}

/// Numbers that are easily wrong: around 0, p, 2^256 and each limb's ends.
pub(crate) fn edges() -> Vec<[u64; 4]> {
    let p = [0xFFFF_FFFE_FFFF_FC2F, u64::MAX, u64::MAX, u64::MAX];
    let mut all = vec![[0; 4], [1, 0, 0, 0], [2, 0, 0, 0], [u64::MAX; 4], p, [977, 0, 0, 0]];
    all.extend([[p[0] - 1, p[1], p[2], p[3]], [p[0] + 1, p[1], p[2], p[3]]]);
    all.extend([[0x1_0000_03D1, 0, 0, 0], [0x1_0000_03D0, 0, 0, 0], [0, 0, 0, 1 << 63]]);
    for bits in [29, 52, 58, 64, 104, 145, 203, 208, 232, 255] {
        let mut power = [0; 4];
        power[bits / 64] = 1 << (bits % 64);
        all.push(power);
        all.push(words(&(big(&power) - 1u8)));
        all.push(words(&(big(&p) - big(&power))));
    }
    all
}

/// A fixed sequence of numbers that look random (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    pub(crate) fn number(&mut self) -> [u64; 4] {
        core::array::from_fn(|_| self.word())
    }

    /// Mostly random, sometimes an edge.
    pub(crate) fn any(&mut self) -> [u64; 4] {
        let edges = edges();
        if self.below(4) == 0 { edges[self.below(edges.len())] } else { self.number() }
    }
}

pub(crate) fn big(number: &[u64; 4]) -> BigUint {
    number.iter().rev().fold(BigUint::ZERO, |sum, word| (sum << 64) + *word)
}

pub(crate) fn words(number: &BigUint) -> [u64; 4] {
    let digits = number.to_u64_digits();
    assert!(digits.len() <= 4, "over 256 bits");
    core::array::from_fn(|i| digits.get(i).copied().unwrap_or(0))
}
