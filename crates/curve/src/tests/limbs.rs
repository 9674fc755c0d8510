//! The kernel for AVX-512 IFMA with limbs at their limits: on the processor, on emulated registers and with big
//! integers. Limbs must be equal, not only numbers. The processor runs the operations as the compiler merges them
//! in the real kernel: in one function for which its instructions are enabled.

use super::{Random, big};
use crate::field::{FieldVector, P, U256};
use crate::radix52::Radix52;
use crate::words::emulated::Emulated;
use crate::words::{Line, Multiply52};
use num_bigint::BigUint;

const LANES: usize = 8;

/// Five limbs of each lane.
type Limbs = [[u64; 5]; LANES];

/// Each operation, in the order of [`results`].
const OPERATIONS: usize = 19;

const LOW_52: u64 = (1 << 52) - 1;
const LOW_48: u64 = (1 << 48) - 1;

/// The results of all operations on a and b of magnitude 1, and c and d of magnitude 7. All are clean.
#[inline(always)]
fn results<W: Multiply52>([a, b, c, d]: &[Limbs; 4]) -> [Limbs; OPERATIONS] {
    let load = [Radix52::<W>::of_limbs(a), Radix52::of_limbs(b), Radix52::of_limbs(c)];
    let ([a, b, c], d) = (load, Radix52::of_limbs(d));
    let results = [
        a.mul(&b),
        c.mul(&a),
        c.mul(&d),
        a.square(),
        c.square(),
        Radix52::sum_of_products(&a, &b, &b, &a),
        Radix52::sum_of_products(&c, &d, &a, &b),
        Radix52::sum_of_products(&c, &a, &d, &b),
        a.add(&c),
        a.sub::<1>(&b),
        a.sub::<7>(&c),
        c.sub::<7>(&d),
        c.sub::<7>(&d).carry(),
        c.sub::<7>(&d).normalize_weak(),
        a.times::<31>(),
        a.times::<31>().carry(),
        a.times::<31>().normalize_weak(),
        c.times::<3>().carry_for_52(),
        a.sub::<6>(&c.normalize_weak().times::<6>()).normalize_weak().mul(&c),
    ];
    let mut limbs = [[[0; 5]; LANES]; OPERATIONS];
    for i in 0..OPERATIONS {
        limbs[i] = results[i].limbs();
    }
    limbs
}

/// `a - 6 * b` and d in memory: as numbers, which are fully reduced, and as points, which are not.
#[inline(always)]
fn in_memory<W: Multiply52>([a, b, _, d]: &[Limbs; 4]) -> ([[U256; LANES]; 2], [Line; LANES]) {
    let [a, b, d] = [Radix52::<W>::of_limbs(a), Radix52::of_limbs(b), Radix52::of_limbs(d)];
    let x = a.sub::<6>(&b.times::<6>()).normalize_weak();
    let mut numbers = [[[0; 4]; LANES]; 2];
    x.store(&mut numbers[0]);
    d.store(&mut numbers[1]);
    let mut lines = [Line([0; 8]); LANES];
    Radix52::store_points(&x, &d, &mut lines);
    (numbers, lines)
}

/// What the numbers should be, modulo p. `q` is a multiple of p that is larger than each operand.
fn expected([a, b, c, d]: [&BigUint; 4], q: &BigUint) -> [BigUint; OPERATIONS] {
    [
        a * b,
        c * a,
        c * d,
        a * a,
        c * c,
        a * b * 2u8,
        c * d + a * b,
        c * a + d * b,
        a + c,
        a + q - b,
        a + q - c,
        c + q - d,
        c + q - d,
        c + q - d,
        a * 31u8,
        a * 31u8,
        a * 31u8,
        c * 3u8,
        (a + q * 6u8 - c * 6u8) * c,
    ]
}

/// Whether the limbs below the uppermost must be below 2^52.
const fn is_clean(operation: usize) -> bool {
    !matches!(operation, 8..=11 | 14)
}

fn number(limbs: &[u64; 5]) -> BigUint {
    limbs.iter().rev().fold(BigUint::ZERO, |sum, limb| (sum << 52) + *limb)
}

/// Clean limbs of a number below 2^260.
fn of_number(number: &BigUint) -> [u64; 5] {
    let limb = |i: u32| (number >> (52 * i)) & BigUint::from(LOW_52);
    core::array::from_fn(|i| limb(i as u32).to_u64_digits().first().copied().unwrap_or(0))
}

