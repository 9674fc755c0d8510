//! Each field kernel against big integers: edges, the greatest magnitudes, long chains, powers,
//! transposition. The emulated kernels panic at each violated interval, so they test the interval
//! arguments too.

use super::out_of_line::OutOfLine;
use super::{Random, big, edges, words};
use crate::field::{FieldVector, P, U256, from_bytes, inverse, is_less, square_root};
use crate::portable::{Element, reduced};
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::words::emulated::Emulated;
use crate::words::{Line, MAX_LANES};
use num_bigint::BigUint;

/// Runs a generic test for each kernel.
macro_rules! for_each_kernel {
    ($($test:ident)*) => {$(
        #[test]
        fn $test() {
            generic::$test::<OutOfLine<Element>>();
            generic::$test::<OutOfLine<Radix29<Emulated<4>>>>();
            generic::$test::<OutOfLine<Radix52<Emulated<8>>>>();
            #[cfg(target_arch = "x86_64")]
            {
                if crate::tests::has_avx2() {
                    generic::$test::<OutOfLine<crate::avx2::FieldAvx2>>();
                }
                if crate::tests::has_ifma() {
                    generic::$test::<OutOfLine<crate::ifma::FieldIfma>>();
                }
            }
        }
    )*};
}

for_each_kernel! { edges_and_random_numbers greatest_magnitudes chains powers points_in_memory }

fn prime() -> BigUint {
    big(&P)
}

/// The numbers of all lanes, reduced.
fn stored<F: FieldVector>(vector: &F) -> Vec<BigUint> {
    let mut out = [[0; 4]; MAX_LANES];
    vector.store(&mut out[..F::LANES]);
    out[..F::LANES].iter().map(big).collect()
}

/// Numbers of all lanes: `first`, then others.
fn lanes<F: FieldVector>(first: U256, random: &mut Random) -> (F, Vec<BigUint>) {
    let mut numbers = [first; MAX_LANES];
    numbers[1..].iter_mut().for_each(|number| *number = random.any());
    (F::load(&numbers[..F::LANES]), numbers[..F::LANES].iter().map(big).collect())
}

#[track_caller]
fn assert_lanes<F: FieldVector>(got: &F, expected: impl Fn(usize) -> BigUint) {
    let expected: Vec<BigUint> = (0..F::LANES).map(|i| expected(i) % prime()).collect();
    assert_eq!(stored(got), expected);
}

mod generic {
    use super::*;

