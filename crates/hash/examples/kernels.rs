//! Measures compressions per second on one core, for every operation and every kernel of this machine.
//!
//! `cargo run --release -p apus-hash --example kernels` starts itself once per kernel, selected by
//! the environment variable `APUS_SHA256_KERNEL`, and prints one line per operation. A compression is one
//! block of SHA-256; the last column compares with the `sha2` crate. Two more tables follow:
//! SHA-512/256 compared with `ring`, and MuHash3072 products (kernel selected by `APUS_MUHASH_KERNEL`)
//! compared with multiplying one number at a time.
#![allow(clippy::print_stdout)]

use apus_hash::muhash::{self, Num3072, Product};
use apus_hash::sha512_256::{self, TaggedHasher};
use apus_hash::{
    KeyedHasher, Message, Sha256Kernel, sha256, sha256_many, sha256d_many, sha256d_pairs,
};
use sha2::Digest;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

fn main() -> std::io::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("one") => measure_all(),
        Some("sha512") => measure_sha512(),
        Some("muhash") => measure_muhash(),
        _ => each_kernel()?,
    }
    Ok(())
}

fn each_kernel() -> std::io::Result<()> {
    println!(
        "{:<10}{:<28}{:>10}{:>12}{:>10}",
        "kernel", "operation", "M/s", "ns/message", "x sha2"
    );
    each_sha256_kernel("one")?;
    println!("\n{:<10}{:<38}{:>12}{:>10}", "kernel", "sha512/256", "ns/message", "x ring");
    each_sha256_kernel("sha512")?;
    println!("\n{:<10}{:<38}{:>12}{:>10}", "kernel", "muhash", "ns/element", "x single");
    for kernel in muhash::MuHashKernel::available() {
        Command::new(std::env::current_exe()?)
            .arg("muhash")
            .env("APUS_MUHASH_KERNEL", kernel.name())
            .status()?;
    }
    Ok(())
}

fn each_sha256_kernel(what: &str) -> std::io::Result<()> {
    for kernel in Sha256Kernel::available() {
        Command::new(std::env::current_exe()?)
            .arg(what)
            .env("APUS_SHA256_KERNEL", kernel.name())
            .status()?;
    }
    Ok(())
}

/// Returns the seconds per call: the best of many tries. Each try is long enough for the clock's resolution
/// and short enough to fall between two interruptions.
fn seconds(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_micros(500) {
            run();
            count += 1;
        }
        best = best.min(begin.elapsed().as_secs_f64() / f64::from(count));
    }
    best
}

fn report(operation: &str, messages: usize, compressions: usize, ours: f64, theirs: f64) {
    println!(
        "{:<10}{operation:<28}{:>10.1}{:>12.1}{:>10.2}",
        Sha256Kernel::current().name(),
        compressions as f64 / ours / 1e6,
        ours / messages as f64 * 1e9,
        theirs / ours
    );
}

/// A small random generator for lengths, the same on every machine.
struct Lengths(u64);

impl Lengths {
    fn next(&mut self, below: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % below) as usize
    }

    /// Returns a length like that of a transaction in a real block: mostly 190 to 400 bytes, one in ten up to
    /// 2 KB, one in 150 up to 100 KB.
    fn transaction(&mut self) -> usize {
        match self.next(150) {
            0 => 2_000 + self.next(98_000),
            1..=15 => 400 + self.next(1_600),
            _ => 190 + self.next(210),
        }
    }
}

fn blocks(len: usize) -> usize {
    (len + 8) / 64 + 1
}

fn double(data: &[&[u8]]) -> [u8; 32] {
    let mut hash = sha2::Sha256::new();
    data.iter().for_each(|piece| hash.update(piece));
    sha2::Sha256::digest(hash.finalize()).into()
}

fn many(operation: &str, lengths: &[usize]) {
    let bytes = vec![0x5a; lengths.iter().sum::<usize>()];
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    for len in lengths {
        let (message, later) = rest.split_at(*len);
        let (version, inner) = message.split_at(4);
        let (inner, lock_time) = inner.split_at(inner.len() - 4);
        messages.push(Message([version, inner, lock_time]));
        rest = later;
    }
    let mut out = vec![[0; 32]; messages.len()];
    let ours = seconds(|| sha256d_many(black_box(&messages), &mut out));
    let theirs = seconds(|| {
        for (message, out) in black_box(&messages).iter().zip(&mut out) {
            *out = double(&message.0);
        }
    });
    let compressions = lengths.iter().map(|len| blocks(*len) + 1).sum();
    report(operation, lengths.len(), compressions, ours, theirs);
}