/// Clean limbs of this magnitude, usually near a limit: each limb at its own, or the number near a multiple of p or of
/// 2^256.
fn limbs(magnitude: u64, random: &mut Random) -> [u64; 5] {
    if random.below(4) == 0 {
        let step = if random.below(2) == 0 { big(&P) } else { BigUint::from(1u8) << 256 };
        let near = step * random.below(magnitude as usize + 1) + random.below(5);
        return of_number(&if near > BigUint::from(2u8) { near - 2u8 } else { near });
    }
    let top = magnitude * ((1 << 48) + (1 << 6));
    let mut limb = |end: u64| match random.below(8) {
        0 => 0,
        1 => random.word() % 3,
        2 | 3 => end,
        4 => end - random.word() % 3,
        5 => 1 << (random.word() % 48),
        _ => random.word() % (end + 1),
    };
    [limb(LOW_52), limb(LOW_52), limb(LOW_52), limb(LOW_52), limb(top)]
}

fn operands(random: &mut Random) -> [Limbs; 4] {
    [1, 1, 7, 7].map(|magnitude| core::array::from_fn(|_| limbs(magnitude, random)))
}

fn check(operands: &[Limbs; 4], results: &[Limbs; OPERATIONS]) {
    let p = big(&P);
    for lane in 0..LANES {
        let [a, b, c, d] = operands.each_ref().map(|limbs| number(&limbs[lane]));
        let expected = expected([&a, &b, &c, &d], &(&p * 16u8));
        for (operation, expected) in expected.iter().enumerate() {
            let limbs = &results[operation][lane];
            assert_eq!(number(limbs) % &p, expected % &p, "operation {operation}: {operands:x?}");
            let is_below = limbs[..4].iter().all(|limb| *limb <= LOW_52);
            assert!(is_below || !is_clean(operation), "operation {operation}: {limbs:x?}");
        }
        for of_magnitude_1 in [0, 1, 2, 3, 4, 5, 6, 7, 13, 16, 18] {
            assert!(results[of_magnitude_1][lane][4] <= LOW_48 + 1 + (1 << 6), "{of_magnitude_1}");
        }
    }
}

fn check_in_memory(
    [a, b, _, d]: &[Limbs; 4],
    (numbers, lines): &([[U256; LANES]; 2], [Line; LANES]),
) {
    let p = big(&P);
    for lane in 0..LANES {
        let [a, b, d] = [a, b, d].map(|limbs| number(&limbs[lane]));
        let expected = [(a + &p * 12u8 - b * 6u8) % &p, d % &p];
        assert_eq!(numbers.map(|it| big(&it[lane])), expected);
        assert_eq!([lines[lane].x(), lines[lane].y()].map(|it| big(&it) % &p), expected);
    }
}

/// The number of rounds, many in a long run.
fn rounds() -> usize {
    if std::env::var_os("APUS_LONG").is_some() { 1_000_000 } else { 3_000 }
}

#[test]
fn emulated_limbs_are_right() {
    let mut random = Random(41);
    for _ in 0..rounds() / 10 {
        let operands = operands(&mut random);
        check(&operands, &results::<Emulated<LANES>>(&operands));
        check_in_memory(&operands, &in_memory::<Emulated<LANES>>(&operands));
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,bmi2")]
fn results_ifma(operands: &[Limbs; 4]) -> [Limbs; OPERATIONS] {
    results::<crate::ifma::Ifma>(operands)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,bmi2")]
fn in_memory_ifma(operands: &[Limbs; 4]) -> ([[U256; LANES]; 2], [Line; LANES]) {
    in_memory::<crate::ifma::Ifma>(operands)
}

#[cfg(target_arch = "x86_64")]
#[test]
#[allow(unsafe_code)]
fn the_processors_limbs_are_the_emulated_ones() {
    if !super::has_ifma() {
        return;
    }
    let mut random = Random(42);
    for _ in 0..rounds() {
        let operands = operands(&mut random);
        // SAFETY: the processor has these instructions.
        let (results, in_memory) = unsafe { (results_ifma(&operands), in_memory_ifma(&operands)) };
        check(&operands, &results);
        check_in_memory(&operands, &in_memory);
        assert_eq!(results, self::results::<Emulated<LANES>>(&operands));
        assert_eq!(in_memory, self::in_memory::<Emulated<LANES>>(&operands));
    }
}
