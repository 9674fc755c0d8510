//! [`Partial`]: the partial result of finished ranges.
//!
//! For each covered range it has the roots before and after. Adjacent ranges merge if the upper one begins
//! with exactly the roots with which the lower one ends; otherwise merging fails.
//!
//! ```text
//! CompactSize   number of ranges, always 1; each first height, first height after (4 each)
//! 8 × 5         blocks, bytes, transactions, spending inputs, outputs
//! 32            coins that blocks create and do not spend themselves: number (8), satoshi (16), bogosize (8)
//! 32            coins that blocks spend and do not create themselves, likewise
//!               for each range the roots before and after it, each after its length (CompactSize)
//! CompactSize   number of coinbases subject to BIP-30; each txid (32), height (4), strictly ascending
//! ```

use apus_chain::{CoinRef, Height, HeightRange, Reader, bogosize, write_compact_size};
use apus_sync::engines::bip30::{CoinbaseId, read_coinbases, write_coinbases};
use apus_sync::engines::pass::{Counts, CoverageGap, HeightCoverage, PartialResult, Work};
use apus_utreexo::{NodeHash, Roots};

/// Sums over coins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AmountSums {
    /// Number of coins.
    pub coins: u64,
    /// Total amount in satoshi.
    pub amount: u128,
    /// Core's "bogosize": a size in bytes that depends on no database.
    pub bogosize: u64,
}

impl AmountSums {
    pub(super) fn add_coin(&mut self, coin: CoinRef<'_>) {
        let amount = u128::from(coin.amount);
        self.add(&Self { coins: 1, amount, bogosize: bogosize(coin.script.len()) });
    }

    /// Saturates: impossible numbers, for example from damaged data, stay at the maximum and do not wrap.
    fn add(&mut self, other: &Self) {
        self.coins = self.coins.saturating_add(other.coins);
        self.amount = self.amount.saturating_add(other.amount);
        self.bogosize = self.bogosize.saturating_add(other.bogosize);
    }

    fn minus(&self, other: &Self) -> Self {
        Self {
            coins: self.coins.saturating_sub(other.coins),
            amount: self.amount.saturating_sub(other.amount),
            bogosize: self.bogosize.saturating_sub(other.bogosize),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.coins.to_le_bytes());
        out.extend_from_slice(&self.amount.to_le_bytes());
        out.extend_from_slice(&self.bogosize.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let coins = reader.u64().ok()?;
        let amount = u128::from_le_bytes(*reader.array().ok()?);
        Some(Self { coins, amount, bogosize: reader.u64().ok()? })
    }
}

/// How roots differ from the expected ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RootsDiffer {
    /// The number of leaves differs.
    #[error("{found} leaves, not {expected}")]
    Leaves {
        /// The number found.
        found: u64,
        /// The expected number.
        expected: u64,
    },
    /// A root differs; this is the first one.
    #[error("root {index} is {found}, not {expected}")]
    Root {
        /// Its index; 0 is the highest tree's.
        index: usize,
        /// The root found.
        found: NodeHash,
        /// The expected root.
        expected: NodeHash,
    },
}

impl RootsDiffer {
    /// Finds the difference between roots that are not equal.
    pub fn between(found: &Roots, expected: &Roots) -> Self {
        let mut pairs = found.hashes().iter().zip(expected.hashes()).enumerate();
        let differ = pairs.find(|(_, (found, expected))| found != expected);
        match differ.filter(|_| found.leaves() == expected.leaves()) {
            Some((index, (found, expected))) => {
                Self::Root { index, found: *found, expected: *expected }
            }
            None => Self::Leaves { found: found.leaves(), expected: expected.leaves() },
        }
    }
}

/// Why two parts do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProvenMergeError {
    /// Both parts cover the same height.
    #[error("both parts cover height {0}")]
    Overlap(Height),
    /// One does not begin with the roots at which the other ends.
    #[error(
        "the proofs of two ranges do not fit together: the range from block {height} on does not begin with the roots \
         that the blocks below lead to: {differ}"
    )]
    Roots {
        /// The first block of the upper range.
        height: Height,
        /// How its roots differ.
        differ: RootsDiffer,
    },
}

/// The partial result of finished ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partial {
    covered: HeightCoverage,
    /// Totals of what was processed.
    pub counts: Counts,
    /// The roots before and after each covered range.
    roots: Vec<(Roots, Roots)>,
    /// Coins that blocks create and do not spend themselves.
    pub(super) made: AmountSums,
    /// Coins that blocks spend and do not create themselves.
    pub(super) spent: AmountSums,
    /// Coinbases that must be unique (BIP-30), ascending.
    coinbases: Vec<CoinbaseId>,
}

