//! Headers and numbers of transactions of the chain's blocks, without reading the rest of them.

use super::BlocksDir;
use crate::error::SourceError;
use crate::source::{BlockSource, Taken};
use apus_chain::{BlockHash, HEADER_SIZE, Height, HeightRange, Reader};
use apus_datadir::{BlockLocation, BlockReader};
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

/// A header, and the longest form of a count.
const HEAD_BYTES: u32 = HEADER_SIZE as u32 + 9;

/// Heights looked at before they are put in order, and before the caller can stop it. A slow disk takes
/// some seconds for them.
const BATCH: u32 = 1024;

/// What an index needs of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHead {
    /// Its header.
    pub header: [u8; HEADER_SIZE],
    /// How many transactions it has.
    pub tx_count: u32,
}

impl BlockHead {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let header = *reader.array().ok()?;
        let tx_count = u32::try_from(reader.compact_size().ok()?).ok()?;
        Some(Self { header, tx_count })
    }

    /// The block's hash.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(&self.header))
    }
}

impl BlocksDir {
    /// The heads of the blocks of heights 1 to `last`, ascending. Only their headers are compared
    /// with the chain's. `reached` is told how far that is, and ends it with an error.
    pub(super) fn read_heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError> {
        let mut all = Vec::with_capacity(last as usize);
        let mut reader = BlockReader::new(&self.files, self.buffer_bytes);
        let mut start = 1;
        while start <= last {
            let batch = HeightRange::new(start, (last + 1).min(start.saturating_add(BATCH)));
            let mut heads = vec![None; batch.count() as usize];
            let mut wanted: Vec<(u32, BlockLocation)> =
                batch.heights().filter_map(|height| self.head_place(height)).collect();
            // A place that an index is wrong about is no error: the whole block tells, below.
            let _ = reader.read(&mut wanted, &mut |height, _, bytes| {
                heads[(height - start) as usize] = self.head_of(height, bytes);
                ControlFlow::Continue(())
            });
            for (height, head) in batch.heights().zip(heads) {
                all.push(match head {
                    Some(head) => head,
                    None => self.head_of_block(height)?,
                });
            }
            reached(batch.end - 1)?;
            start = batch.end;
        }
        Ok(all)
    }

    fn head_place(&self, height: Height) -> Option<(u32, BlockLocation)> {
        let place = *self.places.get(height as usize)?;
        Some((height, BlockLocation { size: place.size.min(HEAD_BYTES), ..place }))
    }

    fn head_of(&self, height: Height, bytes: &[u8]) -> Option<BlockHead> {
        let head = BlockHead::read(bytes)?;
        (self.chain.hash(height) == Some(&head.hash())).then_some(head)
    }

    /// Looks at all copies of a block.
    fn head_of_block(&self, height: Height) -> Result<BlockHead, SourceError> {
        let (range, mut found) = (HeightRange::new(height, height + 1), None);
        self.fetcher(&AtomicBool::new(false)).fetch(range, &mut |height, raw| {
            found = self.head_of(height, raw);
            match found {
                Some(_) => Taken::Yes,
                None => {
                    Taken::Damaged(apus_chain::BlockError::from(apus_chain::DecodeError::Read(
                        apus_chain::ReadError::End { offset: 0, needed: HEADER_SIZE },
                    )))
                }
            }
        })?;
        found.ok_or(SourceError::Incomplete { range })
    }
}
