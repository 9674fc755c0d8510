//! [`Room`]: what a block still holds, and what transactions take of it.
//!
//! Sizes are taken at their greatest, so that what fits does so whatever the signatures turn out
//! to be. What a coinbase needs is set aside.

use super::keys::{Keyring, Script};
use super::law::{Kind, Wanted};

/// Weight of what is no transaction of a plan: header, counts and a coinbase with one payment.
const BLOCK_OVERHEAD: u64 = 2_000;
/// What a block may cost in signature operations (Core `consensus/consensus.h`,
/// `MAX_BLOCK_SIGOPS_COST`), less what a coinbase may.
const SIGOPS_COST_MAX: u64 = 80_000 - 400;
/// Weight of a transaction without inputs and outputs, either fewer than 253, and of the marker
/// and the flag of its witness.
const TX_OVERHEAD: u64 = 4 * (4 + 1 + 1 + 4) + 2;
/// Further weight of a count that is no less than that.
const LONG_COUNT: u64 = 4 * 2;

/// What is left of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Weight units.
    pub(super) weight: u64,
    sigops: u64,
}

/// What something takes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    weight: u64,
    sigops: u64,
}

impl Room {
    /// All of a block's.
    pub(super) fn new(block_weight: u32) -> Self {
        let weight = u64::from(block_weight).saturating_sub(BLOCK_OVERHEAD);
        Self { weight, sigops: SIGOPS_COST_MAX }
    }

    /// Takes what something costs; nothing if there is not enough.
    pub(super) fn take(&mut self, cost: Cost) -> Option<()> {
        let weight = self.weight.checked_sub(cost.weight)?;
        let sigops = self.sigops.checked_sub(cost.sigops)?;
        *self = Self { weight, sigops };
        Some(())
    }

    /// Undoes a [`take`](Self::take).
    pub(super) fn give_back(&mut self, cost: Cost) {
        self.weight += cost.weight;
        self.sigops += cost.sigops;
    }
}

#[cfg(test)]
impl Room {
    /// Signature operations that were taken.
    pub(super) fn sigops_taken(&self) -> u64 {
        SIGOPS_COST_MAX - self.sigops
    }
}

/// A transaction but for its inputs and payments.
pub(super) fn of_transaction(wanted: &Wanted) -> Cost {
    let long = u64::from(wanted.inputs >= 253) + u64::from(wanted.payments + 1 >= 253);
    let data = wanted.data.map_or(0, |len| 4 * (8 + 1 + 2 + u64::from(len)));
    Cost { weight: TX_OVERHEAD + long * LONG_COUNT + data, sigops: 0 }
}

/// An output that pays to a script.
///
/// Core counts what scripts of outputs would cost without looking at what they say of their keys
/// (`consensus/tx_verify.cpp`, `GetLegacySigOpCount`), four times over.
pub(super) fn of_payment(keys: &Keyring, script: Script) -> Cost {
    let sigops = match script.kind {
        Kind::Pkh | Kind::Pk => 4,
        Kind::Multisig => 4 * 20,
        _ => 0,
    };
    Cost { weight: 4 * (8 + 1 + keys.lock(script).script_pubkey.len() as u64), sigops }
}

/// An input that spends a script, its part of the witness included; the operations by Core
/// `script/interpreter.cpp`, `WitnessSigOps`.
pub(super) fn of_spend(keys: &Keyring, script: Script) -> Cost {
    let rest: u64 = keys.lock(script).rest.iter().map(|bytes| bytes.len() as u64 + 1).sum();
    let (script_sig, witness, sigops) = match script.kind {
        Kind::Wpkh => (0, 1 + 73 + rest, 1),
        Kind::ShWpkh => (23, 1 + 73 + 34, 1),
        Kind::Tr => (0, 1 + 65, 0),
        // The leaf can be long enough for a length of three bytes.
        Kind::TrScript => (0, 1 + 65 + rest + 2, 0),
        Kind::Wsh => (0, 1 + 1 + 2 * 73 + rest, 3),
        Kind::Pkh => (73 + 34, 1, 0),
        Kind::Multisig => (1 + 73, 1, 0),
        Kind::Pk => (73, 1, 0),
    };
    Cost { weight: 4 * (36 + 1 + script_sig + 4) + witness, sigops }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_never_overdrawn() {
        let mut room = Room::new(4_000_000);
        let all = room;
        let cost = Cost { weight: 1_000_000, sigops: 30_000 };
        assert_eq!(room.take(cost), Some(()));
        assert_eq!(room.take(cost), Some(()));
        let before = room;
        assert_eq!(room.take(cost), None, "there is weight left, but no signature operations");
        assert_eq!(room.take(Cost { weight: 2_000_000, sigops: 0 }), None);
        assert_eq!(room, before);
        room.give_back(cost);
        room.give_back(cost);
        assert_eq!(room, all);
    }
}
