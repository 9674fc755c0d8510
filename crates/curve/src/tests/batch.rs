//! Batches: all valid claims pass, and no spoiled one does.

use super::checks::{Asked, signed};
use super::out_of_line::OutOfLine;
use super::{Random, big};
use crate::batch::{Batch, Claim, is_faulty};
use crate::check::{Equation, Factors, Parity};
use crate::field::FieldVector;
use crate::portable::Element;
use crate::radix29::Radix29;
use crate::radix52::Radix52;
use crate::scalar::Scalar;
use crate::verifier::{Kernel, Verifier};
use crate::words::emulated::Emulated;
use num_bigint::BigUint;

/// Valid equations, with the parity of each R: a batch of one passes with one of them.
fn claims<F: FieldVector>(batch: &mut Batch<F>, count: usize, random: &mut Random) -> Vec<Owned> {
    let claim = |_| {
        let equation = signed(random).check().unwrap().equation.unwrap();
        let passes = |is_odd| batch.prove(&[Claim { equation: &equation, is_odd }]);
        let [even, odd] = [false, true].map(passes);
        assert!(even != odd, "the parity of R is even: {even}, or odd: {odd}");
        Owned { equation, is_odd: odd }
    };
    (0..count).map(claim).collect()
}

#[derive(Clone)]
struct Owned {
    equation: Equation,
    is_odd: bool,
}

fn passes<F: FieldVector>(batch: &mut Batch<F>, claims: &[Owned]) -> bool {
    let claims = claims.iter().map(|it| Claim { equation: &it.equation, is_odd: it.is_odd });
    batch.prove(&claims.collect::<Vec<_>>())
}

/// Changes one number of a claim.
fn spoil(claim: &mut Owned, random: &mut Random) {
    let turn = |scalar: &mut Scalar, random: &mut Random| {
        *scalar = scalar.with_flipped_bit(random.word());
    };
    match (random.below(5), &mut claim.equation.factors) {
        (0, Factors::Ecdsa { hash, .. }) => turn(hash, random),
        (1, Factors::Ecdsa { s, .. }) | (0, Factors::Schnorr { s, .. }) => turn(s, random),
        (2, Factors::Ecdsa { r, .. }) => turn(r, random),
        (1 | 2, Factors::Schnorr { challenge, .. }) => turn(challenge, random),
        (3, _) => claim.is_odd = !claim.is_odd,
        _ if random.below(2) == 0 => claim.equation.r[0] ^= 1 << random.below(64),
        _ => claim.equation.x[0] ^= 1 << random.below(64),
    }
}

fn batches_are_exact<F: FieldVector>(seed: u64, sizes: &[usize], spoiled: usize) {
    let mut random = Random(seed);
    let mut batch = Batch::<F>::new();
    for size in sizes {
        let mut valid = claims(&mut batch, *size, &mut random);
        assert!(passes(&mut batch, &valid), "{size} valid claims");
        for _ in 0..spoiled.min(size * 100) {
            let mut claims = valid.clone();
            spoil(&mut claims[random.below(*size)], &mut random);
            assert!(!passes(&mut batch, &claims), "{size} claims, one spoiled");
        }
        // Equal claims, and equal keys with other claims.
        valid.extend(valid.clone());
        assert!(passes(&mut batch, &valid), "{size} valid claims twice");
    }
    assert!(!is_faulty());
}

#[test]
fn spoiled_batches_fail() {
    batches_are_exact::<Element>(21, &[0, 1, 2, 3, 20], 40);
    batches_are_exact::<OutOfLine<Radix29<Emulated<4>>>>(22, &[1, 9], 12);
    batches_are_exact::<OutOfLine<Radix52<Emulated<8>>>>(23, &[1, 9], 12);
}

/// Random checks with hints against libsecp256k1: some sums have spoiled signatures or wrong hints.
#[test]
fn random_sums() {
    let mut random = Random(30);
    let mut verifiers: Vec<Verifier> =
        Kernel::available().iter().map(|it| Verifier::new(*it)).collect();
    let rounds = if std::env::var_os("APUS_LONG").is_some() { 1000 } else { 12 };
    for round in 0..rounds {
        let mut all: Vec<Asked> =
            (0..64 + random.below(200)).map(|_| signed(&mut random)).collect();
        let checks: Vec<_> = all.iter().flat_map(Asked::check).collect();
        let mut hints = Vec::new();
        verifiers[round % Kernel::available().len()].verify(&checks, &mut hints);
        for _ in 0..round % 3 {
            let (spoiled, wrong) = (random.below(all.len()), random.below(all.len()));
            all[spoiled].hash[random.below(32)] ^= 1 << random.below(8);
            hints[wrong] = Some(if random.below(2) == 0 { Parity::Even } else { Parity::Odd });
        }
        let checks = all.iter().flat_map(Asked::check).zip(&hints);
        let checks: Vec<_> = checks.map(|(check, hint)| check.with_hint(*hint)).collect();
        let valid: Vec<bool> = all.iter().map(Asked::is_valid).collect();
        for (verifier, kernel) in verifiers.iter_mut().zip(Kernel::available()) {
            let mut proven = Vec::new();
            verifier.verify(&checks, &mut proven);
            let proven: Vec<bool> = proven.iter().map(Option::is_some).collect();
            assert_eq!(proven, valid, "{kernel:?}");
        }
    }
    assert!(!is_faulty());
}

