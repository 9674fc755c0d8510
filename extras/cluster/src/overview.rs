//! [`Overview`]: all runs of a queue, their progress and their machines.

use crate::beat::{Beat, Beats, Leaders};
use crate::link::{Link, away};
use crate::names;
use crate::options::{LinkError, LinkOptions};
use crate::worker::{ClosedRun, RunSeen, runs};
use apus_jobs::{QueueError, RunDescription, RunId, describe_run};
use async_nats::jetstream::consumer::{Consumer, pull};
use futures_util::StreamExt;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long to wait for the heartbeats of machines.
const ANSWER_WAIT: Duration = Duration::from_millis(800);

/// All runs of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The active runs, newest first.
    pub runs: Vec<RunOverview>,
}

/// An active run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunOverview {
    /// Its name.
    pub run: String,
    /// Core's name of the chain; empty if the run belongs to another version of the program or to another key.
    pub chain: String,
    /// The height of the wanted UTXO set.
    pub stop_height: u32,
    /// Number of segments.
    pub segments: usize,
    /// Whether all rules are checked.
    pub full: bool,
    /// How blocks are validated, as text for people.
    pub by: &'static str,
    /// Number of jobs answered since the run began.
    pub answered: u64,
    /// Number of jobs that wait for a machine.
    pub waiting: u64,
    /// Number of jobs in progress, including jobs of missing machines, which will be requeued.
    pub under_way: u64,
    /// Whether its coordinator sends heartbeats.
    pub led: bool,
    /// Its machines.
    pub workers: Vec<WorkerOverview>,
}

/// A machine of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerOverview {
    /// Its name.
    pub name: String,
    /// Number of jobs that the machine finished for the run.
    pub segments: u64,
    /// The machine's current work, as text for people.
    pub doing: String,
}

impl Overview {
    /// Queries the queue and all machines.
    pub fn ask(options: &LinkOptions) -> Result<Self, LinkError> {
        let link = Link::connect(options, "apus status")?;
        let failed = |error: QueueError| LinkError::Server {
            url: options.nats.clone(),
            what: error.to_string(),
        };
        link.wait(ask(&link)).map_err(failed)
    }
}

async fn ask(link: &Link) -> Result<Overview, QueueError> {
    let mut signs = link.client.subscribe(names::ALL_BEATS).await.map_err(away)?;
    let leaders = Leaders::default();
    let hearing = leaders.listen(&link.client, link.key.clone()).await.map_err(away)?;
    link.client.publish(names::ASK, "".into()).await.map_err(away)?;
    let mut beats: BTreeMap<String, Beats> = BTreeMap::new();
    let listening = async {
        while let Some(sign) = signs.next().await {
            let beat = link.key.open(&sign.subject, &sign.payload).ok();
            if let Some(beat) = beat.and_then(|beat| Beat::from_bytes(&beat)) {
                beats.entry(beat.run.clone()).or_default().add(beat);
            }
        }
    };
    // The timeout is the normal end: machines may answer until then.
    let _ = tokio::time::timeout(ANSWER_WAIT, listening).await;
    hearing.abort();
    let mut all = Vec::new();
    let (open, closed) = runs(link).await?;
    let closed = closed.into_iter().map(|ClosedRun { run, .. }| RunSeen { run, spec: Vec::new() });
    for seen in open.into_iter().chain(closed) {
        let of = beats.get(&seen.run.name());
        let workers = of.into_iter().flat_map(Beats::all).map(|beat| WorkerOverview {
            name: beat.worker.clone(),
            segments: beat.segments,
            doing: beat.doing(),
        });
        let (answered, waiting, under_way) = counts(link, &seen.run).await?;
        let unknown = RunDescription {
            chain: "",
            stop_height: 0,
            segments: 0,
            full: false,
            by: "",
            outside: None,
        };
        let described = describe_run(&seen.spec).unwrap_or(unknown);
        all.push(RunOverview {
            run: seen.run.name(),
            chain: described.chain.to_owned(),
            stop_height: described.stop_height,
            segments: described.segments,
            full: described.full,
            by: described.by,
            answered,
            waiting,
            under_way,
            led: leaders.has(&seen.run),
            workers: workers.collect(),
        });
    }
    Ok(Overview { runs: all })
}

/// Numbers of answers, waiting jobs, and jobs in progress.
async fn counts(link: &Link, run: &RunId) -> Result<(u64, u64, u64), QueueError> {
    let answers = link.stream(&names::answers_stream(run)).await?;
    let answered = answers.map_or(0, |answers| answers.cached_info().state.messages);
    let Some(jobs) = link.stream(&names::jobs_stream(run)).await? else {
        return Ok((answered, 0, 0));
    };
    let consumer: Consumer<pull::Config> = jobs.get_consumer(names::WORKERS).await.map_err(away)?;
    let info = consumer.cached_info();
    Ok((answered, info.num_pending, info.num_ack_pending as u64))
}
