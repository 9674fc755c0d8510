//! `apus cluster`: serve, work, status, and settings for the queue.

mod args;

pub(crate) use args::{ClusterArgs, ClusterCommand};

use crate::args::SignatureArgs;
#[cfg(feature = "utreexo")]
use crate::by_proofs::{BridgePeersOptions, WorkerProofs, expect_with_peers};
use crate::failure::{Failure, IO};
use crate::machine::{now, threads, watch_signals};
use crate::peers::{USER_AGENT, node_addresses, transport};
use crate::report::{bytes, grouped};
use crate::spelling::lacking_feature;
use crate::sync::command_on;
use crate::{allocator, print};
use apus_chain::{Network, Params};
use apus_cluster::{
    ClusterKey, Coordinator, ForgetError, LinkError, LinkOptions, Overview, RunSeen, Worker,
};
use apus_engine::script::Signatures;
use apus_jobs::{
    ClusterError, Jobs, QueueError, SharedQueue, WorkBlocks, WorkRequest, describe_run, work,
};
use apus_p2p::headers::HeaderList;
use apus_p2p::network::NetworkOptions;
use apus_p2p::transport::TransportChoice;
use apus_sync::{GivenBlocks, SyncError};
use args::{
    ForgetArgs, KeyArgs, KeyPolicy, LinkArgs, ObjectsArgs, ServeArgs, StatusArgs, WorkArgs,
    WorkPeersArgs, key,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between a worker's searches for a run.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Maximum bytes of blocks from peers in flight.
const INCOMING_BYTES: u64 = 64 << 20;

/// Minimum memory for joined records per worker thread.
const THREAD_BYTES_MIN: u64 = 64 << 20;

/// How long the queue may be unreachable while a worker waits for a run.
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
        ClusterCommand::Forget(args) => forget(args),
        ClusterCommand::NatsConf(args) => nats_conf(args),
    }
}

/// Prints settings for a NATS server that accepts only machines with the key.
fn nats_conf(args: &KeyArgs) -> Result<(), Failure> {
    print::result(key(args, KeyPolicy::Made)?.server_settings().trim_end())
}

/// The role of a process that connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClusterRole {
    Coordinator,
    Worker,
    Viewer,
}

/// Returns the options for queue and objects, with the key. The coordinator creates a missing key; so does a worker
/// whose coordinator may be on the same machine and may not have started yet.
fn link(
    who: ClusterRole,
    args: &LinkArgs,
    objects: Option<&ObjectsArgs>,
) -> Result<LinkOptions, Failure> {
    let mut options = LinkOptions {
        nats: args.nats.clone(),
        key: ClusterKey::new(&[0; 32]),
        creds: args.nats_creds.clone(),
        ca: args.nats_ca.clone(),
        objects: objects.map(|args| args.objects.clone()),
    };
    let is_made = match who {
        ClusterRole::Coordinator => true,
        ClusterRole::Worker => options.is_on_loopback()?,
        ClusterRole::Viewer => false,
    };
    // Report an invalid URL before a missing key.
    options.is_on_loopback()?;
    options.key = key(&args.key, if is_made { KeyPolicy::Made } else { KeyPolicy::Copied })?;
    Ok(options)
}

/// Warns if the queue's servers are open to other users.
fn warn_of_open(servers: &[String]) {
    if !servers.is_empty() {
        print::aside(format_args!(
            "warning: the NATS server at {} accepts any client. A client can end runs, but not read or change \
             them. Start the server with the settings of `apus cluster nats-conf`: nats-server -c FILE -js",
            servers.join(", ")
        ));
    }
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    if args.sync.blocksdir.is_none() {
        return Err(Failure::usage(
            "a shared run reads blocks from files, here and on each worker: give their folder with --blocksdir DIR",
        ));
    }
    let options = link(ClusterRole::Coordinator, &args.link, Some(&args.objects))?;
    let coordinator = Coordinator::connect(&options, Duration::from_secs(args.ack_wait.into()))?;
    warn_of_open(coordinator.open_servers());
    let mut coordinator = coordinator.with_audit(args.audit);
    if let Some(replicas) = args.replicas {
        coordinator = coordinator.with_replicas(replicas);
    }
    if let Some(address) = args.give_blocks {
        coordinator = coordinator.with_given(given_blocks(args, address));
    }
    with_local_worker(args, &options, &coordinator, || {
        command_on(&args.sync, Some(&SharedQueue { queue: &coordinator }))
    })
}

