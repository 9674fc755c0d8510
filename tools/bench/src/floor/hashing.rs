//! [`kernel_rates`]: compressions per second of the SHA-256 kernel of this process.
//!
//! A process has one kernel, which `APUS_SHA256` chooses at its start, so that a machine with
//! several takes a process for each. Messages are made up; SHA-256 takes the same time for all of
//! one length. Compressions are counted as the definition does, whatever a kernel leaves out.

use super::counter::double_compressions;
use super::rates::{KernelRates, Rate};
use super::timing::best_rate;
use apus_hash::{Kernel, KeyedHasher, Message, sha256, sha256d_many, sha256d_pairs};
use std::hint::black_box;
use std::time::Duration;

/// Transactions of a block near the weight limit.
const TRANSACTIONS: usize = 2_500;

/// Bytes without witness of a transaction with two inputs and two or three outputs.
const USUAL_BYTES: usize = 250;

/// Inner nodes, and outpoints, that a block hands over at once.
const NODES: usize = 2_048;
const OUTPOINTS: usize = 8_192;

/// A message so long that its ends don't count.
const STREAM_BYTES: usize = 64 << 10;

/// Names of the kernels that this machine can run, the fastest first.
pub fn kernel_names() -> Vec<&'static str> {
    Kernel::available().into_iter().map(Kernel::name).collect()
}

/// Measures every shape for `span` on one thread and again on `threads`.
pub fn kernel_rates(threads: usize, span: Duration) -> KernelRates {
    KernelRates {
        kernel: Kernel::current().name().to_owned(),
        transactions: messages(&lengths_of_a_block(), threads, span),
        transactions_of_one_length: messages(&[USUAL_BYTES; TRANSACTIONS], threads, span),
        merkle_nodes: merkle_nodes(threads, span),
        outpoints: outpoints(threads, span),
        stream: stream(threads, span),
    }
}

/// A rate for one thread and for all.
pub(super) fn rate(threads: usize, measure: impl Fn(usize) -> f64) -> Rate {
    let one_thread = measure(1);
    let all_threads = if threads == 1 { one_thread } else { measure(threads) };
    Rate { one_thread, all_threads }
}

/// As in a block: most of 190 to 400 bytes, one in ten up to 2 kB, one in 150 up to 100 kB.
fn lengths_of_a_block() -> Vec<usize> {
    let mut state = 1u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((state >> 33) % limit) as usize
    };
    let mut length = || match below(150) {
        0 => 2_000 + below(98_000),
        1..=15 => 400 + below(1_600),
        _ => 190 + below(210),
    };
    (0..TRANSACTIONS).map(|_| length()).collect()
}

/// Double SHA-256 of messages that lie one behind the other, each in the pieces of a transaction
/// with witness.
fn messages(lengths: &[usize], threads: usize, span: Duration) -> Rate {
    let bytes = vec![0x5a; lengths.iter().sum()];
    let compressions: u64 = lengths.iter().map(|&length| double_compressions(length as u64)).sum();
    let mut rest = &bytes[..];
    let messages: Vec<Message<'_>> = lengths
        .iter()
        .map(|&length| {
            let (message, later) = rest.split_at(length);
            rest = later;
            let (version, inner) = message.split_at(4);
            let (inner, lock_time) = inner.split_at(inner.len() - 4);
            Message([version, inner, lock_time])
        })
        .collect();
    rate(threads, |threads| {
        let out = |_| vec![[0; 32]; messages.len()];
        best_rate(threads, span, out, |out: &mut Vec<[u8; 32]>| {
            sha256d_many(black_box(&messages), out);
            compressions
        })
    })
}

fn merkle_nodes(threads: usize, span: Duration) -> Rate {
    rate(threads, |threads| {
        let state = |_| (vec![[0x5a; 64]; NODES], vec![[0; 32]; NODES]);
        best_rate(threads, span, state, |(pairs, out): &mut (Vec<_>, Vec<_>)| {
            sha256d_pairs(black_box(pairs), out);
            NODES as u64 * double_compressions(64)
        })
    })
}

fn outpoints(threads: usize, span: Duration) -> Rate {
    let hasher = KeyedHasher::new(&[7; 64]);
    rate(threads, |threads| {
        let state = |_| (vec![[0x5a; 36]; OUTPOINTS], [0; 4]);
        best_rate(threads, span, state, |(outpoints, sum): &mut (Vec<_>, _)| {
            hasher.sum_many(black_box(outpoints), sum);
            OUTPOINTS as u64
        })
    })
}

fn stream(threads: usize, span: Duration) -> Rate {
    rate(threads, |threads| {
        best_rate(
            threads,
            span,
            |_| vec![0x5a; STREAM_BYTES],
            |bytes: &mut Vec<u8>| {
                black_box(sha256(black_box(bytes)));
                double_compressions(STREAM_BYTES as u64) - 1
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_a_block_and_always_the_same() {
        let lengths = lengths_of_a_block();
        assert_eq!(lengths, lengths_of_a_block());
        assert!(lengths.iter().all(|length| (190..100_000).contains(length)));
        let usual = lengths.iter().filter(|length| **length < 400).count();
        assert!((TRANSACTIONS * 8 / 10..TRANSACTIONS).contains(&usual), "{usual}");
    }

    #[test]
    fn every_shape_gets_a_rate_for_one_thread_and_for_two() {
        let rates = kernel_rates(2, Duration::from_millis(1));
        assert_eq!(rates.kernel, Kernel::current().name());
        let KernelRates { transactions, transactions_of_one_length, .. } = rates;
        let shapes = [rates.merkle_nodes, rates.outpoints, rates.stream];
        for rate in [transactions, transactions_of_one_length].into_iter().chain(shapes) {
            // Any machine does a thousand in a second, none 10^12.
            for found in [rate.one_thread, rate.all_threads] {
                assert!((1e3..1e12).contains(&found), "{found}");
            }
        }
    }
}
