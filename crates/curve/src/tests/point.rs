//! Points against complete formulas, and small multiples of G against libsecp256k1.

use super::big;
use super::out_of_line::OutOfLine;
use crate::field::{FieldVector, from_bytes};
use crate::point::{GENERATOR, GENERATOR_MULTIPLES, Jacobian, generator_table, invert_all};
use crate::portable::Element;
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::words::emulated::Emulated;
use crate::words::{Line, MAX_LANES};
use num_bigint::BigUint;
use secp256k1::{SECP256K1, SecretKey};

/// A point in projective coordinates `(X : Y : Z)` of big integers.
#[derive(Clone)]
struct Complete([BigUint; 3]);

fn prime() -> BigUint {
    big(&crate::field::P)
}

impl Complete {
    fn infinity() -> Self {
        Self([BigUint::ZERO, BigUint::from(1u8), BigUint::ZERO])
    }

    /// Algorithm 7 of Renes, Costello and Batina (2016): complete addition for a = 0, with b = 7.
    fn add(&self, other: &Self) -> Self {
        let ([x1, y1, z1], [x2, y2, z2]) = (&self.0, &other.0);
        let p = prime();
        let (b3, minus) = (21u8, |a: BigUint, b: BigUint| (a + &p * &p - b) % &p);
        let (t0, t1, t2) = (x1 * x2 % &p, y1 * y2 % &p, z1 * z2 % &p);
        let t3 = minus((x1 + y1) * (x2 + y2) % &p, &t0 + &t1);
        let t4 = minus((y1 + z1) * (y2 + z2) % &p, &t1 + &t2);
        let y3 = minus((x1 + z1) * (x2 + z2) % &p, &t0 + &t2);
        let (t0, t2, y3) = (t0 * 3u8 % &p, t2 * b3 % &p, y3 * b3 % &p);
        let (z3, t1) = ((&t1 + &t2) % &p, minus(t1, t2));
        let x3 = minus(&t3 * &t1 % &p, &t4 * &y3);
        let y3 = (&y3 * &t0 + &t1 * &z3) % &p;
        Self([x3, y3, (z3 * t4 + t0 * t3) % &p])
    }

    fn affine(&self) -> Option<(BigUint, BigUint)> {
        let [x, y, z] = &self.0;
        let inverse = z.modpow(&(prime() - 2u8), &prime());
        (*z != BigUint::ZERO).then(|| (x * &inverse % prime(), y * &inverse % prime()))
    }
}

fn multiples(count: usize) -> Vec<Option<(BigUint, BigUint)>> {
    let one = Complete([big(&GENERATOR.x()), big(&GENERATOR.y()), BigUint::from(1u8)]);
    let sums = std::iter::successors(Some(Complete::infinity()), |sum| Some(sum.add(&one)));
    sums.take(count).map(|sum| sum.affine()).collect()
}

/// `times * G` by libsecp256k1.
fn real(times: usize) -> Line {
    let mut secret = [0; 32];
    secret[24..].copy_from_slice(&(times as u64).to_be_bytes());
    let key = SecretKey::from_slice(&secret).unwrap().public_key(SECP256K1);
    let bytes = key.serialize_uncompressed();
    let (x, y) = (bytes[1..33].try_into().unwrap(), bytes[33..].try_into().unwrap());
    Line::new(&from_bytes(&x), &from_bytes(&y))
}

#[test]
fn small_multiples_of_the_generator() {
    let multiples = multiples(GENERATOR_MULTIPLES + 1);
    let table = generator_table();
    assert_eq!(table.len(), 2 * GENERATOR_MULTIPLES);
    let lambda = super::scalar::LAMBDA.iter().rev().flat_map(|word| word.to_be_bytes());
    let lambda =
        secp256k1::Scalar::from_be_bytes(lambda.collect::<Vec<u8>>().try_into().unwrap()).unwrap();
    for times in 1..=GENERATOR_MULTIPLES {
        assert_eq!(table[times - 1], real(times));
        let (x, y) = multiples[times].as_ref().unwrap();
        assert_eq!((big(&real(times).x()), big(&real(times).y())), (x.clone(), y.clone()));
        let mut secret = [0; 32];
        secret[24..].copy_from_slice(&(times as u64).to_be_bytes());
        let turned = SecretKey::from_slice(&secret).unwrap().mul_tweak(&lambda).unwrap();
        let bytes = turned.public_key(SECP256K1).serialize_uncompressed();
        assert_eq!(
            from_bytes(bytes[1..33].first_chunk().unwrap()),
            table[GENERATOR_MULTIPLES + times - 1].x()
        );
        assert_eq!(
            from_bytes(bytes[33..].first_chunk().unwrap()),
            table[GENERATOR_MULTIPLES + times - 1].y()
        );
    }
}

/// All sums of small multiples a and ±b, where the mixed addition holds, and 0 as Z where it does
/// not.
fn small_sums<F: FieldVector>() {
    const LIMIT: usize = 12;
    let expected = multiples(2 * LIMIT);
    // a as 1 * G + 1 * G + ..., or doubled.
    for a in 1..LIMIT {
        let load = |times: usize| F::load_points(&[&generator_table()[times - 1]; MAX_LANES]);
        let (gx, gy) = load(1);
        let mut sum = Jacobian { x: gx, y: gy, z: F::splat(&[1, 0, 0, 0]) };
        if a > 1 {
            sum = sum.double();
        }
        for _ in 2..a {
            sum = sum.add(&gx, &gy);
        }
        assert_point(&sum, expected[a].as_ref());
        assert_point(&sum.double(), expected[2 * a].as_ref());
        for b in 1..LIMIT {
            let (x, y) = load(b);
            let plus = sum.add(&x, &y);
            assert_point(&plus, expected[a + b].as_ref().filter(|_| a != b));
            let minus = sum.add(&x, &y.negate_where(0xff).carry_for_52());
            let difference = expected[a.abs_diff(b)].clone();
            let mirrored = |(x, y): (BigUint, BigUint)| (x, if a < b { prime() - y } else { y });
            assert_point(&minus, difference.map(mirrored).as_ref());
            // Z = 0 stays.
            if a == b {
                let later = minus.double().add(&gx, &gy).double().add(&x, &y);
                assert_point(&later, None);
            }
        }
    }
}

fn assert_point<F: FieldVector>(point: &Jacobian<F>, expected: Option<&(BigUint, BigUint)>) {
    let mut numbers = [[0; 4]; MAX_LANES];
    let mut stored = |vector: &F| {
        vector.store(&mut numbers[..F::LANES]);
        big(&numbers[0])
    };
    let Some((x, y)) = expected else {
        assert_eq!(stored(&point.z), BigUint::ZERO);
        return;
    };
    let mut inverse = [point.z];
    invert_all(&mut inverse, &mut vec![]);
    let square = inverse[0].square();
    assert_eq!(stored(&point.x.mul(&square)), *x);
    assert_eq!(stored(&point.y.mul(&square.mul(&inverse[0]))), *y);
}

#[test]
fn small_sums_of_points() {
    small_sums::<OutOfLine<Element>>();
    small_sums::<OutOfLine<Radix29<Emulated<4>>>>();
    small_sums::<OutOfLine<Radix52<Emulated<8>>>>();
    #[cfg(target_arch = "x86_64")]
    {
        if super::has_avx2() {
            small_sums::<OutOfLine<crate::avx2::FieldAvx2>>();
        }
        if super::has_ifma() {
            small_sums::<OutOfLine<crate::ifma::FieldIfma>>();
        }
    }
}
