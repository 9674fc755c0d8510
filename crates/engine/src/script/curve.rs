//! [`CurveProver`]: proves recorded checks with `apus-curve`.

use super::recorded::{
    NewProver, RParity, RecordedCheck, SignatureKind, SignatureMode, SignatureProver,
};
use apus_curve::{Kernel, Parity, SignatureCheck, Verifier};
use std::sync::Arc;

/// A prover, and what it can do.
pub struct ProverChoice {
    /// Creates one for each thread.
    pub new_prover: Arc<NewProver>,
    /// Whether it proves ECDSA signatures without hints.
    pub proves_without_hints: bool,
}

/// See [`signature_lanes`](super::signature_lanes).
pub(super) fn lanes() -> u32 {
    match Kernel::fastest_lanes() {
        Some(Kernel::Avx512Ifma) => 8,
        Some(Kernel::Avx2) => 4,
        Some(Kernel::Portable) | None => 1,
    }
}

/// Returns the prover for a mode; `None` if libsecp256k1 checks signatures alone, because it is requested
/// or no kernel passes its self-test.
pub fn signature_prover(mode: SignatureMode) -> Option<ProverChoice> {
    if mode == SignatureMode::Libsecp256k1 || Kernel::available().is_empty() {
        return None;
    }
    let lanes = Kernel::fastest_lanes();
    let proves_without_hints = lanes.is_some() || mode == SignatureMode::Shadow;
    let verifier = move || match lanes {
        None if !proves_without_hints => Verifier::with_sums_only(Kernel::Portable),
        lanes => Verifier::new(lanes.unwrap_or(Kernel::Portable)),
    };
    let new_prover = Arc::new(move || -> Box<dyn SignatureProver> {
        Box::new(CurveProver { verifier: verifier(), checks: Vec::new(), answers: Vec::new() })
    });
    Some(ProverChoice { new_prover, proves_without_hints })
}

/// A verifier, and memory that it keeps between calls.
struct CurveProver {
    verifier: Verifier,
    checks: Vec<SignatureCheck>,
    answers: Vec<Option<Parity>>,
}

/// Returns the check in the form of the arithmetic; `None` if it could not prove it.
fn check(recorded: &RecordedCheck) -> Option<SignatureCheck> {
    let (key, hash, signature) = (recorded.key(), recorded.hash(), recorded.signature());
    match recorded.kind() {
        SignatureKind::Ecdsa => {
            let parity = |hint| match hint {
                RParity::Even => Parity::Even,
                RParity::Odd => Parity::Odd,
            };
            let check = SignatureCheck::ecdsa(key, hash, signature)?;
            Some(check.with_hint(recorded.hint().map(parity)))
        }
        SignatureKind::Schnorr => {
            Some(SignatureCheck::schnorr(key.try_into().ok()?, hash, signature.try_into().ok()?))
        }
    }
}

impl SignatureProver for CurveProver {
    fn prove(&mut self, recorded: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
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
        let mut next = || {
            let parity = answers.next().copied().flatten()?;
            Some(RParity::of_bit(parity == Parity::Odd))
        };
        let first = proven.len();
        proven.extend(is_asked.iter().map(|asked| asked.then(&mut next).flatten()));
        // Without lanes, a sum that failed does not say which hints were wrong.
        let is_summed = Verifier::makes_sum(&self.checks);
        let answered = recorded.iter().zip(proven.iter().skip(first));
        let is_wrong = |hint, answer: Option<RParity>| match answer {
            Some(parity) => parity != hint,
            None => is_summed && !self.verifier.has_lanes(),
        };
        answered.filter(|(check, it)| check.hint().is_some_and(|hint| is_wrong(hint, **it))).count()
    }
}
