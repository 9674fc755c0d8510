//! The header, and the bytes around the block.

use super::draft::{BlockDraft, raw_of};
use super::{Mutation, Mutator, mutation};
use crate::chain::mine;
use bitcoin::block::Version;
use bitcoin::hashes::Hash;
use bitcoin::{Block, BlockHash, CompactTarget};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("time as the median of the past", |this| this.time_above_median(0)),
    mutation("time one second above the median", |this| this.time_above_median(1)),
    mutation("time far in the future", |this| {
        let draft = BlockDraft { time: Some(u32::MAX), ..this.draft() };
        this.done(draft)
    }),
    mutation("version 0", |this| this.version(0)),
    mutation("version 1", |this| this.version(1)),
    mutation("version 2", |this| this.version(2)),
    mutation("version 3", |this| this.version(3)),
    mutation("version 4", |this| this.version(4)),
    mutation("version negative", |this| this.version(-1)),
    mutation("target one lower", |this| this.bits(0x207f_fffe)),
    mutation("target in other words", |this| this.bits(0x2100_7fff)),
    mutation("target above the limit", |this| this.bits(0x2100_ffff)),
    mutation("target negative", |this| this.bits(0x20ff_ffff)),
    mutation("target of nothing", |this| this.bits(0)),
    mutation("proof of work missing", |this| {
        let draft = this.draft();
        let mut block = this.finish(draft);
        let target = block.header.target();
        while block.header.validate_pow(target).is_ok() {
            block.header.nonce = block.header.nonce.checked_add(1)?;
        }
        Some(raw_of(&block))
    }),
    mutation("parent unknown", |this| {
        let parent: [u8; 32] = this.rng.bytes(32).try_into().ok()?;
        this.mined(|block| block.header.prev_blockhash = BlockHash::from_byte_array(parent))
    }),
    mutation("merkle root wrong", |this| {
        let byte = this.rng.index(32);
        this.mined(|block| {
            let mut root = block.header.merkle_root.to_byte_array();
            root[byte] ^= 1;
            block.header.merkle_root = bitcoin::TxMerkleNode::from_byte_array(root);
        })
    }),
    mutation("bytes missing", |this| {
        let draft = this.draft();
        let mut raw = this.done(draft)?;
        let len = this.rng.between(80, raw.len() as u64 - 1) as usize;
        raw.truncate(len);
        Some(raw)
    }),
    mutation("count of transactions too long by a form", |this| {
        let draft = this.draft();
        let mut raw = this.done(draft)?;
        let count = raw[80];
        raw.splice(80..81, [0xfd, count, 0]);
        Some(raw)
    }),
    mutation("a bit flipped anywhere", |this| {
        let draft = this.draft();
        let mut raw = this.done(draft)?;
        let place = this.rng.between(36, raw.len() as u64 - 1) as usize;
        raw[place] ^= 1 << this.rng.below(8);
        Some(raw)
    }),
];

impl Mutator {
    fn time_above_median(&mut self, seconds: u32) -> Option<Vec<u8>> {
        let median = self.chain.median_time_past(self.chain.tip());
        // Sequence locks by time use the median of the past, which the header does not change.
        let draft = BlockDraft { time: Some(median.saturating_add(seconds)), ..self.draft() };
        self.done(draft)
    }

    fn version(&mut self, version: i32) -> Option<Vec<u8>> {
        self.mined(|block| block.header.version = Version::from_consensus(version))
    }

    fn mined(&mut self, edit: impl FnOnce(&mut Block)) -> Option<Vec<u8>> {
        let draft = self.draft();
        let mut block = self.finish(draft);
        edit(&mut block);
        mine(&mut block);
        Some(raw_of(&block))
    }

    fn bits(&mut self, bits: u32) -> Option<Vec<u8>> {
        let draft = self.draft();
        let mut block = self.finish(draft);
        // The hash meets the usual target, so a verifier must also check the target itself.
        block.header.bits = CompactTarget::from_consensus(bits);
        let usual = bitcoin::Target::from_compact(CompactTarget::from_consensus(0x207f_ffff));
        while !usual.is_met_by(block.header.block_hash()) {
            block.header.nonce = block.header.nonce.checked_add(1)?;
        }
        Some(raw_of(&block))
    }
}
