//! Compares every kernel of this machine, and every combination of kernels, with an independent
//! implementation.

use crate::kernel::HashEngine;
use crate::sha256::{double_chunk, single_chunk};
use crate::single::Single;
use crate::{KeyedHasher, Message, Sha256, Sha256Kernel};
use proptest::prelude::*;
use sha2::Digest;

/// Every kernel, and also each lane kernel with the portable kernel for the remaining messages.
fn engines() -> Vec<(String, HashEngine)> {
    let mut engines = Vec::new();
    for kernel in Sha256Kernel::available() {
        let engine = HashEngine::new(kernel).unwrap();
        engines.push((kernel.name().to_owned(), engine));
        #[cfg(target_arch = "x86_64")]
        if let Some(engine) = HashEngine::with_rest(kernel, Single::Portable) {
            engines.push((format!("{} and portable", kernel.name()), engine));
        }
    }
    engines
}

fn singles() -> Vec<Single> {
    engines().into_iter().map(|(_, engine)| engine.single).collect()
}

fn expected(data: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(data).into()
}

fn expected_double(data: &[u8]) -> [u8; 32] {
    expected(&expected(data))
}

fn hash(kernel: Single, data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::with(kernel);
    hash.update(data);
    hash.finalize()
}

/// Makes bytes without a pattern that could hide a mistake.
fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn array<const N: usize>(seed: usize) -> [u8; N] {
    bytes(seed, N).try_into().unwrap()
}

fn check_many(pieces: &[[Vec<u8>; 3]]) {
    let messages: Vec<Message<'_>> = pieces.iter().map(|[a, b, c]| Message([a, b, c])).collect();
    let wanted: Vec<[u8; 32]> = pieces.iter().map(|p| expected(&p.concat())).collect();
    for (name, engine) in engines() {
        let (mut single, mut double) =
            (vec![[0; 32]; messages.len()], vec![[0; 32]; messages.len()]);
        single_chunk(&*engine.many, |index| messages[index], &mut single);
        double_chunk(&*engine.many, |index| messages[index], &mut double);
        for (i, wanted) in wanted.iter().enumerate() {
            assert_eq!(single[i], *wanted, "{name}: message {i} of {}", messages.len());
            assert_eq!(double[i], expected(wanted), "{name}: message {i} of {}", messages.len());
        }
    }
}

