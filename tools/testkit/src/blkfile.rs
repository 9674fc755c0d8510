//! [`BlockFiles`]: block files in Bitcoin Core's layout, intact or damaged as a test needs.
//!
//! A record is magic, size, block; a new file begins when one is full; everything except the zeros at the end
//! is XORed with the key at its position in the file (Core `node/blockstorage.cpp`). Undo files and the index
//! are not written.

use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::{Block, BlockHash};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// The position of a record: the number of its file, and the offset of the block there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// The number in the file's name.
    pub file: usize,
    /// Offset of the block's first byte, after magic and size.
    pub offset: usize,
}

/// Block files in memory.
#[derive(Debug, Clone)]
pub struct BlockFiles {
    magic: [u8; 4],
    key: Option<[u8; 8]>,
    file_bytes_max: usize,
    chunk_bytes: usize,
    files: Vec<Vec<u8>>,
}

impl BlockFiles {
    /// Makes files for the network with this magic: not XORed, of 128 MiB at most, no zeros at the end.
    pub fn new(magic: [u8; 4]) -> Self {
        Self {
            magic,
            key: None,
            file_bytes_max: 128 << 20,
            chunk_bytes: 1,
            files: vec![Vec::new()],
        }
    }

    /// Makes files for regtest.
    pub fn regtest() -> Self {
        Self::new(bitcoin::Network::Regtest.magic().to_bytes())
    }

    /// XORs all files with `key` and writes it into `xor.dat`. Without this, there is no `xor.dat`.
    pub fn key(mut self, key: [u8; 8]) -> Self {
        self.key = Some(key);
        self
    }

    /// Begins a new file when a record would make the current one longer than this.
    pub fn file_bytes_max(mut self, bytes: usize) -> Self {
        self.file_bytes_max = bytes;
        self
    }

    /// Fills each file with zeros up to a multiple of this, as preallocation does.
    pub fn preallocate(mut self, chunk_bytes: usize) -> Self {
        self.chunk_bytes = chunk_bytes;
        self
    }

    /// Adds a block.
    pub fn block(&mut self, block: &Block) -> RecordPlace {
        self.record(&serialize(block))
    }

    /// Adds blocks in the order given.
    pub fn blocks<'a>(&mut self, blocks: impl IntoIterator<Item = &'a Block>) -> Vec<RecordPlace> {
        blocks.into_iter().map(|block| self.block(block)).collect()
    }

    /// Adds a record with any content.
    pub fn record(&mut self, content: &[u8]) -> RecordPlace {
        let len = u32::try_from(content.len()).expect("a record's size has 32 bits");
        if !self.last().is_empty() && self.last().len() + 8 + content.len() > self.file_bytes_max {
            self.next_file();
        }
        let head = [self.magic, len.to_le_bytes()].concat();
        self.bytes(&head);
        let place = RecordPlace { file: self.files.len() - 1, offset: self.last().len() };
        self.bytes(content);
        place
    }

    /// Adds the first `keep` bytes of a block's record, as a crash during a write leaves it.
    pub fn torn(&mut self, block: &Block, keep: usize) {
        let content = serialize(block);
        let head = [self.magic, (content.len() as u32).to_le_bytes()].concat();
        let record = [head, content].concat();
        assert!(keep < record.len(), "a torn record lacks something");
        self.bytes(&record[..keep]);
    }

    /// Adds raw bytes: garbage, a wrong size, a foreign magic.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.last().extend_from_slice(bytes);
    }

    /// Continues in a new file.
    pub fn next_file(&mut self) {
        self.files.push(Vec::new());
    }

    fn last(&mut self) -> &mut Vec<u8> {
        self.files.last_mut().expect("there is always a file")
    }

    /// Returns the bytes of each file on disk.
    pub fn contents(&self) -> Vec<Vec<u8>> {
        let finish = |file: &Vec<u8>| {
            let mut file = file.clone();
            xor(&mut file, self.key.unwrap_or_default());
            file.resize(file.len().next_multiple_of(self.chunk_bytes), 0);
            file
        };
        self.files.iter().map(finish).collect()
    }

    /// Writes the files into `folder`, which it creates.
    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for (number, content) in self.contents().iter().enumerate() {
            fs::write(folder.join(format!("blk{number:05}.dat")), content).unwrap();
        }
        if let Some(key) = self.key {
            fs::write(folder.join("xor.dat"), key).unwrap();
        }
    }
}

fn xor(bytes: &mut [u8], key: [u8; 8]) {
    bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
}

