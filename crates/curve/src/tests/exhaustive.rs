//! Formulas on all points of small groups, as libsecp256k1's `tests_exhaustive.c`: with another b, the curve
//! `y^2 = x^3 + b` over the same field has a subgroup of small prime order. There, the exceptions of formulas (equal
//! and opposite points, infinity) are frequent, and a test reaches all of them. Results are compared with a table of
//! the group, made by the textbook's rules with big integers.
//!
//! The formulas of `point.rs` do not depend on b; those of `complete.rs` take 3b as a parameter, and need only a
//! subgroup of odd order. The tables of `lanes.rs` are not tested here: they need keys of an order above 32.

use super::out_of_line::OutOfLine;
use super::{Random, big, words};
use crate::complete::Projective;
use crate::field::{FieldVector, ONE, P, U256};
use crate::msm::MultiScalar;
use crate::point::{Jacobian, add_with_inverse, double_with_inverse, invert_all, times_lambda};
use crate::portable::Element;
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::scalar::Half;
use crate::words::emulated::Emulated;
use crate::words::{Line, MAX_LANES};
use core::array::from_fn;
use num_bigint::BigUint;

/// Groups of at most this order are so small that all triples of their points are tested.
const SMALL: usize = 13;

/// A subgroup of the curve with this b. A number k stands for the point k * G, and 0 for infinity.
struct Group {
    order: usize,
    b: u8,
    /// From G to -G.
    points: Vec<Line>,
}

/// The order, b, and the coordinates of G in hexadecimal digits.
const GROUPS: [(usize, u8, [&str; 2]); 4] = [
    // x = 0, which no point of secp256k1 has.
    (3, 4, ["0", "2"]),
    (
        7,
        6,
        [
            "2326e2a429e640018bf4f59e42fe81a0c46a3e86f8c5d90da03e0844148f6b6",
            "1e60e897a7c00c7c2df53eb698274ff464252f428ca44e173b25418cff4ab0cf",
        ],
    ),
    (
        13,
        2,
        [
            "3ad3e1ec92dc070a346a975330b12e1d929c645be56584aa88e489aa3d68746b",
            "54cb1b6bdc8c1273087844ea43f4603e0eaf9a43f6effe55939f806d37adf8ac",
        ],
    ),
    (
        199,
        4,
        [
            "3b7a446e051d996bfc70a0b3115a4629feef621caecd467c94e11943000fae",
            "384e4f5875cf54b0128432e58c012ea63c8c3649ac6654aeb5a291956d99361",
        ],
    ),
];

/// Runs a generic test for each kernel and each group.
macro_rules! for_each_kernel {
    ($($test:ident)*) => {$(
        #[test]
        fn $test() {
            for group in groups() {
                generic::$test::<OutOfLine<Element>>(&group);
                generic::$test::<OutOfLine<Radix29<Emulated<4>>>>(&group);
                generic::$test::<OutOfLine<Radix52<Emulated<8>>>>(&group);
                #[cfg(target_arch = "x86_64")]
                {
                    if crate::tests::has_avx2() {
                        generic::$test::<OutOfLine<crate::avx2::FieldAvx2>>(&group);
                    }
                    if crate::tests::has_ifma() {
                        generic::$test::<OutOfLine<crate::ifma::FieldIfma>>(&group);
                    }
                }
            }
        }
    )*};
}

for_each_kernel! { jacobian_sums affine_sums complete_sums sums_in_buckets }

type Affine = Option<(BigUint, BigUint)>;

fn divided(number: BigUint, by: &BigUint) -> BigUint {
    let p = big(&P);
    number * by.modpow(&(&p - 2u8), &p) % p
}

/// The sum by the textbook's case analysis.
fn textbook_sum(one: &Affine, other: &Affine) -> Affine {
    let p = big(&P);
    let (Some((x1, y1)), Some((x2, y2))) = (one, other) else {
        return one.clone().or(other.clone());
    };
    let slope = match (x1 == x2, y1 == y2) {
        (true, true) => divided(x1 * x1 * 3u8, &(y1 * 2u8 % &p)),
        (true, false) => return None,
        _ => divided(y2 + &p - y1, &((x2 + &p - x1) % &p)),
    };
    let x = (&slope * &slope + &p + &p - x1 - x2) % &p;
    let y = (slope * (x1 + &p - &x) + &p - y1) % &p;
    Some((x, y))
}

