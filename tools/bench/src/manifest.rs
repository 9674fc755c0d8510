//! [`ChainManifest`]: the description of a generated chain, stored as `manifest.json` next to its `blocks/`
//! and `chain.hints`.
//!
//! It is written last, so a folder with a manifest is a complete chain. It does not vouch for the blocks:
//! readers check the chain like any other.

use apus_chain::BlockHash;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Its file name in a chain's folder.
pub const FILE_NAME: &str = "manifest.json";

/// Its file name until it is complete.
pub(crate) const DRAFT_NAME: &str = "manifest.json.tmp";

/// A manifest is about 2,000 bytes; anything much larger is another kind of file.
const BYTES_MAX: u64 = 1 << 20;

/// Version of the form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 1;

/// A generated chain. Counts exclude the genesis block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainManifest {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the shape, such as `mainnet-like`.
    pub profile: String,
    /// The seed; the same arguments give the same bytes.
    pub seed: u64,
    /// Whether signatures are real, so that full validation accepts the chain.
    pub signed: bool,
    /// Whether block files are XORed with a key, as in nodes since version 28. Older manifests lack the
    /// field; their files have a key.
    #[serde(default = "older_are")]
    pub obfuscated: bool,
    /// Full blocks.
    pub busy_blocks: u32,
    /// Target weight of full blocks.
    pub block_weight: u32,
    /// Coinbase-only blocks after them.
    pub tail_blocks: u32,
    /// Height of the tip.
    pub height: u32,
    /// Hash of the tip, in display order.
    pub tip_hash: String,
    /// Height of the last block with more than a coinbase.
    pub assumevalid_height: u32,
    /// Hash of that block: the value of `-assumevalid` that skips all scripts.
    pub assumevalid_hash: String,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
    /// Outputs that can never be spent, such as `OP_RETURN`.
    pub unspendable: u64,
    /// Coins left at the tip.
    pub coins: u64,
    /// Their sum in satoshis.
    pub total_amount_sat: u64,
    /// Bytes of serialized blocks.
    pub bytes: u64,
    /// Spendable outputs by type of script.
    pub scripts: BTreeMap<String, u64>,
    /// The scale, if the chain follows the main chain's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
    /// The set at chosen heights, the tip last. Older manifests lack it.
    #[serde(default)]
    pub sets: Vec<ExpectedSet>,
    /// Number of coins spent within this many blocks of their creation, by the number of blocks.
    pub spent_within: BTreeMap<u32, u64>,
}

/// A set of coins as the maker counted it, for comparison with that of a program that read the blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedSet {
    /// Height of the set's last block.
    pub height: u32,
    /// Hash of that block, in display order.
    pub block_hash: String,
    /// Number of coins.
    pub coins: u64,
    /// Their sum in satoshis.
    pub total_amount_sat: u64,
    /// Their MuHash, as `gettxoutsetinfo muhash` shows it.
    pub muhash: String,
}

/// Before the option existed, block files always had a key.
const fn older_are() -> bool {
    true
}

impl ChainManifest {
    /// Reads the manifest in the folder of a chain.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut text = String::new();
        let file = File::open(folder.join(FILE_NAME))?;
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        let manifest: Self = serde_json::from_str(&text)?;
        if manifest.version != VERSION {
            let text = format!(
                "manifest version {} is not supported (this program reads version {VERSION}): make the chain \
                 again",
                manifest.version
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        manifest.assume_valid()?;
        Ok(manifest)
    }

    /// The last block with more than a coinbase; syncs assume its scripts and all earlier ones valid.
    ///
    /// # Errors
    /// If its hash is invalid.
    pub fn assume_valid(&self) -> io::Result<BlockHash> {
        self.assumevalid_hash.parse().map_err(|_| {
            let hash = &self.assumevalid_hash;
            let text =
                format!("assumevalid_hash is {hash:?}, which is not a hash: make the chain again");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Writes it atomically into the folder of a chain, after everything else there is durable.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join(DRAFT_NAME);
        let mut file = File::create(&draft)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&draft, folder.join(FILE_NAME))?;
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> ChainManifest {
        ChainManifest {
            version: VERSION,
            profile: "mainnet-like".to_owned(),
            seed: u64::MAX,
            signed: true,
            obfuscated: true,
            busy_blocks: 1,
            block_weight: 4_000_000,
            tail_blocks: 2_100,
            height: 2_300,
            tip_hash: "aa".repeat(32),
            assumevalid_height: 200,
            assumevalid_hash: "bb".repeat(32),
            transactions: 1,
            inputs: 2,
            outputs: 3,
            unspendable: 4,
            coins: 5,
            total_amount_sat: 6,
            bytes: 7,
            scripts: BTreeMap::from([("p2tr".to_owned(), 8)]),
            scale: Some("bytes=1/2".to_owned()),
            sets: vec![ExpectedSet {
                height: 2_300,
                block_hash: "aa".repeat(32),
                coins: 5,
                total_amount_sat: 6,
                muhash: "cc".repeat(32),
            }],
            spent_within: BTreeMap::from([(10, 9), (100, 10)]),
        }
    }

    #[test]
    fn written_manifests_are_read_and_leave_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        manifest().write(folder.path()).unwrap();
        assert_eq!(ChainManifest::read(folder.path()).unwrap(), manifest());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_of_an_older_manifest_have_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let mut older = serde_json::to_value(manifest()).unwrap();
        older.as_object_mut().unwrap().remove("obfuscated");
        fs::write(folder.path().join(FILE_NAME), older.to_string()).unwrap();
        assert_eq!(ChainManifest::read(folder.path()).unwrap(), manifest());
    }

    #[test]
    fn invalid_manifests_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &[u8]| {
            fs::write(folder.path().join(FILE_NAME), text).unwrap();
            ChainManifest::read(folder.path()).unwrap_err().to_string()
        };
        assert!(ChainManifest::read(&folder.path().join("gone")).is_err());
        read(b"");
        read(b"{}");
        read(&[0xff; 100]);
        // More than the reader accepts into memory.
        read(&vec![b' '; 3 << 20]);
        let text = serde_json::to_string(&manifest()).unwrap();
        let other = text.replacen("\"version\":1", "\"version\":2", 1);
        assert!(read(other.as_bytes()).contains("manifest version 2"));
        let other = text.replacen(&"bb".repeat(32), "bb", 1);
        assert!(read(other.as_bytes()).contains("\"bb\", which is not a hash"));
    }
}
