//! The rows of txindex and txospenderindex as a plain implementation makes them of a node's files.

use crate::handover::database::Entries;
use apus_chain::Txid;
use apus_indexes::Salt;
use apus_testkit::oracle::varint;
use bitcoin::consensus::{Decodable, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{Block, BlockHash, VarInt};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A block of the chain, and where it is.
pub(crate) struct PlacedBlock {
    block: Block,
    file: u64,
    offset: u64,
}

/// The best chain in a node's block files.
pub(crate) struct NodeFiles {
    /// By height.
    chain: Vec<PlacedBlock>,
}

impl NodeFiles {
    /// The hash of the block at a height.
    pub(crate) fn hash(&self, height: usize) -> [u8; 32] {
        self.chain[height].block.block_hash().to_byte_array()
    }

    /// Reads all blocks in a chain's folder, and chooses the longest chain.
    pub(crate) fn read(folder: &Path) -> Self {
        let blocks = folder.join("blocks");
        let key = fs::read(blocks.join("xor.dat")).unwrap_or(vec![0; 8]);
        let mut found: HashMap<BlockHash, PlacedBlock> = HashMap::new();
        for file in 0.. {
            let path = blocks.join(format!("blk{file:05}.dat"));
            let Ok(raw) = fs::read(path) else { break };
            let bytes: Vec<u8> = raw.iter().zip(key.iter().cycle()).map(|(a, b)| a ^ b).collect();
            let mut at = 0;
            while let Some(head) =
                bytes.get(at..at + 8).filter(|head| head[..4] != [0; 4] && head[..4] == bytes[..4])
            {
                let size = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
                let block = Block::consensus_decode(&mut &bytes[at + 8..at + 8 + size]).unwrap();
                let placed = PlacedBlock { file, offset: at as u64 + 8, block };
                found.insert(placed.block.block_hash(), placed);
                at += 8 + size;
            }
        }
        let mut heights: HashMap<BlockHash, usize> = HashMap::new();
        let hashes: Vec<BlockHash> = found.keys().copied().collect();
        for hash in &hashes {
            let (mut path, mut at) = (Vec::new(), *hash);
            while let Some(placed) = found.get(&at).filter(|_| !heights.contains_key(&at)) {
                path.push(at);
                at = placed.block.header.prev_blockhash;
            }
            let below = heights.get(&at).map_or(0, |height| height + 1);
            path.iter().rev().zip(below..).for_each(|(hash, height)| {
                heights.insert(*hash, height);
            });
        }
        let mut at = *hashes.iter().max_by_key(|hash| heights[*hash]).unwrap();
        let mut chain = Vec::new();
        while let Some(placed) = found.remove(&at) {
            at = placed.block.header.prev_blockhash;
            chain.push(placed);
        }
        chain.reverse();
        Self { chain }
    }

    /// Blocks with their heights, without genesis.
    fn blocks(&self) -> impl Iterator<Item = (usize, &PlacedBlock)> {
        self.chain.iter().enumerate().skip(1)
    }

    /// The best block as a node stores it.
    fn locator(&self) -> Vec<u8> {
        let (mut height, mut step, mut hashes) = (self.chain.len() - 1, 1, Vec::new());
        loop {
            hashes.push(self.chain[height].block.block_hash());
            if height == 0 {
                break;
            }
            height = height.saturating_sub(step);
            if hashes.len() > 10 {
                step *= 2;
            }
        }
        let mut out = 70_016_i32.to_le_bytes().to_vec();
        out.extend(serialize(&hashes));
        out
    }
}

impl PlacedBlock {
    /// Transactions with their offsets in the block.
    fn txs(&self) -> impl Iterator<Item = (u64, &bitcoin::Transaction)> {
        let count = serialize(&VarInt(self.block.txdata.len() as u64)).len();
        let mut at = 80 + count as u64;
        self.block.txdata.iter().map(move |tx| {
            let start = at;
            at += serialize(tx).len() as u64;
            (start, tx)
        })
    }

    /// File, offset, and offset behind the header.
    fn place(&self, tx: u64) -> Vec<u8> {
        [self.file, self.offset, tx - 80].map(varint).concat()
    }
}

/// Expected entries.
pub(crate) struct IndexModel;

impl IndexModel {
    pub(crate) fn old_txindex(files: &NodeFiles) -> Entries {
        let mut all = Entries::from([(b"B".to_vec(), files.locator())]);
        for (_, placed) in files.blocks() {
            for (offset, tx) in placed.txs() {
                let key = [b"t", &tx.compute_txid().to_byte_array()[..]].concat();
                all.insert(key, placed.place(offset));
            }
        }
        all
    }

    /// With the salt of `found`.
    pub(crate) fn txindex(files: &NodeFiles, found: &Entries) -> Entries {
        let name = b"\x0etxid_hash_salt".to_vec();
        let stored = &found[&name];
        let salt = Salt::from_bytes(stored.as_slice().try_into().unwrap());
        let next = u32::try_from(files.chain.len() - 1).unwrap();
        let mut all = Entries::from([
            (b"\x0dbest_block_v2".to_vec(), files.locator()),
            (b"\x0enext_block_seq".to_vec(), next.to_le_bytes().to_vec()),
            (name, stored.clone()),
        ]);
        for (height, placed) in files.blocks() {
            let (number, hash) = (height as u32 - 1, placed.block.block_hash().to_byte_array());
            all.insert([b"h", &hash[..]].concat(), number.to_le_bytes().to_vec());
            all.insert([b"s", &varint(number.into())[..]].concat(), hash.to_vec());
            for (offset, tx) in placed.txs() {
                let prefix = salt.of_txid(&Txid(tx.compute_txid().to_byte_array())) >> 24;
                let parts = [
                    &prefix.to_be_bytes()[3..],
                    &varint(number.into()),
                    &offset.to_be_bytes()[5..],
                ];
                all.insert([b"x", &parts.concat()[..]].concat(), Vec::new());
            }
        }
        all
    }

    /// With the salt of `found`.
    pub(crate) fn txospenderindex(files: &NodeFiles, found: &Entries) -> Entries {
        let name = b"siphash_key\0".to_vec();
        let stored = &found[&name];
        let salt = Salt::from_bytes(stored.as_slice().try_into().unwrap());
        let mut all = Entries::from([(b"B".to_vec(), files.locator()), (name, stored.clone())]);
        for (_, placed) in files.blocks() {
            for (offset, tx) in placed.txs().skip(1) {
                for input in &tx.input {
                    let outpoint = serialize(&input.previous_output);
                    let hash = salt.of_outpoint(outpoint.as_slice().try_into().unwrap());
                    let key = [b"s", &hash.to_le_bytes()[..], &placed.place(offset)].concat();
                    all.insert(key, Vec::new());
                }
            }
        }
        all
    }
}
