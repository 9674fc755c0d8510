//! Enforces BIP-30 through the uniqueness of coinbases, for engines that cannot look up whether an output
//! exists (`docs/decisions/0006-bip30.md`).
//!
//! A later transaction repeats an earlier one only if it spends the same coins. So if each coin is spent
//! once, all transactions are unique as soon as all coinbases are.

use apus_chain::{
    BIP34_IMPLIES_BIP30_LIMIT, HeaderChain, Height, HeightRange, Params, Reader, Txid,
    write_compact_size,
};

/// A coinbase that BIP-30 applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoinbaseId {
    /// Transaction id.
    pub txid: Txid,
    /// Height of its block.
    pub height: Height,
}

/// The heights whose coinbases BIP-30 applies to, and the coinbases that it exempts.
#[derive(Debug, Clone)]
pub struct Bip30 {
    /// BIP-34 makes coinbases unique from this height on; `None` if this is not the chain whose BIP-34 history
    /// is known: then all coinbases are checked.
    unique_from: Option<Height>,
}

impl Bip30 {
    /// Applies the rule of Core `validation.cpp`, `ConnectBlock`: BIP-30 is enforced up to the activation of
    /// BIP-34 on the known chain, and again from [`BIP34_IMPLIES_BIP30_LIMIT`] on, because early coinbases
    /// contain numbers that are heights of later blocks.
    pub fn new(params: &Params, chain: &HeaderChain) -> Self {
        let known = match params.bip34_hash {
            Some(hash) => chain.hash(params.bip34_height) == Some(&hash),
            // No coinbase precedes BIP-34, so a later one has none to repeat.
            None => params.bip34_height <= 1,
        };
        Self { unique_from: known.then_some(params.bip34_height) }
    }

    /// Whether a coinbase at this height must be unique.
    pub fn looks_at(&self, height: Height) -> bool {
        height >= BIP34_IMPLIES_BIP30_LIMIT || self.unique_from.is_none_or(|unique| height < unique)
    }

    /// Whether no coinbase of a range must be unique, so that earlier ones need not be known. The heights where they
    /// must be are the lowest and the highest ones.
    pub fn ignores(&self, range: HeightRange) -> bool {
        range.is_empty() || !self.looks_at(range.start) && !self.looks_at(range.end - 1)
    }
}

/// Finds two equal coinbases.
pub fn first_repeated(coinbases: &[CoinbaseId]) -> Option<(CoinbaseId, CoinbaseId)> {
    let mut sorted = coinbases.to_vec();
    sorted.sort_unstable();
    let same = sorted.windows(2).find(|pair| pair[0].txid == pair[1].txid)?;
    Some((same[0], same[1]))
}

/// Appends coinbases in ascending order.
pub fn write_coinbases(out: &mut Vec<u8>, coinbases: &[CoinbaseId]) {
    write_compact_size(out, coinbases.len() as u64);
    for coinbase in coinbases {
        out.extend_from_slice(&coinbase.txid.0);
        out.extend_from_slice(&coinbase.height.to_le_bytes());
    }
}

/// Reads what [`write_coinbases`] wrote; `None` if the bytes are invalid.
pub fn read_coinbases(reader: &mut Reader<'_>) -> Option<Vec<CoinbaseId>> {
    let count = reader.compact_size().ok()?;
    let mut coinbases: Vec<CoinbaseId> = Vec::new();
    for _ in 0..count {
        let coinbase = CoinbaseId { txid: Txid(*reader.array().ok()?), height: reader.u32().ok()? };
        if coinbases.last().is_some_and(|last| *last >= coinbase) {
            return None;
        }
        coinbases.push(coinbase);
    }
    Some(coinbases)
}
