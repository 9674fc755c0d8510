//! [`ScriptPool`]: threads that run the scripts of blocks.
//!
//! A batch is the scripts of one block. Several may be in progress, and the oldest has priority.
//! Its verdict does not depend on the number of threads or on timing: of all failed inputs, the
//! pool reports the first one in the block. It skips an input only if an earlier one has failed, or
//! if the caller no longer waits for the verdict.
//!
//! With [`SignatureMode::Fast`], signature checks wait for a prover that proves many at once, of
//! several batches. An input passes only if each check to which its scripts got yes is proven or
//! libsecp256k1 says yes to it; only libsecp256k1 refuses an input.
//!
//! Memory: a waiting transaction holds its position in the block's bytes and the coins that it
//! spends. Each thread holds one group of small transactions or one large one in the interpreter's
//! form, because the parts of a large one are run before everything else of its batch. So a batch
//! is bounded by its block; the caller limits the number of blocks in progress. Deferred checks take
//! up to 5 MiB more in each thread, and the prover's tables.

mod queue;
mod undecided;
mod work;
mod worker;

pub use work::{RawBlock, RawTx, ScriptFailure};

use super::interpreter;
use super::interpreter::{Interpreter, NoInterpreter};
use super::recorded::{NewProver, SignatureCounts, SignatureMode};
use super::signatures::Signatures;
use crate::coin::CoinBytes;
use apus_chain::KnownBlock;
use queue::ScriptQueue;
use std::sync::Arc;
use std::thread::JoinHandle;
use work::{PIECE_COST, ScriptJob, ScriptTicket, ScriptTx};

/// Why the pool could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ScriptPoolError {
    /// This build cannot run scripts.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
    /// The system could not start a thread.
    #[error("cannot start script thread {number} of {threads}: {error}. Use fewer threads (--par)")]
    Thread {
        /// Its number, from 1.
        number: usize,
        /// Number of threads requested.
        threads: usize,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Threads that only run scripts. Dropping it ends them, each after its current piece of work; the
/// caller that waits for a verdict then runs the rest of its batch.
pub struct ScriptPool {
    queue: Arc<ScriptQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl ScriptPool {
    /// Starts threads that run scripts with this build's interpreter. Without threads, the callers
    /// that wait for verdicts do all the work.
    pub fn new(threads: usize) -> Result<Self, ScriptPoolError> {
        Self::with_interpreter(threads, interpreter()?)
    }

    /// Starts threads that run scripts with the caller's interpreter.
    pub fn with_interpreter(
        threads: usize,
        interpreter: Arc<dyn Interpreter>,
    ) -> Result<Self, ScriptPoolError> {
        Self::start(threads, interpreter, Arc::default())
    }

    /// Starts threads that check signatures as requested. Each thread creates a prover when it first
    /// needs one.
    pub fn with_prover(
        threads: usize,
        interpreter: Arc<dyn Interpreter>,
        mode: SignatureMode,
        new_prover: Arc<NewProver>,
    ) -> Result<Self, ScriptPoolError> {
        Self::start(threads, interpreter, Arc::new(Signatures::with_prover(mode, new_prover)))
    }

    pub(super) fn start(
        threads: usize,
        interpreter: Arc<dyn Interpreter>,
        signatures: Arc<Signatures>,
    ) -> Result<Self, ScriptPoolError> {
        let queue = Arc::new(ScriptQueue::new(interpreter, signatures));
        let mut pool = Self { queue, threads: Vec::new() };
        for number in 1..=threads {
            let queue = Arc::clone(&pool.queue);
            let thread = std::thread::Builder::new()
                .name(format!("scripts-{number}"))
                .spawn(move || queue.serve())
                .map_err(|error| ScriptPoolError::Thread { number, threads, error })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Returns how signatures were checked so far, except in work that is in progress, by all pools of
    /// its [`Signatures`].
    pub fn signature_counts(&self) -> SignatureCounts {
        self.queue.signatures().counts()
    }

    /// Opens the batch of a block, whose scripts are run under the rules that `flags` enable
    /// ([`Params::block_script_flags`](apus_chain::Params::block_script_flags)).
    pub fn begin(&self, block: KnownBlock, flags: u32) -> ScriptBatch {
        ScriptBatch::new(Arc::clone(&self.queue), block, flags)
    }
}

impl Drop for ScriptPool {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A thread never panics: it catches panics of the work.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ScriptPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Keeps a batch on the queue's list while the caller holds the batch or its verdict.
struct BatchListing {
    queue: Arc<ScriptQueue>,
    ticket: Arc<ScriptTicket>,
}

impl Drop for BatchListing {
    fn drop(&mut self) {
        self.queue.remove(&self.ticket);
    }
}

/// A batch that is still growing. Its scripts run as soon as they are added. Dropping it skips
/// everything that is not running yet.
#[must_use = "dropping a batch cancels it"]
pub struct ScriptBatch {
    listed: BatchListing,
    /// Small transactions that are sent together.
    group: Vec<ScriptTx>,
    group_cost: usize,
}

impl ScriptBatch {
    fn new(queue: Arc<ScriptQueue>, block: KnownBlock, flags: u32) -> Self {
        let ticket = queue.open(flags, block);
        Self { listed: BatchListing { queue, ticket }, group: Vec::new(), group_cost: 0 }
    }

    /// Adds the scripts of a transaction. `tx_index` is its index in the block, which orders
    /// failures; `spent` has the output that each input spends, in input order. A coinbase has no
    /// scripts to run and must not be added.
    pub fn add(&mut self, tx_index: usize, raw_tx: RawTx, spent: Vec<CoinBytes>) {
        if self.listed.ticket.is_skippable(tx_index, 0) {
            return;
        }
        let tx = ScriptTx { index: tx_index, raw: raw_tx, spent };
        self.group_cost = self.group_cost.saturating_add(tx.cost());
        self.group.push(tx);
        if self.group_cost >= PIECE_COST {
            self.send();
        }
    }

    /// Marks the batch as complete. The scripts continue to run.
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

/// The future verdict of a batch. Dropping it skips everything that is not running yet.
#[must_use = "wait for the verdict: a batch may be invalid"]
pub struct Verdict {
    listed: BatchListing,
}

impl Verdict {
    /// Helps to run the batch until it is finished. Fails with the first rejected input in block
    /// order.
    pub fn wait(self) -> Result<(), ScriptFailure> {
        self.listed.queue.help(&self.listed.ticket)
    }
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verdict").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod deferral_tests;
#[cfg(test)]
mod tests;