/// All groups. They are what they should be: the points are on the curve, and only `order * G` is infinity.
fn groups() -> impl Iterator<Item = Group> {
    GROUPS.into_iter().map(|(order, b, generator)| {
        let [x, y] = generator.map(|it| BigUint::parse_bytes(it.as_bytes(), 16).unwrap());
        let generator = Some((x, y));
        let next = |point: &Affine| Some(textbook_sum(point, &generator));
        let multiples = std::iter::successors(Some(generator.clone()), next);
        let mut points = Vec::new();
        for (x, y) in multiples.map_while(|point| point) {
            let (p, line) = (big(&P), Line::new(&words(&x), &words(&y)));
            assert_eq!(&y * &y % &p, (&x * &x * &x + b) % &p);
            assert!(!points.contains(&line) && points.len() < order);
            points.push(line);
        }
        assert_eq!(points.len(), order - 1);
        Group { order, b, points }
    })
}

impl Group {
    fn sum(&self, one: usize, other: usize) -> usize {
        (one + other) % self.order
    }

    fn negative(&self, number: usize) -> usize {
        (self.order - number) % self.order
    }

    /// The points of some numbers, in lanes. Zero's coordinates are G's.
    fn load<F: FieldVector>(&self, numbers: &[usize]) -> (F, F) {
        F::load_points(&from_fn(|lane| {
            &self.points[numbers.get(lane).map_or(0, |it| it.saturating_sub(1))]
        }))
    }

    /// The same, but some have been loaded as their negatives and negated: so y has magnitude 2.
    fn load_signed<F: FieldVector>(&self, numbers: &[usize], random: &mut Random) -> (F, F) {
        let mask = random.word() as u8;
        let is_negated = |lane: usize| mask >> lane & 1 == 1;
        let number = |(lane, it): (usize, &usize)| {
            if is_negated(lane) { self.negative(*it) } else { *it }
        };
        let (x, y) = self.load::<F>(&numbers.iter().enumerate().map(number).collect::<Vec<_>>());
        (x, y.negate_where(mask).carry_for_52())
    }

    /// `λ * G` as a number: λ is a cube root of 1.
    fn lambda(&self) -> usize {
        let turned = times_lambda(&self.points[0]);
        1 + self.points.iter().position(|it| *it == turned).unwrap()
    }

    /// All points without infinity. In vector kernels, whose tests are slow, only points that the symmetries -1 and λ
    /// turn into all others.
    fn points_up_to_symmetry<F: FieldVector>(&self) -> Vec<usize> {
        let lambda = self.lambda();
        let turned = |i: usize| [i, i * lambda % self.order, i * lambda * lambda % self.order];
        let is_least = |i: usize| turned(i).iter().all(|it| i <= *it && i <= self.negative(*it));
        (1..self.order).filter(|i| F::LANES == 1 || is_least(*i)).collect()
    }

    /// All triples of points. In a large group, all pairs, each with a third point; in vector kernels, all pairs up to
    /// symmetry.
    fn triples<F: FieldVector>(&self, with_infinity: bool) -> Vec<[usize; 3]> {
        let all = usize::from(!with_infinity)..self.order;
        if self.order <= SMALL {
            let pairs = all.clone().flat_map(|i| all.clone().map(move |j| [i, j]));
            return pairs.flat_map(|[i, j]| all.clone().map(move |k| [i, j, k])).collect();
        }
        let mut firsts = self.points_up_to_symmetry::<F>();
        firsts.extend(with_infinity.then_some(0));
        let pairs = firsts.into_iter().flat_map(|i| all.clone().map(move |j| [i, j]));
        pairs.map(|[i, j]| [i, j, 1 + (7 * i + j) % (self.order - 1)]).collect()
    }
}

