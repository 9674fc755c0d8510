//! [`OutPoint`]: which output of which transaction, and its 36-byte form.

use crate::hashes::Txid;
use core::fmt;

/// The name of a coin: the transaction that made it and the output's place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OutPoint {
    /// The transaction that created the output.
    pub txid: Txid,
    /// Index of the output in it, from 0.
    pub vout: u32,
}

impl OutPoint {
    /// Length of the wire form.
    pub const SIZE: usize = 36;

    /// As in a transaction input: txid in internal order, then vout, little-endian.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..32].copy_from_slice(&self.txid.0);
        bytes[32..].copy_from_slice(&self.vout.to_le_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let (mut txid, mut vout) = ([0; 32], [0; 4]);
        txid.copy_from_slice(&bytes[..32]);
        vout.copy_from_slice(&bytes[32..]);
        Self { txid: Txid(txid), vout: u32::from_le_bytes(vout) }
    }
}

impl fmt::Display for OutPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.txid, self.vout)
    }
}
