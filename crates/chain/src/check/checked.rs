//! The result of a check: a [`CheckedBlock`], which owns its bytes and can move between threads, or an error
//! with Core's reject reason.
//!
//! The bytes and the data read from them stay together and never change, so its [`BlockBytes`] are the same
//! as the checker's.

use super::{BlockBytes, BlockChecker, BlockContext};
use crate::block::{BlockLayout, DecodeError};
use crate::hashes::{BlockHash, Txid};
use crate::header::Height;

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
    /// Returns the block's height.
    pub fn height(&self) -> Height {
        self.height
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> BlockHash {
        self.hash
    }

    /// Returns the block as [`BlockChecker::check`] would have returned it.
    pub fn bytes(&self) -> BlockBytes<'_> {
        let view = self.layout.view(&self.raw);
        let Self { ref txids, height, hash, legacy_sigops, .. } = *self;
        BlockBytes { view, txids, height, hash, legacy_sigops }
    }

    /// Returns the memory in use in addition to the value itself, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.raw.capacity() + self.txids.capacity() * size_of::<[u8; 32]>();
        bytes as u64 + self.layout.memory_bytes()
    }

    /// Returns the block's bytes and drops the data read from them.
    pub fn into_raw(self) -> Vec<u8> {
        self.raw
    }
}

impl BlockChecker {
    /// Checks one block and takes ownership of its bytes. Returns the bytes with the error if it rejects the
    /// block; otherwise drops bytes after the block.
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
        // The next block is probably about as large as this one.
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

/// Why a transaction is invalid, regardless of its coins (Core `consensus/tx_check.cpp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxError {
    /// It has no inputs.
    #[error("no inputs")]
    NoInputs,
    /// It has no outputs.
    #[error("no outputs")]
    NoOutputs,
    /// Without its witness it is larger than the limit for a block.
    #[error("{size} bytes without witness, more than a block may have")]
    Oversize {
        /// Bytes without witness.
        size: usize,
    },
    /// An output's amount is below zero.
    #[error("output {vout} has the negative amount {value}")]
    OutputNegative {
        /// Index of the output.
        vout: usize,
        /// The amount in satoshis.
        value: i64,
    },
    /// An output's amount is above 21 million bitcoins.
    #[error("output {vout} has {value} satoshis, more than the maximum supply")]
    OutputTooLarge {
        /// Index of the output.
        vout: usize,
        /// The amount in satoshis.
        value: i64,
    },
    /// The amounts add up to more than 21 million bitcoins.
    #[error("the outputs add up to more than the maximum supply")]
    OutputTotalTooLarge,
    /// Two inputs spend the same coin (CVE-2018-17144).
    #[error("two inputs spend the same coin")]
    DuplicateInputs,
    /// A coinbase's script is shorter than 2 or longer than 100 bytes.
    #[error("a coinbase script of {length} bytes, but 2 to 100 are allowed")]
    CoinbaseLength {
        /// Bytes of the script.
        length: usize,
    },
    /// An ordinary transaction has an input with a null outpoint, which spends nothing.
    #[error("input {vin} has a null outpoint")]
    NullPrevout {
        /// Index of the input.
        vin: usize,
    },
}

impl TxError {
    /// Returns Core's reject reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoInputs => "bad-txns-vin-empty",
            Self::NoOutputs => "bad-txns-vout-empty",
            Self::Oversize { .. } => "bad-txns-oversize",
            Self::OutputNegative { .. } => "bad-txns-vout-negative",
            Self::OutputTooLarge { .. } => "bad-txns-vout-toolarge",
            Self::OutputTotalTooLarge => "bad-txns-txouttotal-toolarge",
            Self::DuplicateInputs => "bad-txns-inputs-duplicate",
            Self::CoinbaseLength { .. } => "bad-cb-length",
            Self::NullPrevout { .. } => "bad-txns-prevout-null",
        }
    }
}

