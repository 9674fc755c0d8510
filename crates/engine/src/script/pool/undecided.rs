//! [`UndecidedInputs`]: inputs whose scripts pass if their signature checks are valid.
//!
//! An input runs with its checks answered yes, and waits here with these checks. A prover proves the
//! checks of all waiting inputs at once. Only an input with as many proofs as these answers is
//! [`Acceptance`]: the interpreter is deterministic and depends on keys only through the answers, so
//! if all of them are true, this was the run of Bitcoin Core. An answer of no may be wrong, but helps
//! no input to pass (`verify.cpp`, `RecordingChecker`).

use crate::script::hints::BlockHints;
use crate::script::interpreter::{PreparedTx, Refusal};
use crate::script::recorded::{
    CheckRoom, KnownChecks, RParity, RecordedCheck, SignatureCounts, SignatureKind, SignatureProver,
};
use apus_chain::ScriptError;

/// The most checks that wait: 688 KiB. If there is no more room, libsecp256k1 checks at once.
const CHECKS_MAX: usize = 4096;

/// The most checks of an input that wait. A second run compares each check with all of its input, so
/// more room would make hostile scripts expensive.
const CHECKS_OF_INPUT_MAX: usize = 2048;

/// All signature checks to which the scripts of an input got yes are valid, so it may spend its output. Only
/// this module creates it.
#[must_use]
pub(super) struct Acceptance(());

/// How an input is run.
#[derive(Clone, Copy)]
pub(super) struct InputRules<'b> {
    pub(super) input: usize,
    pub(super) flags: u32,
    /// Whether ECDSA checks may wait without hints.
    pub(super) defers_ecdsa: bool,
    pub(super) hints: &'b BlockHints,
    /// Whether to use the hints.
    pub(super) is_hinted: bool,
}

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
        answers: &mut impl Iterator<Item = (&'c RecordedCheck, Option<RParity>)>,
    ) -> (Option<Acceptance>, KnownChecks) {
        let Self { checks, mut known } = self;
        let mut proofs = 0;
        for (check, proof) in answers.take(checks) {
            let mut check = *check;
            check.set_hint(proof);
            let list = if proof.is_some() { &mut known.proven } else { &mut known.unproven };
            list.push(check);
            proofs += usize::from(proof.is_some());
        }
        ((proofs == checks).then_some(Acceptance(())), known)
    }
}

/// How the run of an input ended.
pub(super) enum InputRun {
    /// All answers of yes were proven or come from libsecp256k1.
    Accepted(Acceptance, KnownChecks),
    /// The input waits for proofs.
    Waits,
    /// The scripts failed, which may be due to a wrong answer.
    Failed(KnownChecks),
}

