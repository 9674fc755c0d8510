//! [`Pass`]: the seam between an engine that takes blocks in any order of segments and what drives it.
//!
//! What a segment is told beforehand and what it leaves behind are the engine's own types. The driver
//! knows that segments are done each once, in any order, by whatever does them; that what they leave
//! adds up; and that it can be written down and read again, on this machine or another one. An engine
//! that connects all blocks one after the other is no pass.

mod covered;

pub use covered::Counts;
pub use covered::Covered;
pub(crate) use covered::SeenHeights;
pub use covered::Uncovered;

pub use crate::workdir::names::RunKind;

use apus_chain::{BlockBytes, Height, HeightRange, Reader};

/// A pass: a computation over the blocks of a chain that is done segment by segment, in any order of segments, and in any
/// order of blocks within a segment unless it says otherwise.
///
/// The outcome never depends on how the chain is cut, on the order, or on the number of threads.
///
/// # Example
/// How many transactions a chain has.
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
    /// What a segment is told before its first block.
    type Input;
    /// A segment under way.
    type Segment;
    /// What a segment leaves beside its runs.
    type Partial: PartialResult;
    /// What the whole leads to.
    type Verdict;
    /// Why a segment or the whole failed.
    type Error: std::error::Error;

    /// The runs that each segment leaves, each of which may be empty.
    const RUNS: &'static [RunKind];

    /// Whether the blocks of a segment must come by ascending height.
    const BLOCKS_ASCEND: bool = false;

    /// Starts a segment.
    fn begin(&self, input: Self::Input) -> Result<Self::Segment, Self::Error>;

    /// Takes one block of the segment, each once. After an error the segment is of no use any more.
    fn block(&self, segment: &mut Self::Segment, block: &BlockBytes<'_>)
    -> Result<(), Self::Error>;

    /// Ends a segment, all of whose blocks must have been given.
    fn finish(&self, segment: Self::Segment)
    -> Result<FinishedSegment<Self::Partial>, Self::Error>;

    /// A partial result of nothing, to merge others into.
    fn nothing(&self) -> Self::Partial;

    /// Decides over the whole: the merged result of heights 1 to `stop`.
    fn conclude(&self, whole: &Self::Partial, stop: Height) -> Result<Self::Verdict, Self::Error>;
}

/// What a segment leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedSegment<P> {
    /// Its result.
    pub partial: P,
    /// Its runs, in the order of [`Pass::RUNS`].
    pub runs: Vec<Vec<u8>>,
}

/// The result of some part of a chain. Results add up, in any order and any grouping, and have a byte
/// form, in which a checkpoint keeps them and another machine would send them.
pub trait PartialResult: Sized + Send {
    /// Why two results do not fit together.
    type MergeError: std::error::Error;

    /// The heights covered, ascending, neighbours joined.
    fn ranges(&self) -> &[HeightRange];

    /// Adds another part. Associative and commutative.
    fn merge(&mut self, other: &Self) -> Result<(), Self::MergeError>;

    /// Appends the byte form.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads the byte form; none where the bytes are no result.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// How much was done, to be shown.
    fn done(&self) -> Work;

    /// About how many coins the blocks leave, in sum over all segments; of one it may be fewer than none.
    fn coins_about(&self) -> i64 {
        self.done().coins.try_into().unwrap_or(i64::MAX)
    }
}

/// How much was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Coins kept.
    pub coins: u64,
}
