//! What streams and subjects are called.
//!
//! `apus.run.RUN` has the description of a run, `apus.job.RUN.JOB` a job, `apus.answer.RUN.JOB` its answer
//! and `apus.trouble.RUN.JOB.WORKER` why a machine could not do it. `apus.beat.RUN` and `apus.ask` are not
//! stored: signs of life, and the wish for one.

use apus_sync::{JobKey, RunId};

/// The stream of all runs.
pub(crate) const RUNS: &str = "apus-runs";

/// The descriptions of all runs.
pub(crate) const ALL_RUNS: &str = "apus.run.*";

/// Where signs of life are asked for.
pub(crate) const ASK: &str = "apus.ask";

/// Signs of life of all runs.
pub(crate) const ALL_BEATS: &str = "apus.beat.*";

/// Those who do the jobs of a run, as a consumer of its stream.
pub(crate) const WORKERS: &str = "workers";

/// The greatest length of a machine's name.
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
    format!("apus.job.{run}.*")
}

pub(crate) fn all_answers(run: &RunId) -> [String; 2] {
    [format!("apus.answer.{run}.*"), format!("apus.trouble.{run}.*.*")]
}

/// Answers and troubles.
pub(crate) fn any_answer(run: &RunId) -> String {
    format!("apus.*.{run}.>")
}

pub(crate) fn job(run: &RunId, key: JobKey) -> String {
    format!("apus.job.{run}.{}", key.name())
}

pub(crate) fn answer(run: &RunId, key: JobKey) -> String {
    format!("apus.answer.{run}.{}", key.name())
}

pub(crate) fn trouble(run: &RunId, key: JobKey, worker: &str) -> String {
    format!("apus.trouble.{run}.{}.{worker}", key.name())
}

pub(crate) fn beat(run: &RunId) -> String {
    format!("apus.beat.{run}")
}

/// The job of a job's, an answer's or a trouble's subject.
pub(crate) fn key_of(subject: &str) -> Option<JobKey> {
    JobKey::from_name(subject.split('.').nth(3)?)
}

/// Whether a machine's name can be part of a subject.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

/// A name that can be part of a subject, like the one given.
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
        for subject in [job(&run, key), answer(&run, key), trouble(&run, key, "rack-7")] {
            assert_eq!(key_of(&subject), Some(key), "{subject}");
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
