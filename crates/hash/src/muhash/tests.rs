//! Compares every kernel of this machine, whole and in parts, with independent implementations.

use super::*;
use ::chacha20::ChaCha20;
use ::chacha20::cipher::{KeyIvInit, StreamCipher};
use num_bigint::BigUint;
use proptest::collection::vec;
use proptest::prelude::*;

fn prime() -> BigUint {
    (BigUint::from(1u32) << 3072u32) - BigUint::from(1_103_717u32)
}

fn number_of(key: &[u8; 32]) -> BigUint {
    let mut bytes = [0u8; 384];
    ChaCha20::new(&(*key).into(), &[0u8; 12].into()).apply_keystream(&mut bytes);
    BigUint::from_bytes_le(&bytes)
}

fn value(number: &Num3072) -> BigUint {
    BigUint::from_bytes_le(&number.to_bytes())
}

/// Makes keys without a pattern that could hide a mistake.
fn keys(seed: u64, count: usize) -> Vec<[u8; 32]> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| core::array::from_fn(|_| next())).collect()
}

#[test]
fn a_keys_number_is_its_key_stream() {
    for key in keys(1, 20) {
        assert_eq!(value(&Num3072::of_key(&key)), number_of(&key) % prime());
    }
}

#[test]
fn every_kernel_multiplies_every_number_of_keys() {
    let keys = keys(2, 75);
    for kernel in MuHashKernel::available() {
        let mut expected = BigUint::from(1u32);
        for count in 0..=keys.len() {
            let mut product = Product::with(kernel);
            product.multiply(&keys[..count]);
            assert_eq!(value(&product.finish()), expected, "{} {count}", kernel.name());
            if let Some(key) = keys.get(count) {
                expected = expected * number_of(key) % prime();
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn digits_may_be_slightly_too_wide() {
    for (bits, count, digit) in [(48, 64, (1 << 49) - 1), (28, 110, 1 << 28), (28, 110, 0)] {
        let number = Num3072::from_digits(bits, core::iter::repeat_n(digit, count));
        let expected = (0..count).map(|i| BigUint::from(digit) << (bits as usize * i));
        assert_eq!(value(&number), expected.sum::<BigUint>() % prime());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn cuts_and_kernels_do_not_matter(seed: u64, parts in vec(0usize..40, 0..6)) {
        let keys = keys(seed, parts.iter().sum());
        let mut expected = Num3072::ONE;
        keys.iter().for_each(|key| expected.multiply(&Num3072::of_key(key)));
        for kernel in MuHashKernel::available() {
            let (mut product, mut rest) = (Product::with(kernel), &keys[..]);
            for part in &parts {
                let (now, later) = rest.split_at(*part);
                product.multiply(now);
                rest = later;
            }
            prop_assert_eq!(product.finish(), expected.clone(), "{}", kernel.name());
        }
    }
}

/// The parts of a kernel with `N` lanes and `L` limbs.
#[cfg(target_arch = "x86_64")]
mod parts {
    use super::*;
    use crate::muhash::avx2::Avx2Products;
    use crate::muhash::ifma::Ifma;

    type Numbers<const N: usize, const L: usize> = [[u64; N]; L];

    type Expand<const N: usize, const L: usize> = dyn Fn(&[[u8; 32]]) -> [Numbers<N, L>; 2];
    type Multiply<const N: usize, const L: usize> =
        dyn Fn(&Numbers<N, L>, &Numbers<N, L>) -> Numbers<N, L>;

    struct Parts<const N: usize, const L: usize> {
        limb_bits: u32,
        /// The maximum value of each limb.
        most: [u64; L],
        numbers_of: Box<Expand<N, L>>,
        multiplied: Box<Multiply<N, L>>,
        /// The group and lane of a key's number.
        place: fn(usize) -> (usize, usize),
    }

    fn ifma() -> Option<Parts<8, 64>> {
        let token = Ifma::detect()?;
        Some(Parts {
            limb_bits: 48,
            most: [(1 << 49) - 1; 64],
            numbers_of: Box::new(move |keys| token.numbers_of(keys)),
            multiplied: Box::new(move |a, b| token.multiplied(a, b)),
            place: |key| (key / 8, key % 8),
        })
    }

    fn avx2() -> Option<Parts<4, 112>> {
        let token = Avx2Products::detect()?;
        let mut most = [(1 << 28) - 1; 112];
        most[3] += 1;
        most[110..].fill(0);
        Some(Parts {
            limb_bits: 28,
            most,
            numbers_of: Box::new(move |keys| token.numbers_of(keys)),
            multiplied: Box::new(move |a, b| token.multiplied(a, b)),
            place: |key| (key % 2, key / 2),
        })
    }

    impl<const N: usize, const L: usize> Parts<N, L> {
        fn value(&self, limbs: impl IntoIterator<Item = u64>) -> BigUint {
            let places = limbs.into_iter().zip((0..).step_by(self.limb_bits as usize));
            places.map(|(limb, at): (u64, u32)| BigUint::from(limb) << at).sum()
        }

        fn limbs(&self, value: &BigUint) -> [u64; L] {
            let mask = BigUint::from((1u64 << self.limb_bits) - 1);
            let limb = |i: usize| (value >> (i * self.limb_bits as usize)) & &mask;
            core::array::from_fn(|i| limb(i).try_into().unwrap())
        }

        fn check_keys(&self) {
            for count in 0..=2 * N {
                let keys = keys(count as u64, count);
                let groups = (self.numbers_of)(&keys);
                for i in 0..2 * N {
                    let (group, lane) = (self.place)(i);
                    let expected = keys.get(i).map_or(BigUint::from(1u32), number_of);
                    let limbs = groups[group].map(|limbs| limbs[lane]);
                    assert_eq!(limbs, self.limbs(&expected), "key {i} of {count}");
                }
            }
        }

        /// Multiplies the pairs, one pair per lane at a time.
        fn check_products(&self, pairs: &[([u64; L], [u64; L])]) {
            for pairs in pairs.chunks(N) {
                let pair = |lane: usize| &pairs[lane.min(pairs.len() - 1)];
                let a = core::array::from_fn(|limb| core::array::from_fn(|i| pair(i).0[limb]));
                let b = core::array::from_fn(|limb| core::array::from_fn(|i| pair(i).1[limb]));
                let product = (self.multiplied)(&a, &b);
                for lane in 0..N {
                    let (a, b) = pair(lane);
                    let limbs = product.map(|limbs| limbs[lane]);
                    let expected = self.value(*a) * self.value(*b) % prime();
                    assert_eq!(self.value(limbs) % prime(), expected, "lane {lane}");
                    let narrow = limbs.iter().zip(&self.most).all(|(limb, most)| limb <= most);
                    assert!(narrow, "lane {lane}: {limbs:?}");
                }
            }
        }

        /// Makes numbers with far-reaching carries, and numbers of the maximum width.
        fn check_edges(&self) {
            let one = BigUint::from(1u32);
            let mut edges: Vec<[u64; L]> = [
                BigUint::ZERO,
                one.clone(),
                BigUint::from(1_103_717u32),
                BigUint::from(u64::MAX),
                (&one << 1536u32) - &one,
                &one << 1536u32,
                &one << 3071u32,
                prime() - 2u32,
                prime() - &one,
                prime(),
                prime() + &one,
                (&one << 3072u32) - &one,
            ]
            .iter()
            .map(|value| self.limbs(value))
            .collect();
            edges.push(self.most);
            for part in [1, 2, 4, 8, 16] {
                edges.push(core::array::from_fn(|i| self.most[i] * (i / part % 2) as u64));
                edges.push(core::array::from_fn(|i| self.most[i] * (1 - i / part % 2) as u64));
            }
            let pairs: Vec<_> = edges.iter().flat_map(|a| edges.iter().map(|b| (*a, *b))).collect();
            self.check_products(&pairs);
        }

        fn any_number(&self) -> impl Strategy<Value = [u64; L]> {
            let most = self.most;
            vec((0..8, any::<u64>()), L).prop_map(move |limbs| {
                core::array::from_fn(|i| match limbs[i] {
                    (0, _) => 0,
                    (1 | 2, _) => most[i],
                    (3, any) => most[i].saturating_sub(any % 4),
                    (_, any) => any.checked_rem(most[i]).unwrap_or(0),
                })
            })
        }

        fn check_any(&self) {
            let pairs = vec((self.any_number(), self.any_number()), N);
            let config = ProptestConfig { cases: 64, ..Default::default() };
            let mut runner = proptest::test_runner::TestRunner::new(config);
            let result = runner.run(&pairs, |pairs| {
                self.check_products(&pairs);
                Ok(())
            });
            result.unwrap();
        }

        fn check(&self) {
            self.check_keys();
            self.check_edges();
            self.check_any();
        }
    }

    #[test]
    fn of_ifma() {
        assert_eq!(ifma().is_some(), MuHashKernel::available().contains(&MuHashKernel::Ifma));
        ifma().iter().for_each(Parts::check);
    }

    #[test]
    fn of_avx2() {
        assert_eq!(avx2().is_some(), MuHashKernel::available().contains(&MuHashKernel::Avx2));
        avx2().iter().for_each(Parts::check);
    }
}

/// The plain kernel, with one wrong factor.
struct FaultyProducts(Num3072);

impl ProductLanes for FaultyProducts {
    fn width(&self) -> usize {
        1
    }

    fn multiply(&mut self, keys: &[[u8; 32]]) {
        let wrong = keys[0][0] == 37;
        ProductLanes::multiply(&mut self.0, if wrong { &[[1; 32]] } else { keys });
    }

    fn product(&self) -> Num3072 {
        self.0.clone()
    }
}

#[test]
fn a_wrong_factor_is_detected() {
    let faulty: Box<dyn ProductLanes> = Box::new(FaultyProducts(Num3072::ONE));
    let kernels =
        [(MuHashKernel::Ifma, faulty), (MuHashKernel::Portable, MuHashKernel::Portable.lanes())];
    assert_eq!(right_of(kernels.into_iter()), [MuHashKernel::Portable]);
    assert!(
        ALL.into_iter().filter_map(MuHashKernel::detect).all(|mut lanes| is_right(&mut *lanes))
    );
}

#[test]
fn names_choose_only_supported_kernels() {
    let available = MuHashKernel::available();
    assert!(available.contains(&MuHashKernel::Portable));
    for kernel in ALL {
        let expected = if available.contains(&kernel) { kernel } else { available[0] };
        assert_eq!(MuHashKernel::choose(Some(kernel.name())), expected);
    }
    for other in [None, Some(""), Some("AVX2"), Some("avx512")] {
        assert_eq!(MuHashKernel::choose(other), available[0]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn rfc_8439_section_2_3_2_block_matches() {
    let key: [u8; 32] = core::array::from_fn(|i| i as u8);
    let nonce = [0x0900_0000, 0x4a00_0000, 0];
    assert_eq!(
        hex(&block(&key, 1, nonce)),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e\
         d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    );
}

#[test]
fn rfc_8439_appendix_a_1_blocks_match() {
    let zero = [0; 32];
    assert_eq!(
        hex(&block(&zero, 0, [0; 3])),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7\
         da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    );
    assert_eq!(
        hex(&block(&zero, 1, [0; 3])),
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed\
         29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    );
}
