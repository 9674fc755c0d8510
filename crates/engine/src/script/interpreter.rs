//! [`Interpreter`]: what runs the scripts of whole transactions.
//!
//! A transaction is prepared once, together with every output that it spends, and its inputs are
//! then verified in any order by any thread. Nothing is remembered from one input to the next.

use crate::coin::CoinBytes;
use apus_chain::ScriptError;
use std::sync::Arc;

/// This build cannot run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "scripts cannot be run: this program was built without the kernel feature; build it with that \
     feature, as `cargo build --release -p apus` does"
)]
pub struct NoInterpreter;

/// Prepares transactions for their scripts to be run.
pub trait Interpreter: Send + Sync {
    /// Reads a serialized transaction and what all its inputs share. `spent` has the output that
    /// each input spends, in the order of the inputs. Every failure is a
    /// [`ScriptError::Setup`]: no script has run yet.
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError>;
}

/// A transaction with all outputs that it spends.
pub trait PreparedTx: Send + Sync {
    /// Fails unless this input may spend its output, under the rules that `flags` turn on.
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal>;
}

/// Why one input was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the answer is no, or there is none.
    pub error: ScriptError,
    /// The words that Core has for it, where the interpreter told: one of
    /// [`SCRIPT_ERRORS`](super::SCRIPT_ERRORS).
    pub name: Option<&'static str>,
}

impl From<ScriptError> for Refusal {
    fn from(error: ScriptError) -> Self {
        Self { error, name: None }
    }
}

/// The interpreter of this build, for whole transactions.
#[cfg(feature = "kernel")]
pub fn interpreter() -> Result<Arc<dyn Interpreter>, NoInterpreter> {
    Ok(Arc::new(super::kernel::KernelInterpreter))
}

/// The interpreter of this build: there is none.
#[cfg(not(feature = "kernel"))]
pub fn interpreter() -> Result<Arc<dyn Interpreter>, NoInterpreter> {
    Err(NoInterpreter)
}
