//! [`Signatures`]: how the script pools of a sync check signatures, and how they did so far.

#[cfg(feature = "kernel")]
use super::curve::ProverChoice;
use super::hints::{
    BlockHints, SignatureHintsError, SignatureHintsReader, SignatureHintsSummary,
    SignatureHintsWriter,
};
use super::interpreter;
use super::pool::{ScriptPool, ScriptPoolError};
use super::recorded::{NewProver, NoProver, SignatureCounts, SignatureMode, SignatureProver};
use apus_chain::{BlockHash, Height, KnownBlock};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// After this many wrong hints, hints are no longer used if wrong ones are a large part of all.
const WRONG_HINTS: u64 = 1000;
/// A large part: one in this many.
const WRONG_PART: u64 = 8;

/// How pools check signatures. All pools of a sync share one, so that it can report their counts.
pub struct Signatures {
    mode: SignatureMode,
    is_fallback: bool,
    new_prover: Arc<NewProver>,
    proves_without_hints: bool,
    /// Whether a check that waits alone is left to libsecp256k1.
    leaves_one: bool,
    hints: Option<SignatureHintsReader>,
    ignores_hints: AtomicBool,
    learned: Option<SignatureHintsWriter>,
    /// Why it could not write.
    learn_error: Mutex<Option<SignatureHintsError>>,
    counts: Mutex<SignatureCounts>,
}

impl Default for Signatures {
    /// libsecp256k1 checks each signature.
    fn default() -> Self {
        Self::with_prover(SignatureMode::Libsecp256k1, Arc::new(|| Box::new(NoProver)))
    }
}

impl Signatures {
    /// Checks signatures as requested; or with libsecp256k1 alone if no kernel passes its self-test on this
    /// machine.
    pub fn new(mode: SignatureMode) -> Self {
        #[cfg(feature = "kernel")]
        if let Some(choice) = super::signature_prover(mode) {
            let ProverChoice { new_prover, proves_without_hints } = choice;
            // Lanes take as long for one check as for four, and longer than libsecp256k1 takes for one.
            let leaves_one = mode == SignatureMode::Fast;
            let checks = Self::with_prover(mode, new_prover);
            return Self { proves_without_hints, leaves_one, ..checks };
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
        Self {
            mode,
            is_fallback: false,
            new_prover,
            proves_without_hints: true,
            leaves_one: false,
            hints: None,
            ignores_hints: AtomicBool::new(false),
            learned: None,
            learn_error: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// Uses hints, which may be wrong.
    pub fn with_hints(self, hints: SignatureHintsReader) -> Self {
        Self { hints: Some(hints), ..self }
    }

    /// Writes what is learned as hints for a later run.
    pub fn learning(self, learned: SignatureHintsWriter) -> Self {
        Self { learned: Some(learned), leaves_one: false, ..self }
    }

    /// Returns the hints in use.
    pub fn hints(&self) -> Option<&SignatureHintsReader> {
        self.hints.as_ref()
    }

    /// Returns whether hints are no longer used, because too many were wrong.
    pub fn ignores_hints(&self) -> bool {
        self.ignores_hints.load(Ordering::Relaxed)
    }

    /// Returns whether a check that waits alone is left to libsecp256k1, which is faster.
    pub(super) fn leaves_one(&self) -> bool {
        self.leaves_one
    }

    /// Returns whether ECDSA signatures are proven many at once without hints, too.
    pub fn proves_without_hints(&self) -> bool {
        self.proves_without_hints
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
        *self.counts.lock()
    }

    /// Starts threads that run scripts with this build's interpreter. Without threads, the callers that wait for
    /// verdicts do all the work.
    pub fn pool(self: &Arc<Self>, threads: usize) -> Result<ScriptPool, ScriptPoolError> {
        ScriptPool::start(threads, interpreter()?, Arc::clone(self))
    }

    pub(super) fn new_prover(&self) -> Box<dyn SignatureProver> {
        (self.new_prover)()
    }

    /// Completes the file of what was learned, if there is one: it covers the blocks up to this one.
    pub fn finish_learned(
        &self,
        height: Height,
        hash: &BlockHash,
    ) -> Result<Option<SignatureHintsSummary>, SignatureHintsError> {
        let Some(writer) = &self.learned else { return Ok(None) };
        self.learn_error.lock().take().map_or(Ok(()), Err)?;
        writer.finish(height, hash).map(Some)
    }

    pub(super) fn hints_of(&self, block: KnownBlock) -> BlockHints {
        let reader = self.hints.as_ref().filter(|_| !self.ignores_hints());
        let table = reader.and_then(|hints| hints.block(block.height, &block.hash));
        BlockHints::new(block, table, self.learned.is_some())
    }

    /// Keeps what was learned from a valid block.
    pub(super) fn keep_learned(&self, hints: &BlockHints) {
        if let Some(writer) = &self.learned
            && let Some((block, bits)) = hints.take_learned()
        {
            let failed = writer.add(block.height, &block.hash, &bits).err();
            let mut error = self.learn_error.lock();
            *error = error.take().or(failed);
        }
    }

    pub(super) fn count(&self, counts: SignatureCounts) {
        let mut all = self.counts.lock();
        *all += counts;
        let part = all.hinted.saturating_add(all.wrong_hints) / WRONG_PART;
        if all.wrong_hints >= WRONG_HINTS.max(part) {
            self.ignores_hints.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signatures").field("mode", &self.mode).finish_non_exhaustive()
    }
}
