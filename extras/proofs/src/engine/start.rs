//! [`ForestStart`]: the forest before the first block of a job: an empty one before block 1, or the one after a
//! block whose roots the user trusts.
//!
//! A job that begins with trusted roots proves nothing about the blocks below. It must not rest on them either,
//! except through the roots: all rules about ancestors need only headers, and each proof names the block of its
//! coin. BIP-30 is the exception. It needs earlier coinbases, so a job begins only where BIP-34 makes all later
//! coinbases unique (`docs/decisions/0006-bip30.md`).

use super::ByProofsError;
use crate::error::ProofsError;
use apus_chain::{
    BIP34_IMPLIES_BIP30_LIMIT, BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Params,
};
use apus_sync::SyncError;
use apus_sync::engines::bip30::Bip30;
use apus_utreexo::Roots;
use std::error::Error;
use std::fmt;

/// Roots that the user trusts.
#[derive(Debug, Clone)]
pub struct TrustedRoots {
    /// The roots.
    pub roots: Roots,
    /// The last block in their forest.
    pub block: RootsBlock,
    /// Their file, for messages.
    pub origin: String,
}

/// A block, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootsBlock {
    /// By its height in the best chain.
    Height(Height),
    /// By its hash.
    Hash(BlockHash),
}

impl fmt::Display for RootsBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Height(height) => height.fmt(f),
            Self::Hash(hash) => hash.fmt(f),
        }
    }
}

/// The forest before the first block of a job.
#[derive(Debug, Clone)]
pub struct ForestStart {
    /// The block before the first one.
    pub block: KnownBlock,
    /// The roots after that block.
    pub roots: Roots,
    /// The file that the user trusts for them; `None` for the empty forest before block 1.
    pub origin: Option<String>,
}

impl ForestStart {
    /// The empty forest before block 1.
    pub fn genesis(chain: &HeaderChain) -> Self {
        let hash = chain.hash(0).copied().unwrap_or_default();
        let block = KnownBlock { height: 0, hash };
        Self { block, roots: Roots::default(), origin: None }
    }

    /// Finds the block of trusted roots in the chain, for a job that ends at the block `end`.
    ///
    /// # Errors
    /// It is not in the chain, no block of the job is above it, or BIP-30 needs coinbases below it.
    pub fn of_trusted(
        trusted: &TrustedRoots,
        params: &Params,
        chain: &HeaderChain,
        end: Height,
    ) -> Result<Self, ProofsError> {
        let TrustedRoots { roots, block: named, origin } = trusted;
        let found = match *named {
            RootsBlock::Height(height) => chain.hash(height).map(|hash| (height, *hash)),
            RootsBlock::Hash(hash) => chain.height_of(&hash).map(|height| (height, hash)),
        };
        let origin = origin.clone();
        let Some((height, hash)) = found else {
            let tip = KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() };
            return Err(ProofsError::RootsOffChain { origin, block: named.to_string(), tip });
        };
        let block = KnownBlock { height, hash };
        if height == 0 {
            return Err(ProofsError::RootsOfGenesis { origin });
        }
        if height >= end {
            return Err(ProofsError::NothingAboveRoots { origin, block, end });
        }
        match needs_coinbases(params, chain, HeightRange::new(height + 1, end + 1)) {
            Some(advice) => Err(ProofsError::RootsBip30 { origin, block, advice }),
            None => Ok(Self { block, roots: roots.clone(), origin: Some(origin) }),
        }
    }

    /// The first block of the job.
    pub const fn first(&self) -> Height {
        self.block.height + 1
    }

    /// The block whose roots the user trusts, if they do not follow from the blocks.
    pub fn trusted(&self) -> Option<KnownBlock> {
        self.origin.as_ref().map(|_| self.block)
    }

    /// Adds to an error about proofs that trusted roots may be its cause.
    pub(super) fn blamed_for(&self, error: SyncError) -> SyncError {
        let Some(origin) =
            self.origin.as_ref().filter(|_| error.downcast::<ByProofsError>().is_some())
        else {
            return error;
        };
        let SyncError::Run(failure) = error else { return error };
        let failure = (failure as Box<dyn Error>).downcast::<ByProofsError>();
        let failure = failure.unwrap_or_else(|_| unreachable!("it was one"));
        let KnownBlock { height, hash } = self.block;
        let trusted = Some(format!("the roots of block {height} ({hash}) in {origin}"));
        ByProofsError { trusted, ..*failure }.into()
    }

    /// The error for a source of proofs that has other roots than the user.
    pub(super) fn other_roots(&self, origin: &str, what: String) -> ProofsError {
        ProofsError::OtherRoots { origin: origin.to_owned(), block: self.block, what }
    }
}

/// What to do instead, if BIP-30 within these blocks needs the coinbases of blocks below them.
fn needs_coinbases(params: &Params, chain: &HeaderChain, blocks: HeightRange) -> Option<String> {
    let (bip30, from) = (Bip30::new(params, chain), params.bip34_height);
    let ignores = |height: Height| bip30.ignores(HeightRange::new(height, height + 1));
    if bip30.ignores(blocks) {
        return None;
    }
    Some(if !ignores(from) {
        "on this chain, coinbases of all blocks could be repeated: validate from block 1 on, without roots".to_owned()
    } else if !ignores(blocks.start) {
        format!("use the roots of block {} or a later one", from - 1)
    } else {
        format!("stop below block {BIP34_IMPLIES_BIP30_LIMIT} (--stopatheight)")
    })
}
