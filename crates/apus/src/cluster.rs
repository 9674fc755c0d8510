//! `apus cluster`: serve, work, status.

mod args;

pub(crate) use args::ClusterArgs;

use crate::failure::{Failure, IO};
use crate::interrupt::watch_signals;
use crate::machine::{now, threads};
use crate::peers::BridgeOptions;
use crate::print;
use crate::report::{bytes, grouped};
use crate::sync::command_on;
use crate::sync::proofs::named;
use apus_chain::Network;
use apus_cluster::{Coordinator, LinkError, LinkOptions, Overview, RunSeen, Worker};
use apus_p2p::transport::TransportChoice;
use apus_sync::{
    ClusterError, Event, Jobs, Observer, ProofsInput, QueueError, SyncError, WorkRequest,
    describe_run, work,
};
use args::{ClusterCommand, LinkArgs, ObjectsArgs, ServeArgs, StatusArgs, WorkArgs};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked for a run.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// A queue may be away for so long while a machine waits for a run.
const AWAY_MAX: Duration = Duration::from_secs(300);

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Usage(text) => Self::usage(text),
            other => Failure::new(IO, other.to_string()),
        }
    }
}

/// Runs `apus cluster`.
pub(crate) fn command(args: &ClusterArgs) -> Result<(), Failure> {
    match &args.command {
        ClusterCommand::Serve(args) => serve(args),
        ClusterCommand::Work(args) => work_on(args),
        ClusterCommand::Status(args) => status(args),
    }
}

/// Where queue and objects are; says what is not as safe as it might be.
fn link(args: &LinkArgs, objects: Option<&ObjectsArgs>) -> Result<LinkOptions, Failure> {
    let options = LinkOptions {
        nats: args.nats.clone(),
        creds: args.nats_creds.clone(),
        ca: args.nats_ca.clone(),
        objects: objects.map(|args| args.objects.clone()),
    };
    let clear = options.in_the_clear()?;
    if !clear.is_empty() {
        print::aside(format_args!(
            "warning: what goes to {} is not encrypted, the secret among it by which hints are proven right: \
             who reads it can make hints that only seem right. Use tls://, or a tunnel",
            clear.join(", ")
        ));
    }
    Ok(options)
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    if args.sync.blocksdir.is_none() {
        return Err(Failure::usage(
            "a run that machines share takes blocks of files, here and on each of them: name their folder by \
             --blocksdir DIR",
        ));
    }
    let options = link(&args.link, Some(&args.objects))?;
    let coordinator = Coordinator::connect(&options, Duration::from_secs(args.ack_wait.into()))?;
    let coordinator = coordinator.with_audit(args.audit);
    command_on(&args.sync, Some(&coordinator))
}

/// Tells what a machine that does segments has to be told of.
struct Aside;

impl Observer for Aside {
    fn event(&self, event: Event) {
        if let Event::Warning(warning) = event {
            print::aside(format_args!("warning: {warning}"));
        }
    }
}

/// Takes part in one run, or in one after the other.
fn work_on(args: &WorkArgs) -> Result<(), Failure> {
    if !args.blocksdir.is_dir() {
        return Err(Failure::usage(format!(
            "--blocksdir {}: there is no such folder",
            args.blocksdir.display()
        )));
    }
    let options = link(&args.link, Some(&args.objects))?;
    let interrupt = watch_signals()?;
    let worker = Worker::connect(&options, args.name.as_deref())?;
    print::aside(format_args!("{}: waiting for a run", worker.name()));
    loop {
        let seen = next_run(&worker, &interrupt)?;
        let took_part = take_part(&worker, &seen, args, &interrupt)?;
        if took_part && !args.stay {
            return Ok(());
        }
    }
}

