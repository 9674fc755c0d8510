//! `apus sync`, and the run that `hints check` and `snapshot verify` share with it.

mod run;

pub(crate) use run::{run, work_path};

use crate::args::{
    AggregateArg, BlocksArg, ConnectArgs, EngineArg, HintsArg, PeerArgs, RunArgs, SinkArg,
    SourceArgs, SyncArgs,
};
use crate::args::{expect_engine_takes, expect_undo_data, leave_witnesses};
#[cfg(feature = "utreexo")]
use crate::by_proofs;
use crate::coins::Beyond;
use crate::course::{Expected, RunWay, Writes, expected};
use crate::failure::Failure;
use crate::machine::threads;
use crate::node::start_command;
use crate::outside::{BridgeJob, OutsideEngine};
use crate::print;
use crate::report::RunReport;
use crate::watched::About;
use apus_chain::{Network, Params};
use apus_datadir::BlocksFolder;
use apus_sync::engines::swiftsync::hints::BitOrder;
use apus_sync::{DatadirBlocks, Machines, Stop, UseIndex};
use std::path::{Path, PathBuf};

/// Runs `apus sync`.
pub(crate) fn command(args: &SyncArgs) -> Result<(), Failure> {
    command_on(args, None)
}

/// The same with segments that other machines do, where there are some.
pub(crate) fn command_on(args: &SyncArgs, machines: Option<&dyn Machines>) -> Result<(), Failure> {
    let (hints, engine) = (args.hints.as_ref(), args.engine());
    expect_purpose(args)?;
    expect_engine_takes(engine, hints)?;
    let keeps = args.blocksdir.is_some() || args.peers.blocks == BlocksArg::Keep;
    if engine == Some(EngineArg::Mergesync) && !keeps {
        return Err(Failure::usage(
            "the engine mergesync goes over the blocks twice: name their folder by --blocksdir DIR, or have \
             those of peers kept, by --blocks keep with --out chainstate:DIR",
        ));
    }
    #[cfg(feature = "utreexo")]
    let engine_by_proofs = by_proofs::by_proofs(args)?;
    #[cfg(feature = "utreexo")]
    let outside = engine_by_proofs.as_ref().map(by_proofs::outside);
    #[cfg(not(feature = "utreexo"))]
    let outside = None;
    expect_peers(args)?;
    expect_folder_options(args, hints.is_some())?;
    #[cfg(feature = "remote-coins")]
    let beyond = args.coins.beyond(engine == Some(EngineArg::Utxo))?;
    #[cfg(not(feature = "remote-coins"))]
    let beyond = None;
    let source = match &args.blocksdir {
        Some(blocksdir) => {
            JobSource::Files { blocksdir: blocksdir.into(), use_index: UseIndex::IfPresent }
        }
        None => JobSource::Peers(&args.peers),
    };
    let report = run(&RunJob {
        hints,
        engine,
        outside: outside.as_ref(),
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        connect: Some(&args.connect),
        coins: beyond.as_ref(),
        outputs: &args.out,
        replace: args.replace,
        muhash: args.muhash,
        kept: if args.prune { DatadirBlocks::Last } else { DatadirBlocks::All },
        stop: args.stopatheight.map_or(Stop::AtTip, Stop::At),
        machines,
        ..RunJob::new(args.chain, source, &args.run)
    })?;
    let next = args.out.iter().find_map(|sink| match sink {
        SinkArg::Datadir(path) => {
            Some(format!("start a node on it:\n  {}", start_command(path, args.chain, args.prune)))
        }
        SinkArg::Chainstate(path) if args.peers.blocks == BlocksArg::Keep => {
            // It was asked for before the run.
            let datadir = datadir_around(path, args.chain).ok()?;
            let command = start_command(&datadir, args.chain, false);
            Some(format!("start a node on the data directory:\n  {command}"))
        }
        _ => None,
    });
    tell(&report, next)
}

