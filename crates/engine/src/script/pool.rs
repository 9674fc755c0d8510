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

mod batch;
mod queue;
mod work;

pub use batch::{ScriptBatch, Verdict};
pub use work::{RawBlock, RawTx};

use super::interpreter::{Interpreter, NoInterpreter, interpreter};
use apus_chain::ScriptError;
use queue::ScriptQueue;
use std::sync::Arc;
use std::thread::JoinHandle;

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

/// Why a block's scripts are not accepted: the first input that is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}, transaction {tx_index}, input {input}", self.reason())]
pub struct ScriptFailure {
    /// Which transaction, as its adder numbered it.
    pub tx_index: usize,
    /// Which of its inputs. The first, if the whole transaction could not be read.
    pub input: usize,
    /// Whether the answer is no, or there is none: then the block is neither valid nor invalid, and
    /// the caller cannot go on.
    pub error: ScriptError,
    /// The words that Core has for it, where the interpreter told.
    pub name: Option<&'static str>,
}

impl ScriptFailure {
    /// Core's reason for refusing the block, without the name of the rule where none is known; or
    /// why the scripts could not be run.
    pub fn reason(&self) -> String {
        const REASON: &str = "block-script-verify-flag-failed";
        match (&self.error, self.name) {
            (ScriptError::Invalid, Some(name)) => format!("{REASON} ({name})"),
            (ScriptError::Invalid, None) => REASON.to_owned(),
            (setup @ ScriptError::Setup(_), _) => setup.to_string(),
        }
    }
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

#[cfg(test)]
mod tests;
