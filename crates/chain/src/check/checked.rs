//! [`CheckedBlock`]: a checked block that owns its bytes, to be handed from thread to thread.
//!
//! The bytes and what was read from them stay together and never change, so that a [`BlockBytes`]
//! of it is as good as one fresh from the checker.

use super::{BlockBytes, BlockChecker, BlockContext, BlockError};
use crate::block::BlockLayout;
use crate::hashes::BlockHash;
use crate::height::Height;

/// A block that passed [`BlockChecker::check_owned`].
pub struct CheckedBlock {
    raw: Vec<u8>,
    layout: BlockLayout,
    txids: Vec<[u8; 32]>,
    height: Height,
    hash: BlockHash,
    legacy_sigops: u64,
}

impl std::fmt::Debug for CheckedBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { height, hash, .. } = self;
        f.debug_struct("CheckedBlock")
            .field("height", height)
            .field("hash", hash)
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn is_shared_between_threads<T: Send + Sync>() {}
    is_shared_between_threads::<CheckedBlock>();
};

impl CheckedBlock {
    /// The block's height.
    pub fn height(&self) -> Height {
        self.height
    }

    /// The block's hash.
    pub fn hash(&self) -> BlockHash {
        self.hash
    }

    /// The block as [`BlockChecker::check`] would have returned it.
    pub fn bytes(&self) -> BlockBytes<'_> {
        let view = self.layout.view(&self.raw);
        let Self { ref txids, height, hash, legacy_sigops, .. } = *self;
        BlockBytes { view, txids, height, hash, legacy_sigops }
    }

    /// Memory that it takes beside the value itself, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.raw.capacity() + self.txids.capacity() * size_of::<[u8; 32]>();
        bytes as u64 + self.layout.memory_bytes()
    }

    /// The block's bytes, without what was learned of them.
    pub fn into_raw(self) -> Vec<u8> {
        self.raw
    }
}

impl BlockChecker {
    /// Checks one block that it takes over. Bytes that are refused come back with the reason; those
    /// that follow a block that is not go.
    pub fn check_owned(
        &mut self,
        mut raw: Vec<u8>,
        context: &BlockContext<'_>,
    ) -> Result<CheckedBlock, (Vec<u8>, BlockError)> {
        let checked = self.check(&raw, context);
        let legacy_sigops = match checked.map(|it| (it.view.raw().len(), it.legacy_sigops)) {
            Ok((length, legacy_sigops)) => {
                raw.truncate(length);
                legacy_sigops
            }
            Err(error) => return Err((raw, error)),
        };
        // The next block is about as large as this one.
        let layout = BlockLayout::with_room_of(&self.layout);
        let txids = Vec::with_capacity(self.ids.txids.len());
        Ok(CheckedBlock {
            raw,
            layout: std::mem::replace(&mut self.layout, layout),
            txids: std::mem::replace(&mut self.ids.txids, txids),
            height: context.height,
            hash: context.hash,
            legacy_sigops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::params::Params;

    fn real_block(name: &str) -> Vec<u8> {
        let path = format!("{}/../../fixtures/main-blocks/{name}.raw", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    }

    fn context(height: Height, raw: &[u8]) -> BlockContext<'static> {
        let hash = BlockHash(apus_hash::sha256d(&raw[..80]));
        let params = Params::of(Network::Main);
        BlockContext { params, height, hash, median_time_past: u32::MAX, verifier: None }
    }

    const LARGE: &str = "170060_00000000000002dc756eebf4f49723ed8d30cc28a5f108eb94b1ba88ac4f9c22";
    const SMALL: &str = "91880_00000000000743f190a18c5577a3c2d2a1f610ae9601ac046a38084ccb7cd721";

    #[test]
    fn an_owned_block_is_the_borrowed_one() {
        let mut checker = BlockChecker::new();
        for (height, name) in [(170_060, LARGE), (91_880, SMALL), (170_060, LARGE)] {
            let raw = real_block(name);
            let context = context(height, &raw);
            let owned = checker.check_owned(raw.clone(), &context).unwrap();
            let mut other = BlockChecker::new();
            let borrowed = other.check(&raw, &context).unwrap();
            assert_eq!((owned.height(), owned.hash()), (height, context.hash));
            assert_eq!(owned.bytes().height(), height);
            assert_eq!(owned.bytes().hash(), context.hash);
            assert_eq!(owned.bytes().legacy_sigops(), borrowed.legacy_sigops());
            assert_eq!(owned.bytes().txs().len(), borrowed.txs().len());
            for (ours, theirs) in owned.bytes().txs().zip(borrowed.txs()) {
                assert_eq!(ours.0, theirs.0);
                assert_eq!(ours.1.raw(), theirs.1.raw());
            }
            assert_eq!(owned.into_raw(), raw);
        }
    }

    #[test]
    fn refused_bytes_come_back() {
        let mut raw = real_block(SMALL);
        let context = context(91_880, &raw);
        let last = raw.len() - 1;
        raw[last] ^= 1;
        let (back, error) = BlockChecker::new().check_owned(raw.clone(), &context).unwrap_err();
        assert_eq!(back, raw);
        assert_eq!(error, BlockError::MerkleRoot);
        let whole = real_block(SMALL);
        assert_eq!(
            BlockChecker::new().check_owned(whole.clone(), &context).unwrap().into_raw(),
            whole
        );
    }

    #[test]
    fn what_follows_a_block_goes() {
        let raw = real_block(LARGE);
        let context = context(170_060, &raw);
        let mut checker = BlockChecker::new();
        let padded = [&raw[..], &vec![1; 4_000_000]].concat();
        assert!(checker.check(&padded, &context).unwrap().view().raw() == raw);
        let block = checker.check_owned(padded, &context).unwrap();
        assert!(block.bytes().view().raw() == raw);
        assert!(block.into_raw() == raw);
    }

    /// What is made of a block goes with it, and the next one, if it is no larger, is read without growing anything.
    #[test]
    fn the_next_block_has_room() {
        let mut checker = BlockChecker::new();
        let raw = real_block(LARGE);
        let context = context(170_060, &raw);
        checker.check_owned(raw.clone(), &context).unwrap();
        let room =
            |checker: &BlockChecker| (checker.ids.txids.as_ptr(), checker.layout.memory_bytes());
        let before = room(&checker);
        let block = checker.check_owned(raw, &context).unwrap();
        assert_eq!((block.txids.as_ptr(), block.layout.memory_bytes()), before);
        assert_eq!(block.txids.capacity(), block.txids.len());
    }
}
