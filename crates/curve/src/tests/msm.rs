//! Sums of points against sums by complete formulas, one point at a time.

use super::Random;
use super::out_of_line::OutOfLine;
use crate::complete::Projective;
use crate::field::{FieldVector, inverse};
use crate::msm::{MultiScalar, negated};
use crate::point::GENERATOR;
use crate::portable::Element;
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::scalar::Half;
use crate::words::Line;
use crate::words::emulated::Emulated;

fn affine(point: &Projective<Element>) -> Option<Line> {
    let z = inverse(&point.z);
    let line = Line::new(&point.x.mul(&z).number(), &point.y.mul(&z).number());
    (z.number() != [0; 4]).then_some(line)
}

fn of_coordinates(sum: &[[u64; 4]; 3]) -> Option<Line> {
    affine(&Projective::splat(sum))
}

/// G times a number of 64 bits.
fn multiple(number: u64) -> Line {
    affine(&Projective::<Element>::infinity().add_line(&GENERATOR).times(number)).unwrap()
}

fn slow_sum(points: &[Line], factors: &[Half]) -> Option<Line> {
    let mut sum = Projective::<Element>::infinity();
    for (point, factor) in points.iter().zip(factors) {
        let point = if factor.is_negative { negated(point) } else { *point };
        let mut product = Projective::<Element>::infinity();
        for bit in (0..128).rev() {
            product = product.double();
            if factor.magnitude >> bit & 1 == 1 {
                product = product.add_line(&point);
            }
        }
        sum = sum.add(&product);
    }
    affine(&sum)
}

fn random_factor(random: &mut Random) -> Half {
    let magnitude = u128::from(random.word()) << 64 | u128::from(random.word());
    let magnitude = match random.below(8) {
        0 => magnitude >> random.below(128),
        1 => u128::MAX >> random.below(4),
        2 => u128::from(random.word() & 3),
        3 => 1 << random.below(128),
        _ => magnitude,
    };
    Half { is_negative: random.below(2) == 0, magnitude }
}

/// Points with repeats, negatives and multiples of each other, so that equal points meet in a bucket.
fn random_sum(random: &mut Random, count: usize) -> (Vec<Line>, Vec<Half>) {
    let mut points: Vec<Line> = Vec::new();
    let mut factors: Vec<Half> = Vec::new();
    for _ in 0..count {
        let old = random.below(points.len().max(1));
        match (random.below(6), points.get(old).copied()) {
            (0, Some(point)) => {
                points.push(point);
                factors.push(factors[old]);
            }
            (1, Some(point)) => {
                points.push(negated(&point));
                factors.push(factors[old]);
            }
            (2, _) => {
                points.push(multiple(1 + random.below(40) as u64));
                factors.push(random_factor(random));
            }
            _ => {
                points.push(multiple(random.word() | 1));
                factors.push(random_factor(random));
            }
        }
    }
    (points, factors)
}

#[inline(always)]
fn sums_match<F: FieldVector>(seed: u64, counts: impl Iterator<Item = usize>) {
    let mut random = Random(seed);
    let mut sum = MultiScalar::<F>::new();
    for count in counts {
        let (points, factors) = random_sum(&mut random, count);
        let expected = slow_sum(&points, &factors);
        assert_eq!(of_coordinates(&sum.sum(&points, &factors)), expected, "{count} points");
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_match_avx2() {
    sums_match::<crate::avx2::FieldAvx2>(3, (0..70).chain([199, 257, 401]));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,bmi2")]
fn sums_match_ifma() {
    sums_match::<crate::ifma::FieldIfma>(4, (0..70).chain([199, 257, 401]));
}

#[test]
fn sums_are_those_of_complete_formulas() {
    sums_match::<Element>(1, (0..40).chain([300]));
    sums_match::<OutOfLine<Radix29<Emulated<4>>>>(2, [0, 1, 2, 7, 33].into_iter());
    sums_match::<OutOfLine<Radix52<Emulated<8>>>>(2, [0, 1, 2, 7, 33].into_iter());
}

#[cfg(target_arch = "x86_64")]
#[test]
#[allow(unsafe_code)]
fn sums_in_lanes_are_those_of_complete_formulas() {
    if super::has_avx2() {
        // SAFETY: the processor has AVX2.
        unsafe { sums_match_avx2() };
    }
    if super::has_ifma() {
        // SAFETY: the processor has these instructions.
        unsafe { sums_match_ifma() };
    }
}

#[test]
fn a_sum_may_be_infinity() {
    let points = [multiple(5), negated(&multiple(5)), multiple(7), multiple(7)];
    let factor = |is_negative, magnitude| Half { is_negative, magnitude };
    let factors = [factor(false, 9), factor(false, 9), factor(true, 3), factor(false, 3)];
    assert_eq!(of_coordinates(&MultiScalar::<Element>::new().sum(&points, &factors)), None);
    assert_eq!(of_coordinates(&MultiScalar::<Element>::new().sum(&[], &[])), None);
}
