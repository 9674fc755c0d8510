//! [`Pass`]: the interface between an engine that takes segments of blocks in any order and its driver.
//!
//! The engine defines a segment's input and result types. The driver only knows that each segment is processed
//! once, in any order, on any machine; that results can be merged; and that they can be stored and read again,
//! on this machine or another one. An engine that connects all blocks in order is not a pass.

mod covered;

pub use covered::Counts;
pub use covered::CoverageGap;
pub use covered::HeightCoverage;
pub(crate) use covered::SeenHeights;

pub use crate::workdir::names::RunKind;

use apus_chain::{BlockBytes, Height, HeightRange, Reader};

/// A computation over the blocks of a chain that processes the segments in any order, and the blocks of a
/// segment in any order unless they must [ascend](Self::blocks_ascend).
///
/// The outcome never depends on how the chain is divided, on the order, or on the number of threads.
///
/// # Example
/// Counting a chain's transactions:
/// ```
/// use apus_chain::{BlockBytes, Height, HeightRange, Reader};
/// use apus_sync::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind, Work};
/// use std::convert::Infallible;
///
/// struct CountTransactions;
///
/// #[derive(Debug, Default, PartialEq)]
/// struct Transactions {
///     ranges: Vec<HeightRange>,
///     count: u64,
/// }
///
/// impl Pass for CountTransactions {
///     type Input = HeightRange;
///     type Segment = Transactions;
///     type Partial = Transactions;
///     type Verdict = u64;
///     type Error = Infallible;
///     const RUNS: &'static [RunKind] = &[];
///
///     fn begin(&self, range: HeightRange) -> Result<Transactions, Infallible> {
///         Ok(Transactions { ranges: vec![range], count: 0 })
///     }
///
///     fn block(&self, segment: &mut Transactions, block: &BlockBytes<'_>) -> Result<(), Infallible> {
///         segment.count += block.view().tx_count() as u64;
///         Ok(())
///     }
///
///     fn finish(&self, segment: Transactions) -> Result<FinishedSegment<Transactions>, Infallible> {
///         Ok(FinishedSegment { partial: segment, runs: Vec::new() })
///     }
///
///     fn nothing(&self) -> Transactions {
///         Transactions::default()
///     }
///
///     fn conclude(&self, whole: &Transactions, _stop: Height) -> Result<u64, Infallible> {
///         Ok(whole.count)
///     }
/// }
///
/// impl PartialResult for Transactions {
///     type MergeError = Infallible;
///
///     fn ranges(&self) -> &[HeightRange] {
///         &self.ranges
///     }
///
///     fn merge(&mut self, other: &Self) -> Result<(), Infallible> {
///         self.ranges.extend(&other.ranges);
///         self.count += other.count;
///         Ok(())
///     }
///
///     fn write(&self, out: &mut Vec<u8>) {
///         for HeightRange { start, end } in &self.ranges {
///             out.extend([start.to_le_bytes(), end.to_le_bytes()].concat());
///         }
///         out.extend(self.count.to_le_bytes());
///     }
///
///     fn read(reader: &mut Reader<'_>) -> Option<Self> {
///         let range = HeightRange::new(reader.u32().ok()?, reader.u32().ok()?);
///         Some(Self { ranges: vec![range], count: reader.u64().ok()? })
///     }
///
///     fn done(&self) -> Work {
///         Work { blocks: self.ranges.iter().map(|range| u64::from(range.count())).sum(), ..Work::default() }
///     }
/// }
///
/// let pass = CountTransactions;
/// let (low, high) = (HeightRange::new(1, 5), HeightRange::new(5, 9));
/// let segments = [high, low].map(|range| pass.begin(range).and_then(|it| pass.finish(it)));
/// let mut whole = pass.nothing();
/// for Ok(FinishedSegment { partial, .. }) in segments {
///     whole.merge(&partial).unwrap();
/// }
/// assert_eq!(whole.done().blocks, 8);
/// assert_eq!(pass.conclude(&whole, 8), Ok(0));
/// ```
pub trait Pass: Sync {
    /// The input of a segment, before its first block.
    type Input;
    /// A segment in progress.
    type Segment: Send;
    /// A segment's partial result, without its runs.
    type Partial: PartialResult;
    /// The result of the whole chain.
    type Verdict;
    /// Why a segment or the whole failed.
    type Error: std::error::Error;

