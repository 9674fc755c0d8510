//! Blocks of a chain that was settled elsewhere.
//!
//! Which chain it is does not depend on what lies in the folder: a machine that does segments for another may
//! have some of the blocks only. Those that lack are missed when they are wanted.

use super::{BlocksDir, UseIndex, WaysBack, has_index};
use crate::error::{ChainGap, SourceError};
use crate::progress::{Observer, Silent};
use apus_chain::{BlockHash, HeaderChain, Height, Params};
use apus_datadir::{BlockFiles, BlockLocation};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a block is not.
const NOWHERE: BlockLocation = BlockLocation { file: 0, offset: 0, size: 0 };

impl BlocksDir {
    /// The blocks of `chain` in `dir`: by Core's index where that leads along the chain, and otherwise by going
    /// through the files.
    pub fn open_on(
        dir: &Path,
        params: &Params,
        chain: HeaderChain,
        now: i64,
        interrupt: &AtomicBool,
    ) -> Result<Self, SourceError> {
        let observer: &dyn Observer = &Silent;
        if has_index(&dir.into()) {
            let found = Self::open(dir, params, now, UseIndex::IfPresent, observer, interrupt);
            let tip = Some(chain.tip_hash());
            match found {
                Ok(found) if found.chain.hash(chain.tip_height()) == tip => return Ok(found),
                Err(SourceError::Interrupted) => return Err(SourceError::Interrupted),
                // There may be all of its blocks nevertheless.
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
            match interrupt.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
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
            beside: HashMap::new(),
            ways_back: WaysBack::default(),
            from_index: false,
            gap: ChainGap::default(),
            copies_will_do: true,
            buffer_bytes: 4 << 20,
            rescan: OnceLock::new(),
        })
    }

    /// Fails where a block is nowhere. Only the genesis block of a chain that was found here may be.
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
