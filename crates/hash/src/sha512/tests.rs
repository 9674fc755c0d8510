//! Compares every kernel of this machine with an independent implementation.

use super::sha512_256::{
    Sha512Many, TaggedHasher, hash, many, many_with, of_kernel, pair, pairs, pairs_with,
};
use crate::{Message, Sha256Kernel};
use proptest::prelude::*;
use sha2::{Digest, Sha512_256};

fn engines() -> Vec<(&'static str, Box<dyn Sha512Many>)> {
    Sha256Kernel::available().into_iter().map(|kernel| (kernel.name(), of_kernel(kernel))).collect()
}

fn expected(data: &[u8]) -> [u8; 32] {
    Sha512_256::digest(data).into()
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

/// Checks every kernel, with and without a tag.
fn check_many(pieces: &[[Vec<u8>; 3]]) {
    let messages: Vec<Message<'_>> = pieces.iter().map(|[a, b, c]| Message([a, b, c])).collect();
    let tag = array(5);
    let (tagged, before) = (TaggedHasher::new(&tag), Sha512_256::new_with_prefix(tag));
    let plain: Vec<[u8; 32]> = pieces.iter().map(|p| expected(&p.concat())).collect();
    let behind: Vec<[u8; 32]> =
        pieces.iter().map(|p| before.clone().chain_update(p.concat()).finalize().into()).collect();
    for (name, engine) in engines() {
        let mut out = vec![[0; 32]; messages.len()];
        many_with(&*engine, &messages, &mut out);
        assert!(out == plain, "{name}: {} messages", messages.len());
        tagged.many_with(&*engine, &messages, &mut out);
        assert!(out == behind, "{name}: {} messages behind a tag", messages.len());
    }
    for (message, digest) in messages.iter().zip(&behind) {
        assert_eq!(tagged.hash(message), *digest);
    }
}

fn digits(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// NIST's examples for FIPS 180-4, and the empty message.
#[test]
fn published_examples_match() {
    let long = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
                 ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    for (message, digest) in [
        (&b""[..], "c672b8d1ef56ed28ab87c3622c5114069bdd3ad7b8f9737498d0c01ecef0967a"),
        (b"abc", "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"),
        (long, "3928e184fb8690f840da3988121d31be65cb9d3ef83ee6146feac861e19b563a"),
    ] {
        assert_eq!(digits(&hash(message)), digest);
        for (name, engine) in engines() {
            // A few more than eight, to fill every kernel's lanes at least once.
            let mut out = [[0; 32]; 11];
            many_with(&*engine, &[Message::from(message); 11], &mut out);
            assert!(out.iter().all(|out| digits(out) == digest), "{name}");
        }
    }
}

#[test]
fn every_short_length_in_one_piece() {
    for len in 0..=300 {
        let data = bytes(len, len);
        assert_eq!(hash(&data), expected(&data), "{len}");
    }
}

#[test]
fn every_short_length_in_three_pieces() {
    for len in 0..=300 {
        let data = bytes(len, len);
        let cuts =
            [0, 1, 63, 64, 65, 111, 112, 127, 128, 129, 255, 256, len.saturating_sub(4), len];
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
        let equal: Vec<_> = (0..count).map(|i| [vec![1], bytes(i, 150), vec![2; 4]]).collect();
        check_many(&equal);
        let mixed: Vec<_> =
            (0..count).map(|i| [bytes(i, 84), bytes(i, i * i * 97 % 9000), vec![]]).collect();
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
    many(&messages, &mut out);
    assert!(out.iter().zip(&data).all(|(out, data)| *out == expected(data)));
    let tagged = TaggedHasher::new(&[3; 128]);
    tagged.many(&messages, &mut out);
    let wanted = |data: &[u8]| expected(&[&[3; 128], data].concat());
    assert!(out.iter().zip(&data).all(|(out, data)| *out == wanted(data)));
}

#[test]
fn every_number_of_pairs() {
    for count in 0..=40 {
        let level: Vec<[u8; 32]> = (0..2 * count).map(array).collect();
        let wanted: Vec<[u8; 32]> =
            level.chunks(2).map(|two| expected(two.as_flattened())).collect();
        let mut out = vec![[0; 32]; count];
        for (name, engine) in engines() {
            out.fill([0; 32]);
            pairs_with(&*engine, &level, &mut out);
            assert!(out == wanted, "{name} {count}");
        }
        pairs(&level, &mut out);
        assert!(out == wanted, "{count}");
        for (two, wanted) in level.chunks(2).zip(&wanted) {
            assert_eq!(pair(&two[0], &two[1]), *wanted);
        }
    }
}

#[test]
#[should_panic(expected = "one digest for each two neighbours")]
fn a_level_of_odd_length_has_no_pairs() {
    pairs(&[[0; 32]; 3], &mut [[0; 32]; 1]);
}

#[test]
#[should_panic(expected = "one digest for each message")]
fn every_message_has_its_digest() {
    many(&[Message::default(); 3], &mut [[0; 32]; 2]);
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
    fn mixes_of_any_messages(pieces in proptest::collection::vec([piece(), piece(), piece()], 0..40)) {
        check_many(&pieces);
    }
}
