//! [`ScriptWorker`]: a thread's running work, and the inputs that it has run but not decided.
//!
//! Inputs wait for proofs of their signatures, threads do not: a thread continues with the next work
//! until it has enough signatures for its prover, or finds no more work. It reports a piece of work
//! after all inputs of it are decided. Pieces of several batches may wait together.
//!
//! Memory: the waiting checks have a fixed buffer; waiting inputs keep their transactions, up to
//! [`HELD_BYTES_MAX`] and one piece of work.

use super::undecided::{Acceptance, InputRules, InputRun, UndecidedInputs, run_now};
use super::work::{ScriptFailure, ScriptJob, ScriptTicket, SharedTx};
use crate::script::interpreter::{Interpreter, Refusal};
use crate::script::recorded::{
    CheckPlace, KnownChecks, NoProver, SignatureCounts, SignatureMode, SignatureProver,
};
use crate::script::signatures::Signatures;
use apus_chain::ScriptError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// This many checks are proven together. The more BIP-340 signatures there are, the less each costs.
const CHECKS: usize = 2048;

/// This much work waits at most, so that none waits long behind work without signatures.
const JOBS_MAX: usize = 256;

/// CHECKMULTISIG runs this often at most, each time with other keys.
const RUNS_MAX: u8 = 8;

/// It runs only twice if its transaction is larger: each run hashes the transaction for each signature.
const OFTEN_RUN_BYTES: usize = 16 << 10;

/// Transactions of this estimated size wait at most.
const HELD_BYTES_MAX: usize = 4 << 20;

/// A piece of work that was run and not reported yet.
struct OpenJob {
    ticket: Arc<ScriptTicket>,
    first: (usize, usize),
    /// How many inputs wait for proofs.
    undecided: usize,
    result: Result<(), ScriptFailure>,
}

impl OpenJob {
    fn fail(&mut self, failure: ScriptFailure) {
        let earlier = self.result.as_ref().err().is_none_or(|known| failure.is_before(known));
        if earlier {
            self.result = Err(failure);
        }
    }

    fn panicked(&mut self) {
        let error = ScriptError::Setup("the thread that ran them panicked".to_owned());
        let (tx_index, input) = self.first;
        self.fail(self.ticket.fail(tx_index, input, error.into()));
    }

    /// Returns the result. An input that was not decided, because deciding another one panicked, does
    /// not pass.
    fn report(mut self) -> Report {
        if self.undecided > 0 {
            self.panicked();
        }
        (self.ticket, self.result)
    }
}

/// The result of a piece of work.
pub(super) type Report = (Arc<ScriptTicket>, Result<(), ScriptFailure>);

/// An input that waits.
struct WaitingInput {
    /// Index of its work among the open ones.
    job: usize,
    tx: Arc<SharedTx>,
    input: usize,
    /// How often it was run.
    runs: u8,
}

/// A thread's work.
pub(super) struct ScriptWorker {
    jobs: Vec<OpenJob>,
    /// `None` if libsecp256k1 checks each signature at once.
    deferral: Option<Deferral>,
}

impl ScriptWorker {
    pub(super) fn new(signatures: &Arc<Signatures>) -> Self {
        let deferred = signatures.mode() != SignatureMode::Libsecp256k1;
        Self { jobs: Vec::new(), deferral: deferred.then(|| Deferral::new(Arc::clone(signatures))) }
    }

    /// Runs a piece of work, and returns the parts into which it divides. A panic is a setup
    /// failure.
    pub(super) fn run(
        &mut self,
        ticket: &Arc<ScriptTicket>,
        job: ScriptJob,
        interpreter: &dyn Interpreter,
    ) -> Vec<ScriptJob> {
        let (first, ticket) = (job.first(), Arc::clone(ticket));
        self.jobs.push(OpenJob {
            ticket: Arc::clone(&ticket),
            first,
            undecided: 0,
            result: Ok(()),
        });
        let mut parts = Vec::new();
        let run = AssertUnwindSafe(|| job.run(&ticket, interpreter, self, &mut parts));
        let result = catch_unwind(run);
        if let Some(job) = self.jobs.last_mut() {
            match result {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => job.fail(failure),
                Err(_) => job.panicked(),
            }
        }
        parts
    }

