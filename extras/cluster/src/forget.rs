//! [`forget`]: removes a run that has no coordinator any more.

use crate::beat::{BEAT_INTERVAL, Leaders};
use crate::link::{Link, away};
use crate::names;
use crate::options::{LinkError, LinkOptions};
use crate::worker::{RunSeen, runs};
use apus_jobs::{QueueError, RunId};
use std::time::Duration;

/// How long to listen for a coordinator: longer than the interval of heartbeats, in case the request for one is lost.
const LEAD_WAIT: Duration = BEAT_INTERVAL.saturating_add(Duration::from_millis(500));

/// Why a run was not removed.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The server or the options are unusable.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The queue or the object store failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// There is no such run.
    #[error("the queue has no run {name}; it has {}", list(.others))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of all runs.
        others: Vec<String>,
    },
    /// Several runs begin with this name.
    #[error("several runs begin with {name}: {}. Give more digits", list(.runs))]
    Ambiguous {
        /// The requested name.
        name: String,
        /// Their names.
        runs: Vec<String>,
    },
    /// Its coordinator sends heartbeats.
    #[error("run {run} has a coordinator: stop it first (Ctrl-C), then forget the run")]
    Led {
        /// The name of the run.
        run: String,
    },
}

fn list(runs: &[String]) -> String {
    if runs.is_empty() { "no runs".to_owned() } else { runs.join(", ") }
}

/// Removes a run, named by the first digits of its name, from the queue and the object store, if the options name one.
/// Returns its full name. Fails, and changes nothing, if the run has a coordinator.
pub fn forget(options: &LinkOptions, name: &str) -> Result<String, ForgetError> {
    let link = Link::connect(options, "apus forget")?;
    link.wait(async {
        let run = find(&link, name).await?;
        let leaders = Leaders::default();
        let listening = leaders.listen(&link.client, link.key.clone()).await.map_err(away)?;
        link.client.publish(names::ASK, "".into()).await.map_err(away)?;
        let heard = async {
            while !leaders.has(&run) {
                tokio::time::sleep(LEAD_WAIT / 100).await;
            }
        };
        let heard = tokio::time::timeout(LEAD_WAIT, heard).await;
        listening.abort();
        if heard.is_ok() {
            return Err(ForgetError::Led { run: run.name() });
        }
        link.remove_run(&run).await?;
        if options.objects.is_some() {
            link.objects.remove_all(&run).await?;
        }
        Ok(run.name())
    })
}

/// Finds the run whose name begins with these digits.
async fn find(link: &Link, name: &str) -> Result<RunId, ForgetError> {
    let (open, closed) = runs(link).await?;
    let all = open.into_iter().map(|RunSeen { run, .. }| run);
    let all: Vec<RunId> = all.chain(closed.into_iter().map(|closed| closed.run)).collect();
    let names = |runs: &[RunId]| runs.iter().map(RunId::name).collect();
    let is_it = |run: &&RunId| !name.is_empty() && run.name().starts_with(name);
    match &all.iter().filter(is_it).copied().collect::<Vec<_>>()[..] {
        [] => Err(ForgetError::Unknown { name: name.to_owned(), others: names(&all) }),
        [run] => Ok(*run),
        runs => Err(ForgetError::Ambiguous { name: name.to_owned(), runs: names(runs) }),
    }
}