/// Some vectors of `F`, as columns. The last vector has its first lane's row in lanes without one.
fn in_lanes<F: FieldVector, const N: usize>(
    rows: &[[usize; N]],
    mut take: impl FnMut([&[usize]; N]),
) {
    for chunk in rows.chunks(F::LANES) {
        let row = |lane: usize| chunk.get(lane).unwrap_or(&chunk[0]);
        let columns: [Vec<usize>; N] =
            from_fn(|i| (0..F::LANES).map(|lane| row(lane)[i]).collect());
        take(from_fn(|i| &columns[i][..]));
    }
}

fn stored<F: FieldVector>(vector: &F) -> Vec<U256> {
    let mut numbers = [[0; 4]; MAX_LANES];
    vector.store(&mut numbers[..F::LANES]);
    numbers[..F::LANES].to_vec()
}

/// Numbers other than 0, sometimes 1.
fn scales<F: FieldVector>(random: &mut Random) -> F {
    let mut number = || if random.below(4) == 0 { ONE } else { random.number() };
    F::load(&from_fn::<_, MAX_LANES, _>(|_| number()))
}

/// A point in Jacobian coordinates in each lane, and what it should be: `None` where Z is 0.
#[derive(Clone)]
struct Checked<'a, F> {
    group: &'a Group,
    point: Jacobian<F>,
    expected: Vec<Option<usize>>,
}

impl<'a, F: FieldVector> Checked<'a, F> {
    fn new(group: &'a Group, numbers: &[usize], random: &mut Random) -> Self {
        let (x, y) = group.load::<F>(numbers);
        let z = scales::<F>(random);
        let zz = z.square();
        let point = Jacobian { x: x.mul(&zz), y: y.mul(&zz.mul(&z)), z };
        Self { group, point, expected: numbers.iter().copied().map(Some).collect() }.check()
    }

    fn check(self) -> Self {
        let numbers: Vec<usize> = self.expected.iter().map(|it| it.unwrap_or(1)).collect();
        let (x, y) = self.group.load::<F>(&numbers);
        let Jacobian { x: own_x, y: own_y, z } = &self.point;
        let zz = z.square();
        let errors_of_x = stored(&x.mul(&zz).sub::<1>(own_x));
        let errors_of_y = stored(&y.mul(&zz.mul(z)).sub::<1>(own_y));
        for (lane, (z, expected)) in stored(z).into_iter().zip(&self.expected).enumerate() {
            assert_eq!(z != [0; 4], expected.is_some(), "{expected:?}");
            if expected.is_some() {
                assert_eq!([errors_of_x[lane], errors_of_y[lane]], [[0; 4]; 2], "{expected:?}");
            }
        }
        self
    }

    fn double(mut self) -> Self {
        self.point = self.point.double();
        for it in self.expected.iter_mut().flatten() {
            *it = self.group.sum(*it, *it);
        }
        self.check()
    }

    /// The mixed addition. Its exceptions give Z = 0.
    fn add(mut self, numbers: &[usize], random: &mut Random) -> Self {
        let (x, y) = self.group.load_signed(numbers, random);
        self.point = self.point.add(&x, &y);
        for (it, other) in self.expected.iter_mut().zip(numbers) {
            *it = it
                .filter(|it| it != other && self.group.sum(*it, *other) != 0)
                .map(|it| self.group.sum(it, *other));
        }
        self.check()
    }
}

#[test]
fn lambda_is_the_same_for_all_points() {
    for group in groups() {
        let lambda = group.lambda();
        assert_eq!((lambda * lambda + lambda + 1) % group.order, 0);
        for (i, point) in group.points.iter().enumerate() {
            let turned = group.points[(i + 1) * lambda % group.order - 1];
            assert_eq!(times_lambda(point), turned);
        }
    }
}

mod generic {
    use super::*;