    /// The kinds of runs that each segment produces; each run may be empty.
    const RUNS: &'static [RunKind];

    /// Whether a segment can [end early](Self::cut), once it takes its share of the memory. If a source wants more
    /// workers than there are threads, several workers then fill a segment: that saves memory where a segment in
    /// progress is large beside its result, but the workers wait for each other.
    ///
    /// The results of such a pass may cover parts of the plan's segments, and other parts after a restart.
    const CAN_END_EARLY: bool = false;

    /// Whether a block may need something from [elsewhere](Self::fetch).
    const FETCHES: bool = false;

    /// Starts a segment.
    fn begin(&self, input: Self::Input) -> Result<Self::Segment, Self::Error>;

    /// Gets what the next block needs from elsewhere, before [`block`](Self::block). Other threads can compute
    /// meanwhile.
    fn fetch(
        &self,
        _segment: &mut Self::Segment,
        _block: &BlockBytes<'_>,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Processes one block of the segment; each block is passed once. After an error the segment is never
    /// [finished](Self::finish).
    fn block(&self, segment: &mut Self::Segment, block: &BlockBytes<'_>)
    -> Result<(), Self::Error>;

    /// Whether the blocks of a segment must be passed by ascending height.
    fn blocks_ascend(&self) -> bool {
        false
    }

    /// No further segment begins.
    fn has_begun_all(&self) {}

    /// The memory that a segment in progress takes, in bytes, if it can end early.
    fn memory_bytes(&self, _segment: &Self::Segment) -> u64 {
        0
    }

    /// Lets a segment end at this height instead of where it was to end: no block from there on was passed to it.
    fn cut(&self, _segment: &mut Self::Segment, _end: Height) {}

    /// Ends a segment after all of its blocks were processed.
    fn finish(&self, segment: Self::Segment)
    -> Result<FinishedSegment<Self::Partial>, Self::Error>;

    /// Returns an empty partial result, to merge others into.
    fn nothing(&self) -> Self::Partial;

    /// Reaches the verdict on the whole chain from the merged result of heights 1 to `stop`.
    fn conclude(&self, whole: &Self::Partial, stop: Height) -> Result<Self::Verdict, Self::Error>;
}

/// The result of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedSegment<P> {
    /// Its partial result.
    pub partial: P,
    /// Its runs, in the order of [`Pass::RUNS`].
    pub runs: Vec<Vec<u8>>,
}

/// The result of some part of a chain. Results can be merged in any order and grouping, and have an encoded
/// form for checkpoints and for sending to other machines.
pub trait PartialResult: Sized + Send + Sync {
    /// Why two results cannot be merged.
    type MergeError: std::error::Error;

    /// The heights covered, ascending, adjacent ranges merged.
    fn ranges(&self) -> &[HeightRange];

    /// Adds another part. Associative and commutative.
    fn merge(&mut self, other: &Self) -> Result<(), Self::MergeError>;

    /// Appends the encoded form.
    fn write(&self, out: &mut Vec<u8>);

    /// Decodes a result; `None` if the bytes are invalid.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// The amount of work done, for display.
    fn done(&self) -> Work;

    /// Approximate number of coins that the blocks leave, as a sum over all segments; a single segment's number
    /// may be negative.
    fn coins_about(&self) -> i64 {
        self.done().coins.try_into().unwrap_or(i64::MAX)
    }
}

/// The amount of work done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of blocks.
    pub blocks: u64,
    /// Total size of the blocks, in bytes.
    pub bytes: u64,
    /// Number of coins kept.
    pub coins: u64,
}
