//! [`Overview`]: all runs of a queue, how far they are and which machines are at them.

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

/// Machines have so long to answer.
const ANSWER_WAIT: Duration = Duration::from_millis(800);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The runs that go on, the newest first.
    pub runs: Vec<RunOverview>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunOverview {
    /// Its name.
    pub run: String,
    /// Core's name of the chain; empty where another version of the program made the run, or it was begun under another key.
    pub chain: String,
    /// The height whose set is wanted.
    pub stop_height: u32,
    /// How many segments it has.
    pub segments: usize,
    /// Whether all rules are checked.
    pub full: bool,
    /// By what its blocks are done, for people.
    pub by: &'static str,
    /// Jobs that were answered since the coordinator began the run.
    pub answered: u64,
    /// Jobs that wait for a machine.
    pub waiting: u64,
    /// Jobs that machines are at, or that are missed and will be offered again.
    pub under_way: u64,
    /// Whether its coordinator gives signs of life.
    pub led: bool,
    /// The machines.
    pub workers: Vec<WorkerOverview>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerOverview {
    /// Its name.
    pub name: String,
    /// Jobs that it did for the run.
    pub segments: u64,
    /// What it does, for people.
    pub doing: String,
}

impl Overview {
    /// Asks the queue and all machines.
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
    // How long it takes is what is wanted.
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

/// Answers, jobs that wait, and jobs that are under way.
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
