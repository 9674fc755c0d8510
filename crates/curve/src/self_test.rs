//! The self-test of kernels: signatures made by libsecp256k1, and spoiled copies of them. A kernel
//! may run only if it proves exactly the valid ones, each on its own and by one sum.
//!
//! The self-test does not search for bugs (the tests do that), but for machines and compilers with
//! which a kernel does not work. It has 11 groups of lanes or more, so each lane sees valid and
//! spoiled signatures.

use crate::check::{Parity, SignatureCheck};

/// A key, a hash and a signature, in hexadecimal digits: the key has 33 bytes for ECDSA, or 32 for
/// BIP-340.
const SIGNATURES: [[&str; 4]; 9] = [
    [
        "a5072a5a9ed47257b14416c500d6ac7d4d3f7a59ef571f43ed78a3f5b246c648",
        "fffffffffffefffffffffffffffffffffffffffffffffffffffffffefffffc2f",
        "8cfb2213f37da96f5e3c738e2599014db1dae09114508f36755785bd636f6616",
        "c0261439113e7c4fab7509f0c21e30779abb23137e17509818cb87dedfa946fe",
    ],
    [
        "03b16145c09121d16e33281679ea53dbb9e10eff321664c6de9e37d0ac5a90fe24",
        "3ededef35369f978f3b388fdfef45741f89bc83c37983643e96532f682128a4b",
        "9582e751bb897274b0cbb3924b26f60e85b62e94d298e0eca00566109a35e262",
        "014f8da33d136cc6e082685070d2bc1e2a2f0a99a6ae71f912cc0693588ddfdd",
    ],
    [
        "8c84ca21a860ec1c4eda2248c962a7492b69a3bc162a1b5b140fee7eb1edf321",
        "bf7c142a2dc0071adc19499cd69bda16ee4bd29256520e56a7a7d6cc3a36af3e",
        "8d62093c00a1263d9d60ac3cf088e059881db64e1a359212b8e979d57133291a",
        "6a295fc7f6b6315c640d401c23f05bf447f6349a3871021924812bb5ba6cefb6",
    ],
    [
        "06c8efe0f972eaaa31fcd829ff1553195f87f77c08a22a99228388f5b4173271",
        "dc0b024271f673615c3386a6215b3e41a1926dd97b378a98cc56f778a8977998",
        "50c337de11bb3a00d6e6046c37332305ffe0e5e42ebe0e76c57fd8a2b7561bcc",
        "ac8ee96228743f2db82e9252e63e5fb6d8039ddaed4f003492369d2a2609efba",
    ],
    [
        "02703d22b7868e68278b36d807e4e3bf7bc960a6db646c99d12e0d6f48decdcba1",
        "0000000000000000000000000000000000000100000000000000000000000000",
        "3dd4f4456e5901a046f78d1c4627b1dc6d41534d8683dfa9d387865464194592",
        "789b72fec2d0f100d8d233f3772febfa3bbd3b086b8a05319e9063f0a1962cb5",
    ],
    [
        "03ad8280c8957da432e63b24a43bba7c237dca80f5eea0795182c99aa7c5698561",
        "89431fda4d3db11fc4f98019ec1529f8a686498ea8d1d37af01dba8fcb4b046d",
        "8da4f24ca8db200ee669ee5b7b284d3c208526a3e1736991bf8d52aee59a429c",
        "41bf16e90a5584dc1013314828a56790006e8c35157b8ea31ae9528eb95d39a7",
    ],
    [
        "0cb8ef31d7a7c6215f757f58ef4511d67534f50f1949665a57b20c509ba57271",
        "d3aecebf4f7005f441077846af7fe9b97a21e41c6bbbc33e424d17a1cf4189f9",
        "040d4c61100805d6324aaf66d816039d865d5dc09b3770b9f624a44b1f583198",
        "378e618a62b07b64b47e5ef6db90be870ffa694662c7667b5fc6fe132578a611",
    ],
    [
        "034fd3c7eeac2a1f00ee81abcb33f50f31589abc6db2df4067e5f57e14fe9997c3",
        "bff00f7b444c5163f54f98ddebfd91869a1a07ebd7d1d4d571b4ac812cc19757",
        "8b6723a29d36458ef5c0a57151287a32b8cf83863331d25b7fd0e860ef64fac7",
        "0c39566358f2d3fdc50ed1efa8b79c7c7258c4b7898ebea88ca9ddd277b23bbc",
    ],
    [
        "034c1af319e444e1bb6de00bb1148c11fe898f215d24e78b5de57f18826ef72689",
        "001f92568750936c79b93ea25af0b0e0d22bd5d674e6a120b51ab8a9e377236e",
        "230a00da11732013b402dc0aa7a7c394be10728bf206f6b7429688cf2c692e1d",
        "ced752c9e02bdf4f6e9be22776eebb76f945915765256bbd7495d85688c660d8",
    ],
];

/// Whether `prove` proves exactly the valid checks.
pub(crate) fn is_passed(mut prove: impl FnMut(&[SignatureCheck], &mut [Option<Parity>])) -> bool {
    let Some((checks, expected)) = checks() else { return false };
    let mut proven = vec![None; checks.len()];
    prove(&checks, &mut proven);
    proven.iter().map(Option::is_some).eq(expected)
}

/// Whether R of each signature has an odd y.
const R_IS_ODD: [bool; 9] = [false, false, false, false, false, true, false, true, false];

/// Copies of each signature, so that there are enough for a sum.
const COPIES: usize = 8;

