//! `apus cluster`: serve, work, status, and the settings of the queue.

mod args;

pub(crate) use args::{ClusterArgs, ClusterCommand};

#[cfg(feature = "utreexo")]
use crate::by_proofs::{BridgePeersOptions, WorkerProofs};
use crate::failure::{Failure, IO};
use crate::machine::{now, threads, watch_signals};
use crate::peers::USER_AGENT;
use crate::report::{bytes, grouped};
use crate::spelling::lacking_feature;
use crate::sync::command_on;
use crate::{allocator, print};
use apus_chain::{Network, Params};
use apus_cluster::{ClusterKey, Coordinator, LinkError, LinkOptions, Overview, RunSeen, Worker};
use apus_jobs::{
    ClusterError, Jobs, QueueError, SharedQueue, WorkBlocks, WorkRequest, describe_run, work,
};
use apus_p2p::addresses::{NodeAddress, parse_address};
use apus_p2p::network::NetworkOptions;
use apus_p2p::transport::TransportChoice;
use apus_sync::{GivenBlocks, SyncError};
use args::{
    KeyArgs, LinkArgs, NoKey, ObjectsArgs, ServeArgs, StatusArgs, WorkArgs, WorkPeersArgs, key,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked for a run.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Bytes of blocks of peers that may be on their way.
const INCOMING_BYTES: u64 = 64 << 20;

/// Memory that a worker's thread has for what is joined, at least.
const THREAD_BYTES_MIN: u64 = 64 << 20;

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
        ClusterCommand::NatsConf(args) => nats_conf(args),
    }
}

/// Settings of a NATS server that lets in those alone who have the key.
fn nats_conf(args: &KeyArgs) -> Result<(), Failure> {
    print::result(key(args, NoKey::Made)?.server_settings().trim_end())
}

/// Who connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClusterRole {
    Coordinator,
    Worker,
    Looker,
}

/// Where queue and objects are, and the key. The coordinator makes one where there is none; so does a worker whose
/// coordinator may be on the same machine and not there yet.
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
        ClusterRole::Looker => false,
    };
    // What is wrong with the URL is told first.
    options.is_on_loopback()?;
    options.key = key(&args.key, if is_made { NoKey::Made } else { NoKey::Copied })?;
    Ok(options)
}

/// Who else may come to the queue is told.
fn tell_of_open(servers: &[String]) {
    if !servers.is_empty() {
        print::aside(format_args!(
            "warning: the NATS server at {} lets in whoever reaches it, who can end runs there, but not read or change them: \
             start it with the settings that `apus cluster nats-conf` prints",
            servers.join(", ")
        ));
    }
}

fn serve(args: &ServeArgs) -> Result<(), Failure> {
    if args.sync.blocksdir.is_none() {
        return Err(Failure::usage(
            "a run that machines share takes blocks of files, here and on each of them: name their folder by \
             --blocksdir DIR",
        ));
    }
    let options = link(ClusterRole::Coordinator, &args.link, Some(&args.objects))?;
    let coordinator = Coordinator::connect(&options, Duration::from_secs(args.ack_wait.into()))?;
    tell_of_open(coordinator.open_servers());
    let mut coordinator = coordinator.with_audit(args.audit);
    if let Some(replicas) = args.replicas {
        coordinator = coordinator.with_replicas(replicas);
    }
    if let Some(address) = args.give_blocks {
        coordinator = coordinator.with_given(given_blocks(args, address));
    }
    beside(args, &options, &coordinator, || {
        command_on(&args.sync, Some(&SharedQueue { queue: &coordinator }))
    })
}

/// Hands blocks to workers that connect.
fn given_blocks(args: &ServeArgs, address: SocketAddr) -> GivenBlocks {
    let options = NetworkOptions {
        listen: Some(address),
        ..network_options(Params::of(args.sync.chain), AWAY_MAX)
    };
    GivenBlocks::new(options, |address| {
        print::aside(format_args!("blocks for workers: --connect {address}"));
    })
}

/// A network that connects to none.
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
        headers: Vec::new(),
        blocks: None,
    }
}

/// With what a machine does jobs.
struct Means<'a> {
    blocks: WorkerBlocks<'a>,
    #[cfg(feature = "utreexo")]
    proofs: WorkerProofs<'a>,
    scratch: Option<&'a Path>,
    /// For what is joined, where that is not too little for so many threads.
    memory_bytes: u64,
    threads: usize,
}