    pub(super) fn edges_and_random_numbers<F: FieldVector>() {
        let mut random = Random(1);
        let edges = edges();
        let pairs = edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b)));
        for (x, y) in pairs {
            let ((a, p), (b, q)) = (lanes::<F>(x, &mut random), lanes::<F>(y, &mut random));
            assert_lanes(&a, |i| p[i].clone());
            assert_lanes(&a.mul(&b), |i| &p[i] * &q[i]);
            assert_lanes(&a.square(), |i| &p[i] * &p[i]);
            assert_lanes(&a.add(&b), |i| &p[i] + &q[i]);
            assert_lanes(&a.sub::<1>(&b), |i| &p[i] + prime() * 2u8 - &q[i]);
            assert_lanes(&F::sum_of_products(&a, &b, &b, &b), |i| (&p[i] + &q[i]) * &q[i]);
            let mask = random.word() as u8;
            let chosen = |i: usize| mask >> i & 1 == 1;
            assert_lanes(&F::select(mask, &a, &b), |i| {
                if chosen(i) { &q[i] } else { &p[i] }.clone()
            });
            let minus = |i: usize| prime() * 2u8 - &p[i];
            assert_lanes(
                &a.negate_where(mask),
                |i| if chosen(i) { minus(i) } else { p[i].clone() },
            );
            assert_lanes(&F::splat(&x), |_| big(&x));
        }
    }

    /// Factors at the limits that `FieldVector::mul` documents, made of the greatest limbs.
    pub(super) fn greatest_magnitudes<F: FieldVector>() {
        let top = big(&[u64::MAX; 4]);
        let full = F::splat(&[u64::MAX; 4]);
        let wide = |vector: F| vector.carry_for_52();
        let (x2, x3, x7) =
            (wide(full.times::<2>()), wide(full.times::<3>()), wide(full.times::<7>()));
        assert_lanes(&x7.mul(&full), |_| &top * &top * 7u8);
        assert_lanes(&x2.mul(&x3), |_| &top * &top * 6u8);
        assert_lanes(&x2.square(), |_| &top * &top * 4u8);
        assert_lanes(&x7.carry().square(), |_| &top * &top * 49u8);
        assert_lanes(&x7.mul(&x7.carry()), |_| &top * &top * 49u8);
        assert_lanes(&F::sum_of_products(&x3, &full, &x2, &x2), |_| &top * &top * 7u8);
        assert_lanes(&full.times::<31>().carry().normalize_weak(), |_| &top * 31u8);
        assert_lanes(&full.times::<31>().normalize_weak(), |_| &top * 31u8);
        assert_lanes(&full.times::<31>().normalize_weak().square(), |_| {
            &top * &top * 31u32 * 31u32
        });
        for number in edges() {
            let (vector, number) = (F::splat(&number), big(&number));
            assert_lanes(&vector.times::<7>(), |_| &number * 7u8);
            assert_lanes(&vector.times::<8>().normalize_weak(), |_| &number * 8u8);
            assert_lanes(&vector.times::<21>().normalize_weak(), |_| &number * 21u8);
            assert_lanes(&vector.sub::<7>(&full.times::<7>()).normalize_weak(), |_| {
                &number + (prime() * 2u8 - &top) * 7u8
            });
            // The slack of limb 0 after a multiplication, seven times.
            let slack = x7.carry().square();
            assert_lanes(&vector.sub::<7>(&slack.times::<7>()).normalize_weak(), |_| {
                &number + prime() * 7u8 - &top * &top * 343u32 % (prime() * 7u8)
            });
            let seven = wide(slack.times::<7>());
            assert_lanes(&seven.mul(&slack), |_| (&top * &top * 49u8).pow(2) * 7u8);
        }
    }

    /// Long chains of dependent operations. Each step takes and gives magnitude 1.
    pub(super) fn chains<F: FieldVector>() {
        let mut random = Random(2);
        let (mut a, mut p) = lanes::<F>(random.any(), &mut random);
        for step in 0..3_000 {
            let (b, q) = lanes::<F>(random.any(), &mut random);
            let each = |f: &dyn Fn(&BigUint, &BigUint) -> BigUint| -> Vec<BigUint> {
                p.iter().zip(&q).map(|(x, y)| f(x, y) % prime()).collect()
            };
            (a, p) = match random.below(7) {
                0 => (a.mul(&b), each(&|x, y| x * y)),
                1 => (a.square(), each(&|x, _| x * x)),
                2 => (a.add(&b).normalize_weak(), each(&|x, y| x + y)),
                3 => (a.sub::<1>(&b).normalize_weak(), each(&|x, y| x + prime() * 2u8 - y)),
                4 => (b.sub::<1>(&a).carry_for_52().mul(&b), each(&|x, y| (y + prime() - x) * y)),
                5 => {
                    let twice = a.times::<2>().carry_for_52();
                    (F::sum_of_products(&twice, &b, &a, &b), each(&|x, y| x * y * 3u8))
                }
                _ => {
                    (a.sub::<1>(&b).carry().square(), each(&|x, y| (x + prime() * 2u8 - y).pow(2)))
                }
            };
            if step % 16 == 0 {
                assert_lanes(&a, |i| p[i].clone());
            }
        }
        assert_lanes(&a, |i| p[i].clone());
    }

    pub(super) fn powers<F: FieldVector>() {
        let mut random = Random(3);
        let minus_2 = prime() - 2u8;
        for number in edges().into_iter().take(12) {
            let (a, p) = lanes::<F>(number, &mut random);
            assert_lanes(&inverse(&a), |i| p[i].modpow(&minus_2, &prime()));
            assert_lanes(&square_root(&a), |i| p[i].modpow(&((prime() + 1u8) >> 2), &prime()));
            let root = square_root(&a.square());
            assert_lanes(&root.square(), |i| &p[i] * &p[i]);
        }
    }

    pub(super) fn points_in_memory<F: FieldVector>() {
        let mut random = Random(4);
        let lines: [Line; MAX_LANES] =
            core::array::from_fn(|_| Line::new(&random.any(), &random.any()));
        let (x, y) = F::load_points(&lines.each_ref());
        assert_lanes(&x, |i| big(&lines[i].x()));
        assert_lanes(&y, |i| big(&lines[i].y()));
        assert_lanes(&F::load_xs(&lines.each_ref()), |i| big(&lines[i].x()));
        let mut written = [Line([7; 8]); MAX_LANES];
        F::store_points(&x.times::<7>(), &y.sub::<6>(&x), &mut written);
        for (i, (old, new)) in lines.iter().zip(&written).enumerate() {
            let lane = i < F::LANES;
            let (x, y) = (big(&old.x()), big(&old.y()) + prime() * 2u8);
            assert!(!lane || big(&new.x()) % prime() == &x * 7u8 % prime());
            assert!(!lane || big(&new.y()) % prime() == (y - x) % prime());
            assert!(lane || *new == Line([7; 8]), "a line beyond the lanes");
        }
    }
}

#[test]
fn numbers() {
    for number in edges() {
        assert_eq!(big(&reduced(number)), big(&number) % prime());
        assert_eq!(is_less(&number, &P), big(&number) < prime());
        let bytes: Vec<u8> = number.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(from_bytes(bytes.first_chunk().unwrap()), number);
        assert_eq!(words(&big(&number)), number);
    }
}
