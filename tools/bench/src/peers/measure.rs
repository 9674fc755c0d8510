//! [`measure`]: starts the nodes, and runs each program in turn, round after round.

use super::reader::BlocksReceived;
use super::{BlockGetter, PeersArgs, PeersMeasured, PeersRecord, VERSION};
use crate::chain::{BenchChain, read_json};
use crate::error::{AtPath, BenchError};
use crate::machine::BenchMachine;
use crate::process;
use crate::run::matrix::CHAINSTATE;
use crate::run::node::{BenchNodeFolder, ServedNode};
use crate::run::own::ApusRunner;
use crate::run::{OneRun, SetResult};
use crate::table::MeasuredSpread;
use apus_testkit::line::{LineRelay, LineState, PeerLine};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fs, thread};

/// Time limit of a run: longer than any should take.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The inputs of the measurement.
pub(super) struct PeersPlan<'a> {
    pub(super) args: &'a PeersArgs,
    /// The program to measure.
    pub(super) program: &'a Path,
    /// The nodes' program.
    pub(super) bitcoind: &'a Path,
    /// This program, which also serves as the bare reader.
    pub(super) own: &'a Path,
    /// The chain.
    pub(super) chain: BenchChain,
    /// A folder for intermediate files. The nodes' copy of the chain is kept there.
    pub(super) scratch: &'a Path,
}