/// Why a block is invalid, on its own or at its place in the header chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The bytes are not a block.
    #[error("block decode failed: {0}")]
    Decode(#[from] DecodeError),
    /// The bytes are a different block from the expected one.
    #[error("the bytes are block {found}")]
    OtherBlock {
        /// Hash of the bytes' header.
        found: BlockHash,
    },
    /// The block lacks the signature that signet requires (BIP-325).
    #[error("signet block solution: {0}")]
    SignetSolution(String),
    /// Like [`SignetSolution`](Self::SignetSolution), but the transactions match the header, so no
    /// copy of the block can be signed.
    #[error("signet block solution: {0}")]
    Unsigned(String),
    /// The transactions do not match the header's merkle root.
    #[error("the transactions do not match the header's merkle root")]
    MerkleRoot,
    /// The last transactions are repeated (CVE-2012-2459).
    #[error("transactions are repeated so that the merkle root stays the same (CVE-2012-2459)")]
    DuplicateTransactions,
    /// It has no transactions, or more transactions or bytes than a block can have.
    #[error(
        "{txs} transactions in {size} bytes without witness: a block needs at least one transaction, and at most \
         as many as fit"
    )]
    Length {
        /// Number of transactions.
        txs: usize,
        /// Bytes without witness.
        size: usize,
    },
    /// The first transaction is not a coinbase.
    #[error("the first transaction is not a coinbase")]
    CoinbaseMissing,
    /// Like [`CoinbaseMissing`](Self::CoinbaseMissing), and a transaction has the length of two
    /// nodes of a merkle tree. The block may be a different one under the same header, with merkle
    /// tree nodes in place of its transactions (Core `validation.cpp`, `IsBlockMutated`).
    #[error(
        "the first transaction is not a coinbase, and one has 64 bytes, as two nodes of the merkle \
         tree have: what the header commits to may be another block"
    )]
    MerkleNodes,
    /// A later transaction is a coinbase.
    #[error("transaction {tx} is a second coinbase")]
    CoinbaseMultiple {
        /// Its index.
        tx: usize,
    },
    /// A transaction is invalid on its own.
    #[error("transaction {tx} ({txid}): {error}")]
    Tx {
        /// Its index.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// The error.
        error: TxError,
    },
    /// It has too many signature operations, counted without the spent coins.
    #[error("{cost} units of legacy signature operations, more than 80,000")]
    SigOps {
        /// Their cost: four each.
        cost: u64,
    },
    /// A transaction is locked until a later height or time (BIP-113).
    #[error("transaction {tx} ({txid}) is not final")]
    NonFinal {
        /// Its index.
        tx: usize,
        /// Its id.
        txid: Txid,
    },
    /// The coinbase does not begin with the height (BIP-34).
    #[error("the coinbase does not begin with the block's height")]
    CoinbaseHeight,
    /// The coinbase's witness is not exactly one item of 32 bytes (BIP-141).
    #[error("the coinbase's witness is not a single item of 32 bytes")]
    WitnessNonceSize,
    /// The witnesses do not match the commitment (BIP-141).
    #[error("the witnesses do not match the coinbase's commitment")]
    WitnessMerkleMatch,
    /// A transaction has a witness, but the block has no commitment (BIP-141).
    #[error("transaction {tx} ({txid}) has a witness, but the block has no witness commitment")]
    UnexpectedWitness {
        /// Its index.
        tx: usize,
        /// Its id.
        txid: Txid,
    },
    /// The block is heavier than allowed (BIP-141).
    #[error("weight {weight}, more than 4,000,000")]
    Weight {
        /// In weight units.
        weight: usize,
    },
}

impl BlockError {
    /// Returns Core's reject reason (`validation.cpp`); for unreadable bytes, the text of the
    /// exception that Core raises.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Decode(error) => error.reason(),
            Self::OtherBlock { .. } => "bad-hash",
            Self::SignetSolution(_) | Self::Unsigned(_) => "bad-signet-blksig",
            Self::MerkleRoot => "bad-txnmrklroot",
            Self::DuplicateTransactions => "bad-txns-duplicate",
            Self::Length { .. } => "bad-blk-length",
            Self::CoinbaseMissing | Self::MerkleNodes => "bad-cb-missing",
            Self::CoinbaseMultiple { .. } => "bad-cb-multiple",
            Self::Tx { error, .. } => error.reason(),
            Self::SigOps { .. } => "bad-blk-sigops",
            Self::NonFinal { .. } => "bad-txns-nonfinal",
            Self::CoinbaseHeight => "bad-cb-height",
            Self::WitnessNonceSize => "bad-witness-nonce-size",
            Self::WitnessMerkleMatch => "bad-witness-merkle-match",
            Self::UnexpectedWitness { .. } => "unexpected-witness",
            Self::Weight { .. } => "bad-blk-weight",
        }
    }

    /// Returns the reject reason, with Core's detail if two rules share one. Too many visible signature
    /// operations (`validation.cpp`, `CheckBlock`) share it with too many in all
    /// ([`SpendError::SigOps`](crate::SpendError::SigOps)).
    pub fn reject_reason(&self) -> String {
        match self {
            Self::SigOps { .. } => format!("{}, out-of-bounds SigOpCount", self.reason()),
            _ => self.reason().to_owned(),
        }
    }

    /// Returns whether another copy of the same block may still be valid, because the header's hash
    /// does not commit to the fault of this one (Core's `BLOCK_MUTATED`, or damaged bytes).
    ///
    /// This includes a missing or wrong signature if the transactions, which contain the signet
    /// solution, do not match the header.
    pub const fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Decode(_)
                | Self::OtherBlock { .. }
                | Self::SignetSolution(_)
                | Self::MerkleRoot
                | Self::DuplicateTransactions
                | Self::MerkleNodes
                | Self::WitnessNonceSize
                | Self::WitnessMerkleMatch
                | Self::UnexpectedWitness { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Network, Params};

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
    fn an_owned_block_equals_the_borrowed_one() {
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
    fn rejected_bytes_are_returned() {
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
    fn bytes_after_a_block_are_dropped() {
        let raw = real_block(LARGE);
        let context = context(170_060, &raw);
        let mut checker = BlockChecker::new();
        let padded = [&raw[..], &vec![1; 4_000_000]].concat();
        assert!(checker.check(&padded, &context).unwrap().view().raw() == raw);
        let block = checker.check_owned(padded, &context).unwrap();
        assert!(block.bytes().view().raw() == raw);
        assert!(block.into_raw() == raw);
    }

    /// The block keeps its storage, but the checker reads the next block without reallocating, if that is no
    /// larger.
    #[test]
    fn the_next_block_needs_no_reallocation() {
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
