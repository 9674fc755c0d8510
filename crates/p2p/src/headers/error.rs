//! What is held against peers that were asked for headers.

use apus_chain::{BlockHash, HeaderError, KNOTS_CHAIN};

/// A peer sent what no honest one sends: it is to be disconnected and not asked again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Longer than a message can be (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
    #[error("the peer sent {count} headers in a message, which holds at most 2000; use another")]
    TooManyHeaders {
        /// How many there were.
        count: usize,
    },
    /// A header is not the child of the one before it in the message.
    #[error("header {index} of the peer's message, {hash}, does not follow the one before it")]
    NotContinuous {
        /// Its place in the message, from 0.
        index: usize,
        /// The header.
        hash: BlockHash,
    },
    /// A header lacks the work for the target that it claims.
    #[error(
        "header {index} of the peer's message, {hash}, lacks the work for its bits 0x{bits:08x}"
    )]
    HighHash {
        /// Its place in the message, from 0.
        index: usize,
        /// The header.
        hash: BlockHash,
        /// The target that it claims.
        bits: u32,
    },
    /// A header of Bitcoin Knots' own proof of work.
    #[error("header {index} of the peer's message is {KNOTS_CHAIN}")]
    OfKnots {
        /// Its place in the message, from 0.
        index: usize,
    },
    /// The target changes as no chain's may, whatever the times in it (Core `pow.cpp`,
    /// `PermittedDifficultyTransition`).
    #[error(
        "the peer's header {hash} at height {height} goes from bits 0x{from:08x} to 0x{to:08x}, \
         further than the rules of this chain let it"
    )]
    DifficultyTransition {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: u32,
        /// The target before it.
        from: u32,
        /// The target that it claims.
        to: u32,
    },
    /// A header breaks a rule.
    #[error("the peer sent an invalid header: {0}")]
    Invalid(#[from] HeaderError),
    /// More headers than any chain can have by now, with less work than the real one's.
    #[error(
        "the peer's chain has more than {limit} headers and still too little work: it is not the \
         chain that others have"
    )]
    EndlessChain {
        /// How many are taken before the work suffices.
        limit: usize,
    },
    /// It goes on with headers whose parents it does not give when asked.
    #[error("the peer sent {count} messages of headers that follow nothing known")]
    Unconnecting {
        /// How many of its messages connected to nothing.
        count: u32,
    },
}

/// Why a peer that did nothing wrong is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// It was to send the chain and sent nothing.
    #[error("the peer did not answer a request for headers within {seconds} seconds")]
    Stalled {
        /// How long it had.
        seconds: u64,
    },
    /// It was to send the chain and took too long over it.
    #[error("the peer had not sent all headers after {seconds} seconds; another one may be faster")]
    TooSlow {
        /// How long it had.
        seconds: u64,
    },
    /// Its chain ends with less work than the real one has (Core `net_processing.cpp`,
    /// `UpdatePeerStateForReceivedHeaders`).
    #[error("the peer's chain has less work than this network's: it may still be synchronizing")]
    LowWork,
    /// It gave headers that another one went on from and that turned out to be invalid.
    #[error("the peer sent headers that proved to be invalid")]
    InvalidHeaders,
}