/// Two errors that cancel each other would pass a sum without random factors.
#[test]
fn errors_do_not_cancel_each_other() {
    let mut random = Random(24);
    let mut batch = Batch::<Element>::new();
    let mut valid = claims(&mut batch, 12, &mut random);
    valid.retain(|it| matches!(it.equation.factors, Factors::Schnorr { .. }));
    assert!(valid.len() >= 2 && passes(&mut batch, &valid));
    let one = Scalar::ONE;
    for (i, delta) in [one, one.neg()].into_iter().enumerate() {
        let Factors::Schnorr { s, .. } = &mut valid[i].equation.factors else { unreachable!() };
        *s = s.add(&delta);
    }
    assert!(!passes(&mut batch, &valid));
}

/// A valid signature whose R is `u1 * G + u2 * P` for chosen numbers: sums that meet equal and opposite points.
#[test]
fn chosen_sums_pass() {
    let numbers: Vec<BigUint> = [1u64, 2, 3, 1 << 20, u64::MAX].map(BigUint::from).to_vec();
    let mut random = Random(25);
    let mut batch = Batch::<Element>::new();
    let mut all = Vec::new();
    for u1 in &numbers {
        for u2 in &numbers {
            let Some(asked) = super::verify::chosen(u1, u2, &BigUint::from(5u8), 0) else {
                continue;
            };
            let equation = asked.check().unwrap().equation.unwrap();
            let odd = batch.prove(&[Claim { equation: &equation, is_odd: true }]);
            all.push(Owned { equation, is_odd: odd });
        }
    }
    assert!(all.len() > 20 && passes(&mut batch, &all));
    spoil(&mut all[random.below(20)], &mut random);
    assert!(!passes(&mut batch, &all));
}

/// Many signatures go into one sum, ECDSA with hints; spoiled signatures and wrong hints are found all the same.
#[test]
fn verifiers_use_batches() {
    const COUNT: usize = 130;
    let mut random = Random(26);
    let all: Vec<Asked> = (0..COUNT).map(|_| signed(&mut random)).collect();
    for kernel in Kernel::available() {
        let mut verifier = Verifier::new(*kernel);
        let mut verify = |asked: &[Asked], hint: &dyn Fn(usize) -> Option<Parity>| {
            let checks = asked.iter().flat_map(Asked::check).enumerate();
            let hinted: Vec<_> = checks.map(|(i, check)| check.with_hint(hint(i))).collect();
            let mut proven = Vec::new();
            verifier.verify(&hinted, &mut proven);
            proven
        };
        let parities = verify(&all, &|_| None);
        assert!(parities.iter().all(Option::is_some), "{kernel:?}");
        for i in (0..COUNT).filter(|i| all[*i].is_schnorr) {
            assert_eq!(parities[i], Some(Parity::Even), "{kernel:?}");
        }
        assert_eq!(verify(&all, &|i| parities[i]), parities, "{kernel:?}");
        let other = |parity| if parity == Parity::Even { Parity::Odd } else { Parity::Even };
        for wrong in [random.below(COUNT), random.below(COUNT)] {
            let hint = |i: usize| parities[i].map(|it| if i == wrong { other(it) } else { it });
            assert_eq!(verify(&all, &hint), parities, "{kernel:?}: hint {wrong} is wrong");
            let mut spoiled = all.clone();
            spoiled[wrong].hash[7] ^= 4;
            let mut expected = parities.clone();
            expected[wrong] = None;
            assert_eq!(verify(&spoiled, &|i| parities[i]), expected, "{kernel:?}");
            assert_eq!(verify(&spoiled, &|_| None), expected, "{kernel:?}");
        }
    }
    assert!(!is_faulty());
}

/// Sums of scalars against big integers.
#[test]
fn scalars_add_up() {
    let mut random = Random(27);
    let order = super::scalar::order();
    for _ in 0..2000 {
        let [a, b] = [random.any(), random.any()].map(|number| big(&number) % &order);
        let scalar = |number| Scalar::from_bytes(&super::checks::bytes(number)).unwrap();
        let sum = scalar(&a).add(&scalar(&b));
        assert_eq!(big(&sum.number()), (&a + &b) % &order);
    }
}
