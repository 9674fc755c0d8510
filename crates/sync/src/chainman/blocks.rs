//! [`BlockFolder`]: the bytes of all blocks known, in memory or in the log.
//!
//! Blocks are only ever added. Without a log they stay in memory for good, which is meant for the
//! chains of tests; with one, only their places do.

use super::error::ChainManagerError;
use super::log::{BlockLog, LogKind, LogPlace};
use apus_chain::HeaderId;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of blocks by their headers.
pub(super) enum BlockFolder {
    /// In memory.
    Memory(HashMap<HeaderId, Arc<[u8]>>),
    /// In the log.
    Log {
        /// The log.
        log: Arc<BlockLog>,
        /// Where the blocks are.
        places: HashMap<HeaderId, LogPlace>,
    },
}

impl BlockFolder {
    /// No blocks yet, to be kept in memory.
    pub(super) fn in_memory() -> Self {
        Self::Memory(HashMap::new())
    }

    /// Keeps a block.
    pub(super) fn put(&mut self, id: HeaderId, raw: &[u8]) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(blocks) => {
                blocks.insert(id, raw.into());
            }
            Self::Log { log, places } => {
                let place = log.append(LogKind::Block, raw)?;
                places.insert(id, place);
            }
        }
        Ok(())
    }

    /// A block's bytes again; none for one that was never put here.
    pub(super) fn get(&self, id: HeaderId) -> Result<Option<Vec<u8>>, ChainManagerError> {
        match self {
            Self::Memory(blocks) => Ok(blocks.get(&id).map(|raw| raw.to_vec())),
            Self::Log { log, places } => places.get(&id).map(|&place| log.read(place)).transpose(),
        }
    }

    /// Adds something else to the log, where there is one.
    pub(super) fn note(&self, kind: LogKind, payload: &[u8]) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Log { log, .. } => log.append(kind, payload).map(|_| ()),
        }
    }

    /// Makes everything durable.
    pub(super) fn close(&self) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Log { log, .. } => log.close(),
        }
    }
}