/// Runs an input. libsecp256k1 answers all signature checks but the proven ones.
pub(super) fn run_now(
    tx: &dyn PreparedTx,
    InputRules { input, flags, .. }: InputRules<'_>,
    proven: Vec<RecordedCheck>,
) -> Result<Acceptance, Refusal> {
    let room = CheckRoom { checks: &mut [], takes_ecdsa: false, passes_over: &mut |_| false };
    let known = KnownChecks { proven, unproven: Vec::new() };
    match tx.verify_deferred(input, flags, &known, room)? {
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
        rules: InputRules<'_>,
        mut known: KnownChecks,
        counts: &mut SignatureCounts,
        item: impl FnOnce() -> T,
    ) -> InputRun {
        let InputRules { input, flags, hints, .. } = rules;
        // Hints are for the first run.
        let is_hinted = rules.is_hinted && hints.has_table() && known.is_empty();
        let end = CHECKS_MAX.min(self.used + CHECKS_OF_INPUT_MAX);
        let room = self.checks.get_mut(self.used..end).unwrap_or_default();
        let mut passed_over = Vec::new();
        let mut passes_over = |check: &RecordedCheck| {
            let is_passed_over = is_hinted && hints.passes_over(check);
            passed_over.extend(is_passed_over.then_some(*check));
            is_passed_over
        };
        let takes_ecdsa = rules.defers_ecdsa || is_hinted;
        let to_fill = CheckRoom { checks: &mut *room, takes_ecdsa, passes_over: &mut passes_over };
        let result = tx.verify_deferred(input, flags, &known, to_fill);
        match result.map(|checks| (checks, room.get_mut(..checks))) {
            Ok((0, _)) => InputRun::Accepted(Acceptance(()), known),
            Ok((checks, Some(new))) => {
                if is_hinted {
                    hints.add_to(new);
                }
                known.unproven.append(&mut passed_over);
                self.used += checks;
                self.inputs.push((item(), DeferredInput { checks, known }));
                InputRun::Waits
            }
            _ if passed_over.is_empty() => InputRun::Failed(known),
            _ => {
                counts.wrong_hints += passed_over.len() as u64;
                self.run(tx, InputRules { is_hinted: false, ..rules }, known, counts, item)
            }
        }
    }

    /// Proves all checks, and returns the inputs, each with its result. Nothing waits any more, even
    /// if this panics.
    pub(super) fn settle(
        &mut self,
        prover: &mut dyn SignatureProver,
        counts: &mut SignatureCounts,
    ) -> Vec<(T, Option<Acceptance>, KnownChecks)> {
        let inputs = std::mem::take(&mut self.inputs);
        let checks = self.checks.get(..std::mem::take(&mut self.used)).unwrap_or_default();
        let mut proven = Vec::with_capacity(checks.len());
        counts.wrong_hints += prover.prove(checks, &mut proven) as u64;
        if proven.len() != checks.len() {
            // Which answer belongs to which check is unknown, so nothing is proven.
            proven = vec![None; checks.len()];
        }
        counts.batches += 1;
        for (check, proof) in checks.iter().zip(&proven) {
            match check.kind() {
                SignatureKind::Ecdsa => counts.ecdsa += u64::from(proof.is_some()),
                SignatureKind::Schnorr => counts.schnorr += u64::from(proof.is_some()),
            }
            counts.hinted += u64::from(check.hint().is_some() && check.hint() == *proof);
        }
        let mut answers = checks.iter().zip(proven);
        let settle = |(item, deferred): (T, DeferredInput)| {
            let (acceptance, known) = deferred.settle(&mut answers);
            (item, acceptance, known)
        };
        inputs.into_iter().map(settle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{BlockHash, KnownBlock};

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
            room: CheckRoom<'_>,
        ) -> Result<usize, Refusal> {
            Ok(input.min(room.checks.len()) + self.0)
        }
    }

    /// Proves all checks except one.
    struct Except(usize);

    impl SignatureProver for Except {
        fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
            let proof = |check| (check != self.0).then_some(RParity::Odd);
            proven.extend((0..checks.len()).map(proof));
            0
        }
    }

    fn run(undecided: &mut UndecidedInputs<usize>, claimed: usize, input: usize) -> InputRun {
        let hints = hints();
        let (known, counts) = (KnownChecks::default(), &mut SignatureCounts::default());
        undecided.run(&Counted(claimed), rules(input, &hints), known, counts, || input)
    }

    fn hints() -> BlockHints {
        let block = KnownBlock { height: 1, hash: BlockHash([1; 32]) };
        BlockHints::new(block, None, false)
    }

    fn rules(input: usize, hints: &BlockHints) -> InputRules<'_> {
        InputRules { input, flags: 0, defers_ecdsa: true, hints, is_hinted: true }
    }

    #[test]
    fn each_proof_counts_for_its_own_input() {
        let mut undecided = UndecidedInputs::new();
        for missing in 0..=12 {
            assert!(matches!(run(&mut undecided, 0, 0), InputRun::Accepted(..)));
            for input in [3, 1, 1, 2, 5] {
                assert!(matches!(run(&mut undecided, 0, input), InputRun::Waits));
            }
            let settled = undecided.settle(&mut Except(missing), &mut SignatureCounts::default());
            assert_eq!(
                settled.iter().map(|(input, ..)| *input).collect::<Vec<_>>(),
                [3, 1, 1, 2, 5]
            );
            let mut end = 0;
            for (input, acceptance, known) in settled {
                let own = end..end + input;
                end += input;
                let lacking = usize::from(own.contains(&missing));
                assert_eq!(acceptance.is_none(), lacking == 1, "{missing}");
                assert_eq!((known.proven.len(), known.unproven.len()), (input - lacking, lacking));
                let odd = Some(RParity::Odd);
                assert!(known.proven.iter().all(|check| check.hint() == odd));
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
        assert!(
            matches!(run(&mut undecided, 0, 1), InputRun::Accepted(..)),
            "nothing was recorded"
        );
        let hints = hints();
        assert!(run_now(&Counted(1), rules(0, &hints), Vec::new()).is_err());
        assert!(run_now(&Counted(0), rules(3, &hints), Vec::new()).is_ok());
    }
}
