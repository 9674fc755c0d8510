//! [`Gathered`]: how much of the chain was gathered, and of which chain.

use crate::engines::pass::{Counts, Covered, PartialResult, Work};
use apus_chain::{
    BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Reader, write_compact_size,
};

/// What a segment leaves beside its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gathered {
    pub(super) covered: Covered,
    /// How much was processed.
    pub counts: Counts,
    /// The last block of each segment, ascending.
    pub(super) ends: Vec<KnownBlock>,
}

impl Gathered {
    /// Whether what was gathered is of blocks of this chain.
    pub fn is_of(&self, chain: &HeaderChain) -> bool {
        self.ends.iter().all(|end| chain.hash(end.height) == Some(&end.hash))
    }
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
        // Most parts come in order, and there are tens of thousands.
        let [last, next] =
            [self.ends.last(), other.ends.first()].map(|end| end.map(|it| it.height));
        self.ends.extend_from_slice(&other.ends);
        if last > next {
            self.ends.sort_unstable_by_key(|end| end.height);
        }
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.covered.write(out);
        self.counts.write(out);
        write_compact_size(out, self.ends.len() as u64);
        for KnownBlock { height, hash } in &self.ends {
            out.extend_from_slice(&height.to_le_bytes());
            out.extend_from_slice(&hash.0);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (covered, counts) = (Covered::read(reader)?, Counts::read(reader)?);
        let mut ends = Vec::new();
        for _ in 0..reader.compact_size().ok()? {
            let height = reader.u32().ok()?;
            ends.push(KnownBlock { height, hash: BlockHash(*reader.array().ok()?) });
        }
        Some(Self { covered, counts, ends })
    }

    fn done(&self) -> Work {
        Work { blocks: self.counts.blocks, bytes: self.counts.bytes, coins: 0 }
    }

    /// Which coins survive shows when all are joined. Outputs that nobody can spend are among these.
    fn coins_about(&self) -> i64 {
        self.counts.outputs.wrapping_sub(self.counts.inputs) as i64
    }
}
