//! The most frequent calls of tests, with types.

use super::Bitcoind;
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::{Amount, Block, BlockHash};
use serde_json::{Value, json};
use std::path::Path;
use std::str::FromStr;

/// Descriptor of a coin that an empty input script spends.
pub const OP_TRUE_DESCRIPTOR: &str = "raw(51)#8lvh9jxk";

/// The node's summary of its coins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxOutSetInfo {
    /// Height of the block whose UTXO set this is.
    pub height: u32,
    /// That block.
    pub best_block: BlockHash,
    /// Number of coins.
    pub txouts: u64,
    /// Their sum.
    pub total_amount: Amount,
    /// `muhash`, in display order.
    pub muhash: String,
    /// `hash_serialized_3`, in display order.
    pub hash_serialized_3: String,
}

impl Bitcoind {
    /// Mines `count` empty blocks that pay to OP_TRUE.
    pub fn mine(&self, count: u32) -> Vec<BlockHash> {
        let hashes = self.call("generatetodescriptor", &[json!(count), json!(OP_TRUE_DESCRIPTOR)]);
        hashes.as_array().unwrap().iter().map(block_hash).collect()
    }

    /// Submits a block to the node; `Err` is its reason. A valid block whose parent is not the tip can also
    /// result in `Err("inconclusive")`: check the tip for such blocks.
    pub fn submit_block(&self, block: &Block) -> Result<(), String> {
        match self.try_call("submitblock", &[json!(serialize_hex(block))]) {
            Ok(Value::Null) => Ok(()),
            Ok(reason) => Err(reason.as_str().unwrap_or_default().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the number of blocks above the genesis block.
    pub fn height(&self) -> u32 {
        u32::try_from(self.call("getblockcount", &[]).as_u64().unwrap()).unwrap()
    }

    /// Returns the tip.
    pub fn best_block_hash(&self) -> BlockHash {
        block_hash(&self.call("getbestblockhash", &[]))
    }

    /// Returns the main chain's block at `height`.
    pub fn block_at(&self, height: u32) -> Block {
        let hash = self.call("getblockhash", &[json!(height)]);
        let raw = self.call("getblock", &[hash, json!(0)]);
        deserialize_hex(raw.as_str().unwrap()).unwrap()
    }

    /// Makes the node reject one of its blocks.
    pub fn invalidate_block(&self, hash: BlockHash) {
        self.call("invalidateblock", &[json!(hash.to_string())]);
    }

    /// Undoes [`invalidate_block`](Self::invalidate_block).
    pub fn reconsider_block(&self, hash: BlockHash) {
        self.call("reconsiderblock", &[json!(hash.to_string())]);
    }

    /// Writes a snapshot of the coins at the tip; the file must not exist yet.
    pub fn dump_txoutset(&self, file: &Path) -> Value {
        self.call("dumptxoutset", &[json!(file.display().to_string()), json!("latest")])
    }

    /// Returns the node's summary of its coins. Flushes them to disk.
    pub fn txoutset_info(&self) -> TxOutSetInfo {
        let muhash = self.call("gettxoutsetinfo", &[json!("muhash")]);
        let serialized = self.call("gettxoutsetinfo", &[json!("hash_serialized_3")]);
        assert_eq!(muhash["bestblock"], serialized["bestblock"], "the tip moved meanwhile");
        // An f64 holds every amount of satoshi up to 2^53 exactly, so rounding loses nothing.
        let bitcoins = muhash["total_amount"].as_f64().unwrap();
        TxOutSetInfo {
            height: u32::try_from(muhash["height"].as_u64().unwrap()).unwrap(),
            best_block: block_hash(&muhash["bestblock"]),
            txouts: muhash["txouts"].as_u64().unwrap(),
            total_amount: Amount::from_btc(bitcoins).unwrap(),
            muhash: muhash["muhash"].as_str().unwrap().to_owned(),
            hash_serialized_3: serialized["hash_serialized_3"].as_str().unwrap().to_owned(),
        }
    }
}

fn block_hash(value: &Value) -> BlockHash {
    BlockHash::from_str(value.as_str().unwrap_or_default()).expect("a block hash from bitcoind")
}
