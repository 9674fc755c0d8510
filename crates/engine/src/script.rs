//! Running scripts: the one place that knows an interpreter.
//!
//! With the feature `kernel` that is Bitcoin Core's own, out of its kernel library; without it
//! there is none, and asking for one is an error. Nothing here decides which rules hold: callers
//! bring the flags.

mod error_text;
mod interpreter;
#[cfg(feature = "kernel")]
mod kernel;
pub mod pool;
#[cfg(feature = "kernel")]
mod verify;

pub use error_text::SCRIPT_ERRORS;
pub use interpreter::{Interpreter, NoInterpreter, PreparedTx, Refusal, interpreter};
pub use pool::{RawBlock, RawTx, ScriptBatch, ScriptFailure, ScriptPool, ScriptPoolError, Verdict};

use apus_chain::ScriptVerifier;

/// The interpreter of this build, for one input at a time.
#[cfg(feature = "kernel")]
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    Ok(Box::new(kernel::KernelInterpreter))
}

/// The interpreter of this build: there is none.
#[cfg(not(feature = "kernel"))]
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    Err(NoInterpreter)
}

#[cfg(test)]
mod tests;
