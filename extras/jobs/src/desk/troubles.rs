//! Answers that do not answer, results that are of no use, objects that are lost: what comes of them at the [`Desk`].

use super::slow::SEEN_MAX;
use super::{Desk, Out, patience};
use crate::error::{ClusterError, RemoteError, RemoteKind, warn};
use crate::job::{JobCopy, JobKey, JobStep};
use crate::queue::{AnswerBytes, AnswerKind, ObjectRef};
use apus_chain::KnownBlock;
use apus_sync::error::{InvalidBlock, SyncError};
use std::time::Instant;

/// After so many machines that could not do a job the run ends; after so many results of it that were of no use; and after so
/// many machines that did not find an object.
const TROUBLE_MAX: usize = 3;

impl Desk<'_> {
    /// A result that is of no use is said to be so, and the job is done again.
    pub(super) fn refuse(
        &mut self,
        answer: &AnswerBytes,
        worker: &str,
        why: String,
    ) -> Result<(), SyncError> {
        let (key, worker) = (answer.key, worker.to_owned());
        self.ask(|| self.queue.forget(answer))?;
        self.expect_use(key, &worker, &why)?;
        self.warn(format!(
            "the result of {worker} for {key} was refused, and that is done again: {why}"
        ));
        match self.out.get(&key).map(|out| out.input) {
            Some(input) => self.put_anew(key, input),
            None => Ok(()),
        }
    }

    /// An answer of one who lacks the key of the run counts for nothing. It goes, or it would stand in the way of a
    /// machine's.
    pub(super) fn pass_over(&mut self, answer: &AnswerBytes) -> Result<(), SyncError> {
        let key = answer.key;
        self.ask(|| self.queue.forget(answer))?;
        self.warn(format!(
            "an answer to {key} was not sealed with the key of this run, and counts for nothing: see who else \
             reaches the queue"
        ));
        if answer.audit {
            let Some(message) = self.audit_message(key) else { return Ok(()) };
            return self.ask(|| self.queue.put_job_anew(key, JobCopy::Audit, &message));
        }
        match self.out.get(&key).map(|out| out.input) {
            Some(input) => self.put_anew(key, input),
            None => Ok(()),
        }
    }

    /// A machine says that blocks, or what was told of them, are at fault. It is believed where the same comes of it here; of
    /// a block only where that is one of the job's; and not where the job was done once already, which is more than words.
    pub(super) fn blame(
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
                let why = format!("it refuses block {height} ({hash}), which is none of the job's");
                return self.refuse(answer, &worker, why);
            }
        }
        let unjudged = |why| ClusterError::Unjudged {
            key,
            worker: worker.clone(),
            said: error.text.clone(),
            why,
        };
        match self.judge(key, input) {
            Ok(AnswerKind::Refused(error)) => {
                self.fail(key, error.into());
                Ok(())
            }
            Ok(AnswerKind::Done { .. }) => {
                let why = format!("it passes here, and that machine says: {}", error.text);
                self.refuse(answer, &worker, why)
            }
            Ok(AnswerKind::Lost { text, .. }) => {
                let why = format!(
                    "it cannot be judged here ({text}), and that machine says: {}",
                    error.text
                );
                self.refuse(answer, &worker, why)
            }
            Ok(AnswerKind::Trouble(why)) => Err(unjudged(why).into()),
            Err(SyncError::Interrupted) => Err(SyncError::Interrupted),
            Err(error) => Err(unjudged(error.to_string()).into()),
        }
    }

    /// Counts what was of no use.
    fn expect_use(&mut self, key: JobKey, worker: &str, why: &str) -> Result<(), SyncError> {
        let results = self.refused.entry(key).or_default();
        *results += 1;
        match *results {
            results @ TROUBLE_MAX.. => {
                let (worker, why) = (worker.to_owned(), why.to_owned());
                Err(ClusterError::Useless { key, results, worker, why }.into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn trouble(
        &mut self,
        answer: &AnswerBytes,
        worker: String,
        text: String,
    ) -> Result<(), SyncError> {
        let key = answer.key;
        // The next start counts anew.
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

    /// A machine did not find an object. What it was told is written again, of what `told` gives; for anything else the
    /// job that left it is done again.
    pub(super) fn lost(
        &mut self,
        (answer, input): (&AnswerBytes, ObjectRef),
        (worker, why): (String, String),
        object: [u8; 32],
        told: &dyn Fn() -> Result<Option<Vec<u8>>, SyncError>,
    ) -> Result<(), SyncError> {
        if input.digest == object {
            self.ask(|| self.queue.forget(answer))?;
            self.lose((answer.key, object), &worker, &why)?;
            let Some(told) = told()?.filter(|told| input.is_of(told)) else {
                let (key, object) = (answer.key, input.name());
                return Err(ClusterError::InputLost { key, object, why }.into());
            };
            let put = || self.queue.put_object(&self.run, &told);
            return patience(self.request).with(put).map(drop);
        }
        let Some(&key) = self.left.get(&object) else {
            return self.trouble(answer, worker, why);
        };
        self.ask(|| self.queue.forget(answer))?;
        if self.out.contains_key(&key) {
            return Ok(());
        }
        if !self.lose((key, object), &worker, &why)? {
            self.warn_of_trouble(&worker, answer.key, &why);
            return Ok(());
        }
        let Some(counted) = self.counted.get(&key) else { return Ok(()) };
        let (place, input) = (counted.place, counted.input);
        self.warn(format!("what was left of {key} is lost, and that is done again: {why}"));
        let before =
            AnswerBytes { place, key, audit: false, is_genuine: true, message: Vec::new() };
        self.ask(|| self.queue.forget(&before))?;
        self.out.insert(key, Out { input, since: Instant::now(), again: false });
        self.put_anew(key, input)
    }

    /// Counts that a machine did not find an object that a job left, or was told: whether to have it again. A machine that says
    /// so again and again may see nothing of the store, and is not believed any more. The run ends where several machines say
    /// so, or where none is here that is believed.
    fn lose(
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
            return Err(ClusterError::Useless { key, results, worker, why }.into());
        }
        Ok(believed)
    }

    fn warn_of_trouble(&self, worker: &str, key: JobKey, text: &str) {
        self.warn(format!("{worker} could not do {key}, which goes to another machine: {text}"));
    }

    pub(super) fn warn(&self, what: String) {
        warn(self.request.env.observer, what);
    }
}