impl PeersPlan<'_> {
    fn v2transport(&self) -> bool {
        self.args.v2transport == 1
    }

    /// Time until the first peer's link stalls in Apus's stalled runs, if there are any.
    fn stall_after(&self) -> Option<Duration> {
        self.args.stall_after.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// Runs all measurements. Differing results are an error.
pub(super) fn measure(
    plan: &PeersPlan<'_>,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<PeersRecord, BenchError> {
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    each("bitcoind: indexing the blocks".to_owned());
    let prepared = BenchNodeFolder::prepare(plan.bitcoind, &plan.chain, plan.scratch, interrupt)?;
    each("bitcoind: hashing its UTXO set".to_owned());
    let set = prepared.set(interrupt)?;
    each(format!("starting {} nodes", plan.args.peers));
    let nodes = PeerNodes::start(plan, &prepared, interrupt)?;
    let downloading = BenchNodeFolder::of_its_own(plan.bitcoind, &plan.chain, plan.scratch)?;
    let mut turns = vec![BlockGetter::Reader, BlockGetter::Apus];
    turns.extend(plan.stall_after().map(|_| BlockGetter::ApusStalled));
    turns.extend(plan.args.against.is_some().then_some(BlockGetter::Bitcoind));
    let mut runs: BTreeMap<BlockGetter, Vec<OneRun>> = BTreeMap::new();
    for round in 1..=plan.args.rounds {
        for &who in &turns {
            let run = turn(plan, &nodes, &downloading, &set, who, round, interrupt)?;
            let (of, wall_seconds) = (plan.args.rounds, run.wall_seconds);
            each(format!("round {round} of {of}: {who}: {wall_seconds:.3} s"));
            runs.entry(who).or_default().push(run);
        }
        // The order changes, so that no program always has the same predecessor.
        turns.reverse();
    }
    drop(nodes);
    if plan.args.against.is_some() {
        each("bitcoind: hashing its UTXO set".to_owned());
        different("bitcoind's own set from peers", &set.differences(&downloading.set(interrupt)?))?;
        downloading.remove()?;
    }
    let manifest = plan.chain.manifest.as_ref();
    let bytes = manifest.map_or(0, |manifest| manifest.bytes);
    Ok(PeersRecord {
        version: VERSION,
        machine,
        bitcoind: prepared.version.clone(),
        bip30_lookups: Some(prepared.looks_up_bip30()),
        chain: plan.chain.name.clone(),
        blocks: set.stop_height.into(),
        bytes,
        peers: plan.args.peers.into(),
        v2transport: plan.v2transport(),
        dbcache_mib: plan.args.dbcache,
        line: plan.args.line.map(|line| line.to_string()),
        stall_after_seconds: plan.stall_after().map(|after| after.as_secs_f64()),
        output: Some(CHAINSTATE.to_owned()),
        rounds: plan.args.rounds,
        set,
        measured: measured(plan, &runs, bytes),
    })
}

/// Nodes that serve the chain, each behind its link.
struct PeerNodes {
    // Dropped in this order: links before the nodes behind them.
    relays: Vec<LineRelay>,
    served: Vec<ServedNode>,
}

impl PeerNodes {
    fn start(
        plan: &PeersPlan<'_>,
        prepared: &BenchNodeFolder,
        interrupt: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let mut nodes = Self { relays: Vec::new(), served: Vec::new() };
        let line = plan.args.line.or(plan.stall_after().map(|_| PeerLine::default()));
        for index in 0..plan.args.peers {
            let copy = plan.scratch.join(format!("peer-{index}"));
            let node = prepared.serve(&copy, plan.v2transport(), interrupt)?;
            if let Some(line) = line {
                nodes.relays.push(LineRelay::start(node.address, line, index.into()).at(&copy)?);
            }
            nodes.served.push(node);
        }
        Ok(nodes)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        if self.relays.is_empty() {
            return self.served.iter().map(|node| node.address).collect();
        }
        self.relays.iter().map(LineRelay::address).collect()
    }

    /// A missing node would silently change the measurement.
    fn expect_all(&self) -> Result<(), BenchError> {
        match self.served.iter().find(|node| node.has_ended()) {
            Some(node) => {
                let message = format!("the node at {} ended during the measurement", node.address);
                Err(BenchError::rpc("blocks", message))
            }
            None => Ok(()),
        }
    }

    /// Calls a function while the first link stalls from a given time on; restores the link afterwards.
    fn stalling<T>(
        &self,
        after: Duration,
        does: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let (over, waits) = channel::<()>();
        let (done, stalled) = thread::scope(|scope| {
            let staller = scope.spawn(move || {
                let late = waits.recv_timeout(after) == Err(RecvTimeoutError::Timeout);
                if late && let Some(relay) = self.relays.first() {
                    relay.set(LineState::Stalled);
                }
                late
            });
            let done = does();
            drop(over);
            (done, staller.join().expect("it only waits"))
        });
        if let Some(relay) = self.relays.first() {
            relay.set(LineState::Cut);
            relay.set(LineState::Open);
        }
        let done = done?;
        if stalled {
            return Ok(done);
        }
        Err(BenchError::usage(format!(
            "a run ended before its link stalled at {} s: use a shorter --stall-after, or make a longer \
             chain",
            after.as_secs_f64()
        )))
    }
}

/// One run of one program; checks its result against the expected set.
fn turn(
    plan: &PeersPlan<'_>,
    nodes: &PeerNodes,
    downloading: &BenchNodeFolder,
    set: &SetResult,
    who: BlockGetter,
    round: u32,
    interrupt: &AtomicBool,
) -> Result<OneRun, BenchError> {
    let peers = nodes.addresses();
    let run = match who {
        BlockGetter::Reader => read(plan, &peers, set, round, interrupt)?,
        BlockGetter::Apus => apus(plan, &peers, set, round, interrupt)?,
        BlockGetter::ApusStalled => nodes
            .stalling(plan.stall_after().unwrap_or_default(), || {
                apus(plan, &peers, set, round, interrupt)
            })?,
        BlockGetter::Bitcoind => {
            let dbcache = plan.args.dbcache;
            let usage = downloading.download(&peers, plan.v2transport(), dbcache, interrupt)?;
            OneRun::of(round, usage)
        }
    };
    nodes.expect_all()?;
    Ok(run)
}

fn read(
    plan: &PeersPlan<'_>,
    peers: &[SocketAddr],
    set: &SetResult,
    round: u32,
    interrupt: &AtomicBool,
) -> Result<OneRun, BenchError> {
    let path = plan.scratch.join("reader.json");
    if path.exists() {
        fs::remove_file(&path).at(&path)?;
    }
    let mut command = Command::new(plan.own);
    command.args(["peers", "--v2transport", &plan.args.v2transport.to_string()]);
    for peer in peers {
        command.args(["--read", &peer.to_string()]);
    }
    command.arg("--counts").arg(&path);
    let usage = process::run(&mut command, LIMIT, interrupt)?;
    let received: BlocksReceived = read_json(&path)?;
    let bytes = plan.chain.manifest.as_ref().map_or(received.bytes, |manifest| manifest.bytes);
    let wanted = BlocksReceived { blocks: set.stop_height.into(), bytes };
    let mut wrong = Vec::new();
    if received != wanted {
        let of = |it: &BlocksReceived| format!("{} blocks of {} bytes", it.blocks, it.bytes);
        wrong.push(format!("{} and {}", of(&wanted), of(&received)));
    }
    different("the reader", &wrong)?;
    Ok(OneRun::of(round, usage))
}

fn apus(
    plan: &PeersPlan<'_>,
    peers: &[SocketAddr],
    set: &SetResult,
    round: u32,
    interrupt: &AtomicBool,
) -> Result<OneRun, BenchError> {
    let apus = ApusRunner::new(plan.program, plan.scratch);
    let arguments =
        apus.download_arguments(&plan.chain, peers, plan.v2transport(), plan.args.dbcache);
    let (run, report) = apus.run(&arguments, None, round, interrupt)?;
    different("apus", &set.differences(&report.set))?;
    Ok(run)
}

fn different(who: &str, what: &[String]) -> Result<(), BenchError> {
    if what.is_empty() {
        return Ok(());
    }
    Err(BenchError::different(format!(
        "the prepared node and {who} disagree: {}: one of them is wrong, so no times are reported",
        what.join(", ")
    )))
}

/// The statistics of the runs.
fn measured(
    plan: &PeersPlan<'_>,
    runs: &BTreeMap<BlockGetter, Vec<OneRun>>,
    bytes: u64,
) -> Vec<PeersMeasured> {
    let lines = plan.args.line.and_then(|line| line.bits_per_second).map(|bits| {
        let peers = f64::from(plan.args.peers);
        bits as f64 / 8.0 * peers
    });
    let ratios = |who: &[OneRun], other: &[OneRun]| {
        let pairs = who.iter().zip(other);
        MeasuredSpread::of(&pairs.map(|(a, b)| a.wall_seconds / b.wall_seconds).collect::<Vec<_>>())
    };
    let one = |(&who, own): (&BlockGetter, &Vec<OneRun>)| {
        let spread =
            |of: fn(&OneRun) -> f64| MeasuredSpread::of(&own.iter().map(of).collect::<Vec<_>>());
        let wall_seconds = spread(|run| run.wall_seconds)?;
        let bytes_per_second = bytes as f64 / wall_seconds.median;
        let others = runs.iter().filter(|(other, _)| **other != who);
        Some(PeersMeasured {
            who,
            runs: own.clone(),
            wall_seconds,
            cpu_seconds: spread(|run| run.cpu_seconds)?,
            rss_peak_bytes: own.iter().filter_map(|run| run.rss_peak_bytes).max(),
            bytes_per_second,
            line_share: lines.map(|lines| bytes_per_second / lines),
            over: others.filter_map(|(&other, its)| Some((other, ratios(own, its)?))).collect(),
        })
    };
    runs.iter().filter_map(one).collect()
}