/// Whether `prove`, which computes sums only, proves all signatures if all of them and their hints are right, and none
/// otherwise.
pub(crate) fn is_sum_passed(
    mut prove: impl FnMut(&[SignatureCheck], &mut [Option<Parity>]),
) -> bool {
    let parity = |is_odd| if is_odd { Parity::Odd } else { Parity::Even };
    // What is wrong with one copy of signature 4, which is ECDSA.
    for (wrong_hash, wrong_hint) in [(0, false), (1, false), (0, true)] {
        let mut checks = Vec::new();
        for copy in 0..COPIES {
            for (i, (signature, is_odd)) in SIGNATURES.iter().zip(R_IS_ODD).enumerate() {
                let is_chosen = (copy, i) == (3, 4);
                let mut parts = signature.map(decode);
                if is_chosen && let Some(byte) = parts[1].first_mut() {
                    *byte ^= wrong_hash;
                }
                let hint = parity(is_odd != (is_chosen && wrong_hint));
                checks.extend(check(&parts).map(|check| check.with_hint(Some(hint))));
            }
        }
        let mut proven = vec![None; checks.len()];
        prove(&checks, &mut proven);
        let is_right = wrong_hash == 0 && !wrong_hint;
        let expected = |i: usize| is_right.then(|| parity(R_IS_ODD[i % R_IS_ODD.len()]));
        if checks.len() != COPIES * SIGNATURES.len()
            || !proven.iter().enumerate().all(|(i, proven)| *proven == expected(i))
        {
            return false;
        }
    }
    true
}

/// All checks, and whether they are valid.
fn checks() -> Option<(Vec<SignatureCheck>, Vec<bool>)> {
    let (mut checks, mut expected) = (vec![], vec![]);
    for (i, signature) in SIGNATURES.iter().enumerate() {
        let [key, hash, r, s] = signature.map(decode);
        // Valid, with another bit of key, hash, r and s spoiled, and with r and s exchanged.
        for spoiled in 0..=5 {
            let parts = [&key, &hash, &r, &s].map(Clone::clone);
            let mut parts = if spoiled == 5 {
                [parts[0].clone(), parts[1].clone(), s.clone(), r.clone()]
            } else {
                parts
            };
            if let 1..=4 = spoiled {
                let part = &mut parts[spoiled - 1];
                // The first byte of a compressed key has only its lowest bit to spoil.
                let at = if spoiled == 1 { 0 } else { (7 * i + spoiled) % part.len() };
                part[at] ^= if spoiled == 1 { 1 } else { 1 << (i % 8) };
            }
            checks.push(check(&parts)?);
            expected.push(spoiled == 0);
        }
    }
    Some((checks, expected))
}

fn check([key, hash, r, s]: &[Vec<u8>; 4]) -> Option<SignatureCheck> {
    let hash = hash[..].try_into().ok()?;
    if key.len() == 33 {
        return SignatureCheck::ecdsa(
            key,
            hash,
            &[&[0x30, 68, 2, 32][..], r, &[2, 32], s].concat(),
        );
    }
    let signature = [&r[..], s].concat();
    Some(SignatureCheck::schnorr(key[..].try_into().ok()?, hash, signature[..].try_into().ok()?))
}

/// The bytes of hexadecimal digits.
fn decode(digits: &str) -> Vec<u8> {
    let value = |digit: &u8| (*digit as char).to_digit(16).unwrap_or(0) as u8;
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | value(digit)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{self, Batch};
    use crate::lanes::{Room, prove};
    use crate::portable::Element;

    #[test]
    fn only_right_answers_pass() {
        let (_, expected) = checks().unwrap();
        assert_eq!(expected.iter().filter(|valid| **valid).count(), SIGNATURES.len());
        assert!(is_passed(|checks, proven| prove(&mut Room::<Element>::new(), checks, proven)));
        assert!(!is_passed(|_, proven| proven.fill(Some(Parity::Odd))));
        assert!(!is_passed(|_, _| ()));
        for wrong in 0..expected.len() {
            assert!(!is_passed(|checks, proven| {
                assert_eq!(checks.len(), expected.len());
                for (i, proven) in proven.iter_mut().enumerate() {
                    *proven = (expected[i] != (i == wrong)).then_some(Parity::Even);
                }
            }));
        }
    }

    #[test]
    fn only_right_sums_pass() {
        let mut room = Room::<Element>::new();
        let all: Vec<_> = SIGNATURES.iter().filter_map(|it| check(&it.map(decode))).collect();
        let mut proven = vec![None; all.len()];
        prove(&mut room, &all, &mut proven);
        assert_eq!(proven.iter().map(|it| *it == Some(Parity::Odd)).collect::<Vec<_>>(), R_IS_ODD);

        let mut batch = Batch::<Element>::new();
        assert!(is_sum_passed(|checks, proven| batch::prove(&mut batch, checks, proven)));
        assert!(!is_sum_passed(|checks, proven| {
            proven.iter_mut().zip(checks).for_each(|(it, check)| *it = check.r_parity);
        }));
        assert!(!is_sum_passed(|_, _| ()));
        // Each on its own, as lanes prove.
        assert!(!is_sum_passed(|checks, proven| prove(&mut room, checks, proven)));
    }

    #[test]
    fn the_signatures_are_libsecp256k1s() {
        use crate::tests::checks::{Asked, der};
        for signature in SIGNATURES {
            let [key, hash, r, s] = signature.map(decode);
            let is_schnorr = key.len() == 32;
            let array = |bytes: &[u8]| bytes.try_into().unwrap();
            let signature = if is_schnorr { [r, s].concat() } else { der(&array(&r), &array(&s)) };
            assert!(Asked { is_schnorr, key, hash: array(&hash), signature }.is_valid());
        }
    }
}