/// The newest run, once there is one.
fn next_run(worker: &Worker, interrupt: &AtomicBool) -> Result<RunSeen, Failure> {
    let mut heard = Instant::now();
    loop {
        match worker.runs() {
            Ok(runs) => {
                heard = Instant::now();
                if let Some(seen) = runs.into_iter().next() {
                    return Ok(seen);
                }
            }
            Err(QueueError::Away(_)) if heard.elapsed() < AWAY_MAX => {}
            Err(error) => return Err(SyncError::from(error).into()),
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        worker.wait_for_run(LOOK_INTERVAL);
    }
}

fn stopped() -> Failure {
    let mut failure = Failure::from(SyncError::Interrupted);
    failure.message = "interrupted; the jobs that were under way go to other machines".to_owned();
    failure
}

/// Does segments of a run until it has ended; false where it ended before that.
fn take_part(
    worker: &Worker,
    seen: &RunSeen,
    args: &WorkArgs,
    interrupt: &AtomicBool,
) -> Result<bool, Failure> {
    let joined = match worker.join(seen) {
        Ok(Some(joined)) => joined,
        // It has just ended, or the server has just gone.
        Ok(None) | Err(QueueError::Away(_)) => {
            std::thread::sleep(LOOK_INTERVAL);
            return Ok(false);
        }
        Err(error) => return Err(SyncError::from(error).into()),
    };
    print::aside(format_args!("{}: takes part in run {}", worker.name(), seen.run));
    let proofs = proofs(args, joined.spec())?;
    let request = WorkRequest {
        blocksdir: args.blocksdir.clone(),
        proofs: proofs.as_ref(),
        scratch: args.scratch.clone().unwrap_or_else(std::env::temp_dir),
        threads: threads(args.par),
        now: now(),
        observer: &Aside,
        interrupt,
    };
    match work(&request, &joined) {
        Ok(done) => {
            let (blocks, all) = (grouped(done.work.blocks), bytes(done.work.bytes));
            print::aside(format_args!(
                "{}: run {} has ended; {} jobs done here, {blocks} blocks, {all}",
                worker.name(),
                seen.run,
                grouped(done.segments)
            ));
            Ok(true)
        }
        Err(SyncError::Interrupted) => Err(stopped()),
        // Its objects went with it while they were fetched.
        Err(SyncError::Cluster(ClusterError::Queue(QueueError::Object(_)))) if joined.is_over() => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// A bridge node has no answer for so long: another machine may do better.
const BRIDGE_PATIENCE: Duration = Duration::from_secs(120);

/// Where proofs come from, for the chain that a run is about.
fn proofs(args: &WorkArgs, spec: &[u8]) -> Result<Option<ProofsInput>, Failure> {
    if args.proofs.is_empty() {
        return Ok(None);
    }
    let chain = describe_run(spec).and_then(|run| run.chain.parse::<Network>().ok());
    // A run that is not understood is refused by name later.
    let Some(chain) = chain else { return Ok(None) };
    let (proxy, transport, patience) = (args.proxy, TransportChoice::Auto, BRIDGE_PATIENCE);
    named(&args.proofs, chain, BridgeOptions { proxy, transport, patience }).map(Some)
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let options = link(&args.link, None)?;
    let overview = Overview::ask(&options)?;
    if args.json {
        let text = serde_json::to_string_pretty(&overview);
        return print::result(text.map_err(|error| Failure::io(Path::new("JSON"), error))?);
    }
    if overview.runs.is_empty() {
        return print::result("no run goes on");
    }
    for run in &overview.runs {
        let what = match run.chain.as_str() {
            "" => "made by another version of the program".to_owned(),
            chain => format!(
                "{chain}, up to block {}, {}, {} segments",
                run.stop_height,
                run.by,
                grouped(run.segments as u64)
            ),
        };
        print::result(format_args!("run {}: {what}", run.run))?;
        print::result(format_args!(
            "  {} answered, {} jobs under way, {} waiting",
            grouped(run.answered),
            grouped(run.under_way),
            grouped(run.waiting)
        ))?;
        for worker in &run.workers {
            print::result(format_args!(
                "  {}: {} jobs done, {}",
                worker.name,
                grouped(worker.segments),
                worker.doing
            ))?;
        }
        if run.workers.is_empty() {
            print::result("  no machine gives a sign of life")?;
        }
    }
    Ok(())
}
