//! [`Gathered`]: how much of the chain was gathered.

use crate::pass::{Counts, Covered, PartialResult, Work};
use apus_chain::{Height, HeightRange, Reader};

/// What a segment leaves beside its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    pub(super) covered: Covered,
    /// How much was processed.
    pub counts: Counts,
}

/// Both parts cover some height.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("both parts cover height {0}")]
pub struct Overlap(pub Height);

impl PartialResult for Gathered {
    type MergeError = Overlap;

    fn ranges(&self) -> &[HeightRange] {
        self.covered.ranges()
    }

    fn merge(&mut self, other: &Self) -> Result<(), Overlap> {
        self.covered.add(&other.covered).map_err(Overlap)?;
        self.counts.add(&other.counts);
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.covered.write(out);
        self.counts.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { covered: Covered::read(reader)?, counts: Counts::read(reader)? })
    }

    fn done(&self) -> Work {
        Work { blocks: self.counts.blocks, bytes: self.counts.bytes, coins: 0 }
    }
}