/// Reads intact block files and returns the longest chain in them from `genesis` on.
///
/// # Panics
/// If anything is wrong with the files: this is for fixtures, not for damage.
pub fn read_chain(folder: &Path, magic: [u8; 4], genesis: BlockHash) -> Vec<Block> {
    let key = fs::read(folder.join("xor.dat")).map(|key| key.try_into().expect("8 bytes"));
    let mut blocks = HashMap::new();
    for number in 0.. {
        let Ok(mut file) = fs::read(folder.join(format!("blk{number:05}.dat"))) else { break };
        xor(&mut file, key.as_ref().copied().unwrap_or_default());
        let mut rest = &file[..];
        while let Some(record) = rest.strip_prefix(&magic) {
            let (len, content) = record.split_first_chunk::<4>().expect("a size");
            let (content, next) = content.split_at(u32::from_le_bytes(*len) as usize);
            let block: Block = deserialize(content).expect("a block");
            blocks.insert(block.block_hash(), block);
            rest = next;
        }
    }
    let mut heights = HashMap::from([(genesis, 0)]);
    let mut best = genesis;
    for tip in blocks.keys() {
        let height = height_of(*tip, &blocks, &mut heights);
        if height > heights[&best] {
            best = *tip;
        }
    }
    let mut chain = vec![blocks[&best].clone()];
    while chain[chain.len() - 1].block_hash() != genesis {
        chain.push(blocks[&chain[chain.len() - 1].header.prev_blockhash].clone());
    }
    chain.reverse();
    chain
}

fn height_of(
    hash: BlockHash,
    blocks: &HashMap<BlockHash, Block>,
    heights: &mut HashMap<BlockHash, u32>,
) -> u32 {
    let mut path = vec![hash];
    while !heights.contains_key(&path[path.len() - 1]) {
        path.push(blocks[&path[path.len() - 1]].header.prev_blockhash);
    }
    let mut height = heights[&path[path.len() - 1]];
    for hash in path.iter().rev().skip(1) {
        height += 1;
        heights.insert(*hash, height);
    }
    height
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitcoind::Bitcoind;
    use crate::chain::{ChainBuilder, Shape};
    use crate::rng::Rng;

    #[test]
    fn places_keys_and_tails_are_as_stated() {
        let blocks = ChainBuilder::new(1).empty_blocks(3);
        let key = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut files = BlockFiles::regtest().key(key).preallocate(1000).file_bytes_max(400);
        let places = files.blocks(&blocks);
        let len = serialize(&blocks[0]).len();
        assert_eq!(places[1], RecordPlace { file: 0, offset: 8 + len + 8 });
        assert_eq!(places[2], RecordPlace { file: 1, offset: 8 });
        let contents = files.contents();
        assert_eq!(contents.len(), 2);
        let mut file = contents[1].clone();
        assert_eq!(file.len(), 1000);
        assert!(file[8 + len..].iter().all(|byte| *byte == 0), "preallocated bytes are zeros");
        assert_eq!(file[0], 0xfa ^ 1);
        xor(&mut file, key);
        assert_eq!(file[8..8 + len], serialize(&blocks[2]));
    }

    #[test]
    fn the_longest_chain_is_read_back_from_any_order() {
        let mut chain = ChainBuilder::new(2);
        chain.random_blocks(110, Shape::default());
        let main = chain.blocks();
        chain.set_tip(main[50].block_hash());
        let mut all: Vec<Block> = main.iter().cloned().chain(chain.empty_blocks(20)).collect();
        Rng::new(2).shuffle(&mut all);
        let mut files = BlockFiles::regtest().key([9; 8]).file_bytes_max(20_000).preallocate(4096);
        files.blocks(&all);
        let folder = tempfile::tempdir().unwrap();
        files.write(folder.path());
        let read = read_chain(folder.path(), [0xfa, 0xbf, 0xb5, 0xda], main[0].block_hash());
        assert_eq!(read, main);
    }

    #[test]
    fn bitcoind_reads_them() {
        let mut chain = ChainBuilder::new(3);
        chain.random_blocks(130, Shape::default());
        let mut all = chain.blocks();
        // Core itself wants the genesis block first, and all others in any order.
        Rng::new(3).shuffle(&mut all[1..]);
        let mut files = BlockFiles::regtest().key([7; 8]).file_bytes_max(60_000);
        files = files.preallocate(8192);
        files.blocks(&all);
        files.torn(&all[0], 100);
        let folder = tempfile::tempdir().unwrap();
        files.write(&folder.path().join("regtest/blocks"));
        let node = Bitcoind::start_in(folder.path(), "regtest", &["-reindex"]).unwrap();
        // A reindex continues after the node first answers.
        for _ in 0..600 {
            if node.height() == chain.height() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(node.best_block_hash(), chain.tip());
    }
}
