//! Blocks that proved invalid: what a run over block files leaves out when it chooses its chain.
//!
//! A node stores blocks before it connects them, so its own files may hold an invalid one on top. That
//! block and what descends from it are put aside, and the chain is chosen anew, by the same rule, among
//! the blocks that are left. Only this program's own verdict puts a block aside: what the node's index
//! says of it plays no part.
//!
//! The verdict is durable before the run goes on without the block, so every later start chooses as
//! this one did, wherever it is stopped. Format: `docs/formats/workdir.md`.

use crate::blocksdir::UseIndex;
use crate::error::{NoWayOn, StorageResult, SyncError};
use crate::progress::Silent;
use crate::run::{Request, open_files};
use crate::sealed;
use crate::source::{ChainSource, SourceError};
use crate::workdir::Workdir;
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_engine::storage::{Storage, read_whole, write_atomically};
use apus_engine::utxo::ChainstateError;
use std::fmt::{Display, Formatter};
use std::path::Path;
use std::sync::Arc;

/// Name of the file in which a run over block files notes the blocks that proved invalid.
pub(crate) const INVALID: &str = "invalid";

pub(crate) const MAGIC: &[u8; 8] = b"APUSINVD";

const VERSION: u32 = 1;

/// So many blocks are put aside at most. Each took the work of a block to make, and what is chosen
/// without it costs a look at all headers.
pub(crate) const INVALID_MAX: usize = 1024;

/// Why a block is invalid takes no more bytes.
const WHY_BYTES_MAX: usize = 1000;

/// More than the longest file has.
const BYTES_MAX: u64 = 64 + (INVALID_MAX * (WHY_BYTES_MAX + 64)) as u64;

/// A block that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBlock {
    /// The block.
    pub block: KnownBlock,
    /// The rule that it breaks, with Core's reject reason.
    pub why: String,
}

impl Display for InvalidBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let KnownBlock { height, hash } = self.block;
        write!(f, "block {height} ({hash}) is invalid: {}", self.why)
    }
}

impl InvalidBlock {
    /// The block that an error is about, if the error is that a block breaks a rule.
    pub(crate) fn of(error: &SyncError) -> Option<Self> {
        let (block, mut why) = match error {
            SyncError::InvalidBlock { height, hash, error } => {
                let block = KnownBlock { height: *height, hash: *hash };
                (block, format!("{error} [{}]", error.reason()))
            }
            SyncError::Chainstate { error } => match &**error {
                ChainstateError::Invalid { block, error } => {
                    (*block, format!("{error} [{}]", error.reject_reason()))
                }
                _ => return None,
            },
            _ => return None,
        };
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Some(Self { block, why })
    }
}

/// The blocks that proved invalid so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InvalidBlocks(Vec<InvalidBlock>);

impl InvalidBlocks {
    pub(crate) fn all(&self) -> &[InvalidBlock] {
        &self.0
    }

    /// What earlier starts in a work folder found out about blocks of a network.
    pub(crate) fn read(storage: &dyn Storage, network: Network) -> Result<Self, SyncError> {
        // In a folder that is not ours a file of this name says nothing.
        Workdir::read_plan(storage)?;
        if !storage.names().at(storage, "")?.iter().any(|name| name == INVALID) {
            return Ok(Self::default());
        }
        let bytes = read_whole(storage, INVALID, BYTES_MAX).at(storage, INVALID)?;
        let damaged = || SyncError::WorkdirDamaged { file: storage.describe(INVALID) };
        let (of, invalid) = Self::from_bytes(&bytes).ok_or_else(damaged)?;
        // Another network's run is told of as such by what else it left.
        Ok(if of == network { invalid } else { Self::default() })
    }

    /// Makes them durable.
    pub(crate) fn write(&self, storage: &dyn Storage, network: Network) -> Result<(), SyncError> {
        write_atomically(storage, INVALID, &self.to_bytes(network)).at(storage, INVALID)
    }

    fn to_bytes(&self, network: Network) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC, VERSION);
        out.extend_from_slice(&network.magic());
        out.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        for InvalidBlock { block, why } in &self.0 {
            out.extend_from_slice(&block.height.to_le_bytes());
            out.extend_from_slice(&block.hash.0);
            out.extend_from_slice(&(why.len() as u32).to_le_bytes());
            out.extend_from_slice(why.as_bytes());
        }
        sealed::seal(out)
    }

    fn from_bytes(bytes: &[u8]) -> Option<(Network, Self)> {
        let mut reader = sealed::open(bytes, MAGIC, VERSION)?;
        let network = Network::from_magic(*reader.array().ok()?)?;
        let mut blocks = Vec::new();
        for _ in 0..reader.u32().ok()? {
            let height = reader.u32().ok()?;
            let block = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
            let bytes = reader.u32().ok()? as usize;
            let why = String::from_utf8(reader.take(bytes).ok()?.to_vec()).ok()?;
            blocks.push(InvalidBlock { block, why });
        }
        reader.finish().ok()?;
        Some((network, Self(blocks)))
    }
}

