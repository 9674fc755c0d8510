//! [`TableFacts`]: what a table says about the set in it.

use apus_chain::{BlockHash, Height, Network, UtxoSetHash};
use apus_storage::{Storage, read_whole};

/// Far longer than any facts as JSON, in bytes.
const FACTS_BYTES_MAX: u64 = 1 << 16;

/// Facts about the set in a table. A reader can check the table with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// The chain.
    pub network: Network,
    /// The block after which the set has these coins.
    pub block: BlockHash,
    /// Its height.
    pub height: Height,
    /// Number of coins, which is the number of rows.
    pub coins: u64,
    /// Sum of the values, in satoshi.
    pub total: u64,
    /// The set's `hash_serialized_3`, as `gettxoutsetinfo` reports it.
    pub hash_serialized_3: UtxoSetHash,
}

/// A value of [`TableFacts`].
pub(crate) enum Fact {
    Text(String),
    Number(u64),
}

impl TableFacts {
    /// Returns all facts with their keys, and the version of this program.
    pub(crate) fn pairs(&self) -> [(&'static str, Fact); 7] {
        [
            ("chain", Fact::Text(self.network.to_string())),
            ("block_hash", Fact::Text(self.block.to_string())),
            ("height", Fact::Number(self.height.into())),
            ("coins", Fact::Number(self.coins)),
            ("total", Fact::Number(self.total)),
            ("hash_serialized_3", Fact::Text(self.hash_serialized_3.to_string())),
            ("program", Fact::Text(format!("apus {}", env!("CARGO_PKG_VERSION")))),
        ]
    }

    /// Returns whether a file has the facts of a table as JSON.
    pub(crate) fn are_in(storage: &dyn Storage, name: &str) -> bool {
        let bytes = read_whole(storage, name, FACTS_BYTES_MAX).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let is_ours = json["program"].as_str().is_some_and(|program| program.starts_with("apus "));
        is_ours && ["block_hash", "hash_serialized_3"].iter().all(|key| json[*key].is_string())
    }

    /// Returns the facts as JSON.
    pub(crate) fn to_json(self) -> String {
        let value = |fact| match fact {
            Fact::Text(text) => serde_json::Value::from(text),
            Fact::Number(number) => number.into(),
        };
        let object: serde_json::Map<_, _> =
            self.pairs().into_iter().map(|(key, fact)| (key.to_owned(), value(fact))).collect();
        format!("{:#}\n", serde_json::Value::Object(object))
    }
}
