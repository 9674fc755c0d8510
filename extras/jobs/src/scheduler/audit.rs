//! [`Audits`]: jobs that two machines process, so that the [`Scheduler`] can compare the results.
//!
//! The run's id determines which jobs are audited: no machine knows the id before the run begins, and each start has
//! the same. Results are compared byte by byte, because nothing in them depends on the machine or the time. A result
//! counts only once both machines agree on it: until then it is not part of the progress, from which a later start could
//! continue without the comparison.

use super::{AnswerError, CountedAnswer, JobPayload, JobResult, ReadAnswer, Scheduler};
use crate::error::ClusterError;
use crate::job::{JobCopy, JobKey};
use crate::queue::{AnswerBytes, AnswerKind, JobAnswer, JobMessage, RunId};
use apus_hash::sha256;
use apus_sync::error::SyncError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Warn the user that a second machine is needed after this long without an answer.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// The audits of a step.
#[derive(Default)]
pub(super) struct Audits {
    /// Audits without an answer.
    out: BTreeSet<JobKey>,
    /// Answers to audits that are not queued yet.
    early: BTreeMap<JobKey, AnswerBytes>,
    /// Whether the user was warned.
    warned: bool,
}

impl Audits {
    pub(super) fn are_done(&self) -> bool {
        self.out.is_empty()
    }

    pub(super) fn is_waiting(&self, key: JobKey) -> bool {
        self.out.contains(&key)
    }

    /// Drops the audits from a job on.
    pub(super) fn drop_from(&mut self, key: JobKey) {
        self.out.retain(|other| *other < key);
    }
}

/// Whether a job is audited.
fn is_audited(run: RunId, key: JobKey, percent: u8) -> bool {
    let digest = sha256(&[&run.0[..], key.name().as_bytes()].concat());
    let number = u64::from_le_bytes(*digest.first_chunk().expect("it is longer"));
    number % 100 < u64::from(percent)
}

impl Scheduler<'_> {
    pub(super) fn is_audited(&self, key: JobKey) -> bool {
        is_audited(self.run, key, self.queue.audit_percent())
    }

    /// Queues the audit of a job whose answer was just accepted. Returns the result if the second answer is there.
    pub(super) fn begin_audit<T>(
        &mut self,
        key: JobKey,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        self.audits.out.insert(key);
        match self.audits.early.remove(&key) {
            Some(early) => self.audit(early, read),
            None => self.put_audit(key).map(|()| None),
        }
    }

    /// Queues a job for any machine except the one whose answer was accepted. Does not exclude machines that
    /// processed a copy of a slow job: with only two machines, none would be left.
    fn put_audit(&self, key: JobKey) -> Result<(), SyncError> {
        let Some(message) = self.audit_message(key) else { return Ok(()) };
        self.ask(|| self.queue.put_job(key, JobCopy::Audit, &message))
    }

    pub(super) fn audit_message(&self, key: JobKey) -> Option<Vec<u8>> {
        let CountedAnswer { input, worker, .. } = self.counted.get(&key)?;
        let (input, not_by) = (*input, Some(worker.clone()));
        Some(JobMessage { run: self.run, key, input, not_by }.to_bytes())
    }

    /// Queues all unanswered audits again.
    pub(super) fn put_audits(&self) -> Result<(), SyncError> {
        self.audits.out.iter().try_for_each(|key| self.put_audit(*key))
    }

    /// Compares a second machine's answer with the accepted one, and returns the result.
    pub(super) fn audit<T>(
        &mut self,
        bytes: AnswerBytes,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        let key = bytes.key;
        let Some(counted) = self.counted.get(&key).filter(|_| self.audits.is_waiting(key)) else {
            self.audits.early.insert(key, bytes);
            return Ok(None);
        };
        let (first, first_result) = (counted.worker.clone(), counted.result);
        let answer = JobAnswer::from_bytes(&bytes.message, self.run);
        let answer = answer.ok().filter(|it| it.key == key && it.input == counted.input);
        let Some(answer) = answer.filter(|answer| answer.worker != first) else {
            // The answer is invalid, or from the audited machine itself.
            self.ask(|| self.queue.forget(&bytes))?;
            let Some(message) = self.audit_message(key) else { return Ok(None) };
            return self
                .ask(|| self.queue.put_job_again(key, JobCopy::Audit, &message))
                .map(|()| None);
        };
        let is_same =
            matches!(answer.kind, AnswerKind::Done { result, .. } if result == first_result);
        if !is_same {
            return Err(ClusterError::Differ { key, first, second: answer.worker }.into());
        }
        // Unaudited results do not wait in memory, where there may be many, and are read again.
        let got = Self::object(self.queue, self.request, &first_result);
        match got.and_then(|bytes| read(JobResult { key, bytes })) {
            Ok(done) => {
                self.audits.out.remove(&key);
                Ok(Some(done))
            }
            Err(AnswerError::Local(error)) => Err(error),
            // The next start finds the answer, and has the job repeated.
            Err(AnswerError::Invalid(why)) => {
                Err(ClusterError::BadResults { key, results: 1, worker: first, why }.into())
            }
        }
    }

    /// Handles an answer to an audited job that is not marked as an audit: the second machine failed, or the first
    /// answer arrived again.
    pub(super) fn handle_audit_trouble(
        &mut self,
        bytes: &AnswerBytes,
        payload: &JobPayload<'_>,
    ) -> Result<(), SyncError> {
        let answer = JobAnswer::from_bytes(&bytes.message, self.run).ok();
        let input = self.counted.get(&bytes.key).map(|counted| counted.input);
        match answer.map(|answer| (answer.worker, answer.kind)).zip(input) {
            Some(((worker, AnswerKind::Trouble(text)), _)) => {
                self.handle_trouble(bytes, worker, text)
            }
            Some(((worker, AnswerKind::Lost { object, text }), input)) => {
                let payload = || payload(bytes.key);
                self.handle_lost((bytes, input), (worker, text), object, &payload)
            }
            // The accepted answer arrived again.
            _ => {
                if let Some(counted) = self.counted.get_mut(&bytes.key) {
                    counted.place = bytes.place;
                }
                Ok(())
            }
        }
    }

    /// Warns if only audits are unanswered, which need a second machine.
    pub(super) fn warn_without_auditors(&mut self) {
        let waits = self.todo.is_empty() && self.out.is_empty() && !self.audits.are_done();
        if waits && !self.audits.warned && self.last_progress.elapsed() > WARN_AFTER {
            self.audits.warned = true;
            self.warn(format!(
                "all jobs of this step are done, but a second machine must repeat {} of them: waiting for a second \
                 machine",
                self.audits.out.len()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::HeightRange;

    #[test]
    fn the_requested_share_of_jobs_is_audited() {
        let keys = (1..2000).map(|at| JobKey::blocks(HeightRange::new(at, at + 1)));
        let keys: Vec<JobKey> = keys.chain((0..1000).map(JobKey::join)).collect();
        for (percent, from, to) in [(0, 0, 0), (5, 100, 200), (50, 1350, 1650), (100, 2999, 2999)] {
            let run = RunId([percent; 32]);
            let count = keys.iter().filter(|key| is_audited(run, **key, percent)).count();
            assert!((from..=to).contains(&count), "{percent}: {count}");
        }
    }
}
