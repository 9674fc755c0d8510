//! [`ScriptPool`]: threads that run the scripts of blocks.
//!
//! A batch is the scripts of one block; several may be under way, and the oldest goes first. Its
//! verdict does not depend on the number of threads or on their timing: of all inputs that fail,
//! the one first in the block is reported. An input is left out only when one before it has failed,
//! or when the caller no longer waits for the verdict.
//!
//! What is held: of a transaction that waits, its place in the block's bytes and the coins it
//! spends; in the interpreter's form, one group of small transactions or one large one a thread,
//! since the parts of a large one go before everything else of its batch. A batch is thus bounded
//! by its block, and how many blocks are under way is up to the caller.

mod queue;
mod work;

pub use work::{RawBlock, RawTx, ScriptFailure};

use super::interpreter;
use super::interpreter::{Interpreter, NoInterpreter};
use crate::coin::CoinBytes;
use queue::ScriptQueue;
use std::sync::Arc;
use std::thread::JoinHandle;
use work::{PIECE_COST, ScriptJob, ScriptTicket, ScriptTx};

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum ScriptPoolError {
    /// This build cannot run scripts.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
    /// The system refused a thread.
    #[error(
        "thread {number} of {threads} to run scripts cannot be started: {error}; ask for fewer"
    )]
    Thread {
        /// Which one, from 1.
        number: usize,
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Threads that do nothing else. Dropping it ends them, each after the piece of work at hand; what
/// is left of a batch is then done by the caller that waits for its verdict.
pub struct ScriptPool {
    queue: Arc<ScriptQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl ScriptPool {
    /// Starts threads that run scripts with this build's interpreter. With none, all work is done
    /// by the callers that wait for verdicts.
    pub fn new(threads: usize) -> Result<Self, ScriptPoolError> {
        Self::with_interpreter(threads, interpreter()?)
    }

    /// Starts threads that run scripts with an interpreter of the caller's.
    pub fn with_interpreter(
        threads: usize,
        interpreter: Arc<dyn Interpreter>,
    ) -> Result<Self, ScriptPoolError> {
        let mut pool = Self { queue: Arc::new(ScriptQueue::new(interpreter)), threads: Vec::new() };
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

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Opens a batch whose scripts are run under the rules that `flags` turn on
    /// ([`Params::block_script_flags`](apus_chain::Params::block_script_flags)).
    pub fn begin(&self, flags: u32) -> ScriptBatch {
        ScriptBatch::new(Arc::clone(&self.queue), flags)
    }
}

impl Drop for ScriptPool {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A thread never panics: what it runs is caught.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ScriptPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

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
    fn new(queue: Arc<ScriptQueue>, flags: u32) -> Self {
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

#[cfg(test)]
mod tests;