/// Tells what came of a run, what is to be done next, and last what it takes on trust.
pub(crate) fn tell(report: &RunReport, next: Option<String>) -> Result<(), Failure> {
    print::result(report)?;
    if let Some(next) = next {
        print::result(format_args!("\nNext: {next}{}", believed(report)))?;
    }
    match &report.assume_hinted_valid {
        Some(assumed) => print::result(format_args!("\n{assumed}.")),
        None => Ok(()),
    }
}

/// What to know before a node goes on from a set that hints led to, where nothing worse is to be told.
fn believed(report: &RunReport) -> &'static str {
    let told = report.assume_hinted_valid.is_some();
    if told || report.verified.amounts || report.in_assumeutxo_table {
        return "";
    }
    "\n  A node takes all this for validated by itself: it never looks again at what is assumed above."
}

/// The data directory of which a chainstate with blocks beside it is part. A node looks for both in
/// places of their own (Core `chainparamsbase.cpp`, and `node/chainstate.cpp`): elsewhere it would not find
/// them, and begin anew.
fn datadir_around(chainstate: &Path, chain: Network) -> Result<PathBuf, Failure> {
    let layout = chain.data_folder().map_or_else(PathBuf::new, PathBuf::from).join("chainstate");
    let around = std::path::absolute(chainstate).map_err(|error| Failure::io(chainstate, error))?;
    match around.ends_with(&layout) {
        true => Ok(around.ancestors().nth(layout.iter().count()).unwrap_or(&around).to_owned()),
        false => Err(Failure::usage(format!(
            "--blocks keep puts the blocks beside the coins for a node to start on, and on the chain \
             {chain} a node looks for its coins in DIR/{layout} alone: name such a folder, as in --out \
             chainstate:node/{layout}",
            layout = layout.display()
        ))),
    }
}

/// Whether anything but the proof is asked for.
fn writes(outputs: &[SinkArg]) -> bool {
    outputs.iter().any(|sink| sink.path().is_some())
}

/// A line that was sent too early must not find peers and download a chain.
fn expect_purpose(args: &SyncArgs) -> Result<(), Failure> {
    if args.blocksdir.is_some() || !args.peers.connect.is_empty() || writes(&args.out) {
        return Ok(());
    }
    Err(Failure::usage(
        "say where blocks come from, by --blocksdir DIR or --connect NODE; or what to write, by --out: \
         then peers are found (see `apus sync --help`)",
    ))
}

/// A proxy must lead to someone.
fn expect_peers(args: &SyncArgs) -> Result<(), Failure> {
    #[cfg(feature = "utreexo")]
    let asks = args.proofs.name_peers();
    #[cfg(not(feature = "utreexo"))]
    let asks = false;
    match args.peers.proxy.is_some() && args.blocksdir.is_some() && !asks {
        false => Ok(()),
        true => Err(Failure::usage(
            "--proxy is for peers, and there are none: blocks come from --blocksdir",
        )),
    }
}

/// What a data directory can come from, and options that would do nothing.
fn expect_folder_options(args: &SyncArgs, hints: bool) -> Result<(), Failure> {
    let has = |kind: fn(&SinkArg) -> bool| args.out.iter().filter(|sink| kind(sink)).count();
    let chainstates = has(|sink| matches!(sink, SinkArg::Chainstate(_)));
    let datadirs = has(|sink| matches!(sink, SinkArg::Datadir(_)));
    if datadirs > 1 {
        return Err(Failure::usage("one data directory at a time: name one --out datadir:DIR"));
    }
    if args.prune && datadirs == 0 {
        return Err(Failure::usage("--prune is about --out datadir:DIR, which is not given"));
    }
    if args.replace && chainstates == 0 {
        return Err(Failure::usage("--replace is about --out chainstate:DIR, which is not given"));
    }
    if args.peers.blocks == BlocksArg::Keep && args.blocksdir.is_some() {
        return Err(Failure::usage(
            "--blocks keep is about blocks from peers: those of --blocksdir stay where they are",
        ));
    }
    let keeps_there = hints && !args.prune && datadirs > 0;
    if args.peers.blocks == BlocksArg::Keep && chainstates == 0 && !keeps_there {
        return Err(Failure::usage(
            "--blocks keep puts the blocks beside the folder of --out chainstate:DIR, which is not \
             given",
        ));
    }
    if args.peers.blocks == BlocksArg::Keep && !keeps_there {
        for sink in &args.out {
            if let SinkArg::Chainstate(path) = sink {
                datadir_around(path, args.chain)?;
            }
        }
    }
    expect_undo_data(&args.out, hints && args.blocksdir.is_some(), args.prune)
}

