//! [`ScriptBatch`] and [`Verdict`]: a block's scripts on their way in, and the answer.

use super::ScriptFailure;
use super::queue::ScriptQueue;
use super::work::{PIECE_COST, RawTx, ScriptJob, ScriptTicket, ScriptTx};
use crate::coin::CoinBytes;
use std::sync::Arc;

/// Holds a batch on the queue's list while the caller has it or its verdict.
struct Listed {
    queue: Arc<ScriptQueue>,
    ticket: Arc<ScriptTicket>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.queue.strike(&self.ticket);
    }
}

/// A batch that still grows. Its scripts run from the moment they are added. Dropping it leaves out
/// what is not running yet.
#[must_use = "dropping a batch cancels it"]
pub struct ScriptBatch {
    listed: Listed,
    /// Small transactions that go out together.
    group: Vec<ScriptTx>,
    group_cost: usize,
}

impl ScriptBatch {
    pub(super) fn new(queue: Arc<ScriptQueue>, flags: u32) -> Self {
        let ticket = queue.open(flags);
        Self { listed: Listed { queue, ticket }, group: Vec::new(), group_cost: 0 }
    }

    /// Adds the scripts of a transaction. `tx_index` is its place in the block, which orders
    /// failures; `spent` has the output that each input spends, in the order of the inputs. A
    /// coinbase has no scripts to run and must not be added.
    pub fn add(&mut self, tx_index: usize, raw_tx: RawTx, spent: Vec<CoinBytes>) {
        if self.listed.ticket.is_moot(tx_index, 0) {
            return;
        }
        let tx = ScriptTx { index: tx_index, raw: raw_tx, spent };
        self.group_cost = self.group_cost.saturating_add(tx.cost());
        self.group.push(tx);
        if self.group_cost >= PIECE_COST {
            self.send();
        }
    }

    /// Says that this was all. The scripts go on running.
    pub fn finish(mut self) -> Verdict {
        if !self.group.is_empty() {
            self.send();
        }
        self.listed.queue.complete(&self.listed.ticket);
        Verdict { listed: self.listed }
    }

    fn send(&mut self) {
        self.group_cost = 0;
        let group = ScriptJob::Group(std::mem::take(&mut self.group));
        self.listed.queue.add(&self.listed.ticket, group);
    }
}

impl std::fmt::Debug for ScriptBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptBatch")
            .field("flags", &self.listed.ticket.flags)
            .finish_non_exhaustive()
    }
}

/// The answer to a batch, once it is there. Dropping it leaves out what is not running yet.
#[must_use = "nothing is known of a batch until its verdict is waited for"]
pub struct Verdict {
    listed: Listed,
}

impl Verdict {
    /// Waits until all is run, and helps meanwhile. Fails with the first input, in the order of the
    /// block, that is not accepted.
    pub fn wait(self) -> Result<(), ScriptFailure> {
        self.listed.queue.help(&self.listed.ticket)
    }
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verdict").finish_non_exhaustive()
    }
}