fn digits(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// FIPS 180-4 examples, and the empty message.
#[test]
fn published_examples_match() {
    let million = vec![b'a'; 1_000_000];
    let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    let long = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
                 ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    for (message, digest) in [
        (&b""[..], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (two_blocks, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
        (long, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"),
        (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ] {
        for kernel in singles() {
            assert_eq!(digits(&hash(kernel, message)), digest, "{kernel:?}");
        }
        for (name, engine) in engines() {
            // A few more than sixteen, to fill every kernel's lanes at least once.
            let mut out = [[0; 32]; 19];
            double_chunk(&*engine.many, |_| Message::from(message), &mut out);
            let double = digits(&expected(&expected(message)));
            assert!(out.iter().all(|out| digits(out) == double), "{name}");
            single_chunk(&*engine.many, |_| Message::from(message), &mut out);
            assert!(out.iter().all(|out| digits(out) == digest), "{name}");
        }
    }
}

#[test]
fn every_short_length_in_one_piece_and_in_parts() {
    for len in 0..=300 {
        let data = bytes(len, len);
        let wanted = expected(&data);
        for kernel in singles() {
            assert_eq!(hash(kernel, &data), wanted, "{kernel:?} {len}");
            for cut in [1, 31, 63, 64, 65, 128] {
                let mut parts = Sha256::with(kernel);
                data.chunks(cut).for_each(|part| parts.update(part));
                assert_eq!(parts.finalize(), wanted, "{kernel:?} {len} in parts of {cut}");
            }
        }
    }
}

#[test]
fn every_short_length_in_three_pieces() {
    for len in 0..=300 {
        let data = bytes(len, len);
        let cuts = [0, 1, 4, 55, 56, 63, 64, 65, 127, 128, 129, len.saturating_sub(4), len];
        let pieces: Vec<[Vec<u8>; 3]> = cuts
            .iter()
            .flat_map(|from| cuts.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from <= to && *to <= len)
            .map(|(a, b)| [data[..a].to_vec(), data[a..b].to_vec(), data[b..].to_vec()])
            .collect();
        check_many(&pieces);
    }
}

#[test]
fn every_number_of_messages_short_and_mixed() {
    for count in 0..=40 {
        let equal: Vec<_> = (0..count).map(|i| [vec![1], bytes(i, 250), vec![2; 4]]).collect();
        check_many(&equal);
        let mixed: Vec<_> =
            (0..count).map(|i| [bytes(i, 4), bytes(i, i * i * 97 % 9000), vec![0; 4]]).collect();
        check_many(&mixed);
        let mut lone = equal;
        if let Some(first) = lone.first_mut() {
            first[1] = bytes(7, 40_000);
        }
        check_many(&lone);
    }
}

#[test]
fn more_messages_than_are_sorted_at_once() {
    let data: Vec<Vec<u8>> = (0..2500).map(|i| bytes(i, i % 400)).collect();
    let messages: Vec<Message<'_>> = data.iter().map(|data| Message::from(&data[..])).collect();
    let mut out = vec![[0; 32]; data.len()];
    crate::sha256d_many(&messages, &mut out);
    assert!(out.iter().zip(&data).all(|(out, data)| *out == expected_double(data)));
}

#[test]
fn every_number_of_pairs_and_keyed_messages() {
    let key = array(99);
    let hasher = KeyedHasher::new(&key);
    for count in 0..=40 {
        let pairs: Vec<[u8; 64]> = (0..count).map(array).collect();
        let messages: Vec<[u8; 36]> = (0..count).map(array).collect();
        for (name, engine) in engines() {
            let mut out = vec![[0; 32]; count];
            engine.many.pairs(&pairs, &mut out);
            for (out, pair) in out.iter().zip(&pairs) {
                assert_eq!(*out, expected_double(pair), "{name} {count}");
            }
            let mut out = vec![[0; 32]; count];
            engine.many.keyed(hasher.midstate(), &messages, &mut out);
            for (out, message) in out.iter().zip(&messages) {
                assert_eq!(*out, expected(&[&key[..], message].concat()), "{name} {count}");
            }
            let mut sum = [u64::MAX, u64::MAX - 1, u64::MAX, u64::MAX];
            let mut wanted = sum;
            hasher.sum_with(&*engine.many, &messages, &mut sum);
            out.iter().for_each(|digest| add(&mut wanted, digest));
            assert_eq!(sum, wanted, "{name} {count}");
        }
    }
}

/// Adds byte by byte, so it shares nothing with the code under test.
fn add(sum: &mut [u64; 4], digest: &[u8; 32]) {
    let mut carry = 0;
    let bytes: Vec<u8> = sum.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    let added: Vec<u8> = bytes
        .iter()
        .zip(digest)
        .map(|(a, b)| {
            carry += u16::from(*a) + u16::from(*b);
            let low = carry as u8;
            carry >>= 8;
            low
        })
        .collect();
    for (limb, bytes) in sum.iter_mut().zip(added.as_chunks().0) {
        *limb = u64::from_le_bytes(*bytes);
    }
}

#[test]
fn a_sum_wraps_around_at_the_top() {
    let hasher = KeyedHasher::new(&[1; 64]);
    let digest = hasher.hash(&[2; 36]);
    let (limbs, _) = digest.as_chunks();
    // The complement of the digest: both add up to 2^256 - 1.
    let mut sum: [u64; 4] = core::array::from_fn(|i| !u64::from_le_bytes(limbs[i]));
    hasher.sum_many(&[[2; 36]], &mut sum);
    assert_eq!(sum, [u64::MAX; 4]);
    let before = sum;
    hasher.sum_many(&[[2; 36]], &mut sum);
    let (limbs, _) = digest.as_chunks();
    let mut wanted: [u64; 4] = core::array::from_fn(|i| u64::from_le_bytes(limbs[i]));
    // Adding to 2^256 - 1 is subtracting one.
    for limb in &mut wanted {
        let (low, borrow) = limb.overflowing_sub(1);
        *limb = low;
        if !borrow {
            break;
        }
    }
    assert_eq!((sum, before), (wanted, [u64::MAX; 4]));
}

#[test]
fn every_bit_of_the_key_and_of_the_message_matters() {
    let (key, message) = (array::<64>(1), array::<36>(2));
    let digest = KeyedHasher::new(&key).hash(&message);
    for bit in 0..64 * 8 {
        let mut other = key;
        other[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(KeyedHasher::new(&other).hash(&message), digest, "bit {bit} of the key");
    }
    for bit in 0..36 * 8 {
        let mut other = message;
        other[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(KeyedHasher::new(&key).hash(&other), digest, "bit {bit} of the message");
    }
}

#[test]
fn a_hasher_does_not_show_its_key() {
    assert_eq!(format!("{:?}", KeyedHasher::new(&[0x41; 64])), "KeyedHasher { .. }");
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..8),
        4 => proptest::collection::vec(any::<u8>(), 0..600),
        1 => (any::<usize>(), 0usize..20_000).prop_map(|(seed, len)| bytes(seed, len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mixes_of_any_messages(pieces in proptest::collection::vec([piece(), piece(), piece()], 0..80)) {
        check_many(&pieces);
    }

    #[test]
    fn any_cuts_of_a_stream(parts in proptest::collection::vec(piece(), 0..8)) {
        for kernel in singles() {
            let mut hash = Sha256::with(kernel);
            parts.iter().for_each(|part| hash.update(part));
            prop_assert_eq!(hash.clone().finalize(), expected(&parts.concat()));
        }
    }

    /// The aggregate needs this property: the order and grouping of messages do not matter.
    #[test]
    fn sums_of_parts_add_up(count in 0usize..70, cut in 0usize..70, seed: usize) {
        let messages: Vec<[u8; 36]> = (0..count).map(|i| array(seed.wrapping_add(i))).collect();
        let hasher = KeyedHasher::new(&array(seed));
        let (mut whole, mut parts) = ([0; 4], [0; 4]);
        hasher.sum_many(&messages, &mut whole);
        let (left, right) = messages.split_at(cut.min(count));
        hasher.sum_many(right, &mut parts);
        hasher.sum_many(left, &mut parts);
        prop_assert_eq!(whole, parts);
    }
}
