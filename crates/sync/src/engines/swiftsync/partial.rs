//! [`Partial`]: the result of a part of the chain, without its blocks.
//!
//! Partial results are merged, in any order and any grouping; the result for all heights decides. Checkpoints
//! store them and other machines send them, so they have an encoded form. They contain only the count, the
//! amounts and the MuHash of the surviving coins; the coins themselves are in runs.
//!
//! ```text
//! CompactSize   number of ranges, always 1; each first height, first height after (4 each)
//! 8 × 10        blocks, bytes, transactions, inputs that spend, outputs, surviving coins, transactions with such,
//!               bogosize, outpoints created and not surviving, leaves of the Utreexo forest (0 if not requested)
//! 16            amount of the surviving coins in satoshi
//! 16            amount of unspendable outputs in satoshi
//! 1             aggregate: 0 keyed SHA-256, 1 MuHash3072, 2 none, 3 keyed SHA-256 of whole coins
//!   64          of 0 and 3: sum of the created, sum of the spent
//!   768         of 1: numerator (created), denominator (spent)
//! 768           MuHash of the surviving coins; the empty set's if it is not computed
//! CompactSize   number of coinbases that BIP-30 applies to; each txid (32), height (4), strictly ascending
//! ```

use super::aggregate::{KindMismatch, Sums};
use crate::engines::bip30::{CoinbaseId, read_coinbases, write_coinbases};
use crate::engines::pass::{Counts, HeightCoverage, PartialResult, Work};
use apus_chain::{Height, HeightRange, MuHash, Reader};

/// Totals of the surviving coins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoinTotals {
    /// Number of coins.
    pub coins: u64,
    /// Number of transactions with at least one surviving coin.
    pub transactions: u64,
    /// Their amounts in satoshis. 128 bits, because without looking at inputs nothing bounds a chain's
    /// amounts.
    pub amount: u128,
    /// Core's "bogosize": a size in bytes that does not depend on the database.
    pub bogosize: u64,
}

impl CoinTotals {
    /// Adds the totals of other transactions.
    pub fn add(&mut self, other: &Self) {
        let Self { coins, transactions, amount, bogosize } = self;
        *coins = coins.saturating_add(other.coins);
        *transactions = transactions.saturating_add(other.transactions);
        *amount = amount.saturating_add(other.amount);
        *bogosize = bogosize.saturating_add(other.bogosize);
    }
}

/// The result of some part of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    pub(super) covered: HeightCoverage,
    /// How much was processed.
    pub counts: Counts,
    /// The surviving coins.
    pub survivors: CoinTotals,
    /// Amounts of unspendable outputs, in satoshis.
    pub unspendable_amount: u128,
    /// The aggregate's two sums.
    pub sums: Sums,
    /// Number of outpoints in the sum of the created.
    pub created: u64,
    /// Number of numbered outputs; 0 if hashes were not requested.
    pub numbered: u64,
    /// MuHash of the surviving coins, as `gettxoutsetinfo muhash` builds it; the empty set's if it was not
    /// requested.
    pub muhash: MuHash,
    /// Coinbases that must be unique (BIP-30), ascending.
    pub coinbases: Vec<CoinbaseId>,
}

/// Two partial results cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A height is in both.
    #[error("both parts cover height {0}")]
    Overlap(Height),
    /// Their aggregates are of different kinds.
    #[error(transparent)]
    Kind(#[from] KindMismatch),
}

impl Partial {
    /// The result of `range` before its first block.
    pub(super) fn new(range: HeightRange, sums: Sums) -> Self {
        Self {
            covered: HeightCoverage::of(range),
            counts: Counts::default(),
            survivors: CoinTotals::default(),
            unspendable_amount: 0,
            sums,
            created: 0,
            numbered: 0,
            muhash: MuHash::new(),
            coinbases: Vec::new(),
        }
    }
}

impl PartialResult for Partial {
    type MergeError = MergeError;

    fn ranges(&self) -> &[HeightRange] {
        self.covered.ranges()
    }