/// The best chain of block files without the block that `error` is about, and without those that were
/// put aside before. `than` is the chain that has the block, `base` a block that any chain of this run
/// must have.
///
/// # Errors
/// `error` itself where it is not that a block is invalid; [`SyncError::NoWayOn`] where there is no
/// chain to go on with.
pub(crate) fn chain_without<'a>(
    request: &'a Request<'_>,
    (blocksdir, asked): (&Path, UseIndex),
    than: &dyn ChainSource,
    base: KnownBlock,
    error: SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let Some(block) = InvalidBlock::of(&error) else { return Err(error) };
    if asked == UseIndex::Connected {
        return Err(error.without_way(NoWayOn::Connected));
    }
    let mut invalid = InvalidBlocks::read(request.workdir, request.params.network)?;
    if invalid.0.len() >= INVALID_MAX {
        return Err(error.without_way(NoWayOn::TooMany { count: INVALID_MAX }));
    }
    invalid.0.push(block);
    let use_index = if than.is_by_index() { asked } else { UseIndex::Never };
    // What there is to say of the files was said when the first chain was chosen.
    let dir = match open_files(request, blocksdir, use_index, invalid.all(), &Silent) {
        Err(SyncError::Source(SourceError::NoChain { .. })) => {
            return Err(error.without_way(NoWayOn::Nothing));
        }
        other => other?,
    };
    if dir.chain().hash(base.height) != Some(&base.hash) {
        return Err(error.without_way(NoWayOn::BelowHints { stop: base.height }));
    }
    invalid.write(request.workdir, request.params.network)?;
    Ok(Arc::new(dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;

    fn blocks(of: Vec<(u32, [u8; 32], String)>) -> InvalidBlocks {
        let one = |(height, hash, why)| InvalidBlock {
            block: KnownBlock { height, hash: BlockHash(hash) },
            why,
        };
        InvalidBlocks(of.into_iter().map(one).collect())
    }

    proptest! {
        #[test]
        fn what_proved_invalid_is_known_to_the_next_start(
            of in proptest::collection::vec((any::<u32>(), any::<[u8; 32]>(), ".{0,40}"), 0..5),
        ) {
            let (storage, invalid) = (CrashStorage::new(), blocks(of));
            let empty = InvalidBlocks::default();
            prop_assert_eq!(&InvalidBlocks::read(&storage, Network::Regtest).unwrap(), &empty);
            invalid.write(&storage, Network::Regtest).unwrap();
            let durable = storage.durable_image();
            prop_assert_eq!(&InvalidBlocks::read(&durable, Network::Regtest).unwrap(), &invalid);
            prop_assert_eq!(&InvalidBlocks::read(&durable, Network::Main).unwrap(), &empty);
        }
    }

    #[test]
    fn a_note_that_is_not_as_it_was_written_is_refused() {
        let bytes = blocks(vec![(7, [7; 32], "why".to_owned()), (8, [8; 32], String::new())])
            .to_bytes(Network::Regtest);
        for length in 0..bytes.len() {
            assert_eq!(InvalidBlocks::from_bytes(&bytes[..length]), None, "{length}");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            assert_eq!(InvalidBlocks::from_bytes(&copy), None, "{place}");
        }
        assert_eq!(InvalidBlocks::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let storage = CrashStorage::holding([(INVALID.to_owned(), bytes[..60].to_vec())].into());
        let error = InvalidBlocks::read(&storage, Network::Regtest).unwrap_err();
        assert!(matches!(error, SyncError::WorkdirDamaged { .. }), "{error}");
    }

    /// The most that is ever noted fits the longest file that is read.
    #[test]
    fn all_that_is_put_aside_can_be_read_again() {
        let why = "w".repeat(WHY_BYTES_MAX);
        let all = (0..INVALID_MAX as u32).map(|height| (height, [9; 32], why.clone())).collect();
        let (storage, invalid) = (CrashStorage::new(), blocks(all));
        invalid.write(&storage, Network::Regtest).unwrap();
        assert_eq!(InvalidBlocks::read(&storage, Network::Regtest).unwrap(), invalid);
    }
}
