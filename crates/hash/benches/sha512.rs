//! Benchmarks SHA-512/256 with the selected kernel against `ring`, whose assembly hashes one message at a
//! time.
//!
//! `APUS_SHA256_KERNEL=avx2 cargo bench -p apus-hash --bench sha512` measures another kernel. An item is a message.

use apus_hash::Message;
use apus_hash::sha512_256::{self, TaggedHasher};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use ring::digest::{Context, SHA512_256, digest};

fn main() {
    divan::main();
}

fn copy_of(digest: &ring::digest::Digest) -> [u8; 32] {
    let mut copy = [0; 32];
    copy.copy_from_slice(digest.as_ref());
    copy
}

/// Hashes one long message. Nothing can run in parallel, so this measures the portable kernel.
mod one_message_of_64_kib {
    use super::*;

    #[divan::bench]
    fn ours(bencher: Bencher) {
        let bytes = vec![0x5a; 1 << 16];
        let count = BytesCount::of_slice(&bytes);
        bencher.counter(count).bench(|| sha512_256::hash(black_box(&bytes)));
    }

    #[divan::bench]
    fn ring(bencher: Bencher) {
        let bytes = vec![0x5a; 1 << 16];
        let count = BytesCount::of_slice(&bytes);
        bencher.counter(count).bench(|| digest(&SHA512_256, black_box(&bytes)));
    }
}

/// Hashes two nodes to their parent.
mod one_pair {
    use super::*;

    #[divan::bench]
    fn ours(bencher: Bencher) {
        let counted = bencher.counter(ItemsCount::new(1u32));
        counted.bench(|| sha512_256::pair(black_box(&[1; 32]), black_box(&[2; 32])));
    }

    #[divan::bench]
    fn ring(bencher: Bencher) {
        let counted = bencher.counter(ItemsCount::new(1u32));
        counted.bench(|| copy_of(&digest(&SHA512_256, black_box(&[1; 64]))));
    }
}

/// Hashes one level of a tree.
mod tree_level {
    use super::*;

    const PAIRS: [usize; 4] = [2048, 8, 4, 2];

    #[divan::bench(args = PAIRS)]
    fn ours(bencher: Bencher, count: usize) {
        let level = vec![[0x5a; 32]; 2 * count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| sha512_256::pairs(black_box(&level), black_box(&mut out)));
    }

    #[divan::bench(args = PAIRS)]
    fn ring(bencher: Bencher, count: usize) {
        let level = vec![[0x5a; 64]; count];
        let mut out = vec![[0; 32]; count];
        let bencher = bencher.counter(ItemsCount::new(count));
        bencher.bench_local(|| {
            for (pair, out) in black_box(&level).iter().zip(black_box(&mut out)) {
                *out = copy_of(&digest(&SHA512_256, pair));
            }
        });
    }
}

/// Hashes leaves in two pieces each; the second is a script.
mod leaves {
    use super::*;

    /// After a tag, most ordinary outputs' leaves fit one block.
    const SHAPES: [&str; 2] = ["2000 of 150 bytes", "2000 of usual outputs"];

    fn measure(bencher: Bencher, shape: &str, hash: impl Fn(&[Message<'_>], &mut [[u8; 32]])) {
        let bytes = [0x5a; 150];
        let (fields, script) = bytes.split_at(81);
        let length = |i: usize| if shape == SHAPES[0] { 69 } else { [22, 25, 22, 34, 23][i % 5] };
        let messages: Vec<Message<'_>> =
            (0..2000).map(|i| Message([fields, &script[..length(i)], &[]])).collect();
        let mut out = vec![[0; 32]; messages.len()];
        let counted = bencher.counter(ItemsCount::new(messages.len()));
        counted.bench_local(|| hash(black_box(&messages), black_box(&mut out)));
    }

    fn ring_after(start: &Context, messages: &[Message<'_>], out: &mut [[u8; 32]]) {
        for (message, out) in messages.iter().zip(out) {
            let mut hash = start.clone();
            message.0.iter().for_each(|piece| hash.update(piece));
            *out = copy_of(&hash.finish());
        }
    }

    #[divan::bench(args = SHAPES)]
    fn ours(bencher: Bencher, shape: &str) {
        measure(bencher, shape, sha512_256::many);
    }

    #[divan::bench(args = SHAPES)]
    fn ours_behind_a_tag(bencher: Bencher, shape: &str) {
        let tagged = TaggedHasher::new(&[7; 128]);
        measure(bencher, shape, |messages, out| tagged.many(messages, out));
    }

    #[divan::bench(args = SHAPES)]
    fn ring(bencher: Bencher, shape: &str) {
        let start = Context::new(&SHA512_256);
        measure(bencher, shape, |messages, out| ring_after(&start, messages, out));
    }

    #[divan::bench(args = SHAPES)]
    fn ring_behind_a_tag(bencher: Bencher, shape: &str) {
        let mut start = Context::new(&SHA512_256);
        start.update(&[7; 128]);
        measure(bencher, shape, |messages, out| ring_after(&start, messages, out));
    }
}