    pub(super) fn jacobian_sums<F: FieldVector>(group: &Group) {
        let mut random = Random(1);
        in_lanes::<F, 3>(&group.triples::<F>(false), |[i, j, k]| {
            let sum = Checked::<F>::new(group, i, &mut random).add(j, &mut random);
            sum.clone().double().double().add(k, &mut random);
            sum.add(k, &mut random).double().add(j, &mut random);
        });
    }

    /// Without equal and opposite points: callers do not invert zero.
    pub(super) fn affine_sums<F: FieldVector>(group: &Group) {
        let mut random = Random(2);
        let all = 1..group.order;
        let pairs = all.clone().flat_map(|i| all.clone().map(move |j| [i, j]));
        let pairs = pairs.filter(|[i, j]| i != j && group.sum(*i, *j) != 0).collect::<Vec<_>>();
        let (mut operands, mut inverses, mut sums) = (vec![], vec![], vec![]);
        in_lanes::<F, 2>(&pairs, |[i, j]| {
            let one = group.load_signed::<F>(i, &mut random);
            let other = group.load_signed::<F>(j, &mut random);
            inverses.push(other.0.sub::<1>(&one.0).carry_for_52());
            operands.push((one, other));
            sums.push(i.iter().zip(j).map(|(i, j)| group.sum(*i, *j)).collect::<Vec<_>>());
        });
        in_lanes::<F, 1>(&all.map(|i| [i]).collect::<Vec<_>>(), |[i]| {
            let one = group.load_signed::<F>(i, &mut random);
            inverses.push(one.1.times::<2>().normalize_weak());
            operands.push((one, one));
            sums.push(i.iter().map(|i| group.sum(*i, *i)).collect());
        });
        invert_all(&mut inverses, &mut vec![]);
        let additions = pairs.len().div_ceil(F::LANES);
        for (i, ((x1, y1), (x2, y2))) in operands.iter().enumerate() {
            let (x, y) = if i < additions {
                add_with_inverse((x1, y1), (x2, y2), &inverses[i])
            } else {
                double_with_inverse(x1, y1, &inverses[i])
            };
            for ((x, y), sum) in stored(&x).iter().zip(stored(&y)).zip(&sums[i]) {
                assert_eq!(Line::new(x, &y), group.points[sum - 1]);
            }
        }
    }

    pub(super) fn complete_sums<F: FieldVector>(group: &Group) {
        match group.b {
            2 => complete_sums_of::<F, 6>(group),
            4 => complete_sums_of::<F, 12>(group),
            6 => complete_sums_of::<F, 18>(group),
            _ => unreachable!(),
        }
    }

    fn projective<F: FieldVector, const B3: u64>(
        group: &Group,
        numbers: &[usize],
        random: &mut Random,
    ) -> Projective<F, B3> {
        let (x, y) = group.load::<F>(numbers);
        let infinity = Projective::<F, B3>::infinity();
        let finite = Projective::<F, B3> { x, y, z: F::splat(&ONE) };
        let mask = mask_of(numbers, |number| *number != 0);
        let Projective { x, y, z } = Projective::select(mask, &infinity, &finite);
        let scale = scales::<F>(random);
        Projective { x: x.mul(&scale), y: y.mul(&scale), z: z.mul(&scale) }
    }

    fn mask_of(numbers: &[usize], is_in: impl Fn(&usize) -> bool) -> u8 {
        numbers.iter().rev().fold(0, |mask, number| mask << 1 | u8::from(is_in(number)))
    }

    fn check<F: FieldVector, const B3: u64>(
        group: &Group,
        point: &Projective<F, B3>,
        numbers: &[usize],
    ) {
        let (x, y) = group.load::<F>(numbers);
        let errors_of_x = stored(&x.mul(&point.z).sub::<1>(&point.x));
        let errors_of_y = stored(&y.mul(&point.z).sub::<1>(&point.y));
        for (lane, ([x, y, z], number)) in point.lanes().into_iter().zip(numbers).enumerate() {
            if *number == 0 {
                assert!(x == [0; 4] && y != [0; 4] && z == [0; 4], "infinity");
            } else {
                assert_ne!(z, [0; 4], "{number}");
                assert_eq!([errors_of_x[lane], errors_of_y[lane]], [[0; 4]; 2], "{number}");
            }
        }
    }

