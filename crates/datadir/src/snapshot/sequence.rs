//! [`Sequence`]: the rules about what may follow what in a snapshot, for reading and writing.
//!
//! It knows no bytes: callers say what comes next and where, and learn whether it may. The limits
//! bound what a reader must hold for one transaction, whatever a file claims.

use super::SnapshotError;
use apus_chain::{OutPoint, Txid, vout_order};

/// Serialized bytes of a block without witnesses (Core `consensus/consensus.h`,
/// `MAX_BLOCK_WEIGHT / WITNESS_SCALE_FACTOR`), so also of a transaction's outputs.
const OUTPUT_BYTES_MAX: u64 = 1_000_000;

/// An output with an empty script: amount and script length.
const OUTPUT_BYTES_MIN: u64 = 9;

/// More outputs than any transaction can have, since the smallest take 9 bytes of a block's
/// 1,000,000.
pub const OUTPUTS_MAX: u64 = OUTPUT_BYTES_MAX / OUTPUT_BYTES_MIN;

/// Where a snapshot stands.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    /// Coins still to come, of all that the header states.
    coins_left: u64,
    txid: Option<Txid>,
    /// Coins still to come in this transaction.
    group_left: u64,
    last_vout: Option<u32>,
    /// Bytes that further outputs of this transaction can take.
    bytes_left: u64,
}

impl Sequence {
    pub(super) fn new(coins: u64) -> Self {
        Self { coins_left: coins, txid: None, group_left: 0, last_vout: None, bytes_left: 0 }
    }

    pub(super) fn coins_left(&self) -> u64 {
        self.coins_left
    }

    /// The transaction whose coins are still to come.
    pub(super) fn open_group(&self) -> Option<Txid> {
        self.txid.filter(|_| self.group_left > 0)
    }

    /// A transaction begins; the one before must be complete.
    pub(super) fn begin(
        &mut self,
        offset: u64,
        txid: Txid,
        count: u64,
    ) -> Result<(), SnapshotError> {
        if let Some(previous) = self.txid
            && txid <= previous
        {
            return Err(SnapshotError::TxidOrder { offset, txid, previous });
        }
        let limit = self.coins_left.min(OUTPUTS_MAX);
        if count == 0 || count > limit {
            return Err(SnapshotError::GroupCount { offset, txid, count, limit });
        }
        *self = Self {
            coins_left: self.coins_left,
            txid: Some(txid),
            group_left: count,
            last_vout: None,
            bytes_left: OUTPUT_BYTES_MAX,
        };
        Ok(())
    }

    /// Whether this output may come next in the transaction.
    pub(super) fn check_vout(
        &self,
        offset: u64,
        txid: Txid,
        vout: u64,
    ) -> Result<OutPoint, SnapshotError> {
        if vout >= OUTPUTS_MAX {
            return Err(SnapshotError::Vout { offset, txid, vout });
        }
        let outpoint = OutPoint { txid, vout: vout as u32 };
        match self.last_vout {
            Some(previous) if vout_order(previous, outpoint.vout).is_ge() => {
                Err(SnapshotError::VoutOrder { offset, outpoint, previous })
            }
            _ => Ok(outpoint),
        }
    }

    /// An output that was checked has its coin; `script_bytes` is the length of the script, or 0
    /// where that is not known.
    pub(super) fn coin(
        &mut self,
        offset: u64,
        outpoint: OutPoint,
        script_bytes: usize,
    ) -> Result<(), SnapshotError> {
        let bytes = OUTPUT_BYTES_MIN + script_bytes as u64;
        self.bytes_left = self
            .bytes_left
            .checked_sub(bytes)
            .ok_or(SnapshotError::GroupSize { offset, txid: outpoint.txid })?;
        self.last_vout = Some(outpoint.vout);
        self.group_left -= 1;
        self.coins_left -= 1;
        Ok(())
    }
}
