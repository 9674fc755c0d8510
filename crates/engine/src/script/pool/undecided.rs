//! [`Undecided`]: inputs whose scripts pass if their signature checks are valid.
//!
//! An input runs with its checks answered yes, and waits here with these checks. A prover proves the
//! checks of all waiting inputs at once. Only an input with as many proofs as answers is
//! [`Accepted`]: the interpreter is deterministic and depends on keys only through these answers, so
//! if all of them are true, this was the run of Bitcoin Core.

use crate::script::interpreter::PreparedTx;
use crate::script::recorded::{RecordedCheck, SignatureCounts, SignatureKind, SignatureProver};

/// The most checks that wait: 688 KiB. If there is no more room, libsecp256k1 checks at once.
const CHECKS_MAX: usize = 4096;

/// All checks of an input are valid. Only this module creates it.
#[must_use]
pub(super) struct Accepted(());

/// An input that passes if as many checks are valid, the next ones of [`Undecided`].
#[must_use]
struct Deferred(usize);

impl Deferred {
    /// Consumes a proof for each check. Without all of them, returns the proven checks.
    fn settle<'c>(
        self,
        answers: &mut impl Iterator<Item = (&'c RecordedCheck, bool)>,
    ) -> Result<Accepted, Vec<RecordedCheck>> {
        let own = answers.take(self.0);
        let proven: Vec<_> = own.filter(|(_, proven)| *proven).map(|(check, _)| *check).collect();
        if proven.len() == self.0 { Ok(Accepted(())) } else { Err(proven) }
    }
}

/// How the run of an input ended.
pub(super) enum Outcome {
    /// No answer has to be proven.
    Accepted(Accepted),
    /// The input waits for proofs.
    Waits,
    /// The scripts failed, which may be due to a wrong answer.
    Failed,
}

/// Inputs that wait for proofs, and their checks in the same order.
pub(super) struct Undecided<T> {
    /// The first `used` are waiting; the others are room.
    checks: Vec<RecordedCheck>,
    used: usize,
    inputs: Vec<(T, Deferred)>,
}

impl<T> Undecided<T> {
    pub(super) fn new() -> Self {
        Self { checks: vec![RecordedCheck::EMPTY; CHECKS_MAX], used: 0, inputs: Vec::new() }
    }

    /// Returns the number of waiting checks.
    pub(super) fn checks(&self) -> usize {
        self.used
    }

    /// Returns the input that was added last.
    pub(super) fn last(&self) -> Option<&T> {
        self.inputs.last().map(|(item, _)| item)
    }

    /// Runs an input with deferred checks. If it must wait, keeps `item` for it.
    pub(super) fn run(
        &mut self,
        tx: &dyn PreparedTx,
        (input, flags): (usize, u32),
        item: impl FnOnce() -> T,
    ) -> Outcome {
        let room = self.checks.get_mut(self.used..).unwrap_or_default();
        let length = room.len();
        match tx.verify_deferred(input, flags, room) {
            Ok(0) => Outcome::Accepted(Accepted(())),
            Ok(count) if count <= length => {
                self.used += count;
                self.inputs.push((item(), Deferred(count)));
                Outcome::Waits
            }
            _ => Outcome::Failed,
        }
    }

    /// Proves all checks, and returns the inputs, each with its result. Nothing waits any more, even
    /// if this panics.
    pub(super) fn settle(
        &mut self,
        prover: &mut dyn SignatureProver,
        counts: &mut SignatureCounts,
    ) -> Vec<(T, Result<Accepted, Vec<RecordedCheck>>)> {
        let inputs = std::mem::take(&mut self.inputs);
        let checks = self.checks.get(..std::mem::take(&mut self.used)).unwrap_or_default();
        let mut proven = Vec::with_capacity(checks.len());
        prover.prove(checks, &mut proven);
        if proven.len() != checks.len() {
            // Which answer belongs to which check is unknown, so nothing is proven.
            proven = vec![false; checks.len()];
        }
        counts.batches += 1;
        for (check, _) in checks.iter().zip(&proven).filter(|(_, proven)| **proven) {
            match check.kind() {
                SignatureKind::Ecdsa => counts.ecdsa += 1,
                SignatureKind::Schnorr => counts.schnorr += 1,
            }
        }
        let mut answers = checks.iter().zip(proven);
        let settle = |(item, deferred): (T, Deferred)| (item, deferred.settle(&mut answers));
        inputs.into_iter().map(settle).collect()
    }
}