    /// Runs an input. `Ok` if it passes or waits.
    pub(super) fn verify(
        &mut self,
        ticket: &ScriptTicket,
        tx: &Arc<SharedTx>,
        input: usize,
    ) -> Result<(), Refusal> {
        let can_defer = !Signatures::are_faulty();
        let (Some(deferral), Some(job), true) =
            (&mut self.deferral, self.jobs.len().checked_sub(1), can_defer)
        else {
            return tx.prepared.verify(input, ticket.flags);
        };
        deferral.counts.inputs += 1;
        let waiting = WaitingInput { job, tx: Arc::clone(tx), input, runs: 1 };
        if let Some(verdict) = deferral.run(ticket, waiting, KnownChecks::default()) {
            return verdict;
        }
        self.jobs[job].undecided += 1;
        Ok(())
    }

    /// Returns whether an input waits.
    pub(super) fn has_undecided(&self) -> bool {
        self.deferral.as_ref().is_some_and(|deferral| deferral.undecided.checks() > 0)
    }

    /// Returns whether so much waits that it must be settled.
    pub(super) fn is_full(&self) -> bool {
        let is_full = |deferral: &Deferral| {
            deferral.undecided.checks() >= CHECKS
                || deferral.held_bytes >= HELD_BYTES_MAX
                || self.jobs.len() >= JOBS_MAX
        };
        self.has_undecided() && self.deferral.as_ref().is_some_and(is_full)
    }

    /// Decides all inputs that wait. If that panics, their work fails.
    pub(super) fn settle(&mut self) {
        let Some(deferral) = &mut self.deferral else { return };
        let jobs = &mut self.jobs;
        if catch_unwind(AssertUnwindSafe(|| deferral.settle(jobs))).is_err() {
            *deferral = Deferral::new(Arc::clone(&deferral.signatures));
        }
        deferral.held_bytes = 0;
    }

    /// Returns all work since the last call, or none while an input waits.
    pub(super) fn reports(&mut self) -> impl Iterator<Item = Report> + use<'_> {
        let decided = if self.has_undecided() { 0 } else { self.jobs.len() };
        self.jobs.drain(..decided).map(OpenJob::report)
    }

    /// Returns what was counted since the last call.
    pub(super) fn take_counts(&mut self) -> SignatureCounts {
        self.deferral
            .as_mut()
            .map_or_else(SignatureCounts::default, |deferral| std::mem::take(&mut deferral.counts))
    }
}

/// Runs inputs with deferred signature checks.
struct Deferral {
    signatures: Arc<Signatures>,
    /// Created at the first use.
    prover: Option<Box<dyn SignatureProver>>,
    undecided: UndecidedInputs<WaitingInput>,
    /// The estimated size of all transactions with an input that waits.
    held_bytes: usize,
    counts: SignatureCounts,
}

impl Deferral {
    fn new(signatures: Arc<Signatures>) -> Self {
        let (undecided, counts) = (UndecidedInputs::new(), SignatureCounts::default());
        Self { signatures, prover: None, undecided, held_bytes: 0, counts }
    }

    /// Runs an input. Returns its verdict, or `None` if it waits.
    fn run(
        &mut self,
        ticket: &ScriptTicket,
        waiting: WaitingInput,
        known: KnownChecks,
    ) -> Option<Result<(), Refusal>> {
        let (tx, input) = (Arc::clone(&waiting.tx), waiting.input);
        let is_held = self.undecided.last().is_some_and(|last| Arc::ptr_eq(&last.tx, &tx));
        let rules = self.rules(ticket, input);
        let counts = &mut self.counts;
        let ran = self.undecided.run(&*tx.prepared, rules, known, counts, || waiting);
        let (acceptance, known) = match ran {
            InputRun::Waits => {
                self.held_bytes += if is_held { 0 } else { tx.bytes };
                return None;
            }
            InputRun::Accepted(accepted, known) => (Some(accepted), known),
            InputRun::Failed(known) => (None, known),
        };
        Some(self.verdict(&tx, rules, acceptance, &known))
    }

