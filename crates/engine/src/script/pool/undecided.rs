//! [`UndecidedInputs`]: inputs whose scripts pass if their signature checks are valid.
//!
//! An input runs with its checks answered yes, and waits here with these checks. A prover proves the
//! checks of all waiting inputs at once. Only an input with as many proofs as answers is
//! [`Acceptance`]: the interpreter is deterministic and depends on keys only through these answers, so
//! if all of them are true, this was the run of Bitcoin Core.

use crate::script::interpreter::{PreparedTx, Refusal};
use crate::script::recorded::{
    KnownChecks, RecordedCheck, SignatureCounts, SignatureKind, SignatureProver,
};
use apus_chain::ScriptError;

/// The most checks that wait: 688 KiB. If there is no more room, libsecp256k1 checks at once.
const CHECKS_MAX: usize = 4096;

/// The most checks of an input that wait. A second run compares each check with all of its input, so
/// more room would make hostile scripts expensive.
const CHECKS_OF_INPUT_MAX: usize = 2048;

/// All signature checks of an input have the result that its scripts got. Only this module creates
/// it.
#[must_use]
pub(super) struct Acceptance(());

/// An input that passes if as many checks are valid, the next ones of [`UndecidedInputs`].
#[must_use]
struct DeferredInput {
    checks: usize,
    /// The checks with which it was run.
    known: KnownChecks,
}

impl DeferredInput {
    /// Consumes a proof for each check. Without all of them, returns what is now known.
    fn settle<'c>(
        self,
        answers: &mut impl Iterator<Item = (&'c RecordedCheck, bool)>,
    ) -> Result<Acceptance, KnownChecks> {
        let Self { checks, mut known } = self;
        let mut proofs = 0;
        for (check, is_proven) in answers.take(checks) {
            let list = if is_proven { &mut known.proven } else { &mut known.unproven };
            list.push(*check);
            proofs += usize::from(is_proven);
        }
        if proofs == checks { Ok(Acceptance(())) } else { Err(known) }
    }
}

/// How the run of an input ended.
pub(super) enum InputRun {
    /// All answers were proven or come from libsecp256k1.
    Accepted(Acceptance),
    /// The input waits for proofs.
    Waits,
    /// The scripts failed, which may be due to a wrong answer.
    Failed(KnownChecks),
}

/// Runs an input. libsecp256k1 answers all signature checks that are not proven.
pub(super) fn run_now(
    tx: &dyn PreparedTx,
    (input, flags): (usize, u32),
    known: &KnownChecks,
) -> Result<Acceptance, Refusal> {
    match tx.verify_deferred(input, flags, known, &mut [])? {
        0 => Ok(Acceptance(())),
        _ => Err(ScriptError::Setup("there was no room for its checks".to_owned()).into()),
    }
}

/// Inputs that wait for proofs, and their checks in the same order.
pub(super) struct UndecidedInputs<T> {
    /// The first `used` are waiting; the others are room.
    checks: Vec<RecordedCheck>,
    used: usize,
    inputs: Vec<(T, DeferredInput)>,
}

impl<T> UndecidedInputs<T> {
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

    /// Runs an input with deferred checks, given what is known about some. If it must wait, keeps
    /// `item` for it.
    pub(super) fn run(
        &mut self,
        tx: &dyn PreparedTx,
        (input, flags): (usize, u32),
        known: KnownChecks,
        item: impl FnOnce() -> T,
    ) -> InputRun {
        let end = CHECKS_MAX.min(self.used + CHECKS_OF_INPUT_MAX);
        let room = self.checks.get_mut(self.used..end).unwrap_or_default();
        let length = room.len();
        match tx.verify_deferred(input, flags, &known, room) {
            Ok(0) => InputRun::Accepted(Acceptance(())),
            Ok(checks) if checks <= length => {
                self.used += checks;
                self.inputs.push((item(), DeferredInput { checks, known }));
                InputRun::Waits
            }
            _ => InputRun::Failed(known),
        }
    }

    /// Proves all checks, and returns the inputs, each with its result. Nothing waits any more, even
    /// if this panics.
    pub(super) fn settle(
        &mut self,
        prover: &mut dyn SignatureProver,
        counts: &mut SignatureCounts,
    ) -> Vec<(T, Result<Acceptance, KnownChecks>)> {
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
        let settle = |(item, deferred): (T, DeferredInput)| (item, deferred.settle(&mut answers));
        inputs.into_iter().map(settle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its inputs have as many checks as their number, and claim more by the constant.
    struct Counted(usize);

    impl PreparedTx for Counted {
        fn verify(&self, _: usize, _: u32) -> Result<(), Refusal> {
            Ok(())
        }

        fn verify_deferred(
            &self,
            input: usize,
            _: u32,
            _: &KnownChecks,
            room: &mut [RecordedCheck],
        ) -> Result<usize, Refusal> {
            Ok(input.min(room.len()) + self.0)
        }
    }

    /// Proves all checks except one.
    struct Except(usize);

    impl SignatureProver for Except {
        fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<bool>) {
            proven.extend((0..checks.len()).map(|check| check != self.0));
        }
    }

    fn run(undecided: &mut UndecidedInputs<usize>, claimed: usize, input: usize) -> InputRun {
        undecided.run(&Counted(claimed), (input, 0), KnownChecks::default(), || input)
    }

    #[test]
    fn each_proof_counts_for_its_own_input() {
        let mut undecided = UndecidedInputs::new();
        for missing in 0..=12 {
            assert!(matches!(run(&mut undecided, 0, 0), InputRun::Accepted(_)));
            for input in [3, 1, 1, 2, 5] {
                assert!(matches!(run(&mut undecided, 0, input), InputRun::Waits));
            }
            let settled = undecided.settle(&mut Except(missing), &mut SignatureCounts::default());
            assert_eq!(
                settled.iter().map(|(input, _)| *input).collect::<Vec<_>>(),
                [3, 1, 1, 2, 5]
            );
            let mut end = 0;
            for (input, result) in settled {
                let own = end..end + input;
                end += input;
                assert_eq!(result.is_ok(), !own.contains(&missing), "{missing}");
                if let Err(known) = result {
                    assert_eq!((known.proven.len(), known.unproven.len()), (input - 1, 1));
                }
            }
            assert_eq!(undecided.checks(), 0);
            assert!(undecided.last().is_none());
        }
    }

    #[test]
    fn more_checks_than_there_is_room_are_not_accepted() {
        let mut undecided = UndecidedInputs::new();
        assert!(matches!(run(&mut undecided, 1, CHECKS_MAX), InputRun::Failed(_)));
        for _ in 0..CHECKS_MAX / CHECKS_OF_INPUT_MAX {
            assert!(matches!(run(&mut undecided, 0, CHECKS_MAX), InputRun::Waits));
        }
        assert!(matches!(run(&mut undecided, 1, 1), InputRun::Failed(_)));
        assert!(matches!(run(&mut undecided, 0, 1), InputRun::Accepted(_)), "nothing was recorded");
        assert!(run_now(&Counted(1), (0, 0), &KnownChecks::default()).is_err());
        assert!(run_now(&Counted(0), (3, 0), &KnownChecks::default()).is_ok());
    }
}
