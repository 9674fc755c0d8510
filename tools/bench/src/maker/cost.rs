//! [`BlockRoom`]: the room left in a block while it is planned, and what takes it.
//!
//! Assumes maximum sizes, so that everything fits with any signatures. Reserves room for the coinbase.

use super::keys::{KeyScript, Keyring};
use super::law::{PaymentKind, WantedTx};

/// Weight outside planned transactions: header, counts and a coinbase with one payment.
const BLOCK_OVERHEAD: u64 = 2_000;
/// Maximum signature operation cost of a block (Core `consensus/consensus.h`, `MAX_BLOCK_SIGOPS_COST`), minus
/// that of a coinbase.
const SIGOPS_COST_MAX: u64 = 80_000 - 400;
/// Bytes of a transaction without inputs and outputs, with fewer than 253 of each.
const TX_OVERHEAD: u64 = 4 + 1 + 1 + 4;
/// The marker and the flag of its witness.
const WITNESS_MARK: u64 = 2;
/// Additional bytes of a count of 253 or more.
const LONG_COUNT: u64 = 2;

/// The room left in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRoom {
    /// Weight units.
    pub(super) weight: u64,
    sigops: u64,
    /// Bytes taken.
    pub(super) bytes: u64,
}

/// The cost of something in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockCost {
    weight: u64,
    sigops: u64,
    bytes: u64,
}

impl BlockCost {
    /// The cost of bytes outside and inside a witness.
    const fn of(base: u64, witness: u64, sigops: u64) -> Self {
        Self { weight: 4 * base + witness, sigops, bytes: base + witness }
    }
}

impl BlockRoom {
    /// A whole block's room.
    pub(super) fn new(block_weight: u32) -> Self {
        let weight = u64::from(block_weight).saturating_sub(BLOCK_OVERHEAD);
        Self { weight, sigops: SIGOPS_COST_MAX, bytes: 0 }
    }

    /// Takes the cost; takes nothing and returns `None` if there is not enough room.
    pub(super) fn take(&mut self, cost: BlockCost) -> Option<()> {
        let weight = self.weight.checked_sub(cost.weight)?;
        let sigops = self.sigops.checked_sub(cost.sigops)?;
        *self = Self { weight, sigops, bytes: self.bytes + cost.bytes };
        Some(())
    }

    /// Undoes a [`take`](Self::take).
    pub(super) fn give_back(&mut self, cost: BlockCost) {
        self.weight += cost.weight;
        self.sigops += cost.sigops;
        self.bytes -= cost.bytes;
    }
}

#[cfg(test)]
impl BlockRoom {
    /// Signature operations taken so far.
    pub(super) fn sigops_taken(&self) -> u64 {
        SIGOPS_COST_MAX - self.sigops
    }
}

/// A transaction without its inputs and payments.
pub(super) fn of_transaction(wanted: &WantedTx) -> BlockCost {
    let long = u64::from(wanted.inputs >= 253) + u64::from(wanted.payments + 1 >= 253);
    let data = wanted.data.map_or(0, |len| 8 + 1 + 2 + u64::from(len));
    BlockCost::of(TX_OVERHEAD + long * LONG_COUNT + data, WITNESS_MARK, 0)
}

/// An output that pays to a script.
///
/// Core counts the cost of an output's script without evaluating its key counts (`consensus/tx_verify.cpp`,
/// `GetLegacySigOpCount`), times four.
pub(super) fn of_payment(keys: &Keyring, script: KeyScript) -> BlockCost {
    let sigops = match script.kind {
        PaymentKind::Pkh | PaymentKind::Pk | PaymentKind::PkhLong | PaymentKind::PkLong => 4,
        PaymentKind::Multisig => 4 * 20,
        _ => 0,
    };
    BlockCost::of(8 + 1 + keys.lock(script).script_pubkey.len() as u64, 0, sigops)
}

/// An input that spends a script, including its part of the witness; the operations by Core
/// `script/interpreter.cpp`, `WitnessSigOps`.
pub(super) fn of_spend(keys: &Keyring, script: KeyScript) -> BlockCost {
    let rest: u64 = keys.lock(script).rest.iter().map(|bytes| bytes.len() as u64 + 1).sum();
    let (script_sig, witness, sigops) = match script.kind {
        PaymentKind::Wpkh => (0, 1 + 73 + rest, 1),
        PaymentKind::ShWpkh => (23, 1 + 73 + 34, 1),
        PaymentKind::Tr => (0, 1 + 65, 0),
        // The leaf can be long enough for a length of five bytes.
        PaymentKind::TrScript => match script.image_bytes() {
            Some(len) => (0, 1 + 65 + len as u64 + 5 + 34, 0),
            None => (0, 1 + 65 + rest + 2, 0),
        },
        PaymentKind::Wsh => (0, 1 + 1 + 2 * 73 + rest, 3),
        PaymentKind::Pkh => (73 + 34, 1, 0),
        PaymentKind::Multisig => (1 + 73, 1, 0),
        PaymentKind::Pk | PaymentKind::PkLong => (73, 1, 0),
        PaymentKind::PkhLong => (73 + 66, 1, 0),
        // The last push and the whole script are long enough for one more byte, and two more.
        PaymentKind::Sh => (1 + 2 * 73 + rest + 1 + 2, 1, 4 * 3),
    };
    BlockCost::of(36 + 1 + script_sig + 4, witness, sigops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_never_overdrawn() {
        let mut room = BlockRoom::new(4_000_000);
        let all = room;
        let cost = BlockCost { weight: 1_000_000, sigops: 30_000, bytes: 250_000 };
        assert_eq!(room.take(cost), Some(()));
        assert_eq!(room.take(cost), Some(()));
        let before = room;
        assert_eq!(room.bytes, 500_000);
        assert_eq!(room.take(cost), None, "weight is left, but no signature operations");
        assert_eq!(room.take(BlockCost::of(500_000, 0, 0)), None);
        assert_eq!(room, before);
        room.give_back(cost);
        room.give_back(cost);
        assert_eq!(room, all);
    }
}
