//! [`Pass`]: the seam between an engine that takes blocks in any order of segments and what drives it.
//!
//! What a segment is told beforehand and what it leaves behind are the engine's own types. The driver
//! knows that segments are done each once, in any order, by whatever does them; that what they leave
//! adds up; and that it can be written down and read again, on this machine or another one. An engine
//! that connects all blocks one after the other is no pass.

mod covered;

pub use covered::Counts;
pub use covered::Covered;
pub(crate) use covered::{SeenHeights, Uncovered};

use apus_chain::{BlockBytes, Height, HeightRange, Reader};

/// A computation over the blocks of a chain that is done segment by segment, in any order of segments,
/// and in any order of blocks within a segment unless it says otherwise.
///
/// The outcome never depends on how the chain is cut, on the order, or on the number of threads.
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

/// What a run holds, and how those of neighbouring segments become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunKind {
    /// Coins, a record for each transaction by ascending txid: `txid ‖ u32le length ‖ group`, where the
    /// group is as in a UTXO snapshot. Many are merged by txid.
    Coins,
    /// Coins that segments make and don't spend, by transaction
    /// ([`MadeRecord`](crate::engines::mergesync::MadeRecord)). Many are merged by their bytes.
    Made,
    /// Coins that segments want from blocks below them, by outpoint
    /// ([`SpentRecord`](crate::engines::mergesync::SpentRecord)). Many are merged by their bytes.
    Spent,
    /// Coins that inputs of a segment take, by their places
    /// ([`AnswerRecord`](crate::engines::mergesync::AnswerRecord)). Many are merged by their bytes.
    Answers,
    /// By what a second walk knows blocks again, by ascending height
    /// ([`Fingerprint`](crate::engines::mergesync::Fingerprint)). Many follow one another.
    Fingerprints,
    /// How many leaves blocks add to the Utreexo forest, where that is asked for: 4 bytes each, big-endian, by
    /// ascending height. Many follow one another.
    Added,
    /// What blocks claim of the coins that they spend, by ascending height
    /// ([`Claims`](crate::engines::mergesync::Claims)). Many follow one another.
    Claims,
    /// Which outputs survive: one BIP-456 element a block by ascending height, the most significant bit
    /// first. Many follow one another.
    Hints,
    /// Leaves of the Utreexo forest that survive, by ascending place
    /// ([`write_live`](apus_utreexo::write_live)).
    Leaves,
}

impl RunKind {
    /// How the names of its files end.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Coins => ".run",
            Self::Made => ".made",
            Self::Spent => ".spent",
            Self::Answers => ".answers",
            Self::Fingerprints => ".prints",
            Self::Added => ".added",
            Self::Claims => ".claims",
            Self::Hints => ".hints",
            Self::Leaves => ".leaves",
        }
    }

    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::Coins,
        Self::Made,
        Self::Spent,
        Self::Answers,
        Self::Fingerprints,
        Self::Added,
        Self::Claims,
        Self::Hints,
        Self::Leaves,
    ];
}