impl Partial {
    /// The partial result of a range before its first block.
    pub(super) fn of(range: HeightRange, before: Roots) -> Self {
        let covered = HeightCoverage::of(range);
        let roots = covered.ranges().iter().map(|_| (before.clone(), before.clone())).collect();
        Self { covered, roots, ..Self::default() }
    }

    /// Sets the roots after the range.
    pub(super) fn end_with(&mut self, after: Roots) {
        self.roots.iter_mut().for_each(|roots| roots.1 = after.clone());
        self.coinbases.sort_unstable();
    }

    pub(super) fn push_coinbase(&mut self, coinbase: CoinbaseId) {
        self.coinbases.push(coinbase);
    }

    pub(super) fn coinbases(&self) -> &[CoinbaseId] {
        &self.coinbases
    }

    pub(super) fn expect(&self, wanted: HeightRange) -> Result<(), CoverageGap> {
        self.covered.expect(wanted)
    }

    /// The roots before the first block and after the last.
    pub(super) fn ends(&self) -> Option<(Roots, Roots)> {
        Some((self.roots.first()?.0.clone(), self.roots.last()?.1.clone()))
    }

    /// The unspent coins, if all blocks are covered.
    pub(super) fn coins(&self) -> AmountSums {
        self.made.minus(&self.spent)
    }

    /// Merges the roots of both parts, by range, and joins adjacent ranges.
    fn join(&self, other: &Self) -> Result<Vec<(Roots, Roots)>, ProvenMergeError> {
        let parts = [self, other].into_iter();
        let ranges = parts.flat_map(|part| part.covered.ranges().iter().zip(&part.roots));
        let mut ranges: Vec<(&HeightRange, &(Roots, Roots))> = ranges.collect();
        ranges.sort_unstable_by_key(|(range, _)| **range);
        let mut joined: Vec<(Roots, Roots)> = Vec::with_capacity(ranges.len());
        let mut end = None;
        for (range, (before, after)) in ranges {
            match joined.last_mut() {
                Some(last) if end == Some(range.start) && last.1 != *before => {
                    let differ = RootsDiffer::between(before, &last.1);
                    return Err(ProvenMergeError::Roots { height: range.start, differ });
                }
                Some(last) if end == Some(range.start) => last.1 = after.clone(),
                _ => joined.push((before.clone(), after.clone())),
            }
            end = Some(range.end);
        }
        Ok(joined)
    }
}

impl PartialResult for Partial {
    type MergeError = ProvenMergeError;

    fn ranges(&self) -> &[HeightRange] {
        self.covered.ranges()
    }

    fn merge(&mut self, other: &Self) -> Result<(), ProvenMergeError> {
        let mut covered = self.covered.clone();
        covered.add(&other.covered).map_err(ProvenMergeError::Overlap)?;
        self.roots = self.join(other)?;
        self.covered = covered;
        self.counts.add(&other.counts);
        self.made.add(&other.made);
        self.spent.add(&other.spent);
        self.coinbases.extend_from_slice(&other.coinbases);
        // The sort detects two ascending sequences and merges them in one pass.
        self.coinbases.sort();
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.covered.write(out);
        self.counts.write(out);
        self.made.write(out);
        self.spent.write(out);
        for roots in self.roots.iter().flat_map(|(before, after)| [before, after]) {
            let mut bytes = Vec::new();
            roots.write(&mut bytes);
            write_compact_size(out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
        }
        write_coinbases(out, &self.coinbases);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (covered, counts) = (HeightCoverage::read(reader)?, Counts::read(reader)?);
        let (made, spent) = (AmountSums::read(reader)?, AmountSums::read(reader)?);
        let mut roots = Vec::new();
        for _ in covered.ranges() {
            roots.push((read_roots(reader)?, read_roots(reader)?));
        }
        let coinbases = read_coinbases(reader)?;
        Some(Self { covered, counts, roots, made, spent, coinbases })
    }

    fn done(&self) -> Work {
        let (Counts { blocks, bytes, .. }, coins) = (self.counts, 0);
        Work { blocks, bytes, coins }
    }
}

pub(super) fn read_roots(reader: &mut Reader<'_>) -> Option<Roots> {
    let length = reader.compact_size().ok()?;
    Roots::read(reader.take(length).ok()?).ok()
}

#[cfg(test)]
mod tests;