    /// Numbers saturate rather than wrap, because damaged files may hold numbers that no chain reaches.
    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        let mut covered = self.covered.clone();
        covered.add(&other.covered).map_err(MergeError::Overlap)?;
        self.sums.merge(&other.sums)?;
        self.covered = covered;
        self.counts.add(&other.counts);
        self.survivors.add(&other.survivors);
        self.created = self.created.saturating_add(other.created);
        self.numbered = self.numbered.saturating_add(other.numbered);
        self.unspendable_amount = self.unspendable_amount.saturating_add(other.unspendable_amount);
        self.muhash.combine(&other.muhash);
        if !other.coinbases.is_empty() {
            self.coinbases.extend_from_slice(&other.coinbases);
            // Two ascending sequences, which this sort merges in one pass.
            self.coinbases.sort();
        }
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.covered.write(out);
        self.counts.write(out);
        let CoinTotals { coins, transactions: coin_transactions, amount, bogosize } =
            self.survivors;
        for number in [coins, coin_transactions, bogosize, self.created, self.numbered] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&amount.to_le_bytes());
        out.extend_from_slice(&self.unspendable_amount.to_le_bytes());
        self.sums.write(out);
        out.extend_from_slice(&self.muhash.to_bytes());
        write_coinbases(out, &self.coinbases);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (covered, counts) = (HeightCoverage::read(reader)?, Counts::read(reader)?);
        let mut numbers = [0u64; 5];
        for number in &mut numbers {
            *number = reader.u64().ok()?;
        }
        let [coins, coin_transactions, bogosize, created, numbered] = numbers;
        let amount = u128::from_le_bytes(*reader.array().ok()?);
        let unspendable_amount = u128::from_le_bytes(*reader.array().ok()?);
        let sums = Sums::read(reader)?;
        let muhash = MuHash::from_bytes(reader.array().ok()?).ok()?;
        let coinbases = read_coinbases(reader)?;
        Some(Self {
            covered,
            counts,
            survivors: CoinTotals { coins, transactions: coin_transactions, amount, bogosize },
            unspendable_amount,
            sums,
            created,
            numbered,
            muhash,
            coinbases,
        })
    }

    fn done(&self) -> Work {
        let (counts, coins) = (&self.counts, self.survivors.coins);
        Work { blocks: counts.blocks, bytes: counts.bytes, coins }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::swiftsync::aggregate::{AggregateKind, Aggregator, Secret};
    use apus_chain::BlockHash;
    use apus_chain::Txid;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn sums(kind: AggregateKind) -> Sums {
        let aggregator = Aggregator::new(kind, &Secret([1; 32]), BlockHash([2; 32]), [3; 32]);
        let mut adding = aggregator.begin();
        adding.create(&[4; 36]);
        adding.spend(&[5; 36]);
        adding.finish()
    }

    /// A result with a different value in every field.
    fn example(kind: AggregateKind) -> Partial {
        let mut muhash = MuHash::new();
        muhash.insert(b"coin");
        Partial {
            covered: covered(&[(2, 5), (7, 300)]),
            counts: Counts { blocks: 1, bytes: 2, transactions: 3, inputs: 4, outputs: 5 },
            survivors: CoinTotals { coins: 6, transactions: 7, amount: 1 << 70, bogosize: 8 },
            unspendable_amount: 1 << 71,
            sums: sums(kind),
            created: 9,
            numbered: 10,
            muhash,
            coinbases: vec![coinbase(1, 4), coinbase(1, 8), coinbase(2, 3)],
        }
    }

    fn coinbase(txid: u8, height: Height) -> CoinbaseId {
        CoinbaseId { txid: Txid([txid; 32]), height }
    }

    fn bytes(partial: &Partial) -> Vec<u8> {
        let mut bytes = Vec::new();
        partial.write(&mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Partial> {
        Partial::read(&mut Reader::new(bytes))
    }

    /// A result that has only ranges.
    fn covering(ranges: &[(Height, Height)]) -> Partial {
        let mut partial = Partial::new(HeightRange::new(0, 0), sums(AggregateKind::Sha256));
        partial.covered = covered(ranges);
        partial
    }

    /// Ranges as a file may have them, whether ascending and disjoint or not.
    fn covered(ranges: &[(Height, Height)]) -> HeightCoverage {
        let mut covered = HeightCoverage::default();
        for &(start, end) in ranges {
            covered.add(&HeightCoverage::of(HeightRange::new(start, end))).unwrap();
        }
        covered
    }

    const BOTH: [AggregateKind; 2] = [AggregateKind::Sha256, AggregateKind::MuHash];

    #[test]
    fn encoding_round_trips_and_every_cut_is_refused() {
        for kind in BOTH {
            let partial = example(kind);
            let bytes = bytes(&partial);
            assert_eq!(read(&bytes), Some(partial));
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn the_encoding_has_the_documented_layout() {
        let bytes = bytes(&example(AggregateKind::Sha256));
        let numbers: Vec<u64> = bytes[17..97]
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(*number.first_chunk().unwrap()))
            .collect();
        assert_eq!(bytes[..17], [2, 2, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 44, 1, 0, 0]);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(bytes[97..113], (1u128 << 70).to_le_bytes());
        assert_eq!(bytes[113..129], (1u128 << 71).to_le_bytes());
        assert_eq!(bytes.len(), 129 + 65 + 768 + 1 + 3 * 36);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for good in [&[][..], &[(0, 1)], &[(1, 3), (4, 5)], &[(1, u32::MAX)]] {
            let partial = covering(good);
            assert_eq!(read(&bytes(&partial)), Some(partial));
        }
        let with = |ranges: &[(u32, u32)]| {
            let tail = bytes(&covering(&[]));
            let raw = ranges.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat());
            [&[ranges.len() as u8][..], &raw.collect::<Vec<_>>(), &tail[1..]].concat()
        };
        assert_eq!(read(&with(&[(1, 3), (4, 5)])), Some(covering(&[(1, 3), (4, 5)])));
        for bad in [
            &[(3, 3)][..],
            &[(5, 3)],
            &[(1, 3), (3, 5)],
            &[(1, 4), (3, 5)],
            &[(4, 5), (1, 3)],
            &[(1, 3), (1, 3)],
        ] {
            assert_eq!(read(&with(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn coinbases_out_of_order_are_refused() {
        for wrong in [[coinbase(2, 3), coinbase(1, 4)], [coinbase(1, 4), coinbase(1, 4)]] {
            let coinbases = wrong.to_vec();
            let partial = Partial { coinbases, ..example(AggregateKind::Sha256) };
            assert_eq!(read(&bytes(&partial)), None);
        }
    }

    #[test]
    fn counts_above_the_remaining_bytes_are_refused() {
        // The largest number accepted as a count: it must not cause an allocation.
        let huge = [0xfe, 0, 0, 0, 2];
        assert_eq!(read(&huge), None);
        assert_eq!(read(&[0xff; 9]), None);
        let good = bytes(&Partial { coinbases: vec![], ..example(AggregateKind::Sha256) });
        let coinbases = [&good[..good.len() - 1], &huge].concat();
        assert_eq!(read(&coinbases), None);
    }

    #[test]
    fn adjacent_ranges_are_merged_and_overlaps_refused() {
        type Ranges<'a> = &'a [(Height, Height)];
        let merged = |left: Ranges<'_>, right: Ranges<'_>| {
            let mut partial = covering(left);
            partial.merge(&covering(right)).map(|()| partial.covered)
        };
        let ranges = |expected: Ranges<'_>| Ok(covering(expected).covered);
        assert_eq!(merged(&[(1, 3)], &[(3, 5)]), ranges(&[(1, 5)]));
        assert_eq!(merged(&[(3, 5)], &[(1, 3)]), ranges(&[(1, 5)]));
        assert_eq!(merged(&[(1, 3)], &[(4, 5)]), ranges(&[(1, 3), (4, 5)]));
        assert_eq!(merged(&[(1, 3), (5, 7)], &[(3, 5)]), ranges(&[(1, 7)]));
        assert_eq!(merged(&[], &[(3, 5)]), ranges(&[(3, 5)]));
        for (left, right, height) in [
            (&[(1u32, 4u32)][..], &[(3u32, 5u32)][..], 3),
            (&[(3, 5)], &[(1, 4)], 3),
            (&[(1, 9)], &[(4, 5)], 4),
            (&[(4, 5)], &[(1, 9)], 4),
            (&[(1, 2)], &[(1, 2)], 1),
            (&[(1, 2), (3, 4)], &[(2, 3), (3, 4)], 3),
        ] {
            assert_eq!(merged(left, right), Err(MergeError::Overlap(height)));
        }
    }

    #[test]
    fn merging_adds_every_number() {
        let mut whole = example(AggregateKind::Sha256);
        let mut other = example(AggregateKind::Sha256);
        other.covered = covered(&[(5, 7)]);
        other.counts =
            Counts { blocks: 100, bytes: 200, transactions: 300, inputs: 400, outputs: 500 };
        other.survivors =
            CoinTotals { coins: 600, transactions: 700, amount: 10 << 70, bogosize: 800 };
        (other.unspendable_amount, other.created, other.numbered) = (10 << 71, 900, 800);
        other.coinbases = vec![coinbase(1, 5), coinbase(3, 0)];
        whole.merge(&other).unwrap();
        assert_eq!(whole.ranges(), [HeightRange::new(2, 300)]);
        let counts =
            Counts { blocks: 101, bytes: 202, transactions: 303, inputs: 404, outputs: 505 };
        assert_eq!(whole.counts, counts);
        let survivors =
            CoinTotals { coins: 606, transactions: 707, amount: 11 << 70, bogosize: 808 };
        assert_eq!(whole.survivors, survivors);
        assert_eq!((whole.unspendable_amount, whole.created, whole.numbered), (11 << 71, 909, 810));
        let mut muhash = MuHash::new();
        (0..2).for_each(|_| muhash.insert(b"coin"));
        assert_eq!(whole.muhash.to_bytes(), muhash.to_bytes());
        let mut twice = sums(AggregateKind::Sha256);
        twice.merge(&other.sums).unwrap();
        assert_eq!(whole.sums, twice);
        let heights: Vec<_> = whole.coinbases.iter().map(|coinbase| coinbase.height).collect();
        assert_eq!(heights, [4, 5, 8, 3, 0]);
    }

    #[test]
    fn numbers_that_no_chain_reaches_do_not_wrap() {
        let greatest = |range| Partial {
            covered: HeightCoverage::of(range),
            counts: Counts {
                blocks: u64::MAX,
                bytes: u64::MAX,
                transactions: u64::MAX,
                inputs: u64::MAX,
                outputs: u64::MAX,
            },
            survivors: CoinTotals {
                coins: u64::MAX,
                transactions: u64::MAX,
                amount: u128::MAX,
                bogosize: u64::MAX,
            },
            unspendable_amount: u128::MAX,
            created: u64::MAX,
            ..example(AggregateKind::Sha256)
        };
        let mut whole = greatest(HeightRange::new(1, 2));
        let before = whole.clone();
        whole.merge(&greatest(HeightRange::new(2, 3))).unwrap();
        assert_eq!((whole.counts, whole.survivors), (before.counts, before.survivors));
        assert_eq!((whole.unspendable_amount, whole.created), (u128::MAX, u64::MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(any in vec(any::<u8>(), 0..2_000)) {
            let _ = read(&any);
        }

        #[test]
        fn damaged_bytes_are_refused_or_canonical(
            muhash: bool,
            places in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut damaged = bytes(&example(BOTH[usize::from(muhash)]));
            for (place, byte) in places {
                let place = place.index(damaged.len());
                damaged[place] = byte;
            }
            let mut reader = Reader::new(&damaged);
            if let Some(partial) = Partial::read(&mut reader) {
                prop_assert_eq!(&bytes(&partial)[..], &damaged[..reader.position()]);
            }
        }
    }
}
