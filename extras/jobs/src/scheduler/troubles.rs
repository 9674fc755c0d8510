//! How the [`Scheduler`] handles reports of trouble, invalid results, rejected jobs and lost objects.

use super::local::NAME;
use super::slow::SEEN_MAX;
use super::{OutstandingJob, Scheduler, retry};
use crate::error::{ClusterError, RemoteError, RemoteKind, warn};
use crate::job::{JobCopy, JobKey, JobStep};
use crate::queue::{AnswerBytes, AnswerKind, JobAnswer, ObjectRef};
use apus_chain::KnownBlock;
use apus_sync::error::{InvalidBlock, SyncError};
use std::time::Instant;

/// The run fails once this many machines failed at a job, this many results of a job were invalid, or this many
/// machines did not find an object.
const TROUBLE_MAX: usize = 3;

impl Scheduler<'_> {
    /// Warns of an invalid result and requeues the job.
    pub(super) fn reject_result(
        &mut self,
        answer: &AnswerBytes,
        worker: &str,
        why: String,
    ) -> Result<(), SyncError> {
        let (key, worker) = (answer.key, worker.to_owned());
        self.ask(|| self.queue.forget(answer))?;
        self.count_invalid(key, &worker, &why)?;
        self.warn(format!(
            "the result of {worker} for {key} was refused, and the job is requeued: {why}"
        ));
        match self.out.get(&key).map(|out| out.input) {
            Some(input) => self.requeue(key, input),
            None => Ok(()),
        }
    }

    /// Ignores an answer whose writer lacks the key of the run. Removes it from the queue, where it would block the
    /// answer of a real machine.
    pub(super) fn discard_forged(&mut self, answer: &AnswerBytes) -> Result<(), SyncError> {
        let key = answer.key;
        self.ask(|| self.queue.forget(answer))?;
        self.warn(format!(
            "ignored an answer to {key} that was not sealed with the key of this run: check who else can reach the \
             queue"
        ));
        if answer.audit {
            let Some(message) = self.audit_message(key) else { return Ok(()) };
            return self.ask(|| self.queue.put_job_again(key, JobCopy::Audit, &message));
        }
        match self.out.get(&key).map(|out| out.input) {
            Some(input) => self.requeue(key, input),
            None => Ok(()),
        }
    }

    /// Handles a machine's verdict that blocks or the payload are invalid. The verdict counts only if the coordinator
    /// reaches it, too, and an invalid block must be one of the job's. If the job has already passed once, the
    /// machines contradict each other.
    pub(super) fn handle_refusal(
        &mut self,
        (answer, input): (&AnswerBytes, ObjectRef),
        worker: String,
        error: RemoteError,
    ) -> Result<(), SyncError> {
        let key = answer.key;
        if let Some(counted) = self.counted.get(&key) {
            let (first, second) = (counted.worker.clone(), worker);
            return Err(ClusterError::Differ { key, first, second }.into());
        }
        if let RemoteKind::Block(InvalidBlock { block, .. }) = &error.kind {
            let KnownBlock { height, hash } = *block;
            // Parts of the join have no heights.
            let is_of_job = key.step != JobStep::Join && key.range.contains(height);
            if !is_of_job || self.source.chain().hash(height) != Some(&hash) {
                let why = format!(
                    "the worker rejects block {height} ({hash}), which does not belong to the job"
                );
                return self.reject_result(answer, &worker, why);
            }
        }
        let unconfirmed = |why| ClusterError::Unconfirmed {
            key,
            worker: worker.clone(),
            reply: error.text.clone(),
            why,
        };
        match self.repeat_here(key, input) {
            Ok(AnswerKind::Refused(error)) => {
                self.fail(key, error.into());
                Ok(())
            }
            Ok(AnswerKind::Done { .. }) => {
                let why =
                    format!("the job succeeds here, but that machine reports: {}", error.text);
                self.reject_result(answer, &worker, why)
            }
            Ok(AnswerKind::Lost { text, .. }) => {
                let why = format!(
                    "the job cannot be repeated here ({text}), and that machine reports: {}",
                    error.text
                );
                self.reject_result(answer, &worker, why)
            }
            Ok(AnswerKind::Trouble(why)) => Err(unconfirmed(why).into()),
            Ok(AnswerKind::Faulty) => Err(ClusterError::Faulty { worker: NAME.to_owned() }.into()),
            Err(SyncError::Interrupted) => Err(SyncError::Interrupted),
            Err(error) if error.spoils_progress() => Err(error),
            Err(error) => Err(unconfirmed(error.to_string()).into()),
        }
    }

    /// Counts an invalid result, and fails after [`TROUBLE_MAX`].
    fn count_invalid(&mut self, key: JobKey, worker: &str, why: &str) -> Result<(), SyncError> {
        let results = self.refused.entry(key).or_default();
        *results += 1;
        match *results {
            results @ TROUBLE_MAX.. => {
                let (worker, why) = (worker.to_owned(), why.to_owned());
                Err(ClusterError::BadResults { key, results, worker, why }.into())
            }
            _ => Ok(()),
        }
    }

    /// Handles a machine's report that it computes wrongly: then its results prove nothing. Without any, it has only
    /// left.
    pub(super) fn handle_faulty(&mut self, worker: String) -> Result<(), SyncError> {
        let is_of = |bytes: &AnswerBytes| {
            let answer = JobAnswer::from_bytes(&bytes.message, self.run);
            answer.is_ok_and(|answer| answer.worker == worker)
        };
        let has_answered = self.counted.values().any(|counted| counted.worker == worker)
            || self.early.values().any(is_of);
        if has_answered {
            return Err(ClusterError::Faulty { worker }.into());
        }
        self.warn(format!(
            "a test found that {worker} computes wrongly, so it left: test its processor and memory. The run has no \
             result of it"
        ));
        self.faulty.insert(worker);
        Ok(())
    }

    pub(super) fn handle_trouble(
        &mut self,
        answer: &AnswerBytes,
        worker: String,
        text: String,
    ) -> Result<(), SyncError> {
        let key = answer.key;
        // Forget it, so that the next start counts from zero.
        self.ask(|| self.queue.forget(answer))?;
        let workers = self.troubles.entry(key).or_default();
        workers.insert(worker.clone());
        let machines = workers.len();
        if machines >= TROUBLE_MAX {
            return Err(ClusterError::Trouble { key, machines, worker, text }.into());
        }
        self.warn_of_trouble(&worker, key, &text);
        Ok(())
    }

    /// Handles an object that a machine did not find. Rebuilds a payload with `payload` and stores it; for any other
    /// object, repeats the job that created it.
    pub(super) fn handle_lost(
        &mut self,
        (answer, input): (&AnswerBytes, ObjectRef),
        (worker, why): (String, String),
        object: [u8; 32],
        payload: &dyn Fn() -> Result<Option<Vec<u8>>, SyncError>,
    ) -> Result<(), SyncError> {
        if input.digest == object {
            self.ask(|| self.queue.forget(answer))?;
            self.count_lost((answer.key, object), &worker, &why)?;
            let Some(bytes) = payload()?.filter(|bytes| input.is_of(bytes)) else {
                let (key, object) = (answer.key, input.name());
                return Err(ClusterError::InputLost { key, object, why }.into());
            };
            let put = || self.queue.put_object(&self.run, &bytes);
            return retry(self.request).with(put).map(drop);
        }
        let Some(&key) = self.created_by.get(&object) else {
            return self.handle_trouble(answer, worker, why);
        };
        self.ask(|| self.queue.forget(answer))?;
        if self.out.contains_key(&key) {
            return Ok(());
        }
        if !self.count_lost((key, object), &worker, &why)? {
            self.warn_of_trouble(&worker, answer.key, &why);
            return Ok(());
        }
        let Some(counted) = self.counted.get(&key) else { return Ok(()) };
        let (place, input) = (counted.place, counted.input);
        self.warn(format!("an object of {key} is lost, and the job is requeued: {why}"));
        let before =
            AnswerBytes { place, key, audit: false, is_genuine: true, message: Vec::new() };
        self.ask(|| self.queue.forget(&before))?;
        self.out.insert(key, OutstandingJob { input, since: Instant::now(), again: false });
        self.requeue(key, input)
    }

    /// Counts a machine's report that an object is lost, and returns whether to create the object again. A machine that
    /// reports the same object again and again may not see the store at all, and is no longer believed. The run fails
    /// if several machines report the object, or if no active machine is believed any more.
    fn count_lost(
        &mut self,
        (key, object): (JobKey, [u8; 32]),
        worker: &str,
        why: &str,
    ) -> Result<bool, SyncError> {
        let by = self.losses.entry(object).or_default();
        *by.entry(worker.to_owned()).or_default() += 1;
        let is_believed = |name: &str| by.get(name).is_none_or(|times| *times < TROUBLE_MAX);
        let believed = is_believed(worker);
        let here = self.queue.workers();
        let mut here = here.iter().filter(|seen| seen.ago < SEEN_MAX);
        let is_hopeless = !believed && !here.any(|seen| is_believed(&seen.name));
        if is_hopeless || by.len() >= TROUBLE_MAX {
            let (results, worker, why) = (by.values().sum(), worker.to_owned(), why.to_owned());
            return Err(ClusterError::BadResults { key, results, worker, why }.into());
        }
        Ok(believed)
    }

    fn warn_of_trouble(&self, worker: &str, key: JobKey, text: &str) {
        self.warn(format!("{worker} could not process {key}, which was requeued: {text}"));
    }

    pub(super) fn warn(&self, text: String) {
        warn(self.request.env.observer, text);
    }
}