/// Returns the options to serve blocks to workers that connect.
fn given_blocks(args: &ServeArgs, address: SocketAddr) -> GivenBlocks {
    let options = NetworkOptions {
        listen: Some(address),
        ..network_options(Params::of(args.sync.chain), AWAY_MAX)
    };
    GivenBlocks::new(options, |address| {
        print::aside(format_args!("blocks for workers: --connect {address}"));
    })
}

/// Returns the options of a network that connects to no node.
fn network_options(params: &Params, patience: Duration) -> NetworkOptions {
    NetworkOptions {
        params: params.clone(),
        outbound: 0,
        connect: Vec::new(),
        addresses: Vec::new(),
        proxy: None,
        listen: None,
        transport: TransportChoice::Auto,
        user_agent: USER_AGENT.to_owned(),
        bytes_max: INCOMING_BYTES,
        patience,
        headers: HeaderList::default(),
        blocks: None,
    }
}

/// A worker machine's resources for jobs.
struct WorkerSetup<'a> {
    blocks: WorkerBlocks<'a>,
    #[cfg(feature = "utreexo")]
    proofs: WorkerProofs<'a>,
    scratch: Option<&'a Path>,
    /// Memory for joined records; raised if it is too little for the threads.
    memory_bytes: u64,
    threads: usize,
    signatures: &'a SignatureArgs,
}