fn measure_all() {
    let long = vec![0x5a; 1 << 16];
    let ours = seconds(|| {
        black_box(sha256(black_box(&long)));
    });
    let theirs = seconds(|| {
        black_box(sha2::Sha256::digest(black_box(&long)));
    });
    report("sha256, 64 KiB", 1, blocks(long.len()), ours, theirs);

    let mut random = Lengths(1);
    let mix: Vec<usize> = (0..2500).map(|_| random.transaction()).collect();
    many("many, a block's mix", &mix);
    let usual: Vec<usize> = (0..2500).map(|_| 190 + random.next(210)).collect();
    many("many, 190..400 bytes", &usual);
    many("many, 250 bytes", &[250; 2048]);
    many("many, 64 messages", &mix[..64]);
    many("many, 12 messages", &mix[..12]);
    many("many, 7 messages", &usual[..7]);
    many("many, 4 messages", &usual[..4]);
    many("many, one of 100 KB", &[&[100_000][..], &[250; 2000]].concat());

    for count in [2048, 24, 8, 4, 2, 1] {
        let pairs = vec![[0x5a; 64]; count];
        let mut out = vec![[0; 32]; count];
        let ours = seconds(|| sha256d_pairs(black_box(&pairs), &mut out));
        let theirs = seconds(|| {
            for (pair, out) in black_box(&pairs).iter().zip(&mut out) {
                *out = double(&[pair]);
            }
        });
        report(&format!("pairs, {count}"), count, 3 * count, ours, theirs);
    }

    for count in [8192, 24, 8, 4, 2] {
        let key = [7; 64];
        let hasher = KeyedHasher::new(&key);
        let outpoints = vec![[0x5a; 36]; count];
        let mut sum = [0; 4];
        let ours = seconds(|| hasher.sum_many(black_box(&outpoints), &mut sum));
        let mut out = vec![[0; 32]; count];
        let keyed = sha2::Sha256::new_with_prefix(key);
        let theirs = seconds(|| {
            for (outpoint, out) in black_box(&outpoints).iter().zip(&mut out) {
                *out = keyed.clone().chain_update(outpoint).finalize().into();
            }
        });
        report(&format!("keyed sum, {count}"), count, count, ours, theirs);
        let ours = seconds(|| hasher.hash_many(black_box(&outpoints), &mut out));
        report(&format!("keyed, {count}"), count, count, ours, theirs);
    }
}

/// Measures levels of a tree, and leaves. With a tag, `ring` also clones its state after the tag.
fn measure_sha512() {
    use ring::digest::{Context, SHA512_256, digest};
    let report = |operation: &str, count: usize, ours: f64, theirs: f64| {
        println!(
            "{:<10}{operation:<38}{:>12.1}{:>10.2}",
            Sha256Kernel::current().name(),
            ours / count as f64 * 1e9,
            theirs / ours
        );
    };
    let one_by_one = |bytes: &[u8], len: usize| {
        seconds(|| {
            for message in black_box(bytes).chunks(len) {
                black_box(digest(&SHA512_256, message));
            }
        })
    };
    for count in [2048, 8, 4, 3, 2, 1] {
        let level = vec![[0x5a; 32]; 2 * count];
        let mut out = vec![[0; 32]; count];
        let ours = seconds(|| sha512_256::pairs(black_box(&level), &mut out));
        report(&format!("pairs, {count}"), count, ours, one_by_one(level.as_flattened(), 64));
    }
    let tagged = TaggedHasher::new(&[7; 128]);
    let mut context = Context::new(&SHA512_256);
    context.update(&[7; 128]);
    for (count, len) in [(2000, 150), (2000, 106), (8, 106), (3, 106), (2, 106)] {
        let bytes = vec![0x5a; count * len];
        let leaves: Vec<Message<'_>> = bytes.chunks(len).map(Message::from).collect();
        let mut out = vec![[0; 32]; count];
        let theirs = one_by_one(&bytes, len);
        let ours = seconds(|| sha512_256::many(black_box(&leaves), &mut out));
        report(&format!("{count} leaves of {len} bytes"), count, ours, theirs);
        let theirs = seconds(|| {
            for leaf in black_box(&bytes).chunks(len) {
                let mut hash = context.clone();
                hash.update(leaf);
                black_box(hash.finish());
            }
        });
        let ours = seconds(|| tagged.many(black_box(&leaves), &mut out));
        report(&format!("{count} of {len} bytes behind a tag"), count, ours, theirs);
    }
}

/// Measures outpoints, and coins as MuHash serializes them, from the bytes to the product.
fn measure_muhash() {
    let report = |operation: &str, count: usize, ours: f64, theirs: f64| {
        println!(
            "{:<10}{operation:<38}{:>12.1}{:>10.2}",
            muhash::MuHashKernel::current().name(),
            ours / count as f64 * 1e9,
            theirs / ours
        );
    };
    for (what, len) in [("outpoints", 36), ("coins of 74 bytes", 74)] {
        let count = 2048;
        let bytes: Vec<u8> = (0..count * len).map(|i| (i * i) as u8).collect();
        let elements: Vec<Message<'_>> = bytes.chunks(len).map(Message::from).collect();
        let mut keys = vec![[0; 32]; count];
        let theirs = seconds(|| {
            let mut product = Num3072::ONE;
            for element in bytes.chunks(len) {
                product.multiply(&Num3072::of_key(&sha256(element)));
            }
            black_box(product);
        });
        let ours = seconds(|| {
            sha256_many(black_box(&elements), &mut keys);
            let mut product = Product::new();
            product.multiply(&keys);
            black_box(product.finish());
        });
        report(&format!("{count} {what}"), count, ours, theirs);
    }
    for count in [2048, 64, 16, 8, 1] {
        let keys: Vec<[u8; 32]> = (0..count).map(|i| [i as u8; 32]).collect();
        let theirs = seconds(|| {
            let mut product = Num3072::ONE;
            keys.iter().for_each(|key| product.multiply(&Num3072::of_key(key)));
            black_box(product);
        });
        let mut product = Product::new();
        let ours = seconds(|| product.multiply(black_box(&keys)));
        report(&format!("{count} keys, unfinished"), count, ours, theirs);
        let ours = seconds(|| {
            let mut product = Product::new();
            product.multiply(black_box(&keys));
            black_box(product.finish());
        });
        report(&format!("{count} keys, finished"), count, ours, theirs);
    }
}