    fn rules<'t>(&self, ticket: &'t ScriptTicket, input: usize) -> InputRules<'t> {
        let ScriptTicket { flags, ref hints, .. } = *ticket;
        let defers_ecdsa = self.signatures.proves_without_hints();
        InputRules { input, flags, defers_ecdsa, hints, is_hinted: true }
    }

    /// Proves the checks of all inputs that wait, and decides these inputs.
    fn settle(&mut self, jobs: &mut [OpenJob]) {
        while self.undecided.checks() > 0 {
            let prover = self.prover.take();
            let mut prover = prover.unwrap_or_else(|| self.signatures.new_prover());
            let is_left = self.undecided.checks() == 1 && self.signatures.leaves_one();
            let used: &mut dyn SignatureProver = if is_left { &mut NoProver } else { &mut *prover };
            let settled = self.undecided.settle(used, &mut self.counts);
            self.prover = Some(prover);
            for (waiting, acceptance, known) in settled {
                let job = &mut jobs[waiting.job];
                let (index, input) = (waiting.tx.index, waiting.input);
                match self.decide(&job.ticket, waiting, acceptance, known) {
                    None => continue,
                    Some(Ok(())) => {}
                    Some(Err(refusal)) => job.fail(job.ticket.fail(index, input, refusal)),
                }
                job.undecided -= 1;
            }
        }
    }

    /// Decides an input, or runs it again with deferred checks: a script with several keys for a
    /// signature may have tried a wrong one first. Returns `None` if the input waits again.
    fn decide(
        &mut self,
        ticket: &ScriptTicket,
        waiting: WaitingInput,
        acceptance: Option<Acceptance>,
        known: KnownChecks,
    ) -> Option<Result<(), Refusal>> {
        let WaitingInput { ref tx, input, runs, .. } = waiting;
        if ticket.is_skippable(tx.index, input) {
            return Some(Ok(()));
        }
        let has_other_keys = || {
            tx.bytes <= OFTEN_RUN_BYTES
                && known.unproven.iter().all(|check| check.place() == CheckPlace::Multisig)
        };
        if acceptance.is_none() && (runs == 1 || (runs < RUNS_MAX && has_other_keys())) {
            self.counts.retried += u64::from(runs == 1);
            return self.run(ticket, WaitingInput { runs: runs + 1, ..waiting }, known);
        }
        Some(self.verdict(tx, self.rules(ticket, input), acceptance, &known))
    }

    /// Returns the verdict on an input: an input that is not accepted is run again without deferral,
    /// and only libsecp256k1 refuses it.
    fn verdict(
        &mut self,
        tx: &SharedTx,
        rules: InputRules<'_>,
        acceptance: Option<Acceptance>,
        known: &KnownChecks,
    ) -> Result<(), Refusal> {
        let deferred = match acceptance {
            Some(Acceptance { .. }) => {
                rules.hints.learn(known);
                Ok(())
            }
            None => {
                self.counts.unproven += 1;
                run_now(&*tx.prepared, rules, known.proven.clone()).map(|Acceptance { .. }| ())
            }
        };
        let InputRules { input, flags, .. } = rules;
        if self.signatures.mode() != SignatureMode::Shadow {
            return deferred.or_else(|_| tx.prepared.verify(input, flags));
        }
        let real = tx.prepared.verify(input, flags);
        if deferred == real {
            return real;
        }
        let index = tx.index;
        let why = format!(
            "deferred signature checks: {deferred:?}, libsecp256k1: {real:?}, transaction {index}, \
             input {input}"
        );
        Err(ScriptError::Setup(why).into())
    }
}
