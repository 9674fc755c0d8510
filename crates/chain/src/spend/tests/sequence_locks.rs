//! Tests relative lock times, on both sides of each limit.

use super::*;
use crate::header_tree::HeaderTree;
use crate::header_tree::tests::{NOW, mine_child};
use crate::params::{Network, Params};
use crate::tests::{bare_tx, input, with_tx};
use bitcoin::transaction::Version;
use bitcoin::{Sequence, Transaction};
use proptest::collection::vec;
use proptest::prelude::*;

/// The medians of the blocks below the connected one.
struct Medians(Vec<u32>);

impl Ancestry for Medians {
    fn hash(&self, _: Height) -> Option<BlockHash> {
        None
    }

    fn median_time_past(&self, height: Height) -> Option<u32> {
        self.0.get(height as usize).copied()
    }
}

fn tx(version: u32, sequences: &[u32]) -> Transaction {
    let mut tx = bare_tx();
    tx.version = Version(version as i32);
    for (vin, &sequence) in (0..).zip(sequences) {
        tx.input.push(input(vin));
        tx.input[vin as usize].sequence = Sequence(sequence);
    }
    tx
}

/// Returns whether a transaction with one input of this sequence may spend a coin of `coin_height`
/// in the first block after `medians`.
fn may_spend(sequence: u32, coin_height: Height, medians: &[u32]) -> bool {
    let medians = Medians(medians.to_vec());
    let height = medians.0.len() as Height;
    with_tx(&tx(2, &[sequence]), |tx| {
        check_sequence_locks(&tx, |_| coin_height, &medians as &dyn Ancestry, height, true)
    })
}

#[test]
fn a_lock_of_blocks_ends_with_its_last_block() {
    let medians = [0; 100];
    assert!(may_spend(10, 90, &medians));
    assert!(!may_spend(10, 91, &medians));
    assert!(!may_spend(0xffff, 1, &medians));
    assert!(may_spend(0, 100, &medians), "a coin of the same block");
    assert!(!may_spend(1, 100, &medians));
}

#[test]
fn a_lock_of_time_counts_from_median_to_median() {
    // Height 3: the coin of height 1 came after median 1000, the coin of height 2 after 2000.
    let medians = |last| [1000, 2000, last];
    let lock = TYPE_FLAG | 2;
    assert!(may_spend(lock, 1, &medians(2024)));
    assert!(!may_spend(lock, 1, &medians(2023)));
    assert!(may_spend(lock, 2, &medians(3024)));
    assert!(!may_spend(lock, 2, &medians(3023)));
    // The genesis block has no predecessor: its own time counts.
    assert!(may_spend(lock, 0, &medians(2024)));
    assert!(!may_spend(lock, 0, &medians(2023)));
    assert!(!may_spend(TYPE_FLAG | 0xffff, 0, &[u32::MAX; 3]));
}

/// A header chain returns the same answers as Core's index, and `None` above its tip.
#[test]
fn a_chain_of_headers_knows_its_hashes_and_medians() {
    let params = Params::of(Network::Regtest);
    let mut tree = HeaderTree::new(params, NOW);
    let mut headers = vec![params.genesis_header];
    for height in 0..20 {
        let next = mine_child(params, &headers[height], 0);
        tree.accept(&next.to_bytes()).unwrap();
        headers.push(next);
    }
    let chain = HeaderChain::best_of(&tree);
    let ancestry: &dyn Ancestry = &chain;
    for (height, header) in (0..).zip(&headers) {
        assert_eq!(ancestry.hash(height), Some(header.hash()));
        // The times ascend, so the median is the middle one of the last eleven, or of as many as
        // exist.
        let first = height.saturating_sub(10);
        let middle = first + (height - first).div_ceil(2);
        assert_eq!(ancestry.median_time_past(height), Some(headers[middle as usize].time));
    }
    assert_eq!((ancestry.hash(21), ancestry.median_time_past(21)), (None, None));
}

#[test]
fn other_bits_are_ignored() {
    let medians = [0; 10];
    assert!(may_spend(DISABLE_FLAG | 0xffff, 9, &medians));
    assert!(may_spend(DISABLE_FLAG | TYPE_FLAG | 0xffff, 9, &medians));
    assert!(may_spend(!DISABLE_FLAG & !TYPE_FLAG & !MASK, 9, &medians));
    assert!(!may_spend(!DISABLE_FLAG & !TYPE_FLAG, 9, &medians));
}

#[test]
fn locks_apply_from_version_2_on_if_bip68_is_active() {
    let medians = Medians(vec![0; 10]);
    for (version, active, locked) in [
        (0, true, false),
        (1, true, false),
        (2, true, true),
        (2, false, false),
        (u32::MAX, true, true),
    ] {
        let passes = with_tx(&tx(version, &[DISABLE_FLAG, 5]), |tx| {
            check_sequence_locks(&tx, |_| 9, &medians, 10, active)
        });
        assert_eq!(passes, !locked, "version {version}, active {active}");
    }
}

#[test]
fn missing_times_count_as_locked() {
    assert!(!may_spend(TYPE_FLAG, 20, &[0; 10]));
    assert!(!may_spend(TYPE_FLAG, 0, &[]));
    assert!(may_spend(TYPE_FLAG, 10, &[0; 10]));
}

/// Computes the last height and time at which the transaction is still locked, step by step like BIP-68.
fn slow_model(version: u32, inputs: &[(u32, Height)], medians: &[u32]) -> bool {
    if version < 2 {
        return true;
    }
    let (mut last_height, mut last_time) = (-1i64, -1i64);
    for &(sequence, coin_height) in inputs {
        if sequence >> 31 == 1 {
            continue;
        }
        let length = i64::from(sequence % 65_536);
        if sequence >> 22 & 1 == 1 {
            let start = i64::from(medians[coin_height.max(1) as usize - 1]);
            last_time = last_time.max(start + 512 * length - 1);
        } else {
            last_height = last_height.max(i64::from(coin_height) + length - 1);
        }
    }
    let height = medians.len() as i64;
    last_height < height && last_time < i64::from(medians[medians.len() - 1])
}

proptest! {
    #[test]
    fn locks_match_the_slow_model(
        version in prop_oneof![0u32..4, any::<u32>()],
        inputs in vec(
            (0u32..40, prop_oneof![0u32..40, Just(0xffff)], 0u32..8, any::<bool>()),
            1..4,
        ),
        steps in vec(0u32..1_000, 40),
    ) {
        let medians: Vec<u32> = steps.iter().scan(1_500_000_000, |time, step| {
            *time += step;
            Some(*time)
        }).collect();
        let inputs: Vec<(u32, Height)> = inputs.iter().map(|&(coin, length, flags, noise)| {
            let disable = if flags == 0 { DISABLE_FLAG } else { 0 };
            let kind = if flags & 1 == 1 { TYPE_FLAG } else { 0 };
            (disable | kind | length | u32::from(noise) << 17, coin)
        }).collect();
        let sequences: Vec<u32> = inputs.iter().map(|input| input.0).collect();
        let passes = with_tx(&tx(version, &sequences), |tx| {
            check_sequence_locks(&tx, |vin| inputs[vin].1, &Medians(medians.clone()), 40, true)
        });
        prop_assert_eq!(passes, slow_model(version, &inputs, &medians));
    }
}
