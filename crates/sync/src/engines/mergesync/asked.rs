//! [`AskedOutputs`]: outputs of a refused block, and what blocks below it did to them.

use super::judge::RefusedBlock;
use apus_chain::{BlockBytes, OutPoint};
use apus_engine::connect::coins_of;
use std::collections::HashSet;

/// Outputs of which it is asked whether they are in the set.
pub struct AskedOutputs(HashSet<OutPoint>);

impl AskedOutputs {
    /// Those that Core would have asked for before it refused a block.
    pub fn of(refused: &RefusedBlock) -> Self {
        Self(refused.asked_before.iter().map(|(_, outpoint)| *outpoint).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which of them a block makes (true) and spends, in its order. After all blocks in theirs, the one
    /// that was made last and not spent is in the set.
    pub fn touched(&self, block: &BlockBytes<'_>) -> Vec<(OutPoint, bool)> {
        let mut touched = Vec::new();
        for (number, (txid, tx)) in block.txs().enumerate() {
            let spent = tx.inputs().map(|input| (OutPoint::from_bytes(input.outpoint()), false));
            let made = coins_of(block.height(), txid, &tx, number == 0);
            let made = made.map(|(outpoint, _)| (outpoint, true));
            touched.extend(spent.chain(made).filter(|(outpoint, _)| self.0.contains(outpoint)));
        }
        touched
    }
}