/// Where a machine has blocks from.
enum WorkerBlocks<'a> {
    Folder(&'a Path),
    Peers(&'a WorkPeersArgs),
}

/// Takes part in one run, or in one after the other.
fn work_on(args: &WorkArgs) -> Result<(), Failure> {
    let blocks = match args.blocksdir.as_deref() {
        Some(folder) if !folder.is_dir() => {
            return Err(Failure::usage(format!(
                "--blocksdir {}: there is no such folder",
                folder.display()
            )));
        }
        Some(folder) => WorkerBlocks::Folder(folder),
        None => {
            // Whatever the chain is, they can be read or not.
            node_addresses(&args.peers, Network::Main)?;
            WorkerBlocks::Peers(&args.peers)
        }
    };
    let options = link(ClusterRole::Worker, &args.link, Some(&args.objects))?;
    allocator::keep_large();
    let interrupt = watch_signals()?;
    let worker = Worker::connect(&options, args.name.as_deref())?;
    tell_of_open(worker.open_servers());
    print::aside(format_args!("{}: waiting for a run", worker.name()));
    #[cfg(feature = "utreexo")]
    let how = BridgePeersOptions {
        proxy: args.peers.proxy,
        transport: node_transport(&args.peers),
        patience: BRIDGE_PATIENCE,
    };
    let means = Means {
        blocks,
        #[cfg(feature = "utreexo")]
        proofs: WorkerProofs { named: &args.proofs, how },
        scratch: args.scratch.as_deref(),
        memory_bytes: args.dbcache << 20,
        threads: threads(args.par),
    };
    loop {
        let seen = next_run(&worker, &interrupt)?;
        let took_part = take_part(&worker, &seen, &means, &interrupt)?;
        if took_part && !args.stay {
            return Ok(());
        }
        allocator::give_back();
    }
}

/// The newest run, once there is one.
fn next_run(worker: &Worker, interrupt: &AtomicBool) -> Result<RunSeen, Failure> {
    let mut heard = Instant::now();
    loop {
        match worker.runs() {
            Ok(runs) => {
                heard = Instant::now();
                tell_of_strange(worker);
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

/// What was in the queue and not for this machine.
fn tell_of_strange(worker: &Worker) {
    for what in worker.passed_over() {
        print::aside(format_args!(
            "warning: {}: {what}. All machines need the same key: --key-file",
            worker.name()
        ));
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
    means: &Means<'_>,
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
    let nodes;
    let run = describe_run(joined.spec());
    if let Some(why) = run.as_ref().and_then(|run| lacking_feature(run.outside?)) {
        return Err(Failure::usage(why));
    }
    #[cfg(feature = "utreexo")]
    let proven = means.proofs.segments(run.and_then(|run| run.chain.parse().ok()))?;
    let request = WorkRequest {
        blocks: match means.blocks {
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
        scratch: means.scratch.map_or_else(std::env::temp_dir, Path::to_owned),
        memory_bytes: means.memory_bytes.max(means.threads as u64 * THREAD_BYTES_MIN),
        threads: means.threads,
        now: now(),
        observer: &print::Warnings,
        interrupt,
    };
    let worked = work(&request, &joined);
    tell_of_strange(worker);
    match worked {
        Ok(_) if joined.was_left() => {
            print::aside(format_args!(
                "{}: run {} has no coordinator that gives a sign of life, and is left for another one",
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
            // Its objects went with it while they were fetched.
            Some(ClusterError::Queue(QueueError::Object(_))) if joined.is_over() => Ok(false),
            _ => Err(error.into()),
        },
    }
}

/// A bridge node has no answer for so long: another machine may do better.
#[cfg(feature = "utreexo")]
const BRIDGE_PATIENCE: Duration = Duration::from_secs(120);

/// The nodes that are asked for blocks.
fn node_addresses(args: &WorkPeersArgs, network: Network) -> Result<Vec<NodeAddress>, Failure> {
    let parse = |node: &String| {
        parse_address(node, network)
            .map_err(|error| Failure::usage(format!("--connect {node}: {error}")))
    };
    args.connect.iter().map(parse).collect()
}

fn node_transport(args: &WorkPeersArgs) -> TransportChoice {
    if args.v2transport == 0 { TransportChoice::V1 } else { TransportChoice::Auto }
}

/// How they are asked.
fn node_options(args: &WorkPeersArgs, params: &Params) -> NetworkOptions {
    // They could be read before there was a run.
    let connect = node_addresses(args, params.network).unwrap_or_default();
    NetworkOptions {
        outbound: connect.len(),
        connect,
        proxy: args.proxy,
        transport: node_transport(args),
        ..network_options(params, Duration::from_secs(args.patience.into()))
    }
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let options = link(ClusterRole::Looker, &args.link, None)?;
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
            "" => "made by another version of the program, or under another key".to_owned(),
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
                "  no coordinator gives a sign of life: the command that began it goes on with it",
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
            print::result("  no machine gives a sign of life")?;
        }
    }
    Ok(())
}

/// Does a run, and its jobs beside it if that is wanted.
pub(super) fn beside(
    args: &ServeArgs,
    options: &LinkOptions,
    coordinator: &Coordinator,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(blocksdir) = args.sync.blocksdir.as_deref().filter(|_| args.work > 0) else {
        return run();
    };
    // Before there are threads.
    watch_signals()?;
    let worker = Worker::connect(options, None)?;
    let scratch = args.scratch.as_deref();
    let blocks = WorkerBlocks::Folder(blocksdir);
    #[cfg(feature = "utreexo")]
    let proofs = WorkerProofs { named: &args.sync.proofs.proofs, how: (&args.sync.peers).into() };
    let memory_bytes = (args.sync.run.dbcache << 20) / 2;
    let threads = args.work.into();
    let means = Means {
        blocks,
        #[cfg(feature = "utreexo")]
        proofs,
        scratch,
        memory_bytes,
        threads,
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(failure) = work_beside(&worker, coordinator, &means, &over) {
                print::aside(format_args!(
                    "warning: no more jobs are done here, and other machines go on: {}",
                    failure.message
                ));
            }
        });
        let ended = run();
        // Its jobs go back where the run is not through.
        over.store(true, Ordering::Relaxed);
        ended
    })
}

/// Takes part in whatever run is open, until all is over.
fn work_beside(
    worker: &Worker,
    coordinator: &Coordinator,
    means: &Means<'_>,
    over: &AtomicBool,
) -> Result<(), Failure> {
    while !over.load(Ordering::Relaxed) {
        let open = coordinator.opened();
        let seen = match worker.runs() {
            Ok(runs) => runs.into_iter().find(|seen| Some(seen.run) == open),
            // The coordinator says so, and decides how long that may be.
            Err(QueueError::Away(_)) => None,
            Err(error) => return Err(apus_sync::SyncError::from(error).into()),
        };
        match seen {
            Some(seen) => match take_part(worker, &seen, means, over) {
                Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
                other => drop(other?),
            },
            None => worker.wait_for_run(LOOK_INTERVAL),
        }
    }
    Ok(())
}
