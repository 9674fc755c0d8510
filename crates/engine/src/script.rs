//! Running scripts: the one place that knows an interpreter.
//!
//! With the feature `kernel` that is Bitcoin Core's own, out of its kernel library; without it
//! there is none, and asking for one is an error. Nothing here decides which rules hold: callers
//! bring the flags.

mod interpreter;
#[cfg(feature = "kernel")]
mod kernel;
pub mod pool;
#[cfg(feature = "kernel")]
mod verify;

pub use interpreter::{Interpreter, NoInterpreter, PreparedTx, Refusal, SCRIPT_ERRORS};
pub use pool::{RawBlock, RawTx, ScriptBatch, ScriptFailure, ScriptPool, ScriptPoolError, Verdict};

use apus_chain::ScriptVerifier;
use std::sync::Arc;

/// The interpreter of this build, for one input at a time.
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    #[cfg(feature = "kernel")]
    return Ok(Box::new(kernel::KernelInterpreter));
    #[cfg(not(feature = "kernel"))]
    Err(NoInterpreter)
}

/// The same for whole transactions.
pub fn interpreter() -> Result<Arc<dyn Interpreter>, NoInterpreter> {
    #[cfg(feature = "kernel")]
    return Ok(Arc::new(kernel::KernelInterpreter));
    #[cfg(not(feature = "kernel"))]
    Err(NoInterpreter)
}

#[cfg(test)]
mod tests;
