//! What can be wrong with a block, in Core's words.

use crate::block::DecodeError;
use crate::hashes::{BlockHash, Txid};

/// Why a transaction is invalid whatever it spends (Core `consensus/tx_check.cpp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxError {
    /// It has no inputs.
    #[error("no inputs")]
    NoInputs,
    /// It has no outputs.
    #[error("no outputs")]
    NoOutputs,
    /// Without its witness it is larger than a block may be.
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
    #[error("output {vout} has {value} satoshis, more than there can be")]
    OutputTooLarge {
        /// Index of the output.
        vout: usize,
        /// The amount in satoshis.
        value: i64,
    },
    /// The amounts add up to more than 21 million bitcoins.
    #[error("the outputs add up to more than there can be")]
    OutputTotalTooLarge,
    /// Two inputs spend the same coin (CVE-2018-17144).
    #[error("two inputs spend the same coin")]
    DuplicateInputs,
    /// A coinbase's script has less than 2 or more than 100 bytes.
    #[error("a coinbase script of {length} bytes, where 2 to 100 are allowed")]
    CoinbaseLength {
        /// Bytes of the script.
        length: usize,
    },
    /// An input that is no coinbase's spends nothing.
    #[error("input {vin} has a null outpoint")]
    NullPrevout {
        /// Index of the input.
        vin: usize,
    },
}

impl TxError {
    /// Core's reject reason.
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

/// Why a block is invalid, judged by itself and its place in the header chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The bytes are no block.
    #[error("block decode failed: {0}")]
    Decode(#[from] DecodeError),
    /// The bytes are another block than the one asked for.
    #[error("the bytes are block {found}")]
    OtherBlock {
        /// Hash of the bytes' header.
        found: BlockHash,
    },
    /// The block does not carry the signature that signet asks for (BIP-325).
    #[error("signet block solution: {0}")]
    SignetSolution(String),
    /// The same of a block whose transactions are those that its header commits to, so that no copy carries one.
    #[error("signet block solution: {0}")]
    Unsigned(String),
    /// The transactions do not add up to the header's merkle root.
    #[error("the transactions do not match the header's merkle root")]
    MerkleRoot,
    /// A tail of the transactions is repeated (CVE-2012-2459).
    #[error("transactions are repeated so that the merkle root stays the same (CVE-2012-2459)")]
    DuplicateTransactions,
    /// No transactions, or more of them or of their bytes than a block can have.
    #[error("{txs} transactions in {size} bytes without witness: none, or too much for a block")]
    Length {
        /// How many transactions.
        txs: usize,
        /// Bytes without witness.
        size: usize,
    },
    /// The first transaction is no coinbase.
    #[error("the first transaction is no coinbase")]
    CoinbaseMissing,
    /// The same, and a transaction has the length of two nodes of a merkle tree: the block may be
    /// another one whose lowest transactions were left out, under the same header (Core
    /// `validation.cpp`, `IsBlockMutated`).
    #[error(
        "the first transaction is no coinbase, and one has 64 bytes, as two nodes of the merkle \
         tree have: what the header commits to may be another block"
    )]
    MerkleNodes,
    /// A later transaction is a coinbase.
    #[error("transaction {tx} is a second coinbase")]
    CoinbaseMultiple {
        /// Its index.
        tx: usize,
    },
    /// A transaction is invalid by itself.
    #[error("transaction {tx} ({txid}): {error}")]
    Tx {
        /// Its index.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// What is wrong.
        error: TxError,
    },
    /// Too many signature operations, counted without looking at what is spent.
    #[error("{cost} units of legacy signature operations, more than 80,000")]
    SigOps {
        /// Their cost: four for each.
        cost: u64,
    },
    /// A transaction's lock time is not over (BIP-113).
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
    /// The coinbase's witness is not one item of 32 bytes (BIP-141).
    #[error("the coinbase's witness is not a single item of 32 bytes")]
    WitnessNonceSize,
    /// The witnesses do not match the commitment (BIP-141).
    #[error("the witnesses do not match the coinbase's commitment")]
    WitnessMerkleMatch,
    /// A witness in a block that commits to none (BIP-141).
    #[error("transaction {tx} ({txid}) has a witness, but the block commits to none")]
    UnexpectedWitness {
        /// Its index.
        tx: usize,
        /// Its id.
        txid: Txid,
    },
    /// More weight than a block may have (BIP-141).
    #[error("weight {weight}, more than 4,000,000")]
    Weight {
        /// In weight units.
        weight: usize,
    },
}

impl BlockError {
    /// Core's reject reason (`validation.cpp`); where the bytes are no block, the words of the
    /// exception that reading them raises there.
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

    /// The reject reason with what Core adds to it where two rules share one: more signature
    /// operations in plain sight than a block may have (`validation.cpp`, `CheckBlock`), beside more
    /// of them in all ([`SpendError::SigOps`](crate::SpendError::SigOps)).
    pub fn reject_reason(&self) -> String {
        match self {
            Self::SigOps { .. } => format!("{}, out-of-bounds SigOpCount", self.reason()),
            _ => self.reason().to_owned(),
        }
    }

    /// Whether another copy of the same block may still be good: the header's hash does not commit
    /// to what is wrong with this one (Core's `BLOCK_MUTATED`, or damaged bytes).
    ///
    /// A signature that is missing or wrong is among them where the transactions, in which the signet solution lies,
    /// are not those of the header.
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