/// A worker's source of blocks.
enum WorkerBlocks<'a> {
    Folder(&'a Path),
    Peers(&'a WorkPeersArgs),
}

/// Works for one run, or with --stay for one run after another.
fn work_on(args: &WorkArgs) -> Result<(), Failure> {
    #[cfg(feature = "utreexo")]
    expect_with_peers(&args.proofs, args.blocksdir.is_some())?;
    let blocks = match args.blocksdir.as_deref() {
        Some(folder) if !folder.is_dir() => {
            return Err(Failure::usage(format!(
                "--blocksdir {}: there is no such folder",
                folder.display()
            )));
        }
        Some(folder) => WorkerBlocks::Folder(folder),
        None => {
            // Parse the addresses early, with any chain: it only determines default ports.
            node_addresses(&args.peers.connect, Network::Main)?;
            WorkerBlocks::Peers(&args.peers)
        }
    };
    let options = link(ClusterRole::Worker, &args.link, Some(&args.objects))?;
    allocator::keep_large();
    let interrupt = watch_signals()?;
    let worker = Worker::connect(&options, args.name.as_deref())?;
    warn_of_open(worker.open_servers());
    print::aside(format_args!("{}: waiting for a run", worker.name()));
    #[cfg(feature = "utreexo")]
    let how = BridgePeersOptions {
        proxy: args.peers.proxy,
        transport: transport(args.peers.v2transport),
        patience: BRIDGE_PATIENCE,
    };
    let setup = WorkerSetup {
        blocks,
        #[cfg(feature = "utreexo")]
        proofs: WorkerProofs { named: &args.proofs, how },
        scratch: args.scratchdir.as_deref(),
        memory_bytes: args.dbcache << 20,
        threads: threads(args.par),
        signatures: &args.signatures,
    };
    loop {
        let seen = next_run(&worker, &interrupt)?;
        let took_part = match take_part(&worker, &seen, &setup, &interrupt) {
            // A run without a coordinator must not keep this machine from others, unless it computes wrongly.
            Err(failure)
                if !interrupt.load(Ordering::Relaxed)
                    && !Signatures::are_faulty()
                    && worker.set_aside(seen.run) =>
            {
                print::aside(format_args!(
                    "warning: {}: run {} has no coordinator, and this machine cannot take part in it ({}); waiting \
                     for another run. Remove that run with: apus cluster forget {1}",
                    worker.name(),
                    seen.run,
                    failure.message
                ));
                false
            }
            other => other?,
        };
        if took_part && !args.stay {
            return Ok(());
        }
        allocator::give_back();
    }
}

/// Waits until there are runs, and returns the newest one.
fn next_run(worker: &Worker, interrupt: &AtomicBool) -> Result<RunSeen, Failure> {
    let mut last_contact = Instant::now();
    loop {
        match worker.runs() {
            Ok(runs) => {
                last_contact = Instant::now();
                warn_of_skipped(worker);
                if let Some(seen) = runs.into_iter().next() {
                    return Ok(seen);
                }
            }
            Err(QueueError::Away(_)) if last_contact.elapsed() < AWAY_MAX => {}
            Err(error) => return Err(SyncError::from(error).into()),
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        worker.wait_for_run(LOOK_INTERVAL);
    }
}

/// Warns about messages in the queue that this machine cannot read.
fn warn_of_skipped(worker: &Worker) {
    for what in worker.passed_over() {
        print::aside(format_args!(
            "warning: {}: {what}. All machines need the same key: --key-file",
            worker.name()
        ));
    }
}

fn stopped() -> Failure {
    let mut failure = Failure::from(SyncError::Interrupted);
    failure.message = "interrupted: unfinished jobs go to other machines".to_owned();
    failure
}

/// Processes segments of a run until it ends; returns false if this machine stopped earlier.
fn take_part(
    worker: &Worker,
    seen: &RunSeen,
    setup: &WorkerSetup<'_>,
    interrupt: &AtomicBool,
) -> Result<bool, Failure> {
    let joined = match worker.join(seen) {
        Ok(Some(joined)) => joined,
        // The run has just ended, or the server has just become unreachable.
        Ok(None) | Err(QueueError::Away(_)) => {
            std::thread::sleep(LOOK_INTERVAL);
            return Ok(false);
        }
        Err(error) => return Err(SyncError::from(error).into()),
    };
    print::aside(format_args!("{}: joined run {}", worker.name(), seen.run));
    let nodes;
    let run = describe_run(joined.spec());
    if let Some(why) = run.as_ref().and_then(|run| lacking_feature(run.outside?)) {
        return Err(Failure::usage(why));
    }
    let chain = run.and_then(|run| run.chain.parse().ok());
    let signatures = setup.signatures.checks(chain.unwrap_or(Network::Main))?;
    #[cfg(feature = "utreexo")]
    let proven = setup.proofs.segments(chain)?;
    let request = WorkRequest {
        blocks: match setup.blocks {
            WorkerBlocks::Folder(folder) => WorkBlocks::Folder(folder.to_owned()),
            WorkerBlocks::Peers(args) => {
                nodes = move |params: &Params| node_options(args, params);
                WorkBlocks::Peers(&nodes)
            }
        },
        #[cfg(feature = "utreexo")]
        outside: Some(&proven),
        #[cfg(not(feature = "utreexo"))]
        outside: None,
        scratch: setup.scratch.map_or_else(std::env::temp_dir, Path::to_owned),
        memory_bytes: setup.memory_bytes.max(setup.threads as u64 * THREAD_BYTES_MIN),
        threads: setup.threads,
        now: now(),
        signatures: &signatures,
        observer: &print::Warnings,
        interrupt,
    };
    let worked = work(&request, &joined);
    warn_of_skipped(worker);
    match worked {
        Ok(_) if joined.was_left() => {
            print::aside(format_args!(
                "{}: no sign of life from the coordinator of run {}; leaving the run",
                worker.name(),
                seen.run
            ));
            Ok(false)
        }
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
        Err(error) => match ClusterError::of(&error) {
            // The run ended and removed its objects while this machine fetched them.
            Some(ClusterError::Queue(QueueError::Object(_))) if joined.is_over() => Ok(false),
            _ => Err(error.into()),
        },
    }
}

/// Idle timeout of a bridge node, after which another machine may do better.
#[cfg(feature = "utreexo")]
const BRIDGE_PATIENCE: Duration = Duration::from_secs(120);

/// Returns the network options for these nodes.
fn node_options(args: &WorkPeersArgs, params: &Params) -> NetworkOptions {
    // `work_on` already parsed them before it joined a run.
    let connect = node_addresses(&args.connect, params.network).unwrap_or_default();
    NetworkOptions {
        outbound: connect.len(),
        connect,
        proxy: args.proxy,
        transport: transport(args.v2transport),
        ..network_options(params, Duration::from_secs(args.patience.into()))
    }
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let options = link(ClusterRole::Viewer, &args.link, None)?;
    let overview = Overview::ask(&options)?;
    if args.json {
        let text = serde_json::to_string_pretty(&overview);
        return print::result(text.map_err(|error| Failure::io(Path::new("JSON"), error))?);
    }
    if overview.runs.is_empty() {
        return print::result("no active runs");
    }
    for run in &overview.runs {
        let what = match run.chain.as_str() {
            "" => "started by another version of Apus, or with another key".to_owned(),
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
        if !run.led {
            print::result(
                "  no sign of life from the coordinator: rerun the command that started the run to resume it, or \
                 remove the run with `apus cluster forget`",
            )?;
        }
        for worker in &run.workers {
            print::result(format_args!(
                "  {}: {} jobs done, {}",
                worker.name,
                grouped(worker.segments),
                worker.doing
            ))?;
        }
        if run.workers.is_empty() {
            print::result("  no sign of life from any worker")?;
        }
    }
    Ok(())
}

fn forget(args: &ForgetArgs) -> Result<(), Failure> {
    let options = LinkOptions {
        objects: args.objects.clone(),
        ..link(ClusterRole::Viewer, &args.link, None)?
    };
    let run = apus_cluster::forget(&options, &args.run).map_err(|error| match error {
        ForgetError::Link(error) => error.into(),
        ForgetError::Queue(_) => Failure::new(IO, error.to_string()),
        _ => Failure::usage(error),
    })?;
    let rest = match &args.objects {
        Some(_) => ", with its objects",
        None => ". Its objects stay, because --objects was not given",
    };
    print::result(format_args!("removed run {run}{rest}"))
}

/// Executes a run. With `--work`, also processes its jobs on this machine, in parallel.
pub(super) fn with_local_worker(
    args: &ServeArgs,
    options: &LinkOptions,
    coordinator: &Coordinator,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(blocksdir) = args.sync.blocksdir.as_deref().filter(|_| args.work > 0) else {
        return run();
    };
    // Register the handlers before starting threads.
    watch_signals()?;
    let worker = Worker::connect(options, None)?;
    let scratch = args.scratchdir.as_deref();
    let blocks = WorkerBlocks::Folder(blocksdir);
    #[cfg(feature = "utreexo")]
    let proofs = WorkerProofs { named: &args.sync.proofs.proofs, how: (&args.sync.peers).into() };
    let memory_bytes = (args.sync.run.dbcache << 20) / 2;
    let threads = args.work.into();
    let setup = WorkerSetup {
        blocks,
        #[cfg(feature = "utreexo")]
        proofs,
        scratch,
        memory_bytes,
        threads,
        signatures: &args.sync.run.signatures,
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(failure) = work_locally(&worker, coordinator, &setup, &over) {
                print::aside(format_args!(
                    "warning: this machine does no more jobs; the other machines continue: {}",
                    failure.message
                ));
            }
        });
        let ended = run();
        // If the run is incomplete, this machine requeues its jobs.
        over.store(true, Ordering::Relaxed);
        ended
    })
}

/// Processes jobs of the coordinator's open run, until `over` is set.
fn work_locally(
    worker: &Worker,
    coordinator: &Coordinator,
    setup: &WorkerSetup<'_>,
    over: &AtomicBool,
) -> Result<(), Failure> {
    while !over.load(Ordering::Relaxed) {
        let open = coordinator.opened();
        let seen = match worker.runs() {
            Ok(runs) => runs.into_iter().find(|seen| Some(seen.run) == open),
            // The coordinator reports this, and decides how long to tolerate it.
            Err(QueueError::Away(_)) => None,
            Err(error) => return Err(apus_sync::SyncError::from(error).into()),
        };
        match seen {
            Some(seen) => match take_part(worker, &seen, setup, over) {
                Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
                other => drop(other?),
            },
            None => worker.wait_for_run(LOOK_INTERVAL),
        }
    }
    Ok(())
}
