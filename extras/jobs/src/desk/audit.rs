//! [`Audits`]: jobs that are done twice, by two machines, and compared by the [`Desk`].
//!
//! Which they are follows from the run's name, which no machine knows before the run begins, and is the same for each
//! start. Results are the same to the byte, since nothing in them depends on who made them or when.

use super::{CountedAnswer, Desk, Told};
use crate::error::ClusterError;
use crate::job::{JobCopy, JobKey};
use crate::queue::{AnswerBytes, AnswerKind, JobAnswer, JobMessage, RunId};
use apus_hash::sha256;
use apus_sync::error::SyncError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After so long without an answer the user is told what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub(super) struct Audits {
    /// Those that are waited for.
    out: BTreeSet<JobKey>,
    /// Answers that came before they were.
    early: BTreeMap<JobKey, AnswerBytes>,
    /// Whether the user was told that they are waited for.
    told: bool,
}

impl Audits {
    pub(super) fn are_done(&self) -> bool {
        self.out.is_empty()
    }

    pub(super) fn wait_for(&self, key: JobKey) -> bool {
        self.out.contains(&key)
    }

    /// Those from a job on are of no matter.
    pub(super) fn drop_from(&mut self, key: JobKey) {
        self.out.retain(|other| *other < key);
    }
}

/// Whether a job is one of those that are done twice.
fn is_audited(run: RunId, key: JobKey, percent: u8) -> bool {
    let digest = sha256(&[&run.0[..], key.name().as_bytes()].concat());
    let number = u64::from_le_bytes(*digest.first_chunk().expect("it is longer"));
    number % 100 < u64::from(percent)
}

impl Desk<'_> {
    /// Has a job that counts now done once more, if it is one of those.
    pub(super) fn begin_audit(&mut self, key: JobKey) -> Result<(), SyncError> {
        if !is_audited(self.run, key, self.queue.audit_percent()) {
            return Ok(());
        }
        self.audits.out.insert(key);
        match self.audits.early.remove(&key) {
            Some(early) => self.audit(early),
            None => self.put_audit(key),
        }
    }

    /// Puts a job for any machine but the one that answered it. Whether others did it as well is of no matter, or one
    /// that two machines did, of which one was slow, would be for none.
    fn put_audit(&self, key: JobKey) -> Result<(), SyncError> {
        let Some(message) = self.audit_message(key) else { return Ok(()) };
        self.ask(|| self.queue.put_job(key, JobCopy::Audit, &message))
    }

    pub(super) fn audit_message(&self, key: JobKey) -> Option<Vec<u8>> {
        let CountedAnswer { input, worker, .. } = self.counted.get(&key)?;
        let (input, not_by) = (*input, Some(worker.clone()));
        Some(JobMessage { run: self.run, key, input, not_by }.to_bytes())
    }

    /// Puts all again that are waited for.
    pub(super) fn put_audits(&self) -> Result<(), SyncError> {
        self.audits.out.iter().try_for_each(|key| self.put_audit(*key))
    }

    /// Compares what a second machine says with what counts.
    pub(super) fn audit(&mut self, bytes: AnswerBytes) -> Result<(), SyncError> {
        let key = bytes.key;
        let Some(counted) = self.counted.get(&key).filter(|_| self.audits.wait_for(key)) else {
            self.audits.early.insert(key, bytes);
            return Ok(());
        };
        let first = counted.worker.clone();
        let answer = JobAnswer::from_bytes(&bytes.message, self.run);
        let answer = answer.ok().filter(|it| it.key == key && it.input == counted.input);
        let Some(answer) = answer.filter(|answer| answer.worker != first) else {
            // It is of no use, or of the very machine that is to be compared with others.
            self.ask(|| self.queue.forget(&bytes))?;
            let Some(message) = self.audit_message(key) else { return Ok(()) };
            return self.ask(|| self.queue.put_job_anew(key, JobCopy::Audit, &message));
        };
        let is_same =
            matches!(answer.kind, AnswerKind::Done { result, .. } if result == counted.result);
        if !is_same {
            return Err(ClusterError::Differ { key, first, second: answer.worker }.into());
        }
        self.audits.out.remove(&key);
        Ok(())
    }

    /// A machine could not do a job for the second time.
    pub(super) fn unaudited(
        &mut self,
        bytes: &AnswerBytes,
        told: &Told<'_>,
    ) -> Result<(), SyncError> {
        let answer = JobAnswer::from_bytes(&bytes.message, self.run).ok();
        let input = self.counted.get(&bytes.key).map(|counted| counted.input);
        match answer.map(|answer| (answer.worker, answer.kind)).zip(input) {
            Some(((worker, AnswerKind::Trouble(text)), _)) => self.trouble(bytes, worker, text),
            Some(((worker, AnswerKind::Lost { object, text }), input)) => {
                let told = || told(bytes.key);
                self.lost((bytes, input), (worker, text), object, &told)
            }
            // The answer that counts, once more.
            _ => {
                if let Some(counted) = self.counted.get_mut(&bytes.key) {
                    counted.place = bytes.place;
                }
                Ok(())
            }
        }
    }

    /// Says so where nothing but second results is waited for, which one machine alone cannot give.
    pub(super) fn expect_auditors(&mut self) {
        let waits = self.todo.is_empty() && self.out.is_empty() && !self.audits.are_done();
        if waits && !self.audits.told && self.moved.elapsed() > TOLD_AFTER {
            self.audits.told = true;
            self.warn(format!(
                "all jobs of this step are done, and {} of them are to be done by a second machine: the run waits \
                 for one",
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
    fn as_many_jobs_are_done_twice_as_are_asked_for() {
        let keys = (1..2000).map(|at| JobKey::blocks(HeightRange::new(at, at + 1)));
        let keys: Vec<JobKey> = keys.chain((0..1000).map(JobKey::join)).collect();
        for (percent, from, to) in [(0, 0, 0), (5, 100, 200), (50, 1350, 1650), (100, 2999, 2999)] {
            let run = RunId([percent; 32]);
            let count = keys.iter().filter(|key| is_audited(run, **key, percent)).count();
            assert!((from..=to).contains(&count), "{percent}: {count}");
        }
    }
}
