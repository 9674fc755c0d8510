//! Running scripts: the only module that knows an interpreter.
//!
//! With the feature `kernel` it is Bitcoin Core's own, from its kernel library; without it there is
//! no interpreter, and requesting one is an error. Callers supply the flags: this module does not
//! decide which rules apply.

#[cfg(feature = "kernel")]
mod curve;
pub mod hints;
mod interpreter;
#[cfg(feature = "kernel")]
mod kernel;
pub mod pool;
mod recorded;
mod signatures;
#[cfg(feature = "kernel")]
mod verify;

#[cfg(feature = "kernel")]
pub use curve::{ProverChoice, signature_prover};
pub use interpreter::{Interpreter, NoInterpreter, PreparedTx, Refusal, SCRIPT_ERRORS};
pub use pool::{RawBlock, RawTx, ScriptBatch, ScriptFailure, ScriptPool, ScriptPoolError, Verdict};
pub use recorded::{
    CheckPlace, CheckRoom, KnownChecks, NewProver, NoProver, RParity, RecordedCheck,
    SignatureCounts, SignatureKind, SignatureMode, SignatureProver,
};

pub use signatures::Signatures;

use apus_chain::ScriptVerifier;
use std::sync::Arc;

/// How many signatures a thread verifies at a time, each on its own: 1 if libsecp256k1 does, 4 with AVX2, 8 with AVX-512
/// IFMA.
#[must_use]
pub fn signature_lanes() -> u32 {
    #[cfg(feature = "kernel")]
    let lanes = curve::lanes();
    #[cfg(not(feature = "kernel"))]
    let lanes = 1;
    lanes
}

/// Returns the interpreter of this build, for one input at a time.
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    #[cfg(feature = "kernel")]
    return Ok(Box::new(kernel::KernelInterpreter));
    #[cfg(not(feature = "kernel"))]
    Err(NoInterpreter)
}

/// Returns the interpreter of this build, for whole transactions.
pub fn interpreter() -> Result<Arc<dyn Interpreter>, NoInterpreter> {
    #[cfg(feature = "kernel")]
    return Ok(Arc::new(kernel::KernelInterpreter));
    #[cfg(not(feature = "kernel"))]
    Err(NoInterpreter)
}

#[cfg(test)]
mod tests;
