//! [`Signatures`]: how the script pools of a sync check signatures, and how they did so far.

use super::interpreter;
use super::pool::{ScriptPool, ScriptPoolError};
use super::recorded::{NewProver, NoProver, SignatureCounts, SignatureMode, SignatureProver};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// How pools check signatures. All pools of a sync share one, so that it can report their counts.
pub struct Signatures {
    mode: SignatureMode,
    is_fallback: bool,
    new_prover: Arc<NewProver>,
    counts: Mutex<SignatureCounts>,
}

impl Default for Signatures {
    /// libsecp256k1 checks each signature.
    fn default() -> Self {
        Self::with_prover(SignatureMode::Libsecp256k1, Arc::new(|| Box::new(NoProver)))
    }
}

impl Signatures {
    /// Checks signatures as requested; or with libsecp256k1 alone if this machine has no kernel that is
    /// faster, or none that passes its self-test.
    pub fn new(mode: SignatureMode) -> Self {
        #[cfg(feature = "kernel")]
        if let Some(new_prover) = super::signature_prover(mode) {
            return Self::with_prover(mode, new_prover);
        }
        Self { is_fallback: mode != SignatureMode::Libsecp256k1, ..Self::default() }
    }

    /// Returns checks with libsecp256k1 alone. All callers share their counts, which stay 0.
    pub fn libsecp256k1() -> &'static Arc<Self> {
        static SIGNATURES: LazyLock<Arc<Signatures>> = LazyLock::new(Arc::default);
        &SIGNATURES
    }

    /// Checks signatures with the provers of the caller.
    pub fn with_prover(mode: SignatureMode, new_prover: Arc<NewProver>) -> Self {
        Self { mode, is_fallback: false, new_prover, counts: Mutex::default() }
    }

    /// Returns the mode. It is [`SignatureMode::Libsecp256k1`] where [`Self::new`] found nothing faster.
    pub fn mode(&self) -> SignatureMode {
        self.mode
    }

    /// Returns whether [`Self::new`] found nothing faster than libsecp256k1.
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// Returns whether this process has found that its arithmetic is wrong, and proves nothing any more.
    pub fn are_faulty() -> bool {
        #[cfg(feature = "kernel")]
        return apus_curve::is_faulty();
        #[cfg(not(feature = "kernel"))]
        false
    }

    /// Returns how signatures were checked so far, except in work that is in progress.
    pub fn counts(&self) -> SignatureCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts threads that run scripts with this build's interpreter. Without threads, the callers that wait for
    /// verdicts do all the work.
    pub fn pool(self: &Arc<Self>, threads: usize) -> Result<ScriptPool, ScriptPoolError> {
        ScriptPool::start(threads, interpreter()?, Arc::clone(self))
    }

    pub(super) fn new_prover(&self) -> Box<dyn SignatureProver> {
        (self.new_prover)()
    }

    pub(super) fn count(&self, counts: SignatureCounts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) += counts;
    }
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("mode", &self.mode).finish_non_exhaustive()
    }
}