    fn complete_sums_of<F: FieldVector, const B3: u64>(group: &Group) {
        let mut random = Random(3);
        in_lanes::<F, 3>(&group.triples::<F>(true), |[i, j, k]| {
            let sums = |i: &[usize], j: &[usize]| -> Vec<usize> {
                i.iter().zip(j).map(|(i, j)| group.sum(*i, *j)).collect()
            };
            let one = projective::<F, B3>(group, i, &mut random);
            let other = projective::<F, B3>(group, j, &mut random);
            check(group, &one, i);
            check(group, &one.double(), &sums(i, i));
            let (sum, ij) = (one.add(&other), sums(i, j));
            check(group, &sum, &ij);
            check(group, &sum.double(), &sums(&ij, &ij));
            // An affine point is not infinity: there, add nothing.
            let (x, y) = group.load_signed::<F>(k, &mut random);
            let is_finite = mask_of(k, |number| *number != 0);
            let next = Projective::select(is_finite, &sum, &sum.add_affine(&x, &y.carry()));
            check(group, &next, &sums(&ij, k));
            check(group, &next.add(&other), &sums(&sums(&ij, k), j));
        });
        if group.order <= SMALL {
            let all: Vec<[usize; 1]> = (0..group.order).map(|i| [i]).collect();
            for factor in 0..=2 * group.order {
                in_lanes::<F, 1>(&all, |[i]| {
                    let point = projective::<F, B3>(group, i, &mut random);
                    let expected: Vec<usize> = i.iter().map(|i| i * factor % group.order).collect();
                    check(group, &point.times(factor as u64), &expected);
                });
            }
        }
    }

    pub(super) fn sums_in_buckets<F: FieldVector>(group: &Group) {
        match group.b {
            2 => sums_in_buckets_of::<F, 6>(group),
            4 => sums_in_buckets_of::<F, 12>(group),
            6 => sums_in_buckets_of::<F, 18>(group),
            _ => unreachable!(),
        }
    }

    /// In a small group, all pairs meet (in vector kernels, up to symmetry), each in the buckets of a random factor's
    /// digits. Then many random points meet in a few buckets,
    /// so that all rounds of a bucket's additions have exceptions in small groups.
    fn sums_in_buckets_of<F: FieldVector, const B3: u64>(group: &Group) {
        let mut random = Random(4);
        let mut sum = MultiScalar::<F, B3>::new();
        let mut check = |numbers: &[usize], factors: &[Half]| {
            let points: Vec<Line> = numbers.iter().map(|it| group.points[it - 1]).collect();
            let expected = numbers.iter().zip(factors).fold(0, |sum, (number, factor)| {
                let product =
                    (factor.magnitude % group.order as u128) as usize * number % group.order;
                let product = if factor.is_negative { group.negative(product) } else { product };
                group.sum(sum, product)
            });
            let sum = Projective::<Element, B3>::splat(&sum.sum(&points, factors));
            super::generic::check(group, &sum, &[expected]);
        };
        let factor = |random: &mut Random| Half {
            is_negative: random.below(2) == 0,
            magnitude: u128::from(random.word()) << 64 | u128::from(random.word()),
        };
        if group.order <= SMALL {
            for i in group.points_up_to_symmetry::<F>() {
                (1..group.order).for_each(|j| check(&[i, j], &[factor(&mut random); 2]));
            }
        }
        for count in [3, 4, 5, 7, 16, 33, 210] {
            let numbers: Vec<usize> =
                (0..count).map(|_| 1 + random.below(group.order - 1)).collect();
            let few = [factor(&mut random), factor(&mut random)];
            let same: Vec<Half> = numbers.iter().map(|_| few[random.below(2)]).collect();
            check(&numbers, &same);
            let different: Vec<Half> = numbers.iter().map(|_| factor(&mut random)).collect();
            check(&numbers, &different);
        }
    }
}
