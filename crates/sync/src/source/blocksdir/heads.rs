//! Reads the headers and numbers of transactions of the chain's blocks, but not the rest of the blocks.

use crate::error::{ChainGap, SourceError};
use crate::progress::{Observer, SilentObserver, unless_interrupted};
use crate::source::blocksdir::{BlocksDir, CompetingBranches, UseIndex, has_index};
use crate::source::{BlockReply, BlockSource};
use apus_chain::{BlockHash, HEADER_SIZE, HeaderChain, Height, HeightRange, Params, Reader};
use apus_datadir::{BlockFiles, BlockLocation, BlockReader};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a header and the longest compact size.
const HEAD_BYTES: u32 = HEADER_SIZE as u32 + 9;

/// Heights read in one batch, which is then sorted. The caller can stop between batches; a slow disk takes some
/// seconds for one.
const BATCH: u32 = 1024;

/// The facts about a block that an index contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHead {
    /// Its header.
    pub header: [u8; HEADER_SIZE],
    /// Number of transactions.
    pub tx_count: u32,
}

impl BlockHead {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let header = *reader.array().ok()?;
        let tx_count = u32::try_from(reader.compact_size().ok()?).ok()?;
        Some(Self { header, tx_count })
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(&self.header))
    }
}

impl BlocksDir {
    /// Returns the heads of the blocks of heights 1 to `last`, ascending. Only their headers are compared with
    /// the chain's. `reached` receives the progress, and can stop with an error.
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
            // A wrong position in the index is not an error: the whole block is tried below.
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

    /// Tries all copies of a block.
    fn head_of_block(&self, height: Height) -> Result<BlockHead, SourceError> {
        let (range, mut found) = (HeightRange::new(height, height + 1), None);
        self.fetcher(&AtomicBool::new(false)).fetch(range, &mut |height, raw| {
            found = self.head_of(height, raw);
            match found {
                Some(_) => BlockReply::Yes,
                None => BlockReply::Damaged(apus_chain::BlockError::from(
                    apus_chain::DecodeError::Read(apus_chain::ReadError::End {
                        offset: 0,
                        needed: HEADER_SIZE,
                    }),
                )),
            }
        })?;
        found.ok_or(SourceError::Incomplete { range })
    }
}

// Opens the blocks of a chain that was chosen before.
//
// The folder does not decide which chain it is: a machine that processes segments for another one may have only some of
// the blocks. Missing blocks are reported when they are requested.

/// The position of a missing block.
pub(super) const NOWHERE: BlockLocation = BlockLocation { file: 0, offset: 0, size: 0 };

impl BlocksDir {
    /// Opens the blocks of `chain` in `dir`, through Core's index if it contains the chain, and otherwise by
    /// scanning the files.
    pub fn open_on(
        dir: &Path,
        params: &Params,
        chain: HeaderChain,
        now: i64,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        let observer: &dyn Observer = &SilentObserver;
        if has_index(&dir.into()) {
            let found = Self::open(dir, params, now, UseIndex::IfPresent, observer, interrupt);
            let tip = Some(chain.tip_hash());
            match found {
                Ok(found) if found.chain.hash(chain.tip_height()) == tip => return Ok(found),
                Err(SourceError::Interrupted) => return Err(SourceError::Interrupted),
                // The folder may still have all of its blocks.
                _ => {}
            }
        }
        Self::search(dir, params, chain, interrupt)
    }

    fn search(
        dir: &Path,
        params: &Params,
        chain: HeaderChain,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        let files = BlockFiles::open(dir, params.network.magic())?;
        let mut places = vec![NOWHERE; chain.tip_height() as usize + 1];
        let mut copies: HashMap<Height, Vec<BlockLocation>> = HashMap::new();
        let summary = files.scan(&mut |header, place| {
            if let Some(height) = chain.height_of(&BlockHash(apus_hash::sha256d(header))) {
                match &mut places[height as usize] {
                    first if *first == NOWHERE => *first = place,
                    _ => copies.entry(height).or_default().push(place),
                }
            }
            unless_interrupted(interrupt)
        })?;
        if interrupt.load(Ordering::Relaxed) {
            return Err(SourceError::Interrupted);
        }
        summary.verdict(&files)?;
        Ok(Self {
            files,
            chain,
            places,
            copies,
            off_chain: HashMap::new(),
            competing: CompetingBranches::default(),
            from_index: false,
            gap: ChainGap::default(),
            copies_will_do: true,
            buffer_bytes: 4 << 20,
            rescan: OnceLock::new(),
        })
    }

    /// Fails if a block is missing. Only the genesis block of a chain that was found here may be missing.
    pub(super) fn expect_there(
        &self,
        height: Height,
        place: BlockLocation,
    ) -> Result<(), SourceError> {
        if height == 0 || self.from_index || place != NOWHERE {
            return Ok(());
        }
        Err(SourceError::NotInFolder {
            folder: self.files.dir().display().to_string(),
            height,
            hash: self.chain.hash(height).copied().unwrap_or_default(),
        })
    }
}
