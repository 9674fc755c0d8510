//! [`CurveProver`]: proves recorded checks with `apus-curve`.

use super::recorded::{NewProver, RecordedCheck, SignatureKind, SignatureMode, SignatureProver};
use apus_curve::{Kernel, SignatureCheck, Verifier};
use std::sync::Arc;

/// Returns the prover for a mode; `None` if libsecp256k1 checks signatures alone, because it is requested
/// or faster on this machine.
pub fn signature_prover(mode: SignatureMode) -> Option<Arc<NewProver>> {
    let kernel = match mode {
        SignatureMode::Libsecp256k1 => return None,
        SignatureMode::Fast => Kernel::fastest_lanes()?,
        SignatureMode::Shadow => Kernel::fastest_lanes().unwrap_or(Kernel::Portable),
    };
    Some(Arc::new(move || Box::new(CurveProver::new(kernel))))
}

/// A verifier, and memory that it keeps between calls.
struct CurveProver {
    verifier: Verifier,
    checks: Vec<SignatureCheck>,
    answers: Vec<bool>,
}

impl CurveProver {
    fn new(kernel: Kernel) -> Self {
        Self { verifier: Verifier::new(kernel), checks: Vec::new(), answers: Vec::new() }
    }
}

/// Returns the check in the form of the arithmetic; `None` if it could not prove it.
fn check(recorded: &RecordedCheck) -> Option<SignatureCheck> {
    let (key, hash, signature) = (recorded.key(), recorded.hash(), recorded.signature());
    match recorded.kind() {
        SignatureKind::Ecdsa => SignatureCheck::ecdsa(key, hash, signature),
        SignatureKind::Schnorr => {
            Some(SignatureCheck::schnorr(key.try_into().ok()?, hash, signature.try_into().ok()?))
        }
    }
}

impl SignatureProver for CurveProver {
    fn prove(&mut self, recorded: &[RecordedCheck], proven: &mut Vec<bool>) {
        self.checks.clear();
        self.answers.clear();
        let checks = &mut self.checks;
        let is_asked = recorded.iter().map(|recorded| check(recorded).map(|it| checks.push(it)));
        let is_asked: Vec<bool> = is_asked.map(|asked| asked.is_some()).collect();
        self.verifier.verify(&self.checks, &mut self.answers);
        if self.answers.len() != self.checks.len() {
            // Which answer belongs to which check is unknown.
            self.answers.clear();
        }
        let mut answers = self.answers.iter();
        proven.extend(is_asked.iter().map(|asked| *asked && answers.next() == Some(&true)));
    }
}
