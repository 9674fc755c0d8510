//! The public functions against an independent implementation.

use crate::{KeyedHasher, Message, sha256, sha256d, sha256d_many, sha256d_pairs};
use sha2::Digest;

fn expected(data: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(data).into()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

#[test]
fn every_short_length() {
    for len in 0..=300 {
        let data = bytes(len);
        assert_eq!(sha256(&data), expected(&data), "{len}");
        let double = expected(&expected(&data));
        assert_eq!(sha256d(&data), double, "{len}");
        for cut in [0, 4, len / 2, len] {
            let (a, rest) = data.split_at(cut.min(len));
            let (b, c) = rest.split_at(rest.len().saturating_sub(4));
            let mut out = [[0; 32]];
            sha256d_many(&[Message([a, b, c])], &mut out);
            assert_eq!(out[0], double, "{len} {cut}");
        }
    }
}

#[test]
fn pairs_and_keyed() {
    let pair: [u8; 64] = bytes(64).try_into().unwrap();
    let mut out = [[0; 32]];
    sha256d_pairs(&[pair], &mut out);
    assert_eq!(out[0], expected(&expected(&pair)));
    let message: [u8; 36] = bytes(36).try_into().unwrap();
    let digest = expected(&[&pair[..], &message].concat());
    assert_eq!(KeyedHasher::new(&pair).hash(&message), digest);
}