/// Where a run's blocks come from.
pub(crate) enum JobSource<'a> {
    /// Core's block files.
    Files { blocksdir: BlocksFolder, use_index: UseIndex },
    /// Peers.
    Peers(&'a PeerArgs),
}

/// A run, whichever command asks for it.
pub(crate) struct RunJob<'a> {
    pub(crate) chain: Network,
    pub(crate) source: JobSource<'a>,
    /// None where every block is connected in order.
    pub(crate) hints: Option<&'a HintsArg>,
    /// The engine, where it is one that a feature adds.
    pub(crate) outside: Option<&'a OutsideEngine<'a>>,
    /// What does blocks without hints, where the user says so.
    pub(crate) engine: Option<EngineArg>,
    /// As the user says; the file itself may settle it.
    pub(crate) hints_order: Option<BitOrder>,
    pub(crate) aggregate: AggregateArg,
    pub(crate) run: &'a RunArgs,
    /// None where the run ends with the hints, and only whether they fit the blocks is asked.
    pub(crate) connect: Option<&'a ConnectArgs>,
    /// Where the coins of blocks that are connected go, if not into the work folder.
    pub(crate) coins: Option<&'a Beyond>,
    pub(crate) outputs: &'a [SinkArg],
    /// Whether a chainstate that is there is moved aside.
    pub(crate) replace: bool,
    /// Whether the set's MuHash is wanted.
    pub(crate) muhash: bool,
    /// What a data directory keeps of the blocks.
    pub(crate) kept: DatadirBlocks,
    pub(crate) stop: Stop,
    /// Proofs to make.
    pub(crate) bridge: Option<BridgeJob<'a>>,
    /// Other machines that do segments.
    pub(crate) machines: Option<&'a dyn Machines>,
}

impl<'a> RunJob<'a> {
    /// A run over all blocks of a chain that writes nothing, and connects none of them.
    pub(crate) fn new(chain: Network, source: JobSource<'a>, run: &'a RunArgs) -> Self {
        Self {
            chain,
            source,
            hints: None,
            outside: None,
            engine: None,
            hints_order: None,
            aggregate: AggregateArg::Sha256,
            run,
            connect: None,
            coins: None,
            outputs: &[],
            replace: false,
            muhash: false,
            kept: DatadirBlocks::All,
            stop: Stop::AtTip,
            bridge: None,
            machines: None,
        }
    }

    /// A run under hints that asks only whether they fit the blocks.
    pub(crate) fn proof(
        source: &'a SourceArgs,
        hints: &'a HintsArg,
        hints_order: Option<BitOrder>,
        aggregate: AggregateArg,
        run: &'a RunArgs,
    ) -> Self {
        let use_index = UseIndex::IfPresent;
        let blocks = JobSource::Files { blocksdir: (&source.blocksdir).into(), use_index };
        let job = Self::new(source.chain, blocks, run);
        Self { hints: Some(hints), hints_order, aggregate, stop: Stop::AtHints, ..job }
    }
}

