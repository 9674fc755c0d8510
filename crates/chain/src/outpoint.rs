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

/// From this vout on, the order of VARINTs is no longer that of the numbers: `80 80 00` (16,512)
/// sorts before `81 00` (256).
const VARINT_ORDER_DIFFERS: u32 = 16_512;

/// How Core's database orders two outputs of one transaction: by the bytes of their VARINTs.
#[inline]
pub fn vout_order(left: u32, right: u32) -> core::cmp::Ordering {
    if left < VARINT_ORDER_DIFFERS && right < VARINT_ORDER_DIFFERS {
        return left.cmp(&right);
    }
    let bytes = |vout: u32| {
        let mut bytes = Vec::with_capacity(5);
        crate::read::write_varint(&mut bytes, u64::from(vout));
        bytes
    };
    bytes(left).cmp(&bytes(right))
}

/// Whether the outputs of a transaction up to this one are in the order of Core's database where their numbers ascend.
pub fn vouts_ascend(last: u32) -> bool {
    last < VARINT_ORDER_DIFFERS
}

/// Sorts what belongs to one transaction's outputs as Core's database does; `entries` must come in
/// ascending vouts, which is nearly always the right order already.
pub fn sort_vouts<T>(entries: &mut [T], vout: impl Fn(&T) -> u32) {
    if entries.last().is_some_and(|last| !vouts_ascend(vout(last))) {
        entries.sort_by(|left, right| vout_order(vout(left), vout(right)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_round_trip(txid: [u8; 32], vout: u32) {
            let outpoint = OutPoint { txid: Txid(txid), vout };
            prop_assert_eq!(OutPoint::from_bytes(&outpoint.to_bytes()), outpoint);
        }

        #[test]
        fn vouts_sort_as_their_varints(a in 0u32..40_000, b in 0u32..40_000) {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            crate::read::write_varint(&mut x, u64::from(a));
            crate::read::write_varint(&mut y, u64::from(b));
            prop_assert_eq!(vout_order(a, b), x.cmp(&y));
        }
    }

    #[test]
    fn many_outputs_are_not_in_numeric_order() {
        let mut vouts: Vec<u32> = (0..20_001).collect();
        sort_vouts(&mut vouts, |&vout| vout);
        assert!(vouts.is_sorted_by(|&a, &b| vout_order(a, b).is_lt()));
        assert!(!vouts.is_sorted());
    }
}
