//! Names of streams and subjects.
//!
//! `apus.run.RUN` has the description of a run, `apus.job.RUN.JOB` a job, `apus.answer.RUN.JOB` its answer, and
//! `apus.trouble.RUN.JOB.WORKER` why a machine could not execute it. A copy of a slow job for an idle machine is
//! `apus.job.RUN.JOB.again`; an audit is `apus.job.RUN.JOB.audit`, with the answer `apus.audit.RUN.JOB`. The
//! server does not store `apus.beat.RUN` and `apus.lead.RUN` (heartbeats of machines and of the coordinator),
//! `apus.ask` (a request for heartbeats) and `apus.new` (a run begins).

use apus_jobs::{JobCopy, JobKey, RunId};

/// The stream of all runs.
pub(crate) const RUNS: &str = "apus-runs";

/// The descriptions of all runs.
pub(crate) const ALL_RUNS: &str = "apus.run.*";

/// Requests for heartbeats.
pub(crate) const ASK: &str = "apus.ask";

/// Announcements of new runs.
pub(crate) const NEW: &str = "apus.new";

/// Heartbeats of the machines of all runs.
pub(crate) const ALL_BEATS: &str = "apus.beat.*";

/// Heartbeats of all coordinators.
pub(crate) const ALL_LEADS: &str = "apus.lead.*";

/// The consumer of a run's jobs, shared by all machines.
pub(crate) const WORKERS: &str = "workers";

/// Maximum length of a machine's name.
const NAME_MAX: usize = 64;

pub(crate) fn run(run: &RunId) -> String {
    format!("apus.run.{run}")
}

pub(crate) fn jobs_stream(run: &RunId) -> String {
    format!("apus-jobs-{run}")
}

pub(crate) fn answers_stream(run: &RunId) -> String {
    format!("apus-answers-{run}")
}

pub(crate) fn all_jobs(run: &RunId) -> String {
    format!("apus.job.{run}.>")
}

pub(crate) fn all_answers(run: &RunId) -> [String; 3] {
    [
        format!("apus.answer.{run}.*"),
        format!("apus.audit.{run}.*"),
        format!("apus.trouble.{run}.*.*"),
    ]
}

/// Answers, audit answers and reports of trouble.
pub(crate) fn any_answer(run: &RunId) -> String {
    format!("apus.*.{run}.>")
}

pub(crate) fn job(run: &RunId, key: JobKey, copy: JobCopy) -> String {
    let copy = match copy {
        JobCopy::First => "",
        JobCopy::Again => ".again",
        JobCopy::Audit => ".audit",
    };
    format!("apus.job.{run}.{}{copy}", key.name())
}

/// The kind of copy that a job's subject names.
pub(crate) fn copy_of(subject: &str) -> JobCopy {
    match subject.split('.').nth(4) {
        Some("again") => JobCopy::Again,
        Some("audit") => JobCopy::Audit,
        _ => JobCopy::First,
    }
}

pub(crate) fn answer(run: &RunId, key: JobKey, copy: JobCopy) -> String {
    let what = if copy == JobCopy::Audit { "audit" } else { "answer" };
    format!("apus.{what}.{run}.{}", key.name())
}

/// Whether an answer's subject names an audit.
pub(crate) fn is_audit(subject: &str) -> bool {
    subject.starts_with("apus.audit.")
}

pub(crate) fn trouble(run: &RunId, key: JobKey, worker: &str) -> String {
    format!("apus.trouble.{run}.{}.{worker}", key.name())
}

pub(crate) fn beat(run: &RunId) -> String {
    format!("apus.beat.{run}")
}

pub(crate) fn lead(run: &RunId) -> String {
    format!("apus.lead.{run}")
}

/// The name of the run in a subject, if it has one.
pub(crate) fn run_of(subject: &str) -> &str {
    subject.split('.').nth(2).unwrap_or_default()
}

/// The job in the subject of a job, an answer or a report of trouble.
pub(crate) fn key_of(subject: &str) -> Option<JobKey> {
    JobKey::from_name(subject.split('.').nth(3)?)
}

/// Whether a machine's name can be part of a subject.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

/// Turns a name into one that can be part of a subject.
pub(crate) fn like(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    name.chars().take(NAME_MAX / 2).map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::HeightRange;

    #[test]
    fn jobs_are_found_in_subjects() {
        let (run, key) = (RunId([7; 32]), JobKey::connect(HeightRange::new(5, 900_000)));
        for copy in [JobCopy::First, JobCopy::Again, JobCopy::Audit] {
            let (job, answer) = (job(&run, key, copy), answer(&run, key, copy));
            assert_eq!((copy_of(&job), is_audit(&answer)), (copy, copy == JobCopy::Audit));
            for subject in [job, answer, trouble(&run, key, "rack-7")] {
                assert_eq!(key_of(&subject), Some(key), "{subject}");
            }
        }
        for other in
            ["", "apus.job.x", "apus.job.x.5-7", "apus.job.x.join-5", "apus.job.x.join-5-5"]
        {
            assert_eq!(key_of(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_tokens() {
        assert!(is_name("rack-7_b") && !is_name("") && !is_name("a.b") && !is_name("a b"));
        assert!(!is_name(&"a".repeat(65)) && !is_name("*") && !is_name(">"));
        assert!(is_name(&like("host.example é.org")));
    }
}
