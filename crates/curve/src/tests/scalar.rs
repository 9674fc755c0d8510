//! Scalars, their split and their digits against big integers.

use super::{Random, big, edges, words};
use crate::scalar::{Half, N, Scalar, invert_all, signed_digits, split};
use num_bigint::{BigInt, BigUint};
use proptest::prelude::*;

/// `λ` (libsecp256k1's `secp256k1_const_lambda`).
pub(super) const LAMBDA: [u64; 4] =
    [0xDF02_967C_1B23_BD72, 0x122E_22EA_2081_6678, 0xA526_1C02_8812_645A, 0x5363_AD4C_C05C_30E0];

pub(super) fn order() -> BigUint {
    big(&N)
}

fn bytes(number: &[u64; 4]) -> [u8; 32] {
    let bytes: Vec<u8> = number.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().unwrap()
}

fn reduced(number: &[u64; 4]) -> Scalar {
    Scalar::from_bytes_reduced(&bytes(number))
}

/// Edges of the field, those around n, λ and its multiples, and powers of two.
pub(super) fn scalar_edges() -> Vec<[u64; 4]> {
    let mut all = edges();
    let lambda = big(&LAMBDA);
    for near in [order(), lambda.clone(), order() - &lambda, &lambda * 2u8 % order(), order() >> 1]
    {
        all.extend((0..3u8).flat_map(|d| [words(&(&near + d)), words(&(&near - d))]));
    }
    all.extend((0..256).map(|bit| words(&(BigUint::from(1u8) << bit))));
    all
}

fn signed(half: &Half) -> BigInt {
    let magnitude = BigInt::from(half.magnitude);
    if half.is_negative { -magnitude } else { magnitude }
}

fn check_pair(x: &[u64; 4], y: &[u64; 4]) {
    let (a, b) = (reduced(x), reduced(y));
    let (p, q) = (big(x) % order(), big(y) % order());
    assert_eq!(big(&a.number()), p);
    assert_eq!(big(&a.mul(&b).number()), &p * &q % order());
    assert_eq!(big(&a.neg().number()), (order() - &p) % order());
    assert_eq!(a.is_high(), p > (order() - 1u8) / 2u8);
    assert_eq!(a.is_zero(), p == BigUint::ZERO);
    assert_eq!(Scalar::from_bytes(&bytes(x)).is_some(), big(x) < order());
}

fn check_split(x: &[u64; 4]) {
    let (first, second) = split(&reduced(x)).expect("both halves fit");
    let sum = signed(&first) + signed(&second) * BigInt::from(big(&LAMBDA));
    let order = BigInt::from(order());
    assert_eq!(((sum % &order) + &order) % &order, BigInt::from(big(x)) % &order);
    for half in [first, second] {
        check_digits::<26>(&half, 5);
        check_digits::<13>(&half, 10);
    }
}

fn check_digits<const D: usize>(half: &Half, width: u32) {
    let mut digits = [0; D];
    signed_digits(half, width, &mut digits);
    assert!(digits.iter().all(|digit| digit.unsigned_abs() <= 1 << (width - 1)));
    let sum = digits.iter().rev().fold(BigInt::ZERO, |sum, digit| (sum << width) + *digit);
    assert_eq!(sum, signed(half));
}

#[test]
fn edges_are_right() {
    let edges = scalar_edges();
    for x in &edges {
        check_split(x);
        edges.iter().step_by(7).for_each(|y| check_pair(x, y));
    }
    for magnitude in [0, 1, 15, 16, 17, 31, 32, u128::MAX, u128::MAX / 2, 1 << 127] {
        for is_negative in [false, true] {
            check_digits::<26>(&Half { is_negative, magnitude }, 5);
            check_digits::<13>(&Half { is_negative, magnitude }, 10);
        }
    }
}

#[test]
fn random_numbers_are_right() {
    let mut random = Random(5);
    for _ in 0..5_000 {
        check_pair(&random.any(), &random.any());
        check_split(&random.number());
    }
}

#[test]
fn all_are_inverted() {
    let numbers = scalar_edges().iter().map(reduced).collect::<Vec<_>>();
    for count in [0, 1, 2, 300] {
        let mut inverses: Vec<Scalar> =
            numbers.iter().copied().filter(|it| !it.is_zero()).take(count).collect();
        let scalars = inverses.clone();
        invert_all(&mut inverses);
        for (scalar, inverse) in scalars.iter().zip(&inverses) {
            assert_eq!(scalar.mul(inverse), Scalar::ONE);
        }
    }
}

proptest! {
    #[test]
    fn any_numbers_are_right(x: [u64; 4], y: [u64; 4]) {
        check_pair(&x, &y);
        check_split(&x);
    }
}