impl RunJob<'_> {
    /// Whether the run stays at the tip of its peers' chain.
    fn follows(&self) -> bool {
        matches!(&self.source, JobSource::Peers(args) if args.follow)
    }

    /// Where coins stay that are on servers.
    fn coins_place(&self) -> Option<&str> {
        self.coins.map(|beyond| beyond.place.as_str())
    }

    /// Whether blocks from peers are kept.
    fn keeps_blocks(&self) -> bool {
        matches!(&self.source, JobSource::Peers(args) if args.blocks == BlocksArg::Keep)
    }

    /// Whether they are those of a data directory, which [`SyncArgs::keep_for_datadir`] wants.
    fn keeps_for_datadir(&self) -> bool {
        let prunes = self.kept == DatadirBlocks::Last;
        self.keeps_blocks() && self.hints.is_some() && !prunes
    }

    /// Whether the witnesses of blocks whose scripts are taken for valid are left alone.
    fn leaves_witnesses(&self, args: &ConnectArgs) -> Result<bool, Failure> {
        let peers = match &self.source {
            JobSource::Peers(args) => Some(*args),
            JobSource::Files { .. } => None,
        };
        let makes = match self.outside {
            _ if self.bridge.is_some() => Some("`apus utreexo prove`"),
            outside => outside.map(|outside| outside.option),
        };
        leave_witnesses(args, self.outputs, peers, makes)
    }
}

/// What a [`RunJob::proof`] leaves open.
pub(crate) const NOT_ASKED: &str = "Whether these blocks are valid is another question, which `apus \
                                    sync --assumevalid 0` answers without hints.";

/// A run whose whole purpose is the proof.
pub(crate) fn prove(job: &RunJob<'_>) -> Result<RunReport, Failure> {
    match job.aggregate {
        AggregateArg::None => Err(Failure::usage("--aggregate none proves nothing")),
        _ => run(job),
    }
}

impl RunJob<'_> {
    /// What those that watch it are told at once.
    fn about(&self) -> About {
        let by_index =
            matches!(self.source, JobSource::Files { use_index: UseIndex::Connected { .. }, .. });
        let command = match (self.bridge, self.connect) {
            (Some(_), _) => "utreexo prove",
            (None, None) => "check",
            (None, Some(_)) if by_index => "reindex",
            (None, Some(_)) => "sync",
        };
        let (chain, on_servers) = (self.chain.name(), self.coins.is_some());
        About { command, chain, threads: threads(self.run.par), on_servers }
    }

    /// The phases that it is going to have, as far as that is known.
    fn expected(&self) -> Vec<Expected> {
        let kept = self.keeps_blocks();
        let files = matches!(self.source, JobSource::Files { .. });
        let way = match (self.hints, self.engine) {
            (Some(_), _) => {
                RunWay::Hints { connects: self.connect.is_some() && self.stop != Stop::AtHints }
            }
            (None, Some(engine)) => engine.facts().phases,
            (None, None) if files || kept => RunWay::Join,
            (None, None) => RunWay::Order,
        };
        // Without a block up to which they are taken for valid, as on regtest, all are run. Under hints that depends on
        // what is at hand.
        let scripts = self.connect.is_some_and(|args| {
            !args.assume.hinted() && args.assume.block(Params::of(self.chain)).is_none()
        });
        expected(way, scripts, way != RunWay::Proofs, self.writes(kept))
    }

    /// What it writes, where blocks of peers may be `kept` beside it.
    fn writes(&self, kept: bool) -> Writes {
        let has = |is: fn(&SinkArg) -> bool| self.outputs.iter().any(is);
        let datadir = has(|sink| matches!(sink, SinkArg::Datadir(_)));
        match (datadir, self.kept) {
            (true, DatadirBlocks::All) => Writes::AllBlocks,
            (true, DatadirBlocks::Last) => Writes::LastBlocks,
            _ if kept => Writes::CoinsBesideBlocks,
            _ if has(|sink| matches!(sink, SinkArg::Chainstate(_))) => Writes::Coins,
            _ => Writes::Files,
        }
    }
}
