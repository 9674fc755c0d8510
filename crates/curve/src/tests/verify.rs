//! The verifier against libsecp256k1: random valid and spoiled checks, exceptional sums, official
//! vectors.

use super::checks::{
    Asked, assert_proven, bytes, der, encoded, negated, proven, provers, secret, signed,
};
use super::scalar::{LAMBDA, order};
use super::{Random, big};
use crate::der::parse_lax;
use crate::verifier::Kernel;
use num_bigint::BigUint;
use proptest::prelude::*;
use secp256k1::{SECP256K1, ecdsa};

/// Changes a check so that it is probably invalid.
fn spoiled(mut asked: Asked, other: &Asked, random: &mut Random) -> Asked {
    let flip = |bytes: &mut [u8], random: &mut Random| {
        let bit = random.below(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    };
    match random.below(6) {
        0 => flip(&mut asked.key, random),
        1 => flip(&mut asked.hash, random),
        2 => flip(&mut asked.signature, random),
        3 if other.key.len() == asked.key.len() => asked.key.clone_from(&other.key),
        4 => {
            // -s: still valid for ECDSA.
            let at = asked.signature.len() - 32;
            let minus = negated(asked.signature[at..].first_chunk().unwrap());
            asked.signature[at..].copy_from_slice(&minus);
        }
        _ => {
            // r + n, or s + n, where it fits.
            let end = asked.signature.len();
            let at = if random.below(2) == 0 {
                end - 32
            } else {
                end - 64 - if asked.is_schnorr { 0 } else { 2 }
            };
            let number = BigUint::from_bytes_be(&asked.signature[at..at + 32]) + order();
            if number.bits() <= 256 {
                asked.signature[at..at + 32].copy_from_slice(&bytes(&number));
            } else {
                flip(&mut asked.signature[at..at + 32], random);
            }
        }
    }
    asked
}

fn mixed(count: usize, random: &mut Random) -> Vec<Asked> {
    let valid: Vec<Asked> = (0..count).map(|_| signed(random)).collect();
    let mut all = valid.clone();
    for asked in &mut all {
        if random.below(2) == 0 {
            *asked = spoiled(asked.clone(), &valid[random.below(count)], random);
        }
    }
    all
}

/// A kernel that fails its self-test would be missing in all other tests, without a word.
#[test]
fn all_kernels_of_the_processor_are_available() {
    let mut kernels = vec![Kernel::Portable];
    #[cfg(target_arch = "x86_64")]
    {
        kernels.extend(super::has_avx2().then_some(Kernel::Avx2));
        kernels.extend(super::has_ifma().then_some(Kernel::Avx512Ifma));
    }
    assert_eq!(Kernel::available(), kernels);
    let lanes = kernels.last().copied().filter(|kernel| *kernel != Kernel::Portable);
    assert_eq!(Kernel::fastest_lanes(), lanes);
}

#[test]
fn random_checks() {
    let mut random = Random(6);
    let mut provers = provers();
    let mut valid = 0;
    for count in 0..=70 {
        // The emulated kernels are slow.
        let used = if count % 9 == 4 { provers.len() } else { Kernel::available().len() };
        valid += assert_proven(&mut provers[..used], &mixed(count, &mut random));
    }
    assert!((900..2000).contains(&valid), "{valid} valid checks");
    provers.retain(|(name, _)| !name.starts_with("emulated"));
    // Ten million checks in a long run.
    let rounds = if std::env::var_os("APUS_LONG").is_some() { 10_000 } else { 1 };
    for _ in 0..rounds {
        assert_proven(&mut provers, &mixed(1000, &mut random));
    }
}

#[test]
fn every_bit_counts() {
    let mut random = Random(7);
    let mut provers = provers();
    provers.retain(|(name, _)| !name.starts_with("emulated"));
    let mut seen = [false; 2];
    while seen != [true; 2] {
        let valid = signed(&mut random);
        if core::mem::replace(&mut seen[usize::from(valid.is_schnorr)], true) {
            continue;
        }
        let mut all = vec![valid.clone()];
        for field in 0..3 {
            let length = [valid.key.len(), 32, valid.signature.len()][field];
            for bit in 0..8 * length {
                let mut flipped = valid.clone();
                let bytes = match field {
                    0 => &mut flipped.key[..],
                    1 => &mut flipped.hash[..],
                    _ => &mut flipped.signature[..],
                };
                bytes[bit / 8] ^= 1 << (bit % 8);
                all.push(flipped);
            }
        }
        assert_proven(&mut provers, &all);
    }
}

#[test]
fn equal_checks() {
    let mut random = Random(8);
    let mut provers = provers();
    for _ in 0..3 {
        let one = signed(&mut random);
        assert_eq!(assert_proven(&mut provers, &vec![one; 19]), 19);
    }
}

/// A valid check with `R = u1 * G + u2 * k * G`; `None` if there is no such check.
pub(super) fn chosen(u1: &BigUint, u2: &BigUint, k: &BigUint, encoding: usize) -> Option<Asked> {
    let n = order();
    let sum = (u1 + u2 * k) % &n;
    if sum == BigUint::ZERO || *u2 == BigUint::ZERO || *k == BigUint::ZERO {
        return None;
    }
    let point = secret(&sum).public_key(SECP256K1).serialize_uncompressed();
    let r = BigUint::from_bytes_be(&point[1..33]) % &n;
    let s = &r * u2.modpow(&(&n - 2u8), &n) % &n;
    let hash = u1 * &s % &n;
    let key = encoded(&secret(k).public_key(SECP256K1), encoding);
    Some(Asked::ecdsa(key, &hash, &r, &s))
}

/// Factors and keys whose sums meet equal points, opposite points and infinity on the way. Whatever
/// is proven is valid, and nearly all of the valid checks are proven.
#[test]
fn exceptional_sums() {
    let (n, lambda) = (order(), big(&LAMBDA));
    let mut special: Vec<BigUint> = (0..8u8).map(BigUint::from).collect();
    special.extend([15u8, 16, 17, 31, 32, 33].map(BigUint::from));
    special
        .extend([5, 10, 64, 125, 127, 128, 129, 255].map(|bit| (BigUint::from(1u8) << bit) % &n));
    special.push((&n - 1u8) >> 1);
    special.extend((1..4u8).map(|times| &lambda * times % &n));
    special.push(&lambda + 1u8);
    special.extend(special.clone().iter().filter(|it| **it != BigUint::ZERO).map(|it| &n - it));

    let mut random = Random(9);
    let mut provers = provers();
    let (mut valid, mut left) = (0, 0);
    for _ in 0..12 {
        let mut asked = vec![];
        while asked.len() < 300 {
            let [u1, u2, k] = [(); 3].map(|()| special[random.below(special.len())].clone());
            asked.extend(chosen(&u1, &u2, &k, random.below(4)));
        }
        assert!(asked.iter().all(Asked::is_valid));
        let proven = proven(&mut provers, &asked);
        valid += proven.len();
        left += proven.iter().filter(|proven| !**proven).count();
        provers.truncate(Kernel::available().len());
    }
    assert!(left < valid / 50, "{left} of {valid} valid checks are not proven");
    assert!(left > 0, "no exceptional sum");
}

/// Sums that are infinity, which no signature may have.
#[test]
fn infinity_is_never_proven() {
    let n = order();
    let mut asked = vec![];
    for k in 1..40u8 {
        for u2 in 1..5u8 {
            let u1 = &n - BigUint::from(k) * u2 % &n;
            for r in [BigUint::from(1u8), BigUint::from(k), &n - 1u8] {
                let s = &r * BigUint::from(u2).modpow(&(&n - 2u8), &n) % &n;
                let key = secret(&BigUint::from(k)).public_key(SECP256K1);
                asked.push(Asked::ecdsa(encoded(&key, 0), &(&u1 * &s % &n), &r, &s));
            }
        }
    }
    assert_eq!(assert_proven(&mut provers(), &asked), 0);
}

/// Numbers at the ends of their ranges in each field.
#[test]
fn ends_of_ranges() {
    let mut random = Random(10);
    let (n, p) = (order(), big(&crate::field::P));
    let top = (BigUint::from(1u8) << 256) - 1u8;
    let ends = [
        BigUint::ZERO,
        1u8.into(),
        2u8.into(),
        &n - 1u8,
        n.clone(),
        &n + 1u8,
        &p - 1u8,
        p.clone(),
        &p + 1u8,
        top,
    ];
    let mut asked = vec![];
    for _ in 0..12 {
        let valid = signed(&mut random);
        for end in &ends {
            let mut with = |change: &dyn Fn(&mut Asked)| {
                let mut changed = valid.clone();
                change(&mut changed);
                asked.push(changed);
            };
            let length = valid.signature.len();
            let r = if valid.is_schnorr { 0 } else { 4 };
            let x = usize::from(!valid.is_schnorr);
            with(&|it| it.hash = bytes(end));
            with(&|it| it.signature[length - 32..].copy_from_slice(&bytes(end)));
            with(&|it| it.signature[r..r + 32].copy_from_slice(&bytes(end)));
            with(&|it| it.key[x..x + 32].copy_from_slice(&bytes(end)));
            if valid.key.len() == 65 {
                with(&|it| it.key[33..].copy_from_slice(&bytes(end)));
            }
        }
        for prefix in 0..=255 {
            let mut changed = valid.clone();
            changed.key[0] = prefix;
            asked.push(changed);
        }
    }
    assert_proven(&mut provers()[..Kernel::available().len()], &asked);
}

/// R has the x coordinate r + n: valid for libsecp256k1, and not proven here.
#[test]
fn large_x_coordinates_are_left() {
    // No point of a known logarithm has such an x, but any key solves the equation for some hash:
    // choose R, then P = (s * R - hash * G) / r.
    let n = order();
    let mut found = 0;
    for above in 0..20u8 {
        let x = bytes(&(&n + above));
        let Ok(point) = secp256k1::PublicKey::from_slice(&[&[2][..], &x].concat()) else {
            continue;
        };
        let r = BigUint::from(above);
        if above == 0 {
            continue;
        }
        let (s, hash) = (BigUint::from(77u8), BigUint::from(1234u16));
        let inverse = r.modpow(&(&n - 2u8), &n);
        let scalar =
            |number: &BigUint| secp256k1::Scalar::from_be_bytes(bytes(&(number % &n))).unwrap();
        let first = point.mul_tweak(SECP256K1, &scalar(&(&s * &inverse))).unwrap();
        let key = first.add_exp_tweak(SECP256K1, &scalar(&((&n - &hash) * &inverse))).unwrap();
        let asked = [Asked::ecdsa(encoded(&key, 0), &hash, &r, &s)];
        assert!(asked[0].is_valid());
        assert_eq!(proven(&mut provers(), &asked), [false]);
        found += 1;
    }
    assert!(found > 3);
}

/// Core's lax parser, as the crate `secp256k1` has it, reads the same numbers.
fn assert_parsed(signature: &[u8]) {
    let real = ecdsa::Signature::from_der_lax(signature).ok().map(|it| it.serialize_compact());
    let ours = parse_lax(signature).map(|(r, s)| [r, s].concat());
    let in_range =
        |both: &Vec<u8>| both.chunks(32).all(|number| BigUint::from_bytes_be(number) < order());
    match ours.filter(in_range) {
        Some(both) => assert_eq!(Some(&both[..]), real.as_ref().map(|it| &it[..])),
        None => assert!(real.is_none_or(|real| real == [0; 64]), "{signature:x?}"),
    }
}

#[test]
fn lax_signatures() {
    let long =
        [&[0x30, 0x84, 9, 9, 9, 9, 2, 0x85, 0, 0, 0, 0, 3, 0, 0, 5, 2, 0x81, 1, 7][..], &[9; 5]]
            .concat();
    let (r, s) = parse_lax(&long).unwrap();
    assert_eq!((r[31], s[31], r[..31].iter().chain(&s[..31]).max()), (5, 7, Some(&0)));
    for length in 0..=long.len() {
        assert_parsed(&long[..length]);
    }
    let normal = der(&[0x91; 32], &[0x17; 32]);
    for length in 0..=normal.len() {
        assert_parsed(&normal[..length]);
    }
    for position in 0..normal.len() {
        for byte in 0..=255 {
            let mut changed = normal.clone();
            changed[position] = byte;
            assert_parsed(&changed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_bytes_are_parsed_as_core_does(
        parts in prop::collection::vec(prop_oneof![
            Just(vec![0x30]), Just(vec![2]), Just(vec![0x81]), Just(vec![0x84, 0, 0]), Just(vec![0]),
            prop::collection::vec(any::<u8>(), 0..36), (0u8..40).prop_map(|byte| vec![byte]),
        ], 0..9),
        header: bool,
    ) {
        let mut bytes = if header { vec![0x30, 9, 2] } else { vec![] };
        bytes.extend(parts.concat());
        assert_parsed(&bytes);
    }
}
